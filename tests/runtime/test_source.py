"""Unpacking of source archives, which must not write outside their folder."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from smlaunch.contract.launch_spec import Ref
from smlaunch.contract.sagemaker_paths import SOURCE_ARCHIVE, SOURCE_CHANNEL
from smlaunch.runtime import source_unpacking
from smlaunch.runtime.errors import SetupError
from tests.runtime.host import Host

MakeHost = Callable[..., Host]


def member(
    name: str, content: bytes = b"x", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o6777
    info.size = len(content) if kind == tarfile.REGTYPE else 0
    return info


def archive_of(path: Path, members: Sequence[tarfile.TarInfo]) -> str:
    with tarfile.open(path, "w:gz") as archive:
        for info in members:
            archive.addfile(info, io.BytesIO(b"x" * info.size))
    return str(path)


def test_files_folders_and_links_inside(tmp_path: Path) -> None:
    archive = archive_of(
        tmp_path / "a.tar.gz",
        [
            member("./a/b/file"),
            member("a/empty", kind=tarfile.DIRTYPE),
            member("a/link", kind=tarfile.SYMTYPE, link="b/file"),
            member("a/up", kind=tarfile.SYMTYPE, link="../a/b"),
            member("hard", kind=tarfile.LNKTYPE, link="./a/b/file"),
            member("twice", b"first"),
            member("twice", b"22"),
        ],
    )
    folder = tmp_path / "out"
    source_unpacking.unpack_source(archive, str(folder))
    assert (folder / "a/link").read_text() == (folder / "hard").read_text() == "x"
    assert (folder / "a/up/file").exists()
    assert (folder / "a/empty").is_dir()
    assert (folder / "twice").read_text() == "xx"
    assert (folder / "a/b/file").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(
    "members",
    [
        [member("/etc/planted")],
        [member("../planted")],
        [member("a/../../planted")],
        [member("link", kind=tarfile.SYMTYPE, link="/etc")],
        [member("link", kind=tarfile.SYMTYPE, link="..")],
        [member("dot", kind=tarfile.SYMTYPE, link="."), member("out", kind=tarfile.SYMTYPE, link="dot/..")],
        [member("out", kind=tarfile.SYMTYPE, link="/tmp"), member("out/planted")],
        [member("hard", kind=tarfile.LNKTYPE, link="/etc/passwd")],
        [member("fifo", kind=tarfile.FIFOTYPE)],
        [member("device", kind=tarfile.CHRTYPE)],
        [member("file"), member("file/below")],
    ],
    ids=lambda members: members[-1].name + "-" + members[-1].linkname,
)
def test_nothing_gets_outside(tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    archive = archive_of(tmp_path / "a.tar.gz", members)
    folder = tmp_path / "inner" / "out"
    before = set(os.listdir(tmp_path))
    with pytest.raises(SetupError, match=r"a\.tar\.gz"):
        source_unpacking.unpack_source(archive, str(folder))
    assert set(os.listdir(tmp_path)) == before | {"inner"}
    assert os.listdir(tmp_path / "inner") == ["out"]
    for path in folder.rglob("*"):
        assert path.resolve().is_relative_to(folder)


def test_a_link_in_the_way_is_replaced_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (folder / "file").symlink_to(outside)
    source_unpacking.unpack_source(archive_of(tmp_path / "a.tar.gz", [member("file")]), str(folder))
    assert outside.read_text() == "mine"


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "flipped", "missing"])
def test_a_damaged_archive_is_one_clear_line(make_host: MakeHost, damage: str) -> None:
    host = make_host("x = 1\n" * 2000 + "".join(f"# {number}\n" for number in range(3000)))
    path = Path(host.paths.channel_dir(SOURCE_CHANNEL)) / SOURCE_ARCHIVE
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes(byte ^ 0xFF for byte in content[middle : middle + 64])
        path.write_bytes(
            {
                "empty": b"",
                "text": b"no archive",
                "cut": content[:middle],
                "flipped": flipped + content[middle + 64 :],
            }[damage]
        )
    result = host.run()
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert SOURCE_ARCHIVE in result.stderr
    assert SOURCE_ARCHIVE in host.failure


def test_a_missing_entry_script_is_named_with_what_is_there(make_host: MakeHost) -> None:
    host = make_host(source={"model.py": "", "data/x.csv": ""})
    result = host.run(argv=("python3", Ref("source", suffix="/trian.py")))
    assert result.exit_code == 2
    assert "trian.py is not in the source, which holds data, model.py, train.py" in result.stderr
    assert result.stdout == ""
    assert host.failure.startswith("algo-1 failed: trian.py is not in the source")


def test_an_archive_that_is_not_the_one_that_was_sent_is_not_touched(tmp_path: Path) -> None:
    archive = archive_of(tmp_path / "a.tar.gz", [member("train.py")])
    with gzip.open(archive) as stream:
        sent = hashlib.sha256(stream.read()).hexdigest()
    source_unpacking.unpack_source(archive, str(tmp_path / "out"), sent)
    assert (tmp_path / "out" / "train.py").exists()
    archive_of(tmp_path / "a.tar.gz", [member("train.py", b"planted")])
    with pytest.raises(SetupError, match=r"not the one that was sent .* launch the run again"):
        source_unpacking.unpack_source(archive, str(tmp_path / "other"), sent)
    assert not (tmp_path / "other").exists()
