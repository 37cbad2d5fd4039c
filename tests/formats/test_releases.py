"""A run begun by one release is listed, followed, resumed and stopped by the next; the reverse is refused."""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import sqlite3
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.formats.releases import Release, of_commit, today, with_format_2

STEPS = 40
SCRIPT = f"""
import hashlib, os, time
from smlaunch.train import Checkpointer


class Weights:
    text = ""

    def state_dict(self):
        return {{"text": self.text}}

    def load_state_dict(self, state):
        self.text = state["text"]


weights = Weights()
with Checkpointer(weights=weights, every_steps=5) as run:
    first_step = run.steps_done
    print("begins at step", first_step, flush=True)
    for _ in run.batches(range({STEPS}), steps={STEPS}):
        weights.text = hashlib.sha256((weights.text + str(run.steps_done + 1)).encode()).hexdigest()
        time.sleep(float(os.environ.get("TEST_PAUSE", "0")))
        if run.steps_done - first_step == 9:  # the planned end of the segment, which would take a minute
            open(os.environ["SMLAUNCH_STOP_FILE"], "w").close()
        run.step()
if run.finished:
    print("weights", weights.text, flush=True)
"""
"""Knows a release by what its users import, and by nothing else."""

PREVIOUS = ROOT / "tests" / "previous-release"


def true_weights() -> str:
    weights = ""
    for step in range(1, STEPS + 1):
        weights = hashlib.sha256((weights + str(step)).encode()).hexdigest()
    return weights


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "source" / "train.py"
    path.parent.mkdir()
    path.write_text(SCRIPT)
    return path


def drive_command(script: Path, name: str, *options: str) -> list[str | Path]:
    limits = ("--max-runtime", "10m", "--segment", "60s")
    return ["run", script, "--local", "--name", name, *limits, *options]


def start_and_kill(release: Release, script: Path, name: str) -> None:
    """Kills the client in the third segment, with the endpoint that is embedded in it."""
    client = release.start(*drive_command(script, name, "--env", "TEST_PAUSE=0.05"))
    assert client.stdout is not None and client.stderr is not None
    segments = (line for line in client.stdout if "begins at step" in line)
    if len(list(itertools.islice(segments, 3))) < 3:
        pytest.fail(client.stderr.read())
    os.kill(client.pid, signal.SIGKILL)
    client.communicate()


def check_continuation(older: Release, newer: Release, script: Path) -> None:
    """Lists, shows, follows and resumes a run to the same weights; and stops one, on the older one's
    endpoint."""
    start_and_kill(older, script, "begun")
    (row,) = newer("ls", "--local", "--json").json()["runs"]
    assert (row["run"], row["other_format"]) == ("begun", None)
    details = newer("show", "begun", "--local", "--json").json()
    assert len(details["jobs"]) == 3 and details["step"] >= 20
    result = newer("resume", "begun", "--local", "--json")
    assert result.code == 0, result.text
    jobs = [job["name"] for job in result.json()["jobs"]]
    assert jobs == [f"begun-{task}" for task in ("s1-a1", "s2-a1", "s3-a1", "s3-a2", "s4-a1")]
    assert f"weights {true_weights()}" in newer("logs", "begun", "--local").out
    assert newer("checkpoints", "verify", "begun", "--local").code == 0

    assert older("local", "start").code == 0
    try:
        detached = older(*drive_command(script, "halted", "--env", "TEST_PAUSE=0.5", "--detach"))
        assert detached.code == 0, detached.text
        stop_result = newer("stop", "halted", "--local")
        assert stop_result.code == 0, stop_result.text
        assert newer("wait", "halted", "--local").code == 5
    finally:
        assert newer("local", "stop").code == 0


def is_refused(release: Release, name: str, message: str) -> None:
    for command in ("show", "resume", "stop", "logs"):
        answer = release(command, name, "--local")
        assert answer.code == 2 and message in answer.text, (command, answer.text)


@pytest.mark.real
@pytest.mark.timeout(300)
def test_a_chain_of_format_1_is_driven_on_by_format_2(home: Path, script: Path, tmp_path: Path) -> None:
    first, second = today(tmp_path / "1"), with_format_2(tmp_path / "2")
    check_continuation(first, second, script)

    result = second(*drive_command(script, "ahead"))
    assert result.code == 0, result.text
    is_refused(first, "ahead", "ahead: this run has version 2.0, and this smlaunch reads up to 1.x")
    format_by_run = {
        row["run"]: row["other_format"] for row in first("ls", "--local", "--json").json()["runs"]
    }
    assert format_by_run == {"begun": None, "halted": None, "ahead": "2.0"}
    assert "Completed (segment 4) (another format: 2.0)" in first("ls", "--local").out

    connection = sqlite3.connect(home / "jobs.sqlite")
    path = '$."smlaunch:format"'
    connection.execute("UPDATE jobs SET tags = json_remove(tags, ?) WHERE name LIKE 'begun-%'", (path,))
    connection.commit()
    connection.close()
    is_refused(first, "begun", "begun: this run has no version: it was written before format 1.0")


@pytest.mark.real
@pytest.mark.timeout(300)
def test_a_run_of_the_release_before_goes_on(home: Path, script: Path, tmp_path: Path) -> None:
    previous = of_commit(PREVIOUS.read_text().split()[0], tmp_path / "previous")
    check_continuation(previous, today(tmp_path / "today"), script)
    later_release = with_format_2(tmp_path / "later")
    assert later_release(*drive_command(script, "ahead")).code == 0
    is_refused(previous, "ahead", "ahead: this run has version 2.0")
