"""Every failure is reported once, clearly, and with the right exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.command import smlaunch

RAISES_ON_ONE_RANK = """\
import os, sys, time
print("rank", os.environ["RANK"], "begins", flush=True)
if os.environ["RANK"] == "3":
    raise ValueError("planted on rank 3")
time.sleep(600)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    path = folder / "train.py"
    path.write_text("print('hello')\n")
    return path


def test_a_rank_that_raises_is_named_with_its_traceback_first(home: Path, script: Path) -> None:
    script.write_text(RAISES_ON_ONE_RANK)
    shape = ("--strategy", "ddp", "--hosts", "2", "--processes-per-host", "2")
    result = smlaunch("run", script, *shape, "--local", "--json", "--name", "planted")
    assert result.code == 1, result.text
    failure = result.json()["jobs"][0]["failure"]
    assert (failure["host"], failure["rank"], failure["exit_code"]) == ("algo-2", 3, 1)
    assert "ValueError: planted on rank 3" in failure["cause"]
    assert "Traceback" in failure["traceback"]

    details = smlaunch("show", "planted", "--local")
    assert "rank 3 on algo-2 exited with code 1: ValueError: planted on rank 3" in details.out


def test_the_traceback_comes_first(home: Path, script: Path) -> None:
    script.write_text(RAISES_ON_ONE_RANK)
    shape = ("--strategy", "ddp", "--hosts", "2", "--processes-per-host", "2")
    result = smlaunch("run", script, *shape, "--local")
    assert result.code == 1, result.text
    errors = result.err
    assert errors.index("Traceback (most recent call last)") < errors.index(
        "rank 3 on algo-2 exited with code 1"
    )


def test_an_entry_point_that_does_not_exist(home: Path, tmp_path: Path) -> None:
    result = smlaunch("run", tmp_path / "nowhere.py", "--local")
    assert result.code == 2
    assert "entry:" in result.err
    assert "nowhere.py" in result.err
    assert "Traceback" not in result.err


def test_an_input_path_that_does_not_exist(home: Path, script: Path, tmp_path: Path) -> None:
    result = smlaunch("run", script, "--input", f"train={tmp_path / 'missing'}", "--local")
    assert result.code == 2
    assert "inputs.train" in result.err
    assert "missing" in result.err


def test_an_s3_prefix_in_a_bucket_that_does_not_exist(home: Path, script: Path) -> None:
    result = smlaunch("run", script, "--input", "train=s3://no-such-bucket/data/", "--local")
    assert result.code == 2
    assert "inputs.train" in result.err
    assert "no-such-bucket" in result.err


def test_an_s3_prefix_without_objects_in_a_bucket_that_exists(home: Path, script: Path) -> None:
    assert smlaunch("run", script, "--local").code == 0
    (bucket,) = (path for path in (home / "s3").iterdir() if path.name.startswith("sagemaker-"))
    result = smlaunch("run", script, "--input", f"train=s3://{bucket.name}/nothing/here/", "--local")
    assert result.code == 2
    assert "inputs.train" in result.err
    assert "nothing/here/" in result.err


def test_a_job_file_with_five_mistakes_gives_five_lines(home: Path, script: Path) -> None:
    job = script.parent / "job.yaml"
    job.write_text(
        "entry: train.py\n"
        "strategy: dpp\n"
        "compute: {hosts: 0, processes_per_hosts: 2}\n"
        "inputs: {'bad name': s3://bucket/data/}\n"
        "limits: {max_runtime: 3 fortnights}\n"
    )
    result = smlaunch("run", job, "--local")
    assert result.code == 2
    for arguments in (
        ("strategy:", "'dpp'", "ddp"),
        ("compute.hosts:",),
        ("compute.processes_per_hosts:", "processes_per_host"),
        ("inputs", "bad name"),
        ("limits.max_runtime:", "3 fortnights"),
    ):
        assert any(all(word in line for word in arguments) for line in result.err.splitlines()), (
            arguments,
            result.err,
        )


def test_a_dry_run_sends_nothing(home: Path, script: Path) -> None:
    result = smlaunch("run", script, "--hosts", "2", "--strategy", "ddp", "--local", "--dry-run")
    assert result.code == 0, result.text
    request = json.loads(result.out)
    request = request[0] if isinstance(request, list) else request
    assert request["ResourceConfig"]["InstanceCount"] == 2
    assert not [path for path in (home / "s3").rglob("*") if path.is_file() and "sqlite" not in path.name]
    assert smlaunch("ls", "--local", "--json").json()["runs"] == []


def test_attempts_end_at_the_caps_of_the_run(home: Path, script: Path) -> None:
    """At a dollar a second, so that a failing script could cost many times what the plan says."""
    script.write_text("import sys, time\ntime.sleep(1.2)\nsys.exit(1)\n")
    job = {
        "entry": "train.py",
        "compute": {"instance_type": "ml.g5.xlarge", "price_per_hour": 3600},
        "limits": {"max_runtime": "4s", "max_cost": 4, "attempts": 9},
    }
    job_file = script.with_name("job.yaml")
    job_file.write_text(json.dumps(job))
    result = smlaunch("run", job_file, "--local", "--json", "--name", "capped")
    assert result.code == 6, result.text
    assert len(result.json()["jobs"]) <= 4
    assert "its max_cost of $4.00" in result.err or "its training time of 4s" in result.err
