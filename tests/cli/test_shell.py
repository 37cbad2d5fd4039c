"""``smlaunch shell``: a shell in a running host, at all isolation levels."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from smlaunch.local.executors.isolation_levels import probe_isolation_levels
from tests.cli.conftest import COMMAND, Shell
from tests.cli.terminal import Terminal

WAITS = """\
import os, time
os.makedirs("notes", exist_ok=True)
os.chdir("notes")
print("up", os.environ["RANK"], flush=True)
time.sleep(600)
"""

LOOKS = """\
echo "$RANK of $WORLD_SIZE; $(basename "$PWD"); $(hostname); $SMLAUNCH_OWNER"
test "$(cat "$SM_MODEL_DIR/from-shell" 2>/dev/null)" = "" && echo "mine" > "$SM_MODEL_DIR/from-shell"
ps -e 2>/dev/null | grep -c python
exit 7
"""

LEVELS = [level.name for level in probe_isolation_levels() if level.works]


@pytest.fixture(scope="module", params=LEVELS)
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Shell]]:
    """A run of two hosts in another process, without a background endpoint, and its isolation level."""
    shell = Shell(tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("state") / "home")
    (shell.folder / "wait.py").write_text(WAITS)
    process = shell.start(
        *("run", "wait.py", "--local", "--name", "waits", "--strategy", "ddp", "--hosts", "2"),
        *("--isolation", request.param),
    )
    assert process.stdout is not None
    ranks_up = 0
    for line in process.stdout:
        ranks_up += " up " in f" {line}"
        if ranks_up == 2:
            break
    yield request.param, shell
    process.terminate()
    process.communicate(timeout=60)


def test_a_script_on_standard_input(running: tuple[str, Shell]) -> None:
    level, shell = running
    for host, rank in (("algo-1", 0), ("algo-2", 1)):
        result = subprocess.run(
            [*COMMAND, "shell", "waits", "--local", "--host", host],
            input=LOOKS,
            env=shell.environment,
            capture_output=True,
            text=True,
            cwd=shell.folder,
        )
        assert result.returncode == 7, result.stderr
        first_line, process_count = result.stdout.splitlines()
        variables, folder, hostname, owner = first_line.split("; ")
        assert (variables, folder) == (f"{rank} of 2", "notes"), "environment and directory of its rank"
        assert owner.endswith(f"/waits-s1-a1.us-east-1/{host}/")
        if level != "plain":
            assert hostname == host
            assert int(process_count) < 10, "the processes of the host only"
    homes = Path(shell.environment["SMLAUNCH_HOME"])
    assert len(list(homes.glob("hosts/*/*/algo-*/ml/model/from-shell"))) == 2, "each in its own /opt/ml"


def test_an_interactive_shell_and_its_exit_code(running: tuple[str, Shell]) -> None:
    _, shell = running
    terminal = Terminal([*COMMAND, "shell", "waits", "--local"], shell.environment, shell.folder)
    terminal.type("PS1='rea''dy> '\n")
    terminal.wait_for("\nready> ")
    terminal.type('echo "rank: $RANK"; tty\n')
    terminal.wait_for("rank: 0\n")
    terminal.wait_for("/dev/pts/")
    # Printed by the program in the foreground: Ctrl-C before that would go to the shell.
    terminal.type("sh -c 'echo begun; exec sleep 600'\n")
    terminal.wait_for("\nbegun\n")
    terminal.type("\x03")  # Ctrl-C ends the command, and not the shell
    terminal.wait_for("^C\nready> ")  # what is typed before the prompt may be lost
    terminal.type('echo "code: $?"\n')
    terminal.wait_for("code: 130\n")
    terminal.type("exit 5\n")
    assert terminal.wait_for_end() == 5


def test_what_has_no_shell(running: tuple[str, Shell]) -> None:
    _, shell = running
    cases = [
        (("waits", "--local", "--host", "algo-3"), 2, "has no host 'algo-3'; hosts: algo-1, algo-2"),
        (("wait", "--local"), 2, "did you mean 'waits'"),
    ]
    for arguments, code, message in cases:
        result = shell("shell", *arguments)
        assert (result.code, message in result.err) == (code, True), result.err


def test_a_run_that_has_ended(shell: Shell) -> None:
    assert shell("run", "train.py", "--local", "--name", "ended").code == 0
    result = shell("shell", "ended", "--local")
    assert result.code == 2 and "run ended has ended (Completed)" in result.err


JOB = """\
entry: wait.py
name: remote
remote_debug: true
compute: {hosts: 2}
strategy: ddp
"""
FAKE_AWS = '#!/bin/sh\necho "$@"\n'


def test_the_session_of_a_region(endpoint_shell: Shell, tmp_path: Path) -> None:
    """The endpoint stands for the region, and a script for the AWS CLI."""
    shell = endpoint_shell
    (shell.folder / "wait.py").write_text(WAITS)
    (shell.folder / "remote.yaml").write_text(JOB)
    (shell.folder / "plain.yaml").write_text(
        JOB.replace("remote", "plain", 1).replace("remote_debug: true", "")
    )
    for name in ("remote", "plain"):
        assert shell("run", f"{name}.yaml", "--local", "--detach").code == 0
    exports = [line.removeprefix("export ").partition("=") for line in shell("local", "env").out.splitlines()]
    (tmp_path / "aws").write_text(FAKE_AWS)
    (tmp_path / "aws").chmod(0o755)
    environment = {
        **shell.environment,
        **{name: value.strip("'\"") for name, _, value in exports if name.startswith("AWS_")},
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }

    def open_shell(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        command = [*COMMAND, "shell", *arguments, "--region", "us-east-1"]
        return subprocess.run(command, env={**environment, **changes}, capture_output=True, text=True)

    target = "sagemaker-training-job:remote-s1-a1_algo-"
    for host, number in (([], 1), (["--host", "algo-2"], 2)):
        result = open_shell("remote", *host)
        expected = f"ssm start-session --target {target}{number} --region us-east-1\n"
        assert (result.returncode, result.stdout) == (0, expected), result.stderr
    unknown = open_shell("remote", "--host", "algo-3")
    assert unknown.returncode == 2 and "no host 'algo-3'; hosts: algo-1, algo-2" in unknown.stderr
    plain = open_shell("plain")
    assert plain.returncode == 2 and "remote_debug: true" in plain.stderr
    missing = open_shell("remote", PATH=str(tmp_path / "empty"))
    assert missing.returncode == 8 and f"aws ssm start-session --target {target}1" in missing.stderr
    for name in ("remote", "plain"):
        assert shell("stop", name, "--local").code in (0, 5)
