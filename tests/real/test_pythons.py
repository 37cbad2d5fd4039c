"""The installed package on other Pythons than the suite's: a plan, and a run on two hosts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.runtime.test_ranks import python_of


@pytest.mark.parametrize("version", ["3.10", "3.13"])
def test_a_run_with_the_oldest_and_the_newest_python(version: str, tmp_path: Path) -> None:
    python = python_of(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    subprocess.run([python, "-m", "venv", tmp_path / "venv"], check=True)
    own_python = tmp_path / "venv" / "bin" / "python"
    pip = [own_python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt"]
    subprocess.run([*pip, ROOT], check=True)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "hello.py").write_text(
        "import os, sys\nprint('hello', os.environ['SM_CURRENT_HOST'], sys.version_info[1])\n"
    )
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SMLAUNCH_HOME": str(tmp_path / "home")}
    command = [own_python, "-m", "smlaunch", "run", "hello.py", "--local", "--hosts", "2"]
    result = subprocess.run(
        command, cwd=tmp_path / "project", env=environment, capture_output=True, text=True, timeout=200
    )
    assert result.returncode == 0, result.stderr
    minor = version.partition(".")[2]
    assert f"hello algo-1 {minor}" in result.stdout + result.stderr
    assert f"hello algo-2 {minor}" in result.stdout + result.stderr
