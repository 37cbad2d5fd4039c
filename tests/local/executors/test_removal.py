from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from smlaunch.local.executors.tree_removal import remove_or_warn, remove_tree


def create_deep_tree(folder: Path, depth: int) -> None:
    """Create nested directories, each with a file and a link; every third has mode 0."""
    folder.mkdir()
    at = os.open(folder, os.O_RDONLY)
    for number in range(depth):
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=at))
        os.symlink("/etc", "link", dir_fd=at)
        os.mkdir("d" * 200, dir_fd=at)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=at)
        if number % 3 == 0:
            os.fchmod(at, 0)
        os.close(at)
        at = inner
    os.close(at)


def test_any_depth_and_any_modes(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(0o500)
    (tmp_path / "kept").write_text("x")
    create_deep_tree(tmp_path / "tree", 1100)
    (tmp_path / "tree").chmod(0o700)
    (tmp_path / "tree" / "away").symlink_to(outside)
    remove_tree(tmp_path / "tree")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "outside"]
    assert outside.stat().st_mode & 0o777 == 0o500
    remove_tree(tmp_path / "tree")  # a missing tree is no error
    remove_tree(tmp_path / "nowhere" / "tree")


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("x")
    (tmp_path / "tree").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="symbolic link"):
        remove_tree(tmp_path / "tree")
    assert (tmp_path / "outside" / "file").read_text() == "x"


def test_two_may_be_at_it(tmp_path: Path) -> None:
    for number in range(5):
        tree = tmp_path / str(number)
        create_deep_tree(tree, 100)
        with ThreadPoolExecutor() as pool:
            for future in [pool.submit(remove_tree, tree) for _ in range(3)]:
                future.result()
        assert not tree.exists()


def test_what_cannot_be_removed_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unlink = os.unlink

    def unlink_or_fail(name: str, dir_fd: int) -> None:
        if name == "append-only":
            raise PermissionError(1, "Operation not permitted", name)
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr("os.unlink", unlink_or_fail)
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    for name in ("first", "append-only", "last"):
        (tmp_path / "tree" / "deep" / name).write_text("x")
    with caplog.at_level(logging.WARNING):
        remove_or_warn(tmp_path / "tree")
    (remaining,) = (path for path in (tmp_path / "tree").rglob("*") if path.is_file())
    assert remaining.name == "append-only"
    (record,) = caplog.records
    assert record.exc_info is None
    line = record.getMessage()
    assert line.startswith(f"{remaining} cannot be removed (Operation not permitted)"), line
    assert "\n" not in line
