"""Runs on a real endpoint, started by the command line only."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from smlaunch.cli import doctor
from smlaunch.runtime import accelerators
from tests.cli.conftest import COMMAND, Shell, interrupt


def test_a_run_from_start_to_result(endpoint_shell: Shell) -> None:
    result = endpoint_shell(
        "run", "train.py", "--local", "--name", "fine", "--hp", "text=true", "--", "fine", "a b"
    )
    assert result.code == 0, result.err
    out = result.out.splitlines()
    assert out[0] == "hello fine a b --text true"
    assert not any("smlaunch: progress" in line for line in out)
    assert "metrics: accuracy 0.5" in out
    model = Path(out[-1].removeprefix("model: "))
    assert model.name == "model.tar.gz" and model.exists()
    what, where, limits = result.err.splitlines()[:3]
    assert what == "run fine: train.py, 1 host = 1 rank, strategy custom"
    assert where.startswith("on this machine (background endpoint at http://127.0.0.1:")
    assert limits == "stopped after 24h of training; no cost"
    assert "Training job completed" not in result.err, "the run's last line says so"
    assert "No role is assumed" not in result.err and "no role is assumed" not in result.err
    for word in ("Starting", "Training", "step 2/2 (100%)", "completed"):
        assert word in result.err
    details = json.loads(endpoint_shell("show", "fine", "--local", "--json").out)
    assert (details["status"], details["exit_code"], details["metrics"]) == (
        "Completed",
        0,
        {"accuracy": 0.5},
    )
    listing = json.loads(endpoint_shell("ls", "--local", "--json").out)
    assert "fine" in [run["run"] for run in listing["runs"]]
    log = endpoint_shell("logs", "fine", "--local")
    assert "smlaunch: progress step=1" in log.out
    log_lines = json.loads(endpoint_shell("logs", "fine", "--local", "--json").out)["lines"]
    assert list(log_lines[0]) == ["job", "host", "at", "text"]
    second_result = endpoint_shell(
        "run", "train.py", "--local", "--name", "fine", "--hp", "text=true", "--", "fine", "a b"
    )
    assert second_result.code == 0 and "exists already with the same job" in second_result.err
    other = endpoint_shell("run", "train.py", "--local", "--name", "fine")
    assert other.code == 2 and "take another name" in other.err


def test_a_failure_shows_the_traceback_first_then_who_then_the_next_step(endpoint_shell: Shell) -> None:
    options = ("--strategy", "ddp", "--hosts", "2", "--local", "--name", "failing", "--json")
    result = endpoint_shell("run", "train.py", *options, "--", "fail")
    assert result.code == 1
    trace = result.err.rindex("Traceback (most recent call last):")
    summary_position = result.err.index("failed: rank 1 on algo-2 exited with code 1: ValueError: boom")
    step = result.err.index("exit code 1; full log: smlaunch logs failing --local")
    assert trace < summary_position < step
    document = json.loads(result.out)
    failure = document["jobs"][0]["failure"]
    assert (failure["host"], failure["rank"], failure["exit_code"]) == ("algo-2", 1, 1)
    assert document["exit_code"] == 1
    assert endpoint_shell("wait", "failing", "--local").code == 1
    assert endpoint_shell("show", "failing", "--local").code == 0


def test_ctrl_c_leaves_a_run_that_has_a_home_and_stop_ends_it(endpoint_shell: Shell) -> None:
    process = endpoint_shell.start("run", "train.py", "--local", "--name", "left", "--", "wait")
    interrupt(process, "hello")
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "To follow it: smlaunch logs left -f --local" in err
    follower = endpoint_shell.start("logs", "left", "-f", "--local")
    stop_result = endpoint_shell("stop", "left", "--local")
    assert stop_result.code == 0
    out, err = follower.communicate(timeout=20)
    assert "told to stop" in out
    assert follower.returncode == 5, err
    assert endpoint_shell("wait", "left", "--local").code == 5


def test_detached_runs_print_their_name_alone(endpoint_shell: Shell) -> None:
    result = endpoint_shell("run", "train.py", "--local", "--detach", "--name", "away")
    assert (result.code, result.out) == (0, "away\n")
    assert endpoint_shell("wait", "away", "--local").code == 0


def test_the_time_limit(endpoint_shell: Shell) -> None:
    result = endpoint_shell("run", "train.py", "--local", "--max-runtime", "3s", "--", "wait")
    assert result.code == 6
    assert "told to stop" in result.out
    assert "stopped at its max_runtime" in result.err


def test_what_does_not_exist_is_told_at_once(endpoint_shell: Shell) -> None:
    result = endpoint_shell(
        "run", "trian.py", "--local", "--input", "a=./nothing", "--input", "b=s3://no-bucket/x"
    )
    assert result.code == 2
    lines = result.err.splitlines()
    assert lines[0] == "error: 3 problems"
    (entry_line,) = (line for line in lines if line.startswith("  entry: "))
    assert entry_line.startswith("  entry: trian.py does not exist in /")
    assert entry_line.endswith(", did you mean 'train.py'?")
    assert any(line.startswith("  inputs.a: ./nothing does not exist") for line in lines)
    assert "  inputs.b: s3://no-bucket/x: there is no bucket 'no-bucket' (from --input)" in lines


def test_the_environment_for_other_clients(endpoint_shell: Shell) -> None:
    line = f'eval "$({command("local env")})"; env | grep -c "^AWS_ENDPOINT_URL=http://127.0.0.1"'
    result = run_in_bash(endpoint_shell, line)
    assert result.stdout.strip() == "1", result.stderr
    assert endpoint_shell("local", "status").code == 0
    public = endpoint_shell("local", "status", "--json").out
    secret = json.loads(endpoint_shell("local", "env", "--json").out)["AWS_SECRET_ACCESS_KEY"]
    assert secret not in public


def command(arguments: str) -> str:
    return " ".join([*COMMAND, arguments])


def run_in_bash(shell: Shell, line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, env=shell.environment, cwd=shell.folder
    )


def test_a_reader_that_leaves_is_no_error(endpoint_shell: Shell) -> None:
    endpoint_shell("run", "train.py", "--local", "--detach", "--name", "piped")
    endpoint_shell("wait", "piped", "--local")
    result = run_in_bash(endpoint_shell, f"({command('logs piped --local')}; echo code=$? >&2) | true")
    assert result.stderr == "code=0\n"
    result = run_in_bash(endpoint_shell, f"({command('run train.py --local')}; echo code=$? >&2) | true")
    assert "Traceback" not in result.stderr
    assert "completed" in result.stderr and "code=0" in result.stderr


# ---- the endpoint inside the command -----------------------------------------------------------------


def test_an_embedded_run_and_its_traces(shell: Shell) -> None:
    result = shell("run", "train.py", "--local", "--name", "inside")
    assert result.code == 0, result.err
    assert "\non this machine: isolation " in result.err
    assert shell("show", "inside", "--local").code == 0
    assert shell("local", "status").code == 8
    assert shell("local", "env").code == 8


def test_quiet_and_verbose(endpoint_shell: Shell) -> None:
    quiet = endpoint_shell("run", "train.py", "--local", "-q", "--max-cost", "5")
    assert quiet.code == 0 and quiet.out.splitlines()[0] == "hello"
    assert all(line.startswith(("warning: ", "[smlaunch] ")) for line in quiet.err.splitlines()), quiet.err
    verbose = endpoint_shell("run", "train.py", "--local", "-v")
    assert verbose.err.count("No role is assumed") == 1 and "no role is assumed" not in verbose.err


def test_the_columns_and_the_filter_of_ls(shell: Shell) -> None:
    assert shell("run", "train.py", "--local", "--name", "good", "--hosts", "2").code == 0
    assert shell("run", "train.py", "--local", "--name", "bad", "--env", "RANK=1", "--", "fail").code == 1
    heading, bad, good = shell("ls", "--local").out.splitlines()
    assert heading.split() == ["RUN", "STATUS", "CREATED", "DURATION", "HOSTS", "COST", "METRIC"]
    assert good.split()[:2] == ["good", "Completed"] and bad.split()[:2] == ["bad", "Failed"]
    assert "2 x ml.m5.xlarge  $0.00  accuracy 0.5" in good
    failed = json.loads(shell("ls", "--local", "--status", "failed", "--json").out)["runs"]
    assert [(run["run"], run["hosts"], run["metrics"]) for run in failed] == [("bad", 1, {"accuracy": 0.5})]
    assert (
        shell("ls", "--local", "--status", "Stopped").err == "no runs with status Stopped on this machine\n"
    )


def test_detach_needs_a_home(shell: Shell) -> None:
    result = shell("run", "train.py", "--local", "--detach")
    assert result.code == 2
    assert "start a background endpoint first: `smlaunch local start`" in result.err


def test_ctrl_c_stops_an_embedded_run(shell: Shell) -> None:
    process = shell.start("run", "train.py", "--local", "--", "wait")
    interrupt(process, "hello")
    out, err = process.communicate(timeout=20)
    assert process.returncode == 5, err
    assert "told to stop" in out
    assert "Ctrl-C again kills them" in err


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], "no GPU found: no /dev/nvidia0 and so on, and no nvidia-smi that lists one"),
        (["GPU 0: NVIDIA A10G (UUID: GPU-1)", "GPU 1: NVIDIA A10G (UUID: GPU-2)"], "2 x NVIDIA A10G"),
    ],
)
def test_doctor_names_accelerators(
    lines: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(accelerators, "_list_device_files", lambda prefix: [])
    assert doctor._accelerators_text() == expected


def test_doctor(shell: Shell) -> None:
    result = shell("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(result.out)["checks"]}
    levels = {"isolation full", "isolation user", "isolation plain"}
    assert {"python", "boto3", "torch", "accelerators", "disk", *levels} <= set(checks)
    assert checks["isolation plain"]["verdict"] == "ok"
    works = {level: checks[f"isolation {level}"]["verdict"] == "ok" for level in ("full", "user", "plain")}
    assert f"have {next(filter(works.get, works))}: " in checks["isolation"]["text"]
    failed = [level for level in ("full", "user") if not works[level]][: 0 if works["full"] else None]
    assert all(f"{level} does not work: " in checks["isolation"]["text"] for level in failed[:1])
    assert "not checked; `smlaunch doctor --aws` asks AWS" in checks["AWS"]["text"]
    assert not Path(shell.environment["SMLAUNCH_HOME"]).exists()
