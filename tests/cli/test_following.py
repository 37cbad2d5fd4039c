"""What a followed run shows: bars, the order of lines and states, and how long it has been going on."""

from __future__ import annotations

import io
import re
import subprocess
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from smlaunch.chain.next_action import FinishRun
from smlaunch.cli.display import Display
from smlaunch.cli.follow import _advise_after_failure
from smlaunch.runs.job_poller import LogLine, StateChange
from smlaunch.runs.progress_estimate import ProgressTracker
from smlaunch.runs.run_outcome import RunOutcome, outcome_from_description
from tests.cli.conftest import COMMAND, Shell
from tests.cli.terminal import Terminal

if TYPE_CHECKING:
    from smlaunch.runs.job_follower import JobFollower

BAR = """\
import sys, time
for step in range(4):
    sys.stderr.write(f"\\r{step * 25:3d}%|{'#' * step:<4}| {step}/4")
    sys.stderr.flush()
    time.sleep(0.4)
sys.stderr.write("\\r100%|####| 4/4\\n")
print("\\n".join(f"line {number}" for number in range(2000)), flush=True)
"""


def test_a_bar_moves_on_a_terminal_and_is_one_line_in_logs(endpoint_shell: Shell) -> None:
    (endpoint_shell.folder / "bar.py").write_text(BAR)
    options = ("run", "bar.py", "--local", "--name", "bar")
    terminal = Terminal([*COMMAND, *options], endpoint_shell.environment, endpoint_shell.folder, columns=70)
    assert terminal.wait_for_end() == 0
    assert re.search(r"Training \d+ s  (25|50|75)%\|", terminal.text), "it is drawn before it is complete"
    assert terminal.text.index("line 1999") < terminal.text.rindex("completed after")
    assert "\x1b[32m" in terminal.raw, "success is green"
    log = endpoint_shell("logs", "bar", "--local").out.splitlines()
    assert [line for line in log if "%|" in line] == ["100%|####| 4/4"]


def test_no_line_of_the_script_comes_after_the_end(endpoint_shell: Shell) -> None:
    (endpoint_shell.folder / "bar.py").write_text(BAR)
    for command in (("run", "bar.py", "--name", "ends"), ("logs", "ends", "-f")):
        result = subprocess.run(
            [*COMMAND, *command, "--local"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=endpoint_shell.environment,
            cwd=endpoint_shell.folder,
        )
        lines = result.stdout.splitlines()
        assert lines.count("100%|####| 4/4") == 1 and not any("live" in line for line in lines)
        end = next(index for index, line in enumerate(lines) if line.startswith("completed after"))
        # The state Uploading may pass between two polls.
        assert [line for line in lines[:end] if "Uploading" not in line][-1].endswith("line 1999"), lines[
            end - 3 :
        ]
        assert not any("line " in line for line in lines[end:])
        assert "\x1b" not in result.stdout, "no colours without a terminal"


def test_how_it_failed_is_said_once(endpoint_shell: Shell) -> None:
    """On one terminal: the traceback by the script, then who failed, and the remedy at the end."""
    (endpoint_shell.folder / "boom.py").write_text("print('begin')\nraise ValueError('too small')\n")
    command = [*COMMAND, "run", "boom.py", "--local", "--hosts", "2"]
    terminal = Terminal(command, endpoint_shell.environment, endpoint_shell.folder, columns=200)
    assert terminal.wait_for_end() == 1
    # By one host or both: the second may be stopped before it has printed its own.
    assert terminal.text.count("ValueError: too small") in (2, 3), "by the hosts, and in the summary"
    text = " ".join(terminal.text.split())
    parts = (
        "exited with code 1: ValueError: too small",
        "exit code 1; full log: smlaunch logs boom-",
    )
    assert [text.count(part) for part in parts] == [1, 1]
    assert sorted(parts, key=text.index) == list(parts), "in this order"
    assert "the plan warned" not in text, "its warning is about another matter"


def test_colours_and_no_color(shell: Shell) -> None:
    arguments = [*COMMAND, "run", "missing.py", "--local"]
    coloured = Terminal(arguments, shell.environment, shell.folder, columns=60)
    plain = Terminal(arguments, {**shell.environment, "NO_COLOR": "1"}, shell.folder, columns=60)
    assert (coloured.wait_for_end(), plain.wait_for_end()) == (2, 2)
    assert "\x1b[31m" in coloured.raw and "\x1b" not in plain.raw
    assert coloured.text == plain.text
    lines = plain.text.splitlines()
    assert len(lines) > 1
    # The folder's path alone may be longer: it is one word.
    assert all(len(line) <= 60 or len(line.split()) == 1 for line in lines), "wrapped at words"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_command_that_attaches_shows_the_runs_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    display = Display(1, out=io.StringIO(), err=screen)
    began = time.time() - 2 * 3600 - 60
    follower = SimpleNamespace(progress=ProgressTracker())
    display.show_events([StateChange("job", "Training", "", began)], cast("JobFollower", follower))
    assert "Training 2:01:0" in screen.getvalue()


TRACEBACK = """Traceback (most recent call last):
  File "t.py", line 3, in <module>
    open("data/churn.csv")
FileNotFoundError: [Errno 2] No such file or directory: 'data/churn.csv'"""


@pytest.mark.parametrize(
    ("failure_text", "repeats"),
    [
        (TRACEBACK, True),
        (f"...{TRACEBACK[40:]}", True),
        (f"...{TRACEBACK[40:]}...", True),
        (TRACEBACK.replace("line 3", "line 4"), False),
    ],
)
def test_a_traceback_between_the_lines_of_another_rank_was_shown(
    failure_text: str, repeats: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    display = Display(1, out=io.StringIO(), err=io.StringIO())
    monkeypatch.setattr("smlaunch.cli.display.is_same_file", lambda *_: True)
    follower = cast("JobFollower", SimpleNamespace(progress=ProgressTracker()))
    for line in TRACEBACK.splitlines():
        for rank in (0, 1):
            display.show_events([LogLine("job", "algo-1", 0, f"[{rank}] [rank{rank}]: {line}")], follower)
    assert display.has_just_shown(failure_text) is repeats


@pytest.mark.parametrize(
    ("checkpoints_uri", "is_final", "advice"),
    [
        ("s3://b/c/", False, "smlaunch resume r --local tries again from the newest checkpoint"),
        (None, False, "smlaunch resume r --local tries again from the beginning"),
        ("s3://b/c/", True, "run it again under another --name"),
    ],
)
def test_resume_is_offered_where_it_helps(checkpoints_uri: str | None, is_final: bool, advice: str) -> None:
    description = {"TrainingJobName": "r-s1-a1", "TrainingJobStatus": "Failed", "FailureReason": "?"}
    job = replace(outcome_from_description(description), checkpoints_uri=checkpoints_uri)
    end = FinishRun(1, "Failed", "failed", is_final=is_final)
    outcome = RunOutcome("r", (job,), is_chain=True, final_result=end)
    connection: Any = SimpleNamespace(cli_flag=" --local")
    assert _advise_after_failure(outcome, job, connection).endswith(f"; {advice}")
