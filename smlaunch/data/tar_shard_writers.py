"""Shards: planned from sizes alone, then written one by one by worker processes."""

from __future__ import annotations

import errno
import hashlib
import math
import os
import subprocess
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from shutil import which
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, Protocol

from smlaunch.data import folder_worker, tar_writer
from smlaunch.data.folder_worker_pool import FolderWorkerPool
from smlaunch.data.packing_list import PackingList
from smlaunch.data.shard_index import SHARDS_FOLDER, ShardRecord
from smlaunch.data.tar_writer import archive_size_bytes, new_checksum

if TYPE_CHECKING:
    from smlaunch.data.tar_writer import ChecksumKind

_SUM_PIECE = 1 << 18
"""Bytes read at a time: they stay in the processor's cache."""


@dataclass(frozen=True)
class TarShard:
    """Files ``begin`` up to, not including, ``end`` of a packing list. ``archive_bytes``: size of the tar
    file."""

    name: str
    first_file: int
    end_file: int
    sample_count: int
    archive_bytes: int

    def to_record(self, listing: PackingList, checksum: str) -> ShardRecord:
        first, last = listing.names[self.first_file].decode(), listing.names[self.end_file - 1].decode()
        return ShardRecord(
            self.name,
            self.archive_bytes,
            checksum,
            self.end_file - self.first_file,
            self.sample_count,
            first,
            last,
        )

    def fingerprint(self, listing: PackingList) -> str:
        """Return a hash that changes when the shard's files change: their names, sizes or
        modification times."""
        numbers = array(
            "q",
            [
                *listing.sizes[self.first_file : self.end_file],
                *listing.mtimes_ns[self.first_file : self.end_file],
            ],
        )
        digest = hashlib.sha256(b"\0".join(listing.names[self.first_file : self.end_file]))
        digest.update(numbers.tobytes())
        return digest.hexdigest()


def plan_shards(
    packing_list: PackingList, *, shard_bytes: int | None, count: int | None = None, host_count: int = 1
) -> list[TarShard]:
    """Plan tar shards of equal size, as nearly as whole samples (files that belong together) allow, in
    packing order.

    ``shard_bytes``: approximate size of each; or ``count``: how many. ``host_count``: how many hosts share
    them; the number of shards is a multiple of it, unless there are fewer samples.
    """
    sample_count = len(packing_list.sample_starts)
    if not sample_count:
        return []
    sample_ends = packing_list.sample_ends  # bytes of an archive up to each sample's end
    total_bytes = sample_ends[-1]
    if count is None:
        count = math.ceil(total_bytes / shard_bytes) if shard_bytes else 1
    shard_count = min(math.ceil(count / host_count) * host_count, sample_count)
    first_samples = _choose_first_samples(sample_ends, shard_count)
    digits = max(5, len(str(shard_count - 1)))  # of the number in a shard's name
    shards: list[TarShard] = []
    for shard_index, (first_sample, end_sample) in enumerate(pairwise([*first_samples, sample_count])):
        bytes_before = sample_ends[first_sample - 1] if first_sample else 0
        member_bytes = sample_ends[end_sample - 1] - bytes_before
        is_last = end_sample == sample_count
        shards.append(
            TarShard(
                name=f"{SHARDS_FOLDER}shard-{shard_index:0{digits}}.tar",
                first_file=packing_list.sample_starts[first_sample],
                end_file=len(packing_list.names) if is_last else packing_list.sample_starts[end_sample],
                sample_count=end_sample - first_sample,
                archive_bytes=archive_size_bytes(member_bytes),
            )
        )
    return shards


def _choose_first_samples(sample_ends: Sequence[int], shard_count: int) -> list[int]:
    """Return the first sample of each shard, so that the shards' sizes are as equal as whole samples allow.
    ``sample_ends``: bytes that the samples up to and including each one take up."""
    sample_count, total_bytes = len(sample_ends), sample_ends[-1]
    first_samples = [0]
    for shard_index in range(1, shard_count):
        target_bytes = total_bytes * shard_index // shard_count
        # The shard begins before or after the sample that the target falls into, whichever is nearer.
        first_sample = bisect_left(sample_ends, target_bytes)
        bytes_before = sample_ends[first_sample - 1] if first_sample else 0
        if sample_ends[first_sample] - target_bytes < target_bytes - bytes_before:
            first_sample += 1
        # At least one sample for this shard and for each one after it.
        max_first_sample = sample_count - (shard_count - shard_index)
        first_samples.append(min(max(first_sample, first_samples[-1] + 1), max_first_sample))
    return first_samples


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

    def write_shard(self, shard: TarShard, archive_path: Path) -> str:
        """Return the archive's checksum with its kind, as ``crc32:0a1b2c3d``. Raises ShardFailed or
        PackStopped."""

    def stop(self) -> None:
        """Abort the writes under way, from another thread."""


class _KillableProcesses:
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

    def write_shard(self, shard: TarShard, archive_path: Path) -> str:
        file_range = slice(shard.first_file, shard.end_file)
        sizes, names = self._files.sizes[file_range], self._files.names[file_range]
        status, *fields = self._workers.send_request(
            folder_worker.ARCHIVE_REQUEST,
            os.fsencode(archive_path),
            self._checksum.encode(),
            array("q", sizes).tobytes(),
            b"\0".join(names),
        )
        # The checksum; then name and problem of each changed file. Or the reason of a failure and its errno.
        first_text, *name_and_problem_texts = map(os.fsdecode, fields)
        if status == folder_worker.FAILED_REPLY:
            raise PackStopped(first_text) from OSError(int(name_and_problem_texts[0]), first_text)
        if name_and_problem_texts:
            changed_files = map(ChangedFile, name_and_problem_texts[::2], name_and_problem_texts[1::2])
            raise ShardFailed(list(changed_files))
        return first_text


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
        self._source_folder = root
        self._packing_list = files
        self._tar_program = program
        self._checksum = checksum
        self._stat_file = os.stat if follow_links else os.lstat
        self._link_options = ["--dereference"] if follow_links else []
        self._tar_processes = _KillableProcesses()
        self.stop = self._tar_processes.stop

    def write_shard(self, shard: TarShard, archive_path: Path) -> str:
        """Write one shard's archive with the tar program and return its checksum with its kind. Raises
        ShardFailed if files have changed since they were listed, and PackStopped if tar failed otherwise."""
        options: tuple[str, ...] = (
            *("--create", "--format=ustar", "--force-local", "--no-recursion", "--hard-dereference"),
            *("--owner=0", "--group=0", "--numeric-owner", "--mtime=@0", "--mode=0644"),
            *("--null", "--verbatim-files-from", "--no-unquote", "--files-from=-"),
        )
        command = [
            self._tar_program,
            f"--file={archive_path}",
            f"--directory={self._source_folder}",
            *self._link_options,  # --dereference, if links are followed
            *options,
        ]
        names = self._packing_list.names[shard.first_file : shard.end_file]
        # Its input has the names. stop() kills the processes that run.
        exit_code, _, stderr = self._tar_processes.run(command, b"\0".join(names))
        written_bytes = archive_path.stat().st_size if archive_path.exists() else -1
        if exit_code == 0 and written_bytes == shard.archive_bytes:
            return checksum_file(archive_path, self._checksum)[0]
        changed_files = self._find_changed_files(shard)  # the usual reason for another size or exit code
        if changed_files:
            raise ShardFailed(changed_files)
        message = stderr.decode(errors="replace").strip()
        text = f"{self._tar_program} ended with {exit_code}: {message or f'{written_bytes} bytes written'}"
        cause = OSError(errno.ENOSPC, text) if os.strerror(errno.ENOSPC) in message else None
        raise PackStopped(text) from cause

    def _find_changed_files(self, shard: TarShard) -> list[ChangedFile]:
        """Return the shard's files whose size or modification time has changed."""
        changed_files: list[ChangedFile] = []
        for index in range(shard.first_file, shard.end_file):
            name = self._packing_list.names[index]
            try:
                # os.stat, or os.lstat if links are not followed
                file_stat = self._stat_file(os.path.join(os.fsencode(self._source_folder), name))  # noqa: PTH118 (bytes)
            except OSError as error:
                changed_files.append(ChangedFile(os.fsdecode(name), tar_writer.describe_file_error(error)))
                continue
            listed_stat = (self._packing_list.sizes[index], self._packing_list.mtimes_ns[index])
            if (file_stat.st_size, file_stat.st_mtime_ns) != listed_stat:
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
