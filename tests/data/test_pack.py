"""Packing a folder: its bytes, its samples, refused files, and the state after a kill."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import itertools
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import zlib
from array import array
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smlaunch.data import folder_worker, pack_destination, parallel_stat, tar_writer
from smlaunch.data.folder_worker_pool import FolderWorkerPool
from smlaunch.data.pack import FolderSource, PackEngine, PackOptions, PackResult, pack
from smlaunch.data.pack_destination import FolderDestination
from smlaunch.data.packing_list import SourceFiles, make_packing_list, sample_key
from smlaunch.data.shard_index import encode_shard_index, parse_shard_index
from smlaunch.data.tar_shard_writers import find_gnu_tar, plan_shards
from smlaunch.errors import JobError, ServiceError

NAMES = [
    "a.jpg",
    "a.cls",
    "a-b.jpg",
    "a.x/1.jpg",
    "a.zip",
    "-C",
    "--remove-files",
    ".hidden.jpg",
    "no-dot",
    "with space.txt",
    "new\nline.txt",
    "back\\slash\\n.txt",
    "ünï→.txt",
    "*?[a].txt",
    "dir/sub/deep.bin",
    "n" * 100,
    "p" * 155 + "/" + "n" * 100,
    "/".join(["d" * 30] * 6) + "/x.bin",
]
SIZES = [0, 1, 511, 512, 513, 100, 2048, (1 << 18) - 513, (1 << 18) - 512, 1 << 18, (1 << 20) + 7]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "src"
    random = Random(0)
    for number, name in enumerate(NAMES):
        write(root / name, random.randbytes(SIZES[number % len(SIZES)]))
    os.link(root / "a.jpg", root / "hard.jpg")
    (root / "a.cls").chmod(0o755)
    return root


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def many(root: Path, count: int, seed: int = 0) -> Path:
    random = Random(seed)
    for folder in range(7):
        (root / str(folder)).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (root / f"{number % 7}/{number:05}.bin").write_bytes(random.randbytes(random.randint(0, 3000)))
    return root


def pack_folder(src: Path, dst: Path, engine: PackEngine = "python", **options: object) -> PackResult:
    return pack(FolderSource(src, engine=engine), FolderDestination(dst), PackOptions(**options))  # type: ignore[arg-type]


def content(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def members(dst: Path) -> list[tuple[str, bytes]]:
    """Returns names and contents in order, as ``tarfile`` reads them."""
    contents = []
    for shard in sorted((dst / "shards").iterdir()):
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                assert member.isreg() and (member.mode, member.uid, member.mtime) == (0o644, 0, 0)
                contents.append((member.name, tar.extractfile(member).read()))  # type: ignore[union-attr]
    return contents


def problems(error: pytest.ExceptionInfo[JobError]) -> list[str]:
    return [str(problem) for problem in error.value.problems]


# ---- the bytes ---------------------------------------------------------------------------------------------


def test_every_file_is_there_once_and_reads_back(tree: Path, tmp_path: Path) -> None:
    result = pack_folder(tree, tmp_path / "dst", shard_count=3)
    contents = members(tmp_path / "dst")
    assert dict(contents) == content(tree) and len(contents) == len(NAMES) + 1
    index = parse_shard_index((tmp_path / "dst" / "index.json").read_bytes())
    assert (
        index == result.index
        and index.files == len(contents)
        and index.bytes == sum(len(c) for _, c in contents)
    )
    for record in index.shards:
        shard_bytes = (tmp_path / "dst" / record.name).read_bytes()
        assert (len(shard_bytes), f"crc32:{zlib.crc32(shard_bytes):08x}") == (record.bytes, record.checksum)
    assert index.shards[0].first == contents[0][0]
    assert sorted(path.name for path in (tmp_path / "dst").iterdir()) == ["index.json", "shards"]


def test_the_same_files_give_the_same_bytes_whoever_packs_them(tree: Path, tmp_path: Path) -> None:
    pack_folder(tree, tmp_path / "once", shard_count=3)
    for path in tree.rglob("*"):
        os.utime(path, (1, 1))
    pack_folder(tree, tmp_path / "twice", shard_count=3, workers=1)
    assert content(tmp_path / "once") == content(tmp_path / "twice")
    if find_gnu_tar() is None:
        pytest.skip("no GNU tar here")
    pack_folder(tree, tmp_path / "tar", engine="tar", shard_count=3)
    assert content(tmp_path / "once") == content(tmp_path / "tar")


@pytest.mark.parametrize("engine", ["python", "tar"])
def test_the_checksum_is_sha256_where_that_is_asked_for(
    tree: Path, tmp_path: Path, engine: PackEngine
) -> None:
    if engine == "tar" and find_gnu_tar() is None:
        pytest.skip("no GNU tar here")
    result = pack_folder(tree, tmp_path / "dst", engine=engine, shard_count=2, checksum="sha256")
    for record in result.index.shards:
        shard_bytes = (tmp_path / "dst" / record.name).read_bytes()
        assert record.checksum == f"sha256:{hashlib.sha256(shard_bytes).hexdigest()}"


def test_a_checksum_is_the_same_without_isal(monkeypatch: pytest.MonkeyPatch) -> None:
    content = Random(2).randbytes(100_003)
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    for kind in (tar_writer.Crc32, runpy.run_path(tar_writer.__file__)["Crc32"]):
        checksum = kind(content[:70_001])
        checksum.update(content[70_001:])
        assert (checksum.hexdigest(), checksum.digest()) == (
            f"{zlib.crc32(content):08x}",
            zlib.crc32(content).to_bytes(4, "big"),
        )


@given(st.lists(st.text("ab/.", min_size=1), min_size=1, max_size=4), st.integers(0, 2**33 - 1))
def test_headers_are_those_that_tarfile_reads(parts: list[str], size: int) -> None:
    name = "/".join(part.strip("/") * 20 or "x" for part in parts)
    try:
        block = tar_writer.tar_header(name.encode(), size)
    except tar_writer.NameTooLong:
        slashes = [position for position, letter in enumerate(name) if letter == "/"]
        assert not any(position <= 155 and len(name) - position - 1 <= 100 for position in slashes)
        return
    info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    assert (info.name, info.size, info.isreg()) == (name.rstrip("/"), size, True)


# ---- shards ------------------------------------------------------------------------------------------------


def test_a_sample_is_never_parted(tmp_path: Path) -> None:
    """A sample stays together also where the name of another folder sorts between its files."""
    for number in range(40):
        for kind in ("jpg", "seg.png", "x/part.jpg", "zip"):
            write(tmp_path / "src" / f"{number:02}.{kind}", b"." * 900)
    pack_folder(tmp_path / "src", tmp_path / "dst", shard_count=7)
    homes: dict[str, set[str]] = {}
    for shard in (tmp_path / "dst" / "shards").iterdir():
        with tarfile.open(shard) as tar:
            for name in tar.getnames():
                homes.setdefault(sample_key(name.encode()).decode(), set()).add(shard.name)
    assert len(homes) == 80 and all(len(shards) == 1 for shards in homes.values())
    by_file = pack_folder(tmp_path / "src", tmp_path / "each", shard_count=7, grouping="none")
    assert by_file.index.samples == by_file.index.files == 160


SIZE_LISTS = st.lists(st.one_of(st.integers(0, 3000), st.integers(0, 10**7)), min_size=1, max_size=60)


@given(SIZE_LISTS, st.integers(1, 12), st.integers(1, 5), st.booleans())
def test_plans_are_whole_and_balanced(sizes: list[int], count: int, hosts: int, grouped: bool) -> None:
    names = [b"%04d.%d" % (number // 3 if grouped else number, number) for number in range(len(sizes))]
    files = make_packing_list(SourceFiles(names, sizes, [0] * len(sizes)))
    shards = plan_shards(files, shard_bytes=None, count=count, host_count=hosts)
    samples = len(files.sample_starts)
    assert len(shards) == min(-(-count // hosts) * hosts, samples)
    assert [shard.first_file for shard in shards] == [0, *(shard.end_file for shard in shards[:-1])]
    assert shards[-1].end_file == len(sizes) and all(shard.sample_count for shard in shards)
    assert sum(shard.sample_count for shard in shards) == samples
    largest = max(end - start for start, end in zip([0, *files.sample_ends], files.sample_ends, strict=False))
    assert (
        max(shard.archive_bytes for shard in shards)
        <= files.sample_ends[-1] / len(shards) + 2 * largest + 20480
    )
    everything = plan_shards(files, shard_bytes=10**6)
    assert sum(shard.sample_count for shard in everything) == samples


def test_hosts_get_as_many_shards_of_the_same_size(tmp_path: Path) -> None:
    result = pack_folder(many(tmp_path / "src", 900), tmp_path / "dst", shard_bytes=300_000, hosts=4)
    sizes = [record.bytes for record in result.index.shards]
    assert len(sizes) == 8 and max(sizes) <= min(sizes) + 10240
    few_result = pack_folder(many(tmp_path / "few", 3), tmp_path / "dst-few", shard_count=5, hosts=2)
    assert len(few_result.index.shards) == 3 and any("no more samples" in note for note in few_result.notes)


def test_files_without_a_sample_name_are_told(tree: Path, tmp_path: Path) -> None:
    (note,) = [note for note in pack_folder(tree, tmp_path / "dst").notes if "webdataset" in note]
    assert note.startswith("6 files")


# ---- what is refused ---------------------------------------------------------------------------------------


def test_many_files_are_looked_up_by_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes look up links as well as files."""
    monkeypatch.setattr(parallel_stat, "_FILES_PER_REQUEST", 50)
    many(tmp_path, 330)
    (tmp_path / "link").symlink_to("0/00000.bin")
    (tmp_path / "0" / "00007.bin").chmod(0)
    for follow in (False, True):
        workers = FolderWorkerPool(str(tmp_path), 2, follow)
        names, facts, unreadable = parallel_stat.stat_files(str(tmp_path), workers, follow)
        workers.close()
        assert len(names) == 331 and names == sorted(names) and not unreadable
        for name, *values in zip(names, *facts, strict=True):
            path = tmp_path / os.fsdecode(name)
            status = path.stat() if follow else path.lstat()
            assert values == [status.st_mode, status.st_size, status.st_mtime_ns]


def test_a_process_that_is_killed_is_told_and_others_take_its_place(tmp_path: Path) -> None:
    """The kernel kills a process so when memory runs out."""
    write(tmp_path / "a", b"x" * 700)
    workers = FolderWorkerPool(str(tmp_path), 1)
    workers.start()
    (process,) = workers._processes
    process.kill()
    with pytest.raises(ChildProcessError, match="has ended with -9"):
        workers.send_request(folder_worker.STAT_REQUEST, b"a")
    workers.close()
    (answer,) = workers.send_request(folder_worker.STAT_REQUEST, b"a")
    assert array("q", answer)[1] == 700
    workers.stop()
    with pytest.raises(ChildProcessError, match="stopped"):
        workers.send_request(folder_worker.STAT_REQUEST, b"a")
    workers.close()


def test_what_is_no_file_is_refused_by_name_and_all_at_once(tree: Path, tmp_path: Path) -> None:
    (tree / "out").symlink_to("/etc/passwd")
    (tree / "folder").symlink_to("/etc")
    os.mkfifo(tree / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(tree)  # a socket's path is short
        server.bind("sock")
    with pytest.raises(JobError) as error:
        pack_folder(tree, tmp_path / "dst")
    messages = problems(error)
    assert [line.partition("; only")[0] for line in messages] == [
        "SRC: 'fifo' is a pipe",
        "SRC: 'folder' is a link",
        "SRC: 'out' is a link",
        "SRC: 'sock' is a socket",
    ]
    assert not (tmp_path / "dst").exists()


@pytest.mark.parametrize("engine", ["python", "tar"])
def test_a_link_to_a_file_is_that_file_when_asked_for(tree: Path, tmp_path: Path, engine: PackEngine) -> None:
    write(tmp_path / "blobs" / "b1", b"linked")
    (tree / "link.txt").symlink_to("../blobs/b1")
    pack(
        FolderSource(tree, engine=engine, follow_links=True),
        FolderDestination(tmp_path / "dst"),
        PackOptions(),
    )
    assert dict(members(tmp_path / "dst"))["link.txt"] == b"linked"
    (tree / "folder").symlink_to("/etc")
    (tree / "circle").symlink_to("circle")
    (tree / "nowhere").symlink_to("gone")
    with pytest.raises(JobError) as error:
        FolderSource(tree, follow_links=True).list_files()
    message = "SRC: '{}' is a link; only files are packed"
    assert problems(error) == [message.format(name) for name in ("circle", "folder", "nowhere")]


def test_names_that_ustar_cannot_carry_are_refused_by_name(tree: Path, tmp_path: Path) -> None:
    write(tree / ("n" * 101), b"")
    write(tree / "deep" / "/".join(["d" * 99] * 10) / "x", b"")
    Path(os.fsdecode(os.fsencode(tree) + b"/latin-\xe9")).write_bytes(b"")
    with pytest.raises(JobError) as error:
        pack_folder(tree, tmp_path / "dst")
    messages = problems(error)
    assert len(messages) == 3 and sum("too long for USTAR" in line for line in messages) == 2
    assert any(r"latin-\\xe9" in line and "not UTF-8" in line for line in messages)


def test_an_empty_or_absent_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for src, message in ((tmp_path / "src", "no files"), (tmp_path / "none", "does not exist")):
        with pytest.raises(JobError, match=message):
            pack_folder(src, tmp_path / "dst")


def test_a_place_that_holds_something_else_is_refused(tree: Path, tmp_path: Path) -> None:
    write(tmp_path / "dst" / "shards" / "mine.txt", b"")
    with pytest.raises(JobError, match=r"mine\.txt, which is not a shard of a pack"):
        pack_folder(tree, tmp_path / "dst", resume=True)
    pack_folder(tree, tmp_path / "done", shard_count=2)
    with pytest.raises(JobError, match="holds a finished pack; check it with --resume"):
        pack_folder(tree, tmp_path / "done", shard_count=2)
    content_before = content(tmp_path / "done")
    assert pack_folder(tree, tmp_path / "done", shard_count=2, resume=True).reused_shards == 2
    with pytest.raises(JobError, match="finished pack of other files"):
        pack_folder(tree, tmp_path / "done", shard_count=3, resume=True)
    assert content(tmp_path / "done") == content_before
    (tmp_path / "done" / "shards" / "shard-00001.tar").write_bytes(b"spoilt")
    with pytest.raises(JobError, match=r"shard-00001\.tar is missing or damaged; remove index\.json, then"):
        pack_folder(tree, tmp_path / "done", shard_count=2, resume=True)
    (tmp_path / "done" / "index.json").unlink()
    pack_folder(tree, tmp_path / "done", shard_count=2, resume=True)
    assert content(tmp_path / "done") == content_before
    write(tmp_path / "file", b"")
    with pytest.raises(JobError, match="cannot be written: Not a directory"):
        pack_folder(tree, tmp_path / "file" / "dst")


def test_two_packs_never_work_in_one_place(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_destination, "LOCK_WAIT_SECONDS", 0.2)
    destination = FolderDestination(tmp_path / "dst")
    with destination.open_for_writing(resume=False), pytest.raises(JobError, match="another pack is writing"):
        pack_folder(tree, tmp_path / "dst", resume=True)


def test_a_resumed_pack_waits_for_what_a_killed_one_was_starting(tree: Path, tmp_path: Path) -> None:
    """A child inherits the lock between fork and exec, and can outlive its parent with it."""
    (tmp_path / "dst" / ".pack").mkdir(parents=True)
    lock = os.open(tmp_path / "dst" / ".pack", os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with subprocess.Popen(["sleep", "0.5"], pass_fds=[lock]):
        os.close(lock)
        pack_folder(tree, tmp_path / "dst", resume=True)


# ---- changes and kills -------------------------------------------------------------------------------------


class ChangingSource(FolderSource):
    """A source whose files change after they were listed."""

    change: Callable[[], object]

    def list_files(self) -> SourceFiles:
        files = super().list_files()
        self.change()
        return files


def test_a_worker_that_still_creates_files_does_not_stop_the_pack_that_resumes(tmp_path: Path) -> None:
    stale_folder = tmp_path / ".pack" / "writing-killed"
    stale_folder.mkdir(parents=True)
    stop = threading.Event()

    def create_files() -> None:
        for number in itertools.count():
            if stop.is_set() or not stale_folder.exists():
                return
            with contextlib.suppress(FileNotFoundError):
                (stale_folder / str(number)).touch()

    workers = [threading.Thread(target=create_files) for _ in range(2)]
    timer = threading.Timer(0.5, stop.set)
    for thread in (*workers, timer):
        thread.start()
    with FolderDestination(tmp_path).open_for_writing(resume=True):
        assert not stale_folder.exists()
    for thread in (*workers, timer):
        thread.join()


@pytest.mark.parametrize("engine", ["python", "tar"])
def test_files_that_change_or_go_are_told_and_the_rest_is_kept(tmp_path: Path, engine: PackEngine) -> None:
    src, dst = many(tmp_path / "src", 60), tmp_path / "dst"
    names = sorted(path for path in src.rglob("*.bin"))
    deleted, grown, shrunk, other = names[0], names[1], names[2], names[3]

    def change() -> None:
        deleted.unlink()
        grown.write_bytes(b"x" * 9000)
        shrunk.write_bytes(b"")
        other.unlink()
        other.symlink_to("/etc/passwd")

    source = ChangingSource(src, engine=engine)
    source.change = change
    with pytest.raises(JobError) as error:
        pack(source, FolderDestination(dst), PackOptions(shard_count=4))
    messages = problems(error)
    assert [any(path.name in line for line in messages) for path in names[:5]] == [
        True,
        True,
        True,
        True,
        False,
    ]
    assert "'0/00000.bin' is gone; --resume packs the remaining files" in messages[0]
    assert not (dst / "index.json").exists() and len(list((dst / "shards").iterdir())) == 3
    other.unlink()
    with pytest.raises(JobError, match="unfinished pack; continue it with --resume"):
        pack_folder(src, dst, shard_count=4)
    pack_folder(src, dst, shard_count=4, resume=True)
    pack_folder(src, tmp_path / "anew", shard_count=4)
    assert content(dst) == content(tmp_path / "anew")


def test_only_what_is_spoilt_torn_or_changed_is_packed_again(tmp_path: Path) -> None:
    src, dst = many(tmp_path / "src", 80), tmp_path / "dst"
    source = ChangingSource(src)
    source.change = (src / "6/00076.bin").unlink
    with pytest.raises(JobError):
        pack(source, FolderDestination(dst), PackOptions(shard_count=8))
    many(src, 80)  # as it was, with new times on all: another listing
    assert resume_pack(src, dst) == 0


def resume_pack(src: Path, dst: Path) -> int:
    return pack_folder(src, dst, shard_count=8, resume=True).reused_shards


def test_a_shard_is_kept_only_by_its_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    src, dst = many(tmp_path / "src", 80), tmp_path / "dst"
    monkeypatch.setattr(
        FolderDestination, "publish_index", lambda self, index: None
    )  # killed just before the index
    pack_folder(src, dst, shard_count=8)
    monkeypatch.undo()
    shards = sorted((dst / "shards").iterdir())
    shards[0].write_bytes(bytes(shards[0].stat().st_size))
    shards[1].unlink()
    (dst / ".pack" / "shard-00002.tar.json").write_bytes(b'{"torn')
    os.utime(src / "0/00000.bin", (5, 5))
    write(dst / "shards" / "shard-00009.tar", b"of an earlier plan")
    assert resume_pack(src, dst) == 5
    pack_folder(src, tmp_path / "anew", shard_count=8)
    assert content(dst) == content(tmp_path / "anew")


@pytest.mark.parametrize("engine", ["python", "tar"])
def test_killed_at_any_moment_and_resumed(tmp_path: Path, engine: str) -> None:
    """Only the command gets SIGKILL: processes that it had started may live for a moment longer."""
    src = many(tmp_path / "src", 800)
    pack_folder(src, tmp_path / "anew", shard_count=16)
    command = [sys.executable, "-c", KILLED, str(src), str(tmp_path / "dst"), engine]
    random, kills = Random(7), 0
    for _ in range(3):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        kill_line = random.randint(0, 12)
        for line in process.stdout:
            if int(line) >= kill_line:
                process.kill()
                break
        process.stdout.close()
        kills += process.wait() == -signal.SIGKILL
    assert kills
    result = pack_folder(src, tmp_path / "dst", shard_count=16, resume=True)
    assert result.reused_shards or (tmp_path / "dst" / "index.json").exists()
    assert content(tmp_path / "dst") == content(tmp_path / "anew")


@pytest.mark.chaos
@pytest.mark.timeout(3000)
def test_killed_over_and_over_at_any_time(tmp_path: Path) -> None:
    """The pack of 30,000 files is also killed while it lists, hashes, renames and records them."""
    src = many(tmp_path / "src", 30_000)
    pack_folder(src, tmp_path / "anew", shard_count=16)
    random, kills = Random(3), 0
    for round_number in range(100):
        engine = ("python", "tar")[round_number % 2]
        command = [sys.executable, "-c", KILLED, str(src), str(tmp_path / "dst"), engine]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            assert process.wait(random.uniform(0.1, 1.5)) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
            continue
        assert content(tmp_path / "dst") == content(tmp_path / "anew")
        shutil.rmtree(tmp_path / "dst")
    assert kills > 20
    pack_folder(src, tmp_path / "dst", shard_count=16, resume=True)
    assert content(tmp_path / "dst") == content(tmp_path / "anew")


KILLED = """
import sys
from pathlib import Path
from smlaunch.data.pack import FolderSource, PackOptions, pack
from smlaunch.data.pack_destination import FolderDestination
src, dst, engine = sys.argv[1:]
shards = iter(range(1000))
on_progress = lambda done, total: print(next(shards), flush=True)
options = PackOptions(shard_count=16, resume=True)
pack(FolderSource(Path(src), engine=engine), FolderDestination(Path(dst)), options, on_progress)
"""


@pytest.mark.parametrize("engine", ["python", "tar"])
def test_a_full_disk_ends_the_pack_in_words(
    tmp_path: Path, engine: PackEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    src = many(tmp_path / "src", 20)
    monkeypatch.setattr(FolderDestination, "temporary_path", lambda self, shard: tmp_path / "none" / "x.tar")
    with pytest.raises(ServiceError, match=r"(?s)No such file.*continue with --resume"):
        pack_folder(src, tmp_path / "dst", engine=engine)


def test_shards_of_another_kind_of_checksum_are_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pack resumed with another --checksum ends like a pack that had it from the start."""
    src, dst = many(tmp_path / "src", 80), tmp_path / "dst"
    monkeypatch.setattr(
        FolderDestination, "publish_index", lambda self, index: None
    )  # killed just before the index
    pack_folder(src, dst, shard_count=8)
    monkeypatch.undo()
    assert pack_folder(src, dst, shard_count=8, resume=True, checksum="sha256").reused_shards == 0
    pack_folder(src, tmp_path / "anew", shard_count=8, checksum="sha256")
    assert content(dst) == content(tmp_path / "anew")


def test_the_index_of_a_later_minor_version_is_read(tree: Path, tmp_path: Path) -> None:
    result = pack_folder(tree, tmp_path / "dst", shard_count=2, checksum="sha256")
    document = json.loads(encode_shard_index(result.index))
    later_minor = json.dumps({**document, "version": "1.9", "more": [1]}).encode()
    assert parse_shard_index(later_minor) == result.index
    (tmp_path / "dst" / "index.json").write_bytes(later_minor)
    assert pack_folder(tree, tmp_path / "dst", shard_count=2, resume=True).reused_shards == 2
    (tmp_path / "dst" / "shards" / "shard-00000.tar").write_bytes(b"spoilt")
    with pytest.raises(JobError, match="missing or damaged"):
        pack_folder(tree, tmp_path / "dst", shard_count=2, resume=True)


def test_indexes_are_read_or_refused_in_words(tree: Path, tmp_path: Path) -> None:
    index = pack_folder(tree, tmp_path / "dst", shard_count=2).index
    document = json.loads(encode_shard_index(index))
    assert parse_shard_index(encode_shard_index(index)) == index
    document["shards"][0]["name"] = "shards/../../etc/passwd"
    newer = json.dumps({"kind": document["kind"], "version": "2.0"}).encode()
    for content_, message in (
        (json.dumps(document).encode(), "incomplete or was edited"),
        (newer, "has version 2.0, and this smlaunch reads up to 1.x"),
        (b"{}", "not an index of shards"),
        (b"{", "not JSON"),
    ):
        with pytest.raises(ValueError, match=message):
            parse_shard_index(content_)


def test_large_files_are_copied_piece_by_piece(tmp_path: Path) -> None:
    output = io.BytesIO()
    write(tmp_path / "big", Random(1).randbytes((1 << 20) + 513))
    folder = os.open(tmp_path, os.O_RDONLY)
    largest = []

    def take(block: memoryview) -> None:
        largest.append(len(block))
        output.write(block)

    files = [(b"big", (1 << 20) + 513), (b"big", (1 << 20) + 513)]
    checksum = tar_writer.write_archive(folder, files, take, lambda name, argument: pytest.fail(argument))
    os.close(folder)
    assert max(largest) <= 1 << 18 and checksum == f"crc32:{zlib.crc32(output.getvalue()):08x}"
    output.seek(0)
    with tarfile.open(fileobj=output) as tar:
        assert [tar.extractfile(member).read() for member in tar] == [(tmp_path / "big").read_bytes()] * 2  # type: ignore[union-attr]


# ---- the command -------------------------------------------------------------------------------------------


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "smlaunch.cli.main", "data", "pack", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=60)


def test_the_command(tree: Path, tmp_path: Path) -> None:
    result = command(tree, tmp_path / "dst", "--shards", "3", "--json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["files"] == len(NAMES) + 1 and len(document["shards"]) == 3 and document["kept"] == 0
    second_result = command(tree, tmp_path / "dst", "--shards", "3", "--resume")
    assert second_result.returncode == 0 and "(3 reused)" in second_result.stdout
    inside = command(tree, tree / "shards")
    assert inside.returncode == 2 and "is inside of SRC" in inside.stderr
    wrong = command(tree, tmp_path / "dst2", "--shard-size", "3 furlongs", "--shards", "2")
    assert (
        wrong.returncode == 2
        and "2 problems" in wrong.stderr
        and "'3 furlongs' is not a size" in wrong.stderr
    )


def test_the_path_from_listing_to_shards_needs_no_extra() -> None:
    """Only the other commands need NumPy and the like."""
    code = (
        "import sys, smlaunch.data.pack, smlaunch.data.pack_s3; "
        "sys.exit(bool({'numpy', 'pyarrow', 'obstore', 'boto3'} & set(sys.modules)))"
    )
    began = time.monotonic()
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0, time.monotonic() - began
