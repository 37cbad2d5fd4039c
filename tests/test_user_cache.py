"""The cache folder: only this user's own whole entries are read, and nothing about it fails a command."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from smlaunch import user_cache
from smlaunch.user_cache import cache_folder, read_entry, write_entry
from tests.conftest import IS_ROOT

VALUE = b'{"operations":{"A":1}}\n\xff\x00'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    return tmp_path / "xdg" / "smlaunch"


def entry(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_an_entry_comes_back_and_is_private(folder: Path) -> None:
    assert read_entry("model", "key") is None
    write_entry("model", "key", VALUE)
    assert read_entry("model", "key") == VALUE
    assert read_entry("model", "other key") is read_entry("other", "key") is None
    assert [oct(path.stat().st_mode & 0o777) for path in (folder, entry(folder))] == ["0o700", "0o600"]


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def _change_a_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"A":1', b'"A":2'))


def _replace_by_link(path: Path) -> None:
    path.rename(path.parent / "elsewhere")
    path.symlink_to("elsewhere")


def _replace_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _append_much(path: Path) -> None:
    os.truncate(path, 9 << 20)


def _give_away(path: Path) -> None:
    os.chown(path, 65534, 65534)


DAMAGES: list[Callable[[Path], object]] = [
    _truncate,
    _change_a_byte,
    _replace_by_link,
    _replace_by_fifo,
    _append_much,
    lambda path: path.write_bytes(b""),
    lambda path: path.write_bytes(b"\xff\x00garbage" * 100),
    lambda path: path.write_bytes(b"[" * 100_000),
    lambda path: path.chmod(0o620),
    lambda path: path.chmod(0o602),
    pytest.param(_give_away, marks=pytest.mark.root),  # type: ignore[list-item]
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_hostile_or_damaged_entry_is_ignored_and_replaced(
    damage: Callable[[Path], object], folder: Path
) -> None:
    write_entry("model", "key", VALUE)
    damage(entry(folder))
    assert read_entry("model", "key") is None
    write_entry("model", "key", VALUE)
    assert read_entry("model", "key") == VALUE


def test_a_folder_in_place_of_an_entry_is_left_alone(folder: Path) -> None:
    write_entry("model", "key", VALUE)
    _replace_by_folder(entry(folder))
    write_entry("model", "key", VALUE)
    assert read_entry("model", "key") is None
    assert entry(folder).is_dir()


def test_an_entry_under_another_keys_name_is_ignored(folder: Path) -> None:
    write_entry("model", "key", VALUE)
    name = entry(folder)
    write_entry("model", "newer key", VALUE)
    (newer,) = set(folder.iterdir()) - {name}
    name.replace(newer)
    assert read_entry("model", "newer key") is None


def test_nothing_is_written_where_others_may_write(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    write_entry("model", "key", VALUE)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("place", ["missing/parents", "file", "read-only", "nul\0", "x" * 5000])
def test_a_folder_that_cannot_be_used(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    read_only = tmp_path / "read-only"
    read_only.mkdir(0o500)
    base = tmp_path / place
    if place == "read-only" and IS_ROOT:  # whom no mode stops
        base = Path("/proc")
    monkeypatch.setattr(user_cache, "cache_folder", lambda: base / "smlaunch")
    write_entry("model", "key", VALUE)
    assert read_entry("model", "key") is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "read-only"]


def test_the_folder_is_in_the_cache_home_or_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "smlaunch"
    for unset in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        monkeypatch.setenv("HOME", str(tmp_path))
        assert cache_folder() == tmp_path / ".cache" / "smlaunch"
    monkeypatch.setenv("HOME", "relative")
    assert cache_folder() is None
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert cache_folder() is None
    write_entry("model", "key", VALUE)
    assert read_entry("model", "key") is None


def test_the_oldest_of_many_versions_are_removed(folder: Path) -> None:
    write_entry("other", "key", VALUE)
    for number in range(12):
        write_entry("model", str(number), VALUE)
        for path in folder.iterdir():
            os.utime(path, ns=(0, path.stat().st_mtime_ns - 10**9))
    remaining = [number for number in range(12) if read_entry("model", str(number)) is not None]
    assert remaining == list(range(4, 12))
    assert read_entry("other", "key") == VALUE


def test_writers_at_the_same_time_leave_one_whole_entry(folder: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        for _ in range(40):
            threads.submit(write_entry, "model", "key", VALUE)
    assert read_entry("model", "key") == VALUE
    assert len(list(folder.iterdir())) == 1


def test_a_full_disk_leaves_no_part(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    write_entry("model", "key", VALUE)
    assert not list(folder.iterdir())
