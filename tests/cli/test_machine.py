"""Exit code 8, with a sentence: a full disk, and a state directory that cannot be written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.conftest import IS_ROOT

COMMAND = (sys.executable, "-m", "smlaunch")
ON_A_FULL_DISK = 'mount -t tmpfs -o size=16k tmpfs "$0" && head -c 16384 /dev/zero > "$0/fill"; exec "$@"'


@pytest.mark.root
@pytest.mark.parametrize(
    "arguments",
    [
        ("export", "step-functions", "train.py", "--region", "eu-west-1", "--out", "{full}/out"),
        ("export", "airflow", "train.py", "--region", "eu-west-1", "--out", "{full}/out"),
        ("init", "ddp", "{full}"),
        ("data", "inventory", ".", "--out", "{full}/keys.parquet"),
        ("data", "pack", ".", "{full}/packed"),
        ("run", "train.py", "--local"),
        ("local", "start"),
    ],
)
def test_a_full_disk(shell: Shell, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    full = tmp_path / "full"
    full.mkdir()
    words = [word.format(full=full) for word in arguments]
    result = subprocess.run(
        ["unshare", "--mount", "sh", "-c", ON_A_FULL_DISK, str(full), *COMMAND, *words],
        capture_output=True,
        text=True,
        cwd=shell.folder,
        env={**shell.environment, "SMLAUNCH_HOME": str(full / "home")},
        timeout=110,
    )
    assert result.returncode == 8, result
    assert "error: the disk of this machine is full (" in result.stderr
    assert f"free space below {full}" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("arguments", [("run", "train.py", "--local"), ("local", "start")])
def test_a_state_directory_that_cannot_be_written(
    shell: Shell, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    # Root without its capabilities may write no more than another user.
    as_user = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if IS_ROOT else ()
    result = subprocess.run(
        [*as_user, *COMMAND, *arguments],
        capture_output=True,
        text=True,
        cwd=shell.folder,
        env={**shell.environment, "SMLAUNCH_HOME": str(locked / "home")},
        timeout=110,
    )
    assert result.returncode == 8, result
    assert (
        f"the endpoint's state directory {locked}/home cannot be created: Permission denied" in result.stderr
    )
    assert "set SMLAUNCH_HOME to a directory you can write" in result.stderr
