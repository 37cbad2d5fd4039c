from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from smlaunch.local.host_files import Refused, open_file, open_folder, read_beginning, shown, walk, why
from tests.conftest import IS_ROOT


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree" / "a" / "b").mkdir(parents=True)
    (tmp_path / "tree" / "a" / "b" / "file").write_text("ours")
    (tmp_path / "secret" / "b").mkdir(parents=True)
    (tmp_path / "secret" / "b" / "file").write_text("of this machine")
    return tmp_path / "tree"


def names(root: Path, below: str = "", grant: bool = False) -> dict[str, str]:
    """What is found, and why it cannot be had."""
    return {found.name: why(found.error) if found.error else "" for found in walk(root, below, grant=grant)}


def test_a_file_is_read_no_further_than_wanted(tree: Path) -> None:
    os.utime(tree / "a/b/file", (5, 5))
    assert read_beginning(tree, "a/b/file", 3) == (b"our", 5.0)


@pytest.mark.parametrize("link", ["a", "a/b", "a/b/file"])
def test_no_part_of_the_way_may_be_a_link(tree: Path, link: str) -> None:
    (tree / link).rename(tree / "away")
    (tree / link).symlink_to(tree.parent / "secret" / link.removeprefix("a/").removeprefix("a"))
    assert (tree / "a/b/file").read_text() == "of this machine", "a plain open follows it"
    with pytest.raises(Refused, match="it is a symbolic link"):
        open_file(tree, "a/b/file")
    assert "file" not in names(tree, "a/b") or link == "a/b/file"


def test_nothing_waits_for_what_is_no_file(tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tree / "socket"))
    for root, name, kind in (
        (tree, "pipe", "a FIFO"),
        (tree, "socket", "a socket"),
        (tree, "a", "a directory"),
        (Path("/dev"), "zero", "a device"),
    ):
        with pytest.raises(Refused) as refused:
            open_file(root, name)
        assert refused.value.kind == kind
    with pytest.raises(Refused, match="it is a FIFO"):
        open_folder(tree, "pipe")
    with pytest.raises(FileNotFoundError):
        open_file(tree, "a/absent")


def test_a_directory_that_is_exchanged_meanwhile_leads_nowhere(tree: Path) -> None:
    """``a`` is our directory and a link to the machine's, in turn, as fast as can be."""
    done = threading.Event()
    link = tree / "link"

    def exchange() -> None:
        while not done.is_set():
            link.symlink_to(tree.parent / "secret")
            (tree / "a").rename(tree / "own")
            link.rename(tree / "a")
            (tree / "a").unlink()
            (tree / "own").rename(tree / "a")

    thread = threading.Thread(target=exchange)
    thread.start()
    read = refused = 0
    try:
        while min(read, refused) < 20:
            try:
                assert read_beginning(tree, "a/b/file", 100)[0] == b"ours"
                read += 1
            except (Refused, FileNotFoundError):
                refused += 1
            assert all(found.name != "file" or found.status for found in walk(tree, "a/b"))
    finally:
        done.set()
        thread.join()


def test_what_is_ours_and_shut_is_opened_where_asked_for(tree: Path) -> None:
    (tree / "a/b/file").chmod(0)
    (tree / "a/b").chmod(0o600)  # can be listed, and not entered
    (tree / "a").chmod(0)
    if not IS_ROOT:
        assert names(tree) == {"a": "Permission denied"}
        with pytest.raises(PermissionError):
            open_file(tree, "a/b/file")
    assert names(tree, grant=True) == {"a": "", "a/b": "", "a/b/file": ""}
    with os.fdopen(open_file(tree, "a/b/file", grant=True)) as file:
        assert file.read() == "ours"


def test_a_file_with_a_name_elsewhere_is_not_opened(tree: Path) -> None:
    elsewhere = tree.parent / "secret" / "closed"
    elsewhere.write_text("of this machine")
    elsewhere.chmod(0)
    (tree / "same").hardlink_to(elsewhere)
    if IS_ROOT:
        os.close(open_file(tree, "same", grant=True))
    else:
        with pytest.raises(PermissionError):
            open_file(tree, "same", grant=True)
    assert elsewhere.stat().st_mode & 0o777 == 0


def test_a_walk_comes_to_an_end(tree: Path) -> None:
    at = os.open(tree, os.O_RDONLY)
    for _ in range(100):
        os.mkdir("d" * 100, dir_fd=at)
        inner = os.open("d" * 100, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)
    found = names(tree)
    assert [error for error in found.values() if error] == ["its path has 4096 bytes or more"]
    assert len(found) == 3 + 41


def test_names_are_shown_on_one_short_line() -> None:
    assert shown("plain ünïcode") == "plain ünïcode"
    assert shown(os.fsdecode(b"odd-\xff\n\x1b[1m")) == r"odd-\xff\n\x1b[1m"
    assert len(shown("d/" * 2000)) == 203
