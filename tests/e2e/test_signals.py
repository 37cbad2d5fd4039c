"""SIGTERM reaches every rank of every host, for a stop and for the end of MaxRuntime; Ctrl-C too."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.command import SMLAUNCH, smlaunch

WRITES_ON_TERM = """\
import os, pathlib, signal, sys
out = pathlib.Path(os.environ.get("SMLAUNCH_ML_ROOT", "/opt/ml")) / "checkpoints"
def leave(number, frame):
    (out / ("term-rank-" + os.environ["RANK"])).write_text("told\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", os.environ["RANK"], flush=True)
while True:
    signal.pause()
"""
SHAPE = (
    "--strategy",
    "ddp",
    "--hosts",
    "2",
    "--processes-per-host",
    "2",
    "--checkpoints",
    "s3://smlaunch-tests/ckpt/",
)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "source" / "train.py"
    path.parent.mkdir()
    path.write_text(WRITES_ON_TERM)
    return path


@pytest.fixture
def background_home(home: Path) -> Path:
    result = smlaunch("local", "start")
    assert result.code == 0, result.text
    yield home
    stop_result = smlaunch("local", "stop")
    assert stop_result.code == 0, stop_result.text


def terminated_ranks(home: Path) -> set[str]:
    return {path.name for path in (home / "s3" / "smlaunch-tests" / "ckpt").glob("term-rank-*")}


ALL_RANKS = {f"term-rank-{rank}" for rank in range(4)}


def wait_for_ready(run: subprocess.Popen[str]) -> None:
    ready: set[str] = set()
    assert run.stdout is not None
    for line in run.stdout:
        if "ready" in line:
            ready.add(line.split("ready")[1].strip())
        if len(ready) == 4:
            return
    raise AssertionError(f"ended with {run.wait()} before all ranks were ready")


def follow(script: Path, name: str) -> subprocess.Popen[str]:
    command = [SMLAUNCH, "run", str(script), *SHAPE, "--local", "--name", name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_stop_reaches_every_rank(background_home: Path, script: Path) -> None:
    run = follow(script, "to-stop")
    wait_for_ready(run)
    assert smlaunch("stop", "to-stop", "--local").code == 0
    run.communicate(timeout=30)
    assert run.returncode == 5
    assert terminated_ranks(background_home) == ALL_RANKS
    assert smlaunch("show", "to-stop", "--local", "--json").json()["status"] == "Stopped"


def test_the_end_of_max_runtime_reaches_every_rank(background_home: Path, script: Path) -> None:
    start_time = time.monotonic()
    result = smlaunch("run", script, *SHAPE, "--local", "--max-runtime", "3s", "--json")
    assert result.code == 6, result.text
    assert time.monotonic() - start_time < 60
    job = result.json()["jobs"][0]
    assert (job["status"], job["secondary_status"]) == ("Stopped", "MaxRuntimeExceeded")
    assert terminated_ranks(background_home) == ALL_RANKS


def test_ctrl_c_stops_an_embedded_run_and_leaves_nothing(home: Path, script: Path) -> None:
    run = follow(script, "to-interrupt")
    wait_for_ready(run)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=30)
    assert run.returncode == 5
    assert terminated_ranks(home) == ALL_RANKS
    remaining_processes = subprocess.run(["pgrep", "-f", str(home)], capture_output=True, text=True).stdout
    assert remaining_processes == ""


def test_ctrl_c_leaves_a_run_on_a_standing_endpoint_going(background_home: Path, script: Path) -> None:
    run = follow(script, "goes-on")
    wait_for_ready(run)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=30)
    assert run.returncode == 130
    assert smlaunch("show", "goes-on", "--local", "--json").json()["status"] == "InProgress"
    assert smlaunch("stop", "goes-on", "--local").code == 0
    assert smlaunch("wait", "goes-on", "--local").code == 5
