from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from smlaunch.local.untrusted_files import (
    UnexpectedFileType,
    error_text,
    open_file,
    open_folder,
    printable_name,
    read_beginning,
    walk_folder,
)
from tests.conftest import IS_ROOT


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree" / "a" / "b").mkdir(parents=True)
    (tmp_path / "tree" / "a" / "b" / "file").write_text("ours")
    (tmp_path / "secret" / "b").mkdir(parents=True)
    (tmp_path / "secret" / "b" / "file").write_text("of this machine")
    return tmp_path / "tree"


def walk_errors(root: Path, below: str = "", grant: bool = False) -> dict[str, str]:
    """Return the names that ``walk`` finds, each with its error."""
    return {
        entry.relative_path: error_text(entry.error) if entry.error else ""
        for entry in walk_folder(root, below, fix_permissions=grant)
    }


def test_a_file_is_read_no_further_than_wanted(tree: Path) -> None:
    os.utime(tree / "a/b/file", (5, 5))
    assert read_beginning(tree, "a/b/file", 3) == (b"our", 5.0)


@pytest.mark.parametrize("link", ["a", "a/b", "a/b/file"])
def test_no_component_of_a_path_may_be_a_link(tree: Path, link: str) -> None:
    (tree / link).rename(tree / "away")
    (tree / link).symlink_to(tree.parent / "secret" / link.removeprefix("a/").removeprefix("a"))
    assert (tree / "a/b/file").read_text() == "of this machine", "a plain open follows it"
    with pytest.raises(UnexpectedFileType, match="it is a symbolic link"):
        open_file(tree, "a/b/file")
    assert "file" not in walk_errors(tree, "a/b") or link == "a/b/file"


def test_special_files_do_not_block(tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tree / "socket"))
    for root, name, kind in (
        (tree, "pipe", "a FIFO"),
        (tree, "socket", "a socket"),
        (tree, "a", "a directory"),
        (Path("/dev"), "zero", "a device"),
    ):
        with pytest.raises(UnexpectedFileType) as refused:
            open_file(root, name)
        assert refused.value.file_type == kind
    with pytest.raises(UnexpectedFileType, match="it is a FIFO"):
        open_folder(tree, "pipe")
    with pytest.raises(FileNotFoundError):
        open_file(tree, "a/absent")


def test_a_directory_replaced_by_a_link_is_not_followed(tree: Path) -> None:
    """A thread exchanges ``a`` with a link to a directory of the machine, again and again."""
    stop = threading.Event()
    link = tree / "link"

    def swap_with_link() -> None:
        while not stop.is_set():
            link.symlink_to(tree.parent / "secret")
            (tree / "a").rename(tree / "own")
            link.rename(tree / "a")
            (tree / "a").unlink()
            (tree / "own").rename(tree / "a")

    thread = threading.Thread(target=swap_with_link)
    thread.start()
    read = refused = 0
    try:
        while min(read, refused) < 20:
            try:
                assert read_beginning(tree, "a/b/file", 100)[0] == b"ours"
                read += 1
            except (UnexpectedFileType, FileNotFoundError):
                refused += 1
            assert all(entry.relative_path != "file" or entry.file_stat for entry in walk_folder(tree, "a/b"))
    finally:
        stop.set()
        thread.join()


def test_fix_permissions_opens_own_files(tree: Path) -> None:
    (tree / "a/b/file").chmod(0)
    (tree / "a/b").chmod(0o600)  # can be listed, but not entered
    (tree / "a").chmod(0)
    if not IS_ROOT:
        assert walk_errors(tree) == {"a": "Permission denied"}
        with pytest.raises(PermissionError):
            open_file(tree, "a/b/file")
    assert walk_errors(tree, grant=True) == {"a": "", "a/b": "", "a/b/file": ""}
    with os.fdopen(open_file(tree, "a/b/file", fix_permissions=True)) as file:
        assert file.read() == "ours"


def test_files_with_other_hard_links_keep_their_mode(tree: Path) -> None:
    elsewhere = tree.parent / "secret" / "closed"
    elsewhere.write_text("of this machine")
    elsewhere.chmod(0)
    (tree / "same").hardlink_to(elsewhere)
    if IS_ROOT:
        os.close(open_file(tree, "same", fix_permissions=True))
    else:
        with pytest.raises(PermissionError):
            open_file(tree, "same", fix_permissions=True)
    assert elsewhere.stat().st_mode & 0o777 == 0


def test_a_walk_comes_to_an_end(tree: Path) -> None:
    at = os.open(tree, os.O_RDONLY)
    for _ in range(100):
        os.mkdir("d" * 100, dir_fd=at)
        inner = os.open("d" * 100, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)
    errors = walk_errors(tree)
    assert [error for error in errors.values() if error] == ["its path has 4096 bytes or more"]
    assert len(errors) == 3 + 41


def test_printable_names_are_short_and_on_one_line() -> None:
    assert printable_name("plain ünïcode") == "plain ünïcode"
    assert printable_name(os.fsdecode(b"odd-\xff\n\x1b[1m")) == r"odd-\xff\n\x1b[1m"
    assert len(printable_name("d/" * 2000)) == 203
