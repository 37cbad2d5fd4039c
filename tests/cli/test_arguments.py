"""What the command prints without running anything: help, mistakes, options."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from hypothesis import given
from hypothesis import strategies as st

from smlaunch.cli.job_arguments import _parse_inputs, _parse_pairs
from smlaunch.cli.main import cli, run_command
from smlaunch.errors import Problem
from smlaunch.text.format import format_elapsed
from tests.cli.conftest import Shell
from tests.formats.documents import GOLDEN

HEAVY = ("boto3", "botocore", "rich", "yaml", "asyncio")


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["local", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom smlaunch.cli.main import run_command\n"
        f"assert run_command({arguments!r}) == 0\n"
        f"loaded = [name for name in {HEAVY!r} if name in sys.modules]\nassert not loaded, loaded\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_a_plan_with_closed_streams(shell: Shell, tmp_path: Path, closed: str) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('loss=1.0')\n")
    command = f'"$0" -m smlaunch.cli.main plan "$1" --local {closed}'
    result = subprocess.run(
        ["/bin/sh", "-c", command, sys.executable, str(script)],
        capture_output=True,
        text=True,
        env=shell.environment,
    )
    assert (result.returncode, result.stderr) == (0, ""), result
    assert ("at most" in result.stdout or "cost" in result.stdout) == (">&-" not in closed.split())


@pytest.mark.parametrize(
    ("before", "environment", "message"),
    [
        ('mkdir "$2" && cd "$2" && rmdir "$2" && ', {}, "error: the working directory has been removed"),
        ("", {"HOME": "~nobody-of-that-name", "SMLAUNCH_HOME": ""}, "error: no home directory is known"),
    ],
)
def test_what_a_command_runs_in_is_not_there(
    shell: Shell, tmp_path: Path, before: str, environment: dict[str, str], message: str
) -> None:
    (tmp_path / "train.py").write_text("")
    command = f'{before}exec "$0" -m smlaunch.cli.main plan "$1" --local'
    result = subprocess.run(
        ["/bin/sh", "-c", command, sys.executable, "train.py", str(tmp_path / "gone")],
        capture_output=True,
        text=True,
        env={**shell.environment, **environment},
        cwd=tmp_path,
    )
    assert result.returncode == 8, result
    assert result.stderr.startswith(message)


def test_a_local_plan_without_inputs_loads_no_client(home: Path, tmp_path: Path) -> None:
    """The endpoint starts with the first request to it, and this plan makes none."""
    script = tmp_path / "train.py"
    script.write_text("print('loss=1.0')\n")
    code = (
        "import sys\nfrom smlaunch.cli.main import run_command\n"
        f"assert run_command(['plan', {str(script)!r}, '--local']) == 0\n"
        "loaded = {'boto3', 'botocore', 'moto', 'werkzeug', 'pydantic'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "ml." in result.stdout, "a plan names the machine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rnu", "a.py"], "error: there is no command 'rnu', did you mean 'run'? `smlaunch run a.py`"),
        (["train.py"], "to run it: `smlaunch run train.py`"),
        (["run"], "the script or job file is missing: `smlaunch run train.py`"),
        (["run", "--local", "--"], "or `smlaunch run job.yaml` (or -m MODULE, or a command after --, or"),
        (["run", "train.py", "-m", "package.train"], "both name the program: leave one of them out"),
        (["run", "-m", "package/train.py", "--local"], "entry.module: 'package/train.py' is not the name of"),
        (["run", "train.py", "--lr", "3", "--hosts", "2"], "`smlaunch run train.py --hosts 2 -- --lr 3`"),
        (["run", "train.py", "--host", "2"], "there is no option --host, did you mean --hosts?"),
        (["run", "a.py", "--instance_type", "x"], "options have hyphens and small letters: --instance-type"),
        (["ls", "--limt", "3"], "there is no option --limt, did you mean --limit?"),
        (["launch", "job.yaml", "--hosts", "2"], "`smlaunch run job.yaml --hosts 2` launches a job"),
        (["submit", "job.yaml"], "`smlaunch run job.yaml` launches a job (with --detach"),
        (["status", "mine"], "`smlaunch show mine` shows the state of a run"),
        (["cancel", "mine"], "`smlaunch stop mine` stops a run"),
        (["describe", "mine"], "`smlaunch show mine` shows"),
        (["list"], "`smlaunch ls` lists runs"),
        (["delete", "mine"], "`smlaunch stop mine` stops a run; no command deletes"),
        (["launch", "a.py", "--env", "API_KEY=hunter2"], "API_KEY=****"),
        (["show"], "the name of the run is missing; `smlaunch ls` lists runs"),
        (["local", "strat"], "did you mean 'start'?"),
        (["run", "x.py", "--isolation", "full", "--region", "eu-west-1"], "it goes with --local only"),
        (["run", "x.py", "--executor", "containers", "--region", "x"], "it goes with --local only"),
        (["run", "x.py", "--local", "--executor", "docker"], "'docker' is not one of"),
        (["run", "x.py", "--local", "--launcher", "torchrum"], "launcher: 'torchrum' is unknown"),
        (["run", "x.py", "--local", "--hang", "soon"], "limits.hang: 'soon' is not a duration"),
        (["run", "x.py", "--local", "--hosts", "1_0"], "compute.hosts: a whole number is needed, not '1_0'"),
        (["run", "x.txt", "--local"], "entry: 'x.txt' is no program; name a .py or .sh script"),
        (["logs", "x", "-f", "--json"], "one JSON document cannot be written before the run has ended"),
    ],
)
def test_mistakes_end_with_2_and_a_next_step(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err and "hunter2" not in captured.err
    if "--json" not in arguments:
        assert captured.out == ""


@pytest.mark.parametrize(
    ("arguments", "code", "kind", "problems"),
    [
        (["ls", "--limt", "3", "--json"], 2, "UsageError", [("--limt", "there is no option --limt")]),
        (["ls", "--json", "--limit", "0"], 2, "UsageError", [("--limit", "Invalid value for '--limit'")]),
        (["show", "--json"], 2, "UsageError", [("RUN", "the name of the run is missing")]),
        (["shwo", "x", "--json"], 2, "UsageError", [("", "there is no command 'shwo'")]),
        (
            ["run", "--json", "no.py", "--local", "--hosts", "two", "--env", "API_KEY:hunter2"],
            2,
            "JobError",
            [("--env", "is not KEY=VALUE"), ("compute.hosts", "'two'"), ("entry", "no.py does not exist")],
        ),
        (["local", "env", "--json"], 8, "EndpointError", [("", "no background endpoint is running")]),
    ],
)
def test_errors_are_a_document_too(
    arguments: list[str],
    code: int,
    kind: str,
    problems: list[tuple[str, str]],
    home: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_command(arguments) == code
    captured = capsys.readouterr()
    error = json.loads(captured.out)["error"]
    assert captured.err.startswith("error: ") and "hunter2" not in captured.out + captured.err
    assert list(error) == ["exit_code", "kind", "problems"]
    assert (error["exit_code"], error["kind"], len(error["problems"])) == (code, kind, len(problems))
    for problem, (path, message) in zip(error["problems"], problems, strict=True):
        assert problem["path"] == path and message in problem["message"]


def test_arguments_of_the_script_do_not_request_a_document(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["run", "no.py", "--local", "--", "--json"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("arguments", [[], ["local"], ["data"]])
def test_no_command_prints_the_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(arguments) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("Usage: smlaunch") and captured.err == ""


def test_all_mistakes_of_file_and_command_line_at_once(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Values that cannot be read are listed together with a value that can be read and cannot work: the
    script does not exist."""
    job = tmp_path / "job.yaml"
    job.write_text("entry: train.py\nstrategy: dpp\ncompute: {host: 2}\nlimits: {max_runtime: 10}\n")
    arguments = ["plan", str(job), "--local", "--hosts", "none", "--hp", "lr", "--input", "train"]
    assert run_command(arguments) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "error: 7 problems"
    read = ("--hp:", "--input:", "strategy:", "compute.host:", "compute.hosts:", "limits.max_runtime:")
    for path in (*read, "entry:"):
        assert any(line.startswith(f"  {path}") for line in lines), (path, lines)


def test_a_region_that_is_not_named_anywhere(shell: Shell) -> None:
    result = shell("run", "train.py")
    assert result.code == 3
    assert result.err.startswith("error: no AWS region is set: give --region")
    assert "--local" in result.err


def test_an_error_about_a_run_says_that_this_machine_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("SMLAUNCH_HOME", str(tmp_path))
    job = "INSERT INTO jobs VALUES ('t', 'r', 'nbrun-s1-a1', 'a', 'o', 0, 0, 's', '', '', '', '')"
    database = sqlite3.connect(tmp_path / "jobs.sqlite")
    database.executescript((GOLDEN / "jobs.sql").read_text() + f"; {job};")
    database.close()
    for command in ("logs", "show", "stop"):
        assert run_command([command, "nbrun"]) == 3
        error = " ".join(capsys.readouterr().err.split())
        assert "a run of this machine has the name 'nbrun': add --local" in error
    assert run_command(["logs", "nbrun2"]) == 3
    assert "a run of this machine" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_completion_scripts(name: str, shell: Shell) -> None:
    script = shell("completion", name)
    assert script.code == 0 and "_SMLAUNCH_COMPLETE" in script.out
    completion_shell = Shell(shell.folder, shell.folder)
    completion_shell.environment |= {"_SMLAUNCH_COMPLETE": "bash_complete", "COMP_WORDS": "smlaunch lo"}
    completion_shell.environment["COMP_CWORD"] = "1"
    suggestions = completion_shell().out
    assert "logs" in suggestions and "local" in suggestions and "run" not in suggestions


@pytest.mark.parametrize(
    ("line", "expected_values"),
    [
        (("plan", "--strategy", "d"), ["ddp", "deepspeed"]),
        (("plan", "--algorithm", "x"), ["xgboost"]),
        (("init", "s"), ["share-nothing", "sklearn", "smddp", "smp", "spark"]),
    ],
)
def test_names_are_completed(line: tuple[str, ...], expected_values: list[str]) -> None:
    *complete_words, incomplete = line
    completions = ShellComplete(cli, {}, "smlaunch", "").get_completions(complete_words, incomplete)
    assert [completion.value for completion in completions] == expected_values


def test_inputs_of_the_command_line() -> None:
    problems: list[Problem] = []
    valid_inputs = [
        "train=s3://b/p/,mode=FastFile,split=key",
        "odd=/data/a,b=c/d",
        "plain=./x",
        "disk=efs://fs-1a2b3c4d/x,access=rw",
        "pipe=s3://b/q/,mode=Pipe,compression=gzip,shuffle_seed=7",
    ]
    inputs = _parse_inputs([*valid_inputs, "bad", "t=x,mod=File", "u=x,mode=Pipe,mode=File"], problems)
    assert inputs["train"] == {"uri": "s3://b/p/", "mode": "FastFile", "split": "key"}
    assert inputs["odd"] == {"uri": "/data/a,b=c/d"}
    assert inputs["plain"] == {"uri": "./x"}
    assert inputs["disk"] == {"uri": "efs://fs-1a2b3c4d/x", "access": "rw"}
    assert inputs["pipe"] == {
        "uri": "s3://b/q/",
        "mode": "Pipe",
        "compression": "gzip",
        "shuffle_seed": 7,
    }
    assert [str(problem) for problem in problems] == [
        "--input: 'bad' is not NAME=URI; write --input train=bad",
        "--input: t: 'mod' is unknown, did you mean 'mode'?",
        "--input: u: 'mode' is given twice",
    ]


@given(st.dictionaries(st.text(min_size=1).filter(lambda key: "=" not in key), st.text(), max_size=5))
def test_pairs_arrive_exactly(pairs: dict[str, str]) -> None:
    problems: list[Problem] = []
    assert _parse_pairs("--hp", [f"{key}={value}" for key, value in pairs.items()], problems) == pairs
    assert problems == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.42, "0.4 s"), (59, "59 s"), (60, "1:00"), (3599, "59:59"), (93784, "1d 2:03:04")],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_elapsed(seconds) == text


def test_a_dry_run_and_a_plan_leave_nothing_behind(shell: Shell) -> None:
    dry_run = shell("run", "train.py", "--local", "--dry-run", "--hosts", "2", "--hp", "lr=0.10")
    assert dry_run.code == 0, dry_run.err
    request = json.loads(dry_run.out)
    assert request["ResourceConfig"]["InstanceCount"] == 2
    assert request["HyperParameters"]["lr"] == "0.10"
    plan_result = shell("plan", "train.py", "--local", "--json")
    assert plan_result.code == 0, plan_result.err
    assert {"strategy", "reasons", "warnings", "requests", "cost"} <= set(json.loads(plan_result.out))
    assert not Path(shell.environment["SMLAUNCH_HOME"]).exists()
