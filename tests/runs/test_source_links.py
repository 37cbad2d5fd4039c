"""Links, special files and files that change: the archive has nothing from outside, and nothing blocks."""

from __future__ import annotations

import os
import socket
import stat
import tarfile
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smlaunch.errors import JobError
from smlaunch.runs import source_tree
from smlaunch.runs.source_archive import SourceArchive, pack_source
from smlaunch.runtime.source_unpacking import unpack_source
from tests.runs.test_source import tree


def read_links(source: SourceArchive) -> dict[str, str]:
    with tarfile.open(fileobj=BytesIO(source.compressed())) as archive:
        return {member.name: member.linkname for member in archive if member.issym()}


def unpack(source: SourceArchive, folder: Path) -> Path:
    """Unpacks the archive as a host does."""
    archive = folder.with_suffix(".tar.gz")
    archive.write_bytes(source.compressed())
    unpack_source(str(archive), str(folder))
    return folder


@pytest.fixture
def outside_folder(tmp_path: Path) -> Path:
    return tree(tmp_path / "outside", {"shadow": "root:x", "folder/x": ""})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tree(tmp_path / "root", {"train.py": "", "lib/real.py": "real"})


def test_outside_links_are_excluded(root: Path, outside_folder: Path) -> None:
    (root / "absolute").symlink_to(outside_folder / "shadow")
    (root / "relative").symlink_to("../outside/shadow")
    (root / "folder").symlink_to(outside_folder / "folder")
    (root / "first").symlink_to("second")
    (root / "second").symlink_to("../outside/shadow")
    (root / "through").symlink_to("folder/x")
    (root / "nothing").symlink_to("/nowhere/at/all")
    (root / "beside").symlink_to("../root-of-another")
    source = pack_source(root)
    assert source.files == ("lib/real.py", "train.py")
    (note,) = source.warnings
    for name in ("absolute", "relative", "folder", "first", "second", "through", "nothing", "beside"):
        assert f"{name} (to " in note
    assert "root:x" not in source.tar_bytes.decode(errors="replace")
    assert pack_source(root, include_secrets=True).files == source.files


def test_links_that_stay_inside_hold_on_a_host(root: Path, tmp_path: Path) -> None:
    (root / "plain.py").symlink_to("lib/real.py")
    (root / "lib" / "up.py").symlink_to("../lib/real.py")
    (root / "absolute.py").symlink_to(root / "lib" / "real.py")
    (root / "around.py").symlink_to("../root/lib/real.py")
    (root / "package").symlink_to(root / "lib")
    (root / "chain.py").symlink_to("package/up.py")
    (root / "later").symlink_to("lib/made-on-the-host")
    (root / "self").symlink_to(".")
    source = pack_source(root)
    assert source.warnings == ()
    assert read_links(source) == {
        "plain.py": "lib/real.py",
        "lib/up.py": "real.py",
        "absolute.py": "lib/real.py",
        "around.py": "lib/real.py",
        "package": "lib",
        "chain.py": "lib/real.py",
        "later": "lib/made-on-the-host",
        "self": ".",
    }
    host = unpack(source, tmp_path / "host")
    for name in ("plain.py", "lib/up.py", "absolute.py", "around.py", "package/real.py", "chain.py"):
        assert (host / name).read_text() == "real"


def test_a_source_that_is_a_link_is_the_folder_it_leads_to(
    root: Path, outside_folder: Path, tmp_path: Path
) -> None:
    (root / "inner").symlink_to(root / "train.py")
    (root / "out").symlink_to(outside_folder / "shadow")
    (tmp_path / "link").symlink_to(root)
    source = pack_source(tmp_path / "link")
    assert source.sha256 == pack_source(root).sha256
    assert source.files == ("inner", "lib/real.py", "train.py")


def test_link_loops_and_special_files_are_named(root: Path) -> None:
    (root / "loop").symlink_to("loop")
    (root / "ping").symlink_to("pong")
    (root / "pong").symlink_to("ping")
    os.mkfifo(root / "pipe")
    working_directory = os.getcwd()
    os.chdir(root)  # the name of a socket may be 108 bytes long
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("sock")
            source = pack_source(root)
    finally:
        os.chdir(working_directory)
    assert source.files == ("lib/real.py", "train.py")
    (note,) = source.warnings
    for name in ("loop", "ping", "pong", "pipe", "sock"):
        assert f"{name} (" in note


@pytest.mark.parametrize("name", [".gitignore", ".smlaunchignore"])
def test_an_ignore_file_that_is_a_pipe_is_refused_at_once(root: Path, name: str) -> None:
    os.mkfifo(root / name)
    with pytest.raises(JobError, match=f"{name} cannot be used: it is not a regular file"):
        pack_source(root)


def test_an_entry_that_is_a_link_out_is_refused_with_the_way_out(root: Path, outside_folder: Path) -> None:
    (root / "main.py").symlink_to(outside_folder / "shadow")
    (root / "code").symlink_to(outside_folder)
    (root / "inner").symlink_to("lib")
    source = pack_source(root)
    assert "main.py is a link out of the source folder, to " in source.explain_missing_file("main.py")
    assert "code is a link out of the source folder, to " in source.explain_missing_file("code/shadow")
    assert source.explain_missing_file("inner/real.py").endswith("name it by its own path, lib/real.py")


# ---- between the listing and the reading -----------------------------------------------------------------


def change_after_listing(monkeypatch: pytest.MonkeyPatch, change: object) -> None:
    """Calls ``change`` after all files are listed and before the first is read."""
    original = source_tree.SourceTree.exclude_targets_of_secret_links

    def list_then_change(self: source_tree.SourceTree, entries: object) -> object:
        entries_listed = list(original(self, entries))  # type: ignore[arg-type]
        change()  # type: ignore[operator]
        return entries_listed

    monkeypatch.setattr(source_tree.SourceTree, "exclude_targets_of_secret_links", list_then_change)


def test_a_link_put_in_a_files_place_is_not_followed(
    root: Path, outside_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change() -> None:
        (root / "train.py").unlink()
        (root / "train.py").symlink_to(outside_folder / "shadow")

    change_after_listing(monkeypatch, change)
    with pytest.raises(JobError, match=r"train\.py changes while it is being read; try again"):
        pack_source(root)


def test_a_link_put_in_a_folders_place_is_not_followed(
    root: Path, outside_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (outside_folder / "real.py").write_text("not ours")
    tree(root, {"a/x.py": ""})  # listed last, so that lib is opened again to be read

    def change() -> None:
        (root / "lib").rename(root / "moved")
        (root / "lib").symlink_to(outside_folder)

    change_after_listing(monkeypatch, change)
    with pytest.raises(JobError, match=r"lib/real\.py changes while it is being read; try again"):
        pack_source(root)


def test_a_pipe_put_in_a_files_place_does_not_block(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change() -> None:
        (root / "train.py").unlink()
        os.mkfifo(root / "train.py")

    change_after_listing(monkeypatch, change)
    with pytest.raises(JobError, match="changes while it is being read"):
        pack_source(root)


def test_a_file_that_grows_while_it_is_read_is_read_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = source_tree._read_at_most
    grown: list[int] = []

    def read(descriptor: int, size: int) -> bytes:
        content = original(descriptor, size)
        if content == b"real" and not grown:
            grown.append(1)
            with (root / "lib" / "real.py").open("a") as file:
                file.write("ly")
        return content

    monkeypatch.setattr(source_tree, "_read_at_most", read)
    with tarfile.open(fileobj=BytesIO(pack_source(root).tar_bytes)) as archive:
        assert archive.extractfile("lib/real.py").read() == b"really"  # type: ignore[union-attr]


def test_all_unreadable_files_are_reported_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change() -> None:
        (root / "train.py").unlink()
        (root / "lib" / "real.py").unlink()

    change_after_listing(monkeypatch, change)
    with pytest.raises(JobError) as caught:
        pack_source(root)
    assert len(caught.value.problems) == 2


# ---- what a host unpacks ---------------------------------------------------------------------------------

NAME = st.binary(min_size=1, max_size=30).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)


@settings(max_examples=40, deadline=None)
@given(files=st.dictionaries(NAME, st.binary(max_size=50), max_size=6), folder=NAME)
def test_names_of_any_bytes_arrive_as_they_are(
    files: dict[bytes, bytes], folder: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    work = tmp_path_factory.mktemp("names")
    root = os.fsencode(work / "root")
    os.makedirs(os.path.join(root, folder))
    for name, content in files.items():
        with open(os.path.join(root, folder, name), "wb") as file:
            file.write(content)
    source = pack_source(Path(os.fsdecode(root)), include_secrets=True)
    host = os.fsencode(unpack(source, work / "host"))
    contents = {}
    for name in os.listdir(os.path.join(host, folder)) if os.path.isdir(os.path.join(host, folder)) else ():
        with open(os.path.join(host, folder, name), "rb") as file:
            contents[name] = file.read()
    left_out = {
        name for name in files if os.path.join(os.fsdecode(folder), os.fsdecode(name)) not in source.files
    }
    assert contents == {name: files[name] for name in files.keys() - left_out}
    for name in left_out:  # ignore files rule, and caches stay here
        assert (
            os.fsdecode(name) in source_tree.ALWAYS_EXCLUDED
            or name.endswith(b".pyc")
            or b"ignore" in b"".join(files)
        )


def test_odd_names_are_escaped_in_messages(root: Path) -> None:
    for name in (b"\xff\xfe.pem", b"two\nlines.pem", b"\x1b[31m.pem"):
        with open(os.path.join(os.fsencode(root), name), "wb") as file:
            file.write(b"x")
    (note,) = pack_source(root).warnings
    assert note.isprintable()
    assert "two\\nlines.pem" in note


def test_no_special_bits_travel(root: Path, tmp_path: Path) -> None:
    (root / "train.py").chmod(0o6777)
    (root / "lib" / "real.py").chmod(0o666)
    host = unpack(pack_source(root), tmp_path / "host")
    assert stat.S_IMODE((host / "train.py").stat().st_mode) == 0o755
    assert stat.S_IMODE((host / "lib" / "real.py").stat().st_mode) == 0o644
