"""Uploads of directory trees with errors of single files and of the store."""

from __future__ import annotations

import os
import resource
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from smlaunch.local.jobs import s3_uploads
from smlaunch.local.jobs.file_copy import copy_open_file
from smlaunch.local.jobs.s3_uploads import HostPath
from smlaunch.local.stores.object_store import ObjectStore
from tests.local.jobs.conftest import tree


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "host" / "ml"
    path.mkdir(parents=True)
    for name in "abc":
        (path / name).write_text(f"of {name}")
    return path


@contextmanager
def refuse_inserts(objects: ObjectStore, condition: str = "1") -> Iterator[None]:
    """Make inserts into the store's index fail, as on a full or broken disk."""
    with closing(sqlite3.connect(objects.root / "_store" / "index.sqlite")) as index:
        index.execute(
            f"CREATE TRIGGER refusal BEFORE INSERT ON objects WHEN {condition} "
            "BEGIN SELECT RAISE(ABORT, 'the disk broke'); END"
        )
        index.commit()
        yield
        index.execute("DROP TRIGGER refusal")
        index.commit()


@contextmanager
def limit_file_size(size: int) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def upload_folder(objects: ObjectStore, folder: Path, ended: bool = True) -> Mapping[str, str]:
    """Upload each file of the folder under its name; return the errors by key."""
    files = {name: HostPath(folder, name) for name in sorted(os.listdir(folder))}
    failed = s3_uploads.upload_files(objects, "data", files, folder.parent, hosts_have_ended=ended)
    assert os.listdir(folder.parent) == [folder.name], "nothing stays in between"
    return {key: str(error) for key, error in failed.items()}


def stored_objects(objects: ObjectStore) -> dict[str, str]:
    return {
        entry.key: objects.object_body_path("data", entry.key).read_text()
        for entry in objects.list_objects("data")
    }


@pytest.mark.parametrize("ended", [True, False])
def test_a_store_that_breaks_takes_no_file_with_it(objects: ObjectStore, folder: Path, ended: bool) -> None:
    with refuse_inserts(objects):
        assert upload_folder(objects, folder, ended) == dict.fromkeys("abc", "the disk broke")
    assert tree(folder) == {name: f"of {name}" for name in "abc"}
    assert upload_folder(objects, folder, ended) == {}
    assert stored_objects(objects) == {name: f"of {name}" for name in "abc"}


@pytest.mark.parametrize("ended", [True, False])
def test_one_that_the_store_refuses_does_not_keep_the_others(
    objects: ObjectStore, folder: Path, ended: bool
) -> None:
    with refuse_inserts(objects, "NEW.key = X'62'"):
        assert upload_folder(objects, folder, ended) == {"b": "the disk broke"}
    assert stored_objects(objects) == {"a": "of a", "c": "of c"}
    assert tree(folder) == {name: f"of {name}" for name in "abc"}


def test_one_that_cannot_be_written_does_not_keep_the_others(objects: ObjectStore, folder: Path) -> None:
    (folder / "b").write_bytes(bytes(8 << 20))
    with limit_file_size(4 << 20):
        (failed,) = upload_folder(objects, folder, ended=False).items()
    assert failed[0] == "b"
    assert "File too large" in failed[1]
    assert stored_objects(objects) == {"a": "of a", "c": "of c"}


def test_what_is_no_file_does_not_keep_the_others(objects: ObjectStore, folder: Path) -> None:
    (folder / "b").unlink()
    (folder / "b").symlink_to("/etc/passwd")
    os.mkfifo(folder / "d")
    assert upload_folder(objects, folder) == {
        "b": "[Errno 22] it is a symbolic link",
        "d": "[Errno 22] it is a FIFO",
    }
    assert set(stored_objects(objects)) == {"a", "c"}


def test_a_body_is_never_a_file_that_somebody_may_still_write_to(objects: ObjectStore, folder: Path) -> None:
    (folder.parent.parent / "elsewhere").hardlink_to(folder / "a")
    with (folder / "b").open("a") as writer:
        assert upload_folder(objects, folder) == {}
        writer.write(" and more")
    (folder.parent.parent / "elsewhere").write_text("changed")
    assert stored_objects(objects) == {name: f"of {name}" for name in "abc"}
    inodes = {name: (folder / name).stat().st_ino for name in "abc"}
    moved = {name for name in "abc" if objects.object_body_path("data", name).stat().st_ino == inodes[name]}
    assert moved == {"c"}, "nobody else has it: its bytes need not be copied"


def test_a_body_has_a_mode_of_the_stores_own(objects: ObjectStore, folder: Path) -> None:
    (folder / "a").chmod(0)
    (folder / "b").chmod(0o4755)
    assert upload_folder(objects, folder) == {}
    assert stored_objects(objects) == {name: f"of {name}" for name in "abc"}
    for name in "ab":
        assert objects.object_body_path("data", name).stat().st_mode & 0o7777 == 0o644


def test_no_more_is_read_than_there_was(tmp_path: Path) -> None:
    """A file that grows as fast as it is read would never end."""
    for size in (10, 1 << 16, 3 << 20):
        (tmp_path / "long").write_bytes(b"x" * (size + 5))
        reader = os.open(tmp_path / "long", os.O_RDONLY)
        copy_open_file(reader, tmp_path / "copy", size)
        os.close(reader)
        assert (tmp_path / "copy").stat().st_size == size
