"""The runtime's archive is taken from the user's cache, until one of its sources changes."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from smlaunch.runs import runtime_archive
from smlaunch.runs.runtime_archive import build_runtime_archive, load_runtime_archive


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with few modules; its archives are in a cache of their own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    package = tmp_path / "smlaunch"
    for name in ("contract", "runtime", "runtime/mpi", "train"):
        (package / name).mkdir(parents=True)
        (package / name / "__init__.py").write_text("NUMBER = 1\n")
    monkeypatch.setattr(runtime_archive, "_PACKAGE", package)
    return package


def forbid_build(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(uses_mpi: bool) -> bytes:
        raise AssertionError("built again")

    monkeypatch.setattr(runtime_archive, "build_runtime_archive", fail)


def test_it_is_built_once(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archives = {uses_mpi: load_runtime_archive(uses_mpi) for uses_mpi in (False, True)}
    assert archives == {uses_mpi: build_runtime_archive(uses_mpi) for uses_mpi in (False, True)}
    assert archives[False] != archives[True]
    forbid_build(monkeypatch)
    assert archives == {uses_mpi: load_runtime_archive(uses_mpi) for uses_mpi in (False, True)}


def _add_module(package: Path) -> None:
    (package / "train" / "added.py").write_text("")


def _remove_module(package: Path) -> None:
    (package / "train" / "__init__.py").unlink()


def _change_behind_size_and_time(package: Path) -> None:
    path = package / "train" / "__init__.py"
    status = path.stat()
    path.write_text("NUMBER = 2\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("change", [_add_module, _remove_module, _change_behind_size_and_time])
def test_a_changed_source_is_seen(package: Path, change: Callable[[Path], None]) -> None:
    before = load_runtime_archive(uses_mpi=False)
    change(package)
    after = load_runtime_archive(uses_mpi=False)
    assert after == build_runtime_archive() != before


def test_another_pythons_bytecode_is_not_taken(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_runtime_archive(uses_mpi=False)
    forbid_build(monkeypatch)
    monkeypatch.setattr(runtime_archive.importlib.util, "MAGIC_NUMBER", b"none")  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="built again"):
        load_runtime_archive(uses_mpi=False)


def test_a_source_saved_meanwhile_is_not_stored_under_the_earlier_one(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = package / "train" / "__init__.py"
    earlier = path.read_text()

    def build_and_save(uses_mpi: bool) -> bytes:
        path.write_text("NUMBER = 22\n")
        return build_runtime_archive(uses_mpi)

    with monkeypatch.context() as patch:
        patch.setattr(runtime_archive, "build_runtime_archive", build_and_save)
        load_runtime_archive(uses_mpi=False)
    assert not (package.parent / "xdg").exists()
    path.write_text(earlier)
    content = zipfile.ZipFile(io.BytesIO(load_runtime_archive(uses_mpi=False)))
    assert content.read("smlaunch/train/__init__.py") == earlier.encode()


def test_nothing_is_stored_where_others_may_write(package: Path) -> None:
    folder = package.parent / "xdg" / "smlaunch"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert load_runtime_archive(uses_mpi=False) == build_runtime_archive()
    assert not list(folder.iterdir())
