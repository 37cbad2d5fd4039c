"""A Ray cluster of two hosts of the endpoint, from the script's start to its end."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.e2e.command import ENTRYPOINTS
from tests.real.frameworks import smlaunch_of, write_digits

SCRIPT = ENTRYPOINTS / "train_ray.py"


def test_tasks_and_actors_on_both_hosts_learn_what_one_process_learns(home: Path, tmp_path: Path) -> None:
    """The script checks itself that tasks ran on every node, and how much the weights differ."""
    digits = write_digits(tmp_path / "digits")
    inputs = ("--input", f"train={digits / 'train'}", "--input", f"test={digits / 'test'}")
    result = smlaunch_of(
        "frameworks", home, "run", SCRIPT, "--hosts", "2", *inputs, "--local", "--name", "rays"
    )
    assert result.code == 0, result.text
    assert "strategy ray" in result.err
    nodes = re.findall(r"algo-1 node (\S+) trained on 719 of 1438 rows", result.out)
    assert len(set(nodes)) == 2, result.text
    match = re.search(r"weights off by (\S+) at most from those of one process", result.out)
    assert match is not None
    assert float(match.group(1)) < 1e-10
    accuracy = re.search(r"held-out accuracy (\S+)", result.out)
    assert accuracy is not None
    assert float(accuracy.group(1)) > 0.93


DYING_SCRIPT = """
import os, signal, time
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ray.init()
other = next(n for n in ray.nodes() if n["NodeManagerAddress"] != ray.util.get_node_ip_address())


@ray.remote(num_cpus=1, max_retries=0)
def end_node() -> None:
    os.kill(int(open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[1]), signal.SIGKILL)


place = NodeAffinitySchedulingStrategy(other["NodeID"], soft=False)
end_node.options(scheduling_strategy=place).remote()
print("asked for it", flush=True)
time.sleep(120)
"""


@pytest.mark.parametrize(
    ("script", "host", "cause"),
    [
        ("import ray\nray.init()\nraise ValueError('no data here')\n", "algo-1", "ValueError: no data here"),
        (DYING_SCRIPT, "algo-2", ""),
    ],
    ids=["driver", "node"],
)
def test_what_fails_is_named_and_ends_everything(
    home: Path, tmp_path: Path, script: str, host: str, cause: str
) -> None:
    """The driver fails; or a task kills Ray on the other host (its grandparent is ``ray start``)."""
    file = tmp_path / "source" / "drive.py"
    file.parent.mkdir()
    file.write_text(script)
    arguments = ("--strategy", "ray", "--hosts", "2", "--local", "--name", "fails", "--json")
    result = smlaunch_of("frameworks", home, "run", file, *arguments)
    assert result.code == 1, result.text
    (job,) = json.loads(result.out)["jobs"]
    assert job["failure"]["host"] == host, result.text
    assert cause in job["failure"]["cause"]
    if host == "algo-2":
        assert "service ray-worker on algo-2 was killed by SIGKILL" in result.text
