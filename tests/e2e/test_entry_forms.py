"""A package and a command on two hosts, started from the folder that they are in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.command import smlaunch

TASK = """\
import os, sys
from . import model
print("task", model.NAME, os.environ["RANK"], os.environ["SM_USER_ENTRY_POINT"], *sys.argv[1:], flush=True)
"""
TOOL = "import os, sys; print('tool', os.environ.get('RANK'), *sys.argv[1:], sys.prefix, flush=True)\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "trainer").mkdir(parents=True)
    (folder / "trainer" / "__init__.py").touch()
    (folder / "trainer" / "model.py").write_text("NAME = 'net'\n")
    (folder / "trainer" / "task.py").write_text(TASK)
    (folder / "tool.py").write_text(TOOL)
    (folder / "run.sh").write_text('test "$(pwd)" = "$(dirname "$(realpath "$0")")" && python tool.py "$@"\n')
    return folder


@pytest.mark.parametrize("launcher", ["runtime", pytest.param("torchrun", marks=pytest.mark.real)])
def test_a_module_with_relative_imports(home: Path, project: Path, launcher: str) -> None:
    options = ("--hosts", "2", "--local", "--launcher", launcher)
    result = smlaunch("run", "-m", "trainer.task", *options, "--", "--x", "a b", cwd=project)
    assert result.code == 0, result.text
    assert sorted(line for line in result.out.splitlines() if " task " in line) == [
        "algo-1 [0] task net 0 trainer.task --x a b",
        "algo-2 [1] task net 1 trainer.task --x a b",
    ]


def test_a_command_is_what_every_rank_is(home: Path, project: Path) -> None:
    two_ranks = ("--local", "--processes-per-host", "2", "--hp", "lr=0.1")
    result = smlaunch("run", *two_ranks, "--", "python", "tool.py", "$HOME; x", cwd=project)
    assert result.code == 0, result.text
    lines = sorted(line.rpartition(" ")[0] for line in result.out.splitlines() if " tool " in line)
    assert lines == [f"[{rank}] tool {rank} $HOME; x --lr 0.1" for rank in (0, 1)]


def test_a_job_file_names_a_command_in_its_folder(home: Path, project: Path) -> None:
    """``python`` in a shell script is the one that the requirements are installed in."""
    (project / "requirements.txt").write_text("pip\n")
    (project / "job.yaml").write_text("entry: {command: [bash, run.sh, 1, two words]}\n")
    result = smlaunch("run", project / "job.yaml", "--local", cwd=project.parent)
    assert result.code == 0, result.text
    (line,) = [line for line in result.out.splitlines() if line.startswith("tool ")]
    assert line.startswith("tool None 1 two words ")
    assert line.endswith("/ml/python")
