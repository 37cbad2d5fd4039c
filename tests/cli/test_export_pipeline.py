"""``smlaunch export pipeline``: a job or a file of several; what is deployed of it, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

from smlaunch.job.yaml_file import dump_job_yaml
from tests.cli.conftest import Shell

STEPS = [
    {"name": "clean", "job": {"entry": "train.py", "strategy": "processing"}, "cache": "1d"},
    {"name": "train", "job": {"entry": "train.py", "strategy": "custom"}, "inputs": {"data": "clean"}},
]


def write(shell: Shell, steps: list[dict[str, object]]) -> Path:
    path = shell.folder / "churn.yaml"
    path.write_text(dump_job_yaml({"steps": steps}))
    return path


def test_a_file_of_several_jobs_is_deployed_once(endpoint_shell: Shell) -> None:
    write(endpoint_shell, STEPS)
    arguments = ("export", "pipeline", "churn.yaml", "--local", "--deploy")
    first = endpoint_shell(*arguments)
    assert first.code == 0, first.err
    assert first.out.rstrip().endswith(":pipeline/churn")
    assert "created; each execution is a run: aws sagemaker start-pipeline-execution" in first.err
    assert re.search("warning: train-[0-9a-f]{8}: inputs.data: an earlier step will write it", first.err)
    second_result = endpoint_shell(*arguments, "--json", "--no-stage")
    assert json.loads(second_result.out) == {
        "run": None,
        "staged": False,
        "files": [],
        "pipeline": first.out.rstrip(),
        "change": "unchanged",
    }


def test_a_job_alone_is_deployed_under_another_name(endpoint_shell: Shell) -> None:
    result = endpoint_shell("export", "pipeline", "train.py", "--local", "--deploy", "--called", "mine")
    assert result.code == 0, result.err
    assert result.out.rstrip().endswith(":pipeline/mine")
    refusal = endpoint_shell("export", "pipeline", "train.py", "--local", "--deploy", "--called", "no good")
    assert (refusal.code, refusal.out) == (2, "") and "--called: 'no good'" in refusal.err


def test_what_a_file_of_several_jobs_cannot_be_given_is_refused(shell: Shell) -> None:
    write(shell, STEPS)
    arguments = ("export", "pipeline", "churn.yaml", "--local", "--no-stage")
    refusal = shell(*arguments, "--hosts", "2", "--hp", "lr=1", "--", "--fast")
    assert (refusal.code, refusal.out) == (2, "")
    for name in ("--hosts", "--hp", "--"):
        assert f"{name}: a pipeline file describes its jobs itself" in refusal.err
    embedded = shell(*arguments, "--deploy")
    assert embedded.code == 2 and "--deploy: the local endpoint of this command ends" in embedded.err


def test_a_pipelines_file_is_no_job(shell: Shell) -> None:
    write(shell, STEPS)
    refusal = shell("plan", "churn.yaml", "--local")
    assert (refusal.code, refusal.out) == (2, "")
    assert (
        "churn.yaml is a pipeline file with several jobs: `smlaunch export pipeline churn.yaml`"
        in refusal.err
    )


def test_a_name_is_refused_with_everything_else(shell: Shell) -> None:
    arguments = ("export", "pipeline", "train.py", "--local", "--no-stage", "--name", "mine")
    refusal = shell(*arguments, "--max-runtime", "2m", "--segment", "60s")  # nothing in the script can be cut
    assert (refusal.code, refusal.out) == (2, "")
    assert "  name: every execution of a pipeline is a new run" in refusal.err
    assert "  limits.segment: " in refusal.err
