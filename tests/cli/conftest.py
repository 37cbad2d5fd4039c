from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import warm
from tests.account_environment import environment_without_account

COMMAND = [sys.executable, "-m", "smlaunch.cli.main"]

SCRIPT = """\
import os, signal, sys, time
mode = sys.argv[1] if len(sys.argv) > 1 else "fine"
print("hello", *sys.argv[1:], flush=True)
if mode == "wait":
    signal.signal(signal.SIGTERM, lambda *_: (print("told to stop", flush=True), sys.exit(0)))
    while True:
        time.sleep(0.05)
for step in (1, 2):
    print(f"smlaunch: progress step={step} steps=2 accuracy={step / 4}", flush=True)
if mode == "fail" and os.environ.get("RANK", "0") == "1":
    raise ValueError("boom")
"""


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


class Shell:
    """Runs the command line in a folder and with a state directory of its own."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self.environment = {**environment_without_account(), "SMLAUNCH_HOME": str(home)}

    def __call__(self, *arguments: str | Path) -> Outcome:
        result = warm.run([*map(str, arguments)], env=self.environment, cwd=self.folder, timeout=60)
        return Outcome(result.returncode, result.stdout, result.stderr)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environment,
        )


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A shell with no endpoint and no state."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.py").write_text(SCRIPT)
    return Shell(tmp_path / "work", tmp_path / "home")


@pytest.fixture(scope="package")
def endpoint_shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell with one background endpoint, shared by all tests of this folder."""
    folder = tmp_path_factory.mktemp("background")
    (folder / "train.py").write_text(SCRIPT)
    shell = Shell(folder, tmp_path_factory.mktemp("home"))
    result = shell("local", "start")
    assert result.code == 0, result.err
    yield shell
    assert shell("local", "stop").code == 0


def interrupt(process: subprocess.Popen[str], awaited_text: str) -> None:
    """Sends Ctrl-C once the process has printed ``awaited_text``."""
    assert process.stdout is not None
    for line in process.stdout:
        if awaited_text in line:
            process.send_signal(signal.SIGINT)
            return
    raise AssertionError(f"it ended without printing {awaited_text!r}: {process.communicate()[1]}")
