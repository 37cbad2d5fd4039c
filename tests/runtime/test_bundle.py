"""The runtime archive: its files, and that it can be imported by every Python."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from smlaunch.runs.runtime_archive import build_runtime_archive
from tests.runtime.host import Host
from tests.runtime.test_ranks import VERSIONS, python_of

PACKAGE = Path(__file__).parents[2] / "smlaunch"
MPI_PACKAGE = "smlaunch/runtime/mpi/"


def archived_sources(mpi: bool) -> set[str]:
    names = zipfile.ZipFile(io.BytesIO(build_runtime_archive(mpi))).namelist()
    sources = {name for name in names if name.endswith(".py")}
    assert sorted(names) == sorted([*sources, *(name + "c" for name in sources)]), (
        "each one compiled too, once"
    )
    return sources


@pytest.mark.parametrize("mpi", [False, True])
def test_the_same_bytes_from_another_process(mpi: bool) -> None:
    program = (
        "import hashlib; from smlaunch.runs.runtime_archive import build_runtime_archive;"
        f"print(hashlib.sha256(build_runtime_archive({mpi})).hexdigest())"
    )
    expected = hashlib.sha256(build_runtime_archive(mpi)).hexdigest()
    for options in (("-B",), ("-X", "pycache_prefix=/dev/null/none")):
        result = subprocess.run([sys.executable, *options, "-c", program], capture_output=True, text=True)
        assert result.stdout.strip() == expected, result.stderr


def test_it_holds_protocol_runtime_and_train_and_what_is_mpi_s_for_mpi_alone() -> None:
    rooms = ("contract", "runtime", "train")
    all_files = {
        path.relative_to(PACKAGE.parent).as_posix()
        for room in rooms
        for path in (PACKAGE / room).rglob("*.py")
    } | {"__main__.py", "smlaunch/__init__.py"}
    assert archived_sources(mpi=True) == all_files
    assert all_files - archived_sources(mpi=False) == {
        MPI_PACKAGE + name + ".py"
        for name in (
            *("__init__", "exec_agent", "host_program", "local_ranks", "mpi_follower", "mpi_host"),
            *("mpi_leader", "mpirun", "mpirun_args", "rank_wrapper", "report", "rsh"),
        )
    }


def imports_of(path: Path) -> set[str]:
    """Return the files of smlaunch that a module imports, at its top or inside a function."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            modules.update((node.module, *(f"{node.module}.{alias.name}" for alias in node.names)))
    files = {name.replace(".", "/") for name in modules if name.startswith("smlaunch.")}
    candidates = {f"{name}.py" for name in files} | {f"{name}/__init__.py" for name in files}
    return {name for name in candidates if (PACKAGE.parent / name).exists()}


def reachable_files(begin: set[str], without: str) -> set[str]:
    """Return the files that ``begin`` imports, directly or not, without following files below ``without``."""
    reachable, new = set(begin), set(begin)
    while new:
        new = {name for path in new for name in imports_of(PACKAGE.parent / path)} - reachable
        new = {name for name in new if not name.startswith(without)}
        reachable |= new
    return reachable


def test_nothing_else_of_the_runtime_is_for_mpi_alone() -> None:
    """Every module outside mpi/ is imported by a program of runtime/ that does not belong to mpi/."""
    programs = {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in (PACKAGE / "runtime").glob("*.py")
        if "def main(arguments" in path.read_text("utf-8")
    }
    assert len(programs) == 4
    copied = {f"smlaunch/runtime/{name}.py" for name in ("importable_package", "joined_hosts_check")}
    begin = {"smlaunch/runtime/__main__.py", *copied, *programs}
    others = {name for name in archived_sources(mpi=False) if name.startswith("smlaunch/runtime/")}
    unreached = others - reachable_files(begin, MPI_PACKAGE) - {"smlaunch/runtime/__init__.py"}
    assert unreached == set()


IMPORT_ALL = """
import importlib, json, sys, zipfile
sys.path.insert(0, sys.argv[1])
names = [name[:-3] for name in zipfile.ZipFile(sys.argv[1]).namelist() if name.endswith(".py")]
modules = [name.replace("/", ".") for name in names if name.startswith("smlaunch/runtime/")]
for module in modules:
    importlib.import_module(module[: -len(".__init__")] if module.endswith(".__init__") else module)
print(json.dumps([len(modules), [name for name in sys.modules if name.startswith("smlaunch.train")]]))
"""


@pytest.mark.parametrize("mpi", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_every_module_of_the_runtime_is_imported_by_a_bare_python(
    tmp_path: Path, version: str, mpi: bool
) -> None:
    """Nothing is installed, ``train`` is not imported, and no module is missing, with and without mpi/."""
    python = python_of(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    archive = tmp_path / "runtime.pyz"
    archive.write_bytes(build_runtime_archive(mpi))
    words = [python, "-I", "-S", "-c", IMPORT_ALL, str(archive)]
    result = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    count, of_train = json.loads(result.stdout)
    assert (count > 40, of_train) == (True, [])


def test_a_job_of_another_kind_starts_without_what_is_mpi_s(tmp_path: Path) -> None:
    """Two ranks start without mpi/; with the launcher mpi the same archive fails, since mpi/ is missing."""
    host = Host(tmp_path / "host", "import os; print(os.environ['WORLD_SIZE'])")
    result = host.run(per_host=2)
    assert (result.exit_code, sorted(result.lines)) == (0, ["[0] 2", "[1] 2"]), result.stderr
    with zipfile.ZipFile(host.runtime) as archive:
        assert [name for name in archive.namelist() if name.startswith(MPI_PACKAGE)] == []
    host.specify(launcher="mpi")
    host.runtime.write_bytes(build_runtime_archive(uses_mpi=False))
    result = host.run()
    assert result.exit_code == 70
    assert "No module named 'smlaunch.runtime.mpi'" in host.failure


def test_no_path_of_this_machine_is_in_it() -> None:
    assert str(Path(__file__).parents[2]).encode() not in build_runtime_archive(uses_mpi=True)
