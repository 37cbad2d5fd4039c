"""Shards: planned from sizes alone, then written one by one by worker processes."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shutil import which
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, Protocol

from smlaunch.data import folder_worker, tar_writer
from smlaunch.data.folder_worker_pool import FolderWorkerPool
from smlaunch.data.packing_list import PackingList
from smlaunch.data.shard_index import SHARDS_FOLDER, ShardRecord
from smlaunch.data.tar_writer import archive_size, new_checksum

if TYPE_CHECKING:
    from smlaunch.data.tar_writer import ChecksumKind

_SUM_PIECE = 1 << 18
"""Bytes read at a time: they stay in the processor's cache."""


@dataclass(frozen=True)
class TarShard:
    """Files ``begin`` up to, not including, ``end`` of a packing list. ``archive_bytes``: size of the tar
    file."""

    name: str
    begin: int
    end: int
    sample_count: int
    archive_bytes: int

    def record(self, listing: PackingList, checksum: str) -> ShardRecord:
        first, last = listing.names[self.begin].decode(), listing.names[self.end - 1].decode()
        return ShardRecord(
            self.name, self.archive_bytes, checksum, self.end - self.begin, self.sample_count, first, last
        )

    def fingerprint(self, listing: PackingList) -> str:
        """Return a hash that changes when the shard's files change: their names, sizes or
        modification times."""
        numbers = array(
            "q", [*listing.sizes[self.begin : self.end], *listing.mtimes_ns[self.begin : self.end]]
        )
        digest = hashlib.sha256(b"\0".join(listing.names[self.begin : self.end]))
        digest.update(numbers.tobytes())
        return digest.hexdigest()


def plan_shards(
    files: PackingList, *, shard_bytes: int | None, count: int | None = None, host_count: int = 1
) -> list[TarShard]:
    """Plan shards of equal size, as nearly as whole samples allow, in packing order.

    ``shard_bytes``: approximate size of each; or ``count``: how many. ``host_count``: how many hosts share
    them; the number of shards is a multiple of it, unless there are fewer samples.
    """
    sample_count = len(files.sample_starts)
    if not sample_count:
        return []
    total_bytes = files.sample_ends[-1]
    if count is None:
        count = math.ceil(total_bytes / shard_bytes) if shard_bytes else 1
    count = min(math.ceil(count / host_count) * host_count, sample_count)
    cuts = [0]
    for number in range(1, count):
        target = total_bytes * number // count
        cut_sample = bisect_left(files.sample_ends, target)
        size_before = files.sample_ends[cut_sample - 1] if cut_sample else 0
        cut_sample += files.sample_ends[cut_sample] - target < target - size_before
        # At least one sample for this shard and for each one after it.
        cuts.append(min(max(cut_sample, cuts[-1] + 1), sample_count - (count - number)))
    cuts.append(sample_count)
    digits = max(5, len(str(count - 1)))
    shards = []
    for number in range(count):
        first, next_first = cuts[number], cuts[number + 1]
        member_bytes = files.sample_ends[next_first - 1] - (files.sample_ends[first - 1] if first else 0)
        end_file = files.sample_starts[next_first] if next_first < sample_count else len(files.names)
        name = f"{SHARDS_FOLDER}shard-{number:0{digits}}.tar"
        shards.append(
            TarShard(
                name, files.sample_starts[first], end_file, next_first - first, archive_size(member_bytes)
            )
        )
    return shards


class ChangedFile(NamedTuple):
    """A file that has changed since the source was listed."""

    name: str
    problem: str


class ShardFailed(Exception):
    """A shard could not be written because files have changed; other shards can be."""

    def __init__(self, changed_files: Sequence[ChangedFile]) -> None:
        super().__init__(f"{len(changed_files)} files have changed")
        self.changed_files = tuple(changed_files)


class PackStopped(Exception):
    """No shard can be written any more: the disk is full, a program failed, or the pack was stopped."""


class ShardWriter(Protocol):
    """Writes a shard's archive into a new file."""

    def write(self, shard: TarShard, archive_path: Path) -> str:
        """Return the archive's checksum with its kind, as ``crc32:0a1b2c3d``. Raises ShardFailed or
        PackStopped."""

    def stop(self) -> None:
        """Abort the writes under way, from another thread."""


class _ProcessGroup:
    """Running processes, so that they can be killed."""

    def __init__(self) -> None:
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._stopped = False
        self._lock = Lock()

    def run(self, command: Sequence[str], content: bytes) -> tuple[int, bytes, bytes]:
        environment = {**os.environ, "LC_ALL": "C"}
        environment.pop("TAR_OPTIONS", None)
        pipe = subprocess.PIPE
        with self._lock:
            if self._stopped:
                raise PackStopped("stopped")
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)
            self._processes.add(process)
        with process:
            stdout, stderr = process.communicate(content)
        with self._lock:
            self._processes.discard(process)
            if self._stopped:
                raise PackStopped("stopped")
        return process.returncode, stdout, stderr

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._processes:
                process.kill()


class PythonShardWriter:
    """Runs ``tar_writer`` in worker processes: computes the checksum while writing, and notices every file
    that has changed."""

    def __init__(
        self, files: PackingList, workers: FolderWorkerPool, checksum: ChecksumKind = "crc32"
    ) -> None:
        self._files, self._workers, self._checksum = files, workers, checksum
        self.stop = workers.stop

    def write(self, shard: TarShard, archive_path: Path) -> str:
        file_range = slice(shard.begin, shard.end)
        sizes, names = self._files.sizes[file_range], self._files.names[file_range]
        status, *fields = self._workers.request(
            folder_worker.ARCHIVE_REQUEST,
            os.fsencode(archive_path),
            self._checksum.encode(),
            array("q", sizes).tobytes(),
            b"\0".join(names),
        )
        texts = list(map(os.fsdecode, fields))
        if status == folder_worker.FAILED_REPLY:
            raise PackStopped(texts[0])
        if texts[1:]:
            raise ShardFailed(list(map(ChangedFile, texts[1::2], texts[2::2])))
        return texts[0]


class GnuTarShardWriter:
    """Runs GNU tar. Its archive is read again for the checksum, and changed files are found by
    another stat."""

    def __init__(
        self,
        root: Path,
        files: PackingList,
        program: str,
        follow_links: bool = False,
        checksum: ChecksumKind = "crc32",
    ) -> None:
        self._root, self._files, self._program, self._checksum = root, files, program, checksum
        self._stat_file = os.stat if follow_links else os.lstat
        self._link_options = ["--dereference"] if follow_links else []
        self._process_group = _ProcessGroup()
        self.stop = self._process_group.stop

    def write(self, shard: TarShard, archive_path: Path) -> str:
        """Write one shard with the tar program and return its checksum. Raises ShardFailed if files have
        changed since they were listed, and PackStopped if tar failed otherwise."""
        options: tuple[str, ...] = (
            *("--create", "--format=ustar", "--force-local", "--no-recursion", "--hard-dereference"),
            *("--owner=0", "--group=0", "--numeric-owner", "--mtime=@0", "--mode=0644"),
            *("--null", "--verbatim-files-from", "--no-unquote", "--files-from=-"),
        )
        command = [
            self._program,
            f"--file={archive_path}",
            f"--directory={self._root}",
            *self._link_options,
            *options,
        ]
        names = self._files.names[shard.begin : shard.end]
        exit_code, _, stderr = self._process_group.run(command, b"\0".join(names))
        written_bytes = archive_path.stat().st_size if archive_path.exists() else -1
        if exit_code == 0 and written_bytes == shard.archive_bytes:
            return checksum_file(archive_path, self._checksum)[0]
        changed_files = self._find_changed_files(shard)
        if changed_files:
            raise ShardFailed(changed_files)
        message = stderr.decode(errors="replace").strip()
        raise PackStopped(
            f"{self._program} ended with {exit_code}: {message or f'{written_bytes} bytes written'}"
        )

    def _find_changed_files(self, shard: TarShard) -> list[ChangedFile]:
        """Return the shard's files whose size or modification time has changed."""
        changed_files = []
        for index in range(shard.begin, shard.end):
            name = self._files.names[index]
            try:
                status = self._stat_file(os.path.join(os.fsencode(self._root), name))  # noqa: PTH118 (bytes)
            except OSError as error:
                changed_files.append(ChangedFile(os.fsdecode(name), tar_writer.file_problem(error)))
                continue
            if (status.st_size, status.st_mtime_ns) != (
                self._files.sizes[index],
                self._files.mtimes_ns[index],
            ):
                changed_files.append(ChangedFile(os.fsdecode(name), "has changed since it was listed"))
        return changed_files


@cache
def find_gnu_tar() -> str | None:
    """Return the path of GNU tar (on macOS it is called gtar); None if there is none."""
    for name in ("tar", "gtar"):
        program = which(name)
        if program is None:
            continue
        version_text = subprocess.run([program, "--version"], capture_output=True, check=False).stdout
        if version_text.startswith(b"tar (GNU tar)"):
            return program
    return None


def checksum_file(path: Path, checksum: ChecksumKind) -> tuple[str, int]:
    """Return the checksum, with its kind, and the number of bytes read."""
    digest, read_bytes = new_checksum(checksum), 0
    buffer = memoryview(bytearray(_SUM_PIECE))
    with path.open("rb", buffering=0) as content:
        while chunk_bytes := content.readinto(buffer):
            digest.update(buffer[:chunk_bytes])
            read_bytes += chunk_bytes
    return f"{checksum}:{digest.hexdigest()}", read_bytes


def is_intact(path: Path, checksum: str, size: int) -> bool:
    """Return whether a file exists with these bytes. False for a kind of checksum that is not known here."""
    kind = checksum.partition(":")[0]
    if kind not in ("crc32", "sha256") or not path.is_file() or path.stat().st_size != size:
        return False
    return checksum_file(path, "crc32" if kind == "crc32" else "sha256") == (checksum, size)
