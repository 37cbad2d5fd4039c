"""Runs on a real endpoint, by the command alone."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.cli.conftest import COMMAND, Shell, interrupt


def test_a_run_from_start_to_result(standing: Shell) -> None:
    done = standing("run", "train.py", "--local", "--name", "fine", "--hp", "text=true", "--", "fine", "a b")
    assert done.code == 0, done.err
    out = done.out.splitlines()
    assert out[0] == "hello fine a b --text true"
    assert not any("smlaunch: progress" in line for line in out)
    assert "metrics: accuracy 0.5" in out
    model = Path(out[-1].removeprefix("model: "))
    assert model.name == "model.tar.gz" and model.exists()
    place = "run fine on this machine (background endpoint"
    for word in (place, "Starting", "Training", "step 2/2 (100%)", "completed"):
        assert word in done.err
    shown = json.loads(standing("show", "fine", "--local", "--json").out)
    assert (shown["status"], shown["exit_code"], shown["metrics"]) == ("Completed", 0, {"accuracy": 0.5})
    listed = json.loads(standing("ls", "--local", "--json").out)
    assert "fine" in [run["run"] for run in listed["runs"]]
    log = standing("logs", "fine", "--local")
    assert "smlaunch: progress step=1" in log.out
    again = standing("run", "train.py", "--local", "--name", "fine", "--hp", "text=true", "--", "fine", "a b")
    assert again.code == 0 and "exists already with the same job" in again.err
    other = standing("run", "train.py", "--local", "--name", "fine")
    assert other.code == 2 and "take another --name" in other.err


def test_a_failure_shows_the_traceback_first_then_who_then_the_next_step(standing: Shell) -> None:
    options = ("--strategy", "ddp", "--hosts", "2", "--local", "--name", "failing", "--json")
    done = standing("run", "train.py", *options, "--", "fail")
    assert done.code == 1
    trace = done.err.rindex("Traceback (most recent call last):")
    who = done.err.index("failed: rank 1 on algo-2 exited with code 1: ValueError: boom")
    step = done.err.index("exit code 1; full log: smlaunch logs failing --local")
    assert trace < who < step
    document = json.loads(done.out)
    failure = document["jobs"][0]["failure"]
    assert (failure["host"], failure["rank"], failure["exit_code"]) == ("algo-2", 1, 1)
    assert document["exit_code"] == 1
    assert standing("wait", "failing", "--local").code == 1
    assert standing("show", "failing", "--local").code == 0


def test_ctrl_c_leaves_a_run_that_has_a_home_and_stop_ends_it(standing: Shell) -> None:
    process = standing.start("run", "train.py", "--local", "--name", "left", "--", "wait")
    interrupt(process, "hello")
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "To follow it: smlaunch logs left -f --local" in err
    follower = standing.start("logs", "left", "-f", "--local")
    stopped = standing("stop", "left", "--local")
    assert stopped.code == 0
    out, err = follower.communicate(timeout=20)
    assert "told to stop" in out
    assert follower.returncode == 5, err
    assert standing("wait", "left", "--local").code == 5


def test_detached_runs_print_their_name_alone(standing: Shell) -> None:
    done = standing("run", "train.py", "--local", "--detach", "--name", "away")
    assert (done.code, done.out) == (0, "away\n")
    assert standing("wait", "away", "--local").code == 0


def test_the_time_limit(standing: Shell) -> None:
    done = standing("run", "train.py", "--local", "--max-runtime", "3s", "--", "wait")
    assert done.code == 6
    assert "told to stop" in done.out
    assert "stopped at its max_runtime" in done.err


def test_what_does_not_exist_is_told_at_once(standing: Shell) -> None:
    done = standing("run", "trian.py", "--local", "--input", "a=./nothing", "--input", "b=s3://no-bucket/x")
    assert done.code == 2
    lines = done.err.splitlines()
    assert lines[0] == "error: 3 problems"
    assert "  entry: trian.py does not exist, did you mean 'train.py'?" in lines
    assert any(line.startswith("  inputs.a: ./nothing does not exist") for line in lines)
    assert "  inputs.b: s3://no-bucket/x: there is no bucket 'no-bucket'" in lines


def test_the_environment_for_other_clients(standing: Shell) -> None:
    line = f'eval "$({command("local env")})"; env | grep -c "^AWS_ENDPOINT_URL=http://127.0.0.1"'
    done = sh(standing, line)
    assert done.stdout.strip() == "1", done.stderr
    assert standing("local", "status").code == 0
    public = standing("local", "status", "--json").out
    secret = json.loads(standing("local", "env", "--json").out)["AWS_SECRET_ACCESS_KEY"]
    assert secret not in public


def command(words: str) -> str:
    return " ".join([*COMMAND, words])


def sh(shell: Shell, line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, env=shell.environment, cwd=shell.folder
    )


def test_a_reader_that_leaves_is_no_error(standing: Shell) -> None:
    standing("run", "train.py", "--local", "--detach", "--name", "piped")
    standing("wait", "piped", "--local")
    done = sh(standing, f"({command('logs piped --local')}; echo code=$? >&2) | true")
    assert done.stderr == "code=0\n"
    done = sh(standing, f"({command('run train.py --local')}; echo code=$? >&2) | true")
    assert "Traceback" not in done.stderr
    assert "completed" in done.stderr and "code=0" in done.stderr


# ---- the endpoint inside the command -----------------------------------------------------------------


def test_an_embedded_run_and_its_traces(shell: Shell) -> None:
    done = shell("run", "train.py", "--local", "--name", "inside")
    assert done.code == 0, done.err
    assert "run inside on this machine\n" in done.err
    assert shell("show", "inside", "--local").code == 0
    assert shell("local", "status").code == 8
    assert shell("local", "env").code == 8


def test_detach_needs_a_home(shell: Shell) -> None:
    done = shell("run", "train.py", "--local", "--detach")
    assert done.code == 2
    assert "start a background endpoint first: `smlaunch local start`" in done.err


def test_ctrl_c_stops_an_embedded_run(shell: Shell) -> None:
    process = shell.start("run", "train.py", "--local", "--", "wait")
    interrupt(process, "hello")
    out, err = process.communicate(timeout=20)
    assert process.returncode == 5, err
    assert "told to stop" in out
    assert "Ctrl-C again kills them" in err


def test_doctor(shell: Shell) -> None:
    done = shell("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(done.out)["checks"]}
    levels = {"isolation full", "isolation user", "isolation plain"}
    assert {"python", "boto3", "torch", "disk", *levels} <= set(checks)
    assert checks["isolation plain"]["verdict"] == "ok"
    assert not Path(shell.environment["SMLAUNCH_HOME"]).exists()
