"""``smlaunch plan`` on described workloads (tests/planner/workloads) gives what was expected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Shell

FOLDER = Path(__file__).parent.parent / "planner" / "workloads"


@pytest.mark.parametrize(
    "name",
    ["02-one-accelerator", "03-scale-up", "05-heavy-preprocessing", "10-model-larger-than-an-accelerator"],
)
def test_the_command_chooses_what_was_expected(shell: Shell, name: str) -> None:
    workload = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    expected = workload["expected"]
    (shell.folder / workload["job"]["entry"]).write_text(workload["script"], encoding="utf-8")
    (shell.folder / "job.yaml").write_text(yaml.safe_dump(workload["job"]), encoding="utf-8")
    # One of the scripts needs GPUs, which the hosts of --local lack.
    result = shell("plan", "job.yaml", "--local", "--json", "--allow", "script.backend")
    assert result.code == 0, result.err
    plan_document = json.loads(result.out)
    assert (plan_document["strategy"], plan_document["hosts"]) == (expected["strategy"], expected["hosts"])
    assert [plan_document["instance_type"]] == expected["instance_types"]
    (chosen,) = (row for row in plan_document["candidates"] if row["chosen"])
    assert chosen["feasible"]
    assert chosen["processes_per_host"] == expected["processes_per_host"]
    rejections = {
        (row["rule"], row["instance_type"]) for row in plan_document["candidates"] if not row["feasible"]
    }
    assert set(expected["rejected"].items()) <= rejections


def test_the_table_is_printed_and_a_simple_job_has_none(shell: Shell) -> None:
    (shell.folder / "train.py").write_text("import torch\n", encoding="utf-8")
    result = shell("plan", "train.py", "--local")
    assert "Machines compared" not in result.out
    (shell.folder / "job.yaml").write_text(
        "entry: train.py\nworkload: {time_on_one: 10h}\n", encoding="utf-8"
    )
    result = shell("plan", "job.yaml", "--local")
    assert result.code == 0, result.err
    assert "  * 1 x ml.g5.xlarge " in result.out
    assert "\x1b" not in result.out


def test_a_package_that_is_not_there_is_told_before_the_job_fails_of_it(shell: Shell) -> None:
    (shell.folder / "train.py").write_text("import no_such_package\n", encoding="utf-8")
    result = shell("plan", "train.py", "--local")
    assert result.code == 2
    assert "the hosts' Python lacks what the script imports: no_such_package (train.py:1)" in result.err
    (shell.folder / "requirements.txt").write_text("no-such-package\n", encoding="utf-8")
    (shell.folder / "job.yaml").write_text(
        "entry: train.py\nrequirements: requirements.txt\n", encoding="utf-8"
    )
    assert "no_such_package" not in shell("plan", "job.yaml", "--local").out
