"""Shards: planned from sizes alone, then written one by one, in processes."""

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
from smlaunch.data.folder_workers import FolderWorkers
from smlaunch.data.grouping import Listing
from smlaunch.data.shard_index import SHARDS, ShardRecord
from smlaunch.data.tar_writer import archive_size, new_sum

if TYPE_CHECKING:
    from smlaunch.data.tar_writer import Checksum

_SUM_PIECE = 1 << 18
"""Bytes: they stay in the processor's cache."""


@dataclass(frozen=True)
class Shard:
    """Files ``begin`` to ``end`` (not with it) of a listing. ``size``: bytes of the archive."""

    name: str
    begin: int
    end: int
    samples: int
    size: int

    def record(self, listing: Listing, checksum: str) -> ShardRecord:
        first, last = listing.names[self.begin].decode(), listing.names[self.end - 1].decode()
        return ShardRecord(self.name, self.size, checksum, self.end - self.begin, self.samples, first, last)

    def fingerprint(self, listing: Listing) -> str:
        """Another one when a file of the shard is another, has another size, or was changed."""
        numbers = array("q", [*listing.sizes[self.begin : self.end], *listing.stamps[self.begin : self.end]])
        digest = hashlib.sha256(b"\0".join(listing.names[self.begin : self.end]))
        digest.update(numbers.tobytes())
        return digest.hexdigest()


def plan_shards(
    listing: Listing, *, size: int | None, count: int | None = None, multiple: int = 1
) -> list[Shard]:
    """Shards of equal bytes, as nearly as whole samples allow, in packing order.

    ``size``: bytes wanted of each, about; or ``count``: how many there are. ``multiple``: how many hosts will
    share them, so that every host gets the same number. Fewer only where there are fewer samples than that.
    """
    samples = len(listing.starts)
    if not samples:
        return []
    total = listing.ends[-1]
    if count is None:
        count = math.ceil(total / size) if size else 1
    count = min(math.ceil(count / multiple) * multiple, samples)
    cuts = [0]
    for number in range(1, count):
        target = total * number // count
        cut = bisect_left(listing.ends, target)
        below = listing.ends[cut - 1] if cut else 0
        cut += listing.ends[cut] - target < target - below
        # At least one sample for this shard and for each that follows.
        cuts.append(min(max(cut, cuts[-1] + 1), samples - (count - number)))
    cuts.append(samples)
    digits = max(5, len(str(count - 1)))
    shards = []
    for number in range(count):
        first, past = cuts[number], cuts[number + 1]
        members = listing.ends[past - 1] - (listing.ends[first - 1] if first else 0)
        end = listing.starts[past] if past < samples else len(listing.names)
        name = f"{SHARDS}shard-{number:0{digits}}.tar"
        shards.append(Shard(name, listing.starts[first], end, past - first, archive_size(members)))
    return shards


class Changed(NamedTuple):
    """A file that is not what it was when the source was listed."""

    name: str
    what: str


class ShardFailed(Exception):
    """A shard could not be written; the next one may. ``changed`` names the files that were to blame."""

    def __init__(self, changed: Sequence[Changed]) -> None:
        super().__init__(f"{len(changed)} files have changed")
        self.changed = tuple(changed)


class NoWay(Exception):
    """No shard can be written any more: the disk is full, a program is broken."""


class Writer(Protocol):
    """What writes a shard's archive into a new file."""

    def write(self, shard: Shard, out: Path) -> str:
        """Returns the archive's checksum, after its kind. Raises ShardFailed, or NoWay."""

    def stop(self) -> None:
        """Ends what is being written now, from another thread."""


class _Programs:
    """Running processes, so that they can be ended."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False
        self._lock = Lock()

    def run(self, command: Sequence[str], content: bytes) -> tuple[int, bytes, bytes]:
        environment = {**os.environ, "LC_ALL": "C"}
        environment.pop("TAR_OPTIONS", None)
        pipe = subprocess.PIPE
        with self._lock:
            if self._stopped:
                raise NoWay("stopped")
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)
            self._running.add(process)
        with process:
            out, err = process.communicate(content)
        with self._lock:
            self._running.discard(process)
            if self._stopped:
                raise NoWay("stopped")
        return process.returncode, out, err

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.kill()


class PythonWriter:
    """``tar_writer`` in processes: sums while it writes, and sees every file that has changed."""

    def __init__(self, listing: Listing, workers: FolderWorkers, checksum: Checksum = "crc32") -> None:
        self._listing, self._workers, self._checksum = listing, workers, checksum
        self.stop = workers.stop

    def write(self, shard: Shard, out: Path) -> str:
        chosen = slice(shard.begin, shard.end)
        sizes, names = self._listing.sizes[chosen], self._listing.names[chosen]
        how, *told = self._workers.ask(
            folder_worker.ARCHIVE,
            os.fsencode(out),
            self._checksum.encode(),
            array("q", sizes).tobytes(),
            b"\0".join(names),
        )
        words = list(map(os.fsdecode, told))
        if how == folder_worker.BROKEN:
            raise NoWay(words[0])
        if words[1:]:
            raise ShardFailed(list(map(Changed, words[1::2], words[2::2])))
        return words[0]


class TarWriter:
    """GNU tar. Its archive is read once more for the checksum, and what changed is found by looking again."""

    def __init__(
        self,
        root: Path,
        listing: Listing,
        program: str,
        follow_links: bool = False,
        checksum: Checksum = "crc32",
    ) -> None:
        self._root, self._listing, self._program, self._checksum = root, listing, program, checksum
        self._look = os.stat if follow_links else os.lstat
        self._follow = ["--dereference"] if follow_links else []
        self._programs = _Programs()
        self.stop = self._programs.stop

    def write(self, shard: Shard, out: Path) -> str:
        options: tuple[str, ...] = (
            *("--create", "--format=ustar", "--force-local", "--no-recursion", "--hard-dereference"),
            *("--owner=0", "--group=0", "--numeric-owner", "--mtime=@0", "--mode=0644"),
            *("--null", "--verbatim-files-from", "--no-unquote", "--files-from=-"),
        )
        command = [self._program, f"--file={out}", f"--directory={self._root}", *self._follow, *options]
        names = self._listing.names[shard.begin : shard.end]
        code, _, err = self._programs.run(command, b"\0".join(names))
        written = out.stat().st_size if out.exists() else -1
        if code == 0 and written == shard.size:
            return file_sum(out, self._checksum)[0]
        changed = self._changed(shard)
        if changed:
            raise ShardFailed(changed)
        words = err.decode(errors="replace").strip()
        raise NoWay(f"{self._program} ended with {code}: {words or f'{written} bytes written'}")

    def _changed(self, shard: Shard) -> list[Changed]:
        told = []
        for index in range(shard.begin, shard.end):
            name = self._listing.names[index]
            try:
                status = self._look(os.path.join(os.fsencode(self._root), name))  # noqa: PTH118 (bytes)
            except OSError as error:
                told.append(Changed(os.fsdecode(name), tar_writer.why(error)))
                continue
            if (status.st_size, status.st_mtime_ns) != (
                self._listing.sizes[index],
                self._listing.stamps[index],
            ):
                told.append(Changed(os.fsdecode(name), "has changed since it was listed"))
        return told


@cache
def gnu_tar() -> str | None:
    """Where GNU tar is (on macOS it is called gtar); None where there is none."""
    for name in ("tar", "gtar"):
        program = which(name)
        if program is None:
            continue
        told = subprocess.run([program, "--version"], capture_output=True, check=False).stdout
        if told.startswith(b"tar (GNU tar)"):
            return program
    return None


def file_sum(path: Path, checksum: Checksum) -> tuple[str, int]:
    """The checksum, after its kind, and the bytes that were read for it."""
    found, size = new_sum(checksum), 0
    room = memoryview(bytearray(_SUM_PIECE))
    with path.open("rb", buffering=0) as content:
        while count := content.readinto(room):
            found.update(room[:count])
            size += count
    return f"{checksum}:{found.hexdigest()}", size


def is_whole(path: Path, checksum: str, size: int) -> bool:
    """Whether a file is there with these bytes. False for a checksum of a kind that is not known here."""
    kind = checksum.partition(":")[0]
    if kind not in ("crc32", "sha256") or not path.is_file() or path.stat().st_size != size:
        return False
    return file_sum(path, "crc32" if kind == "crc32" else "sha256") == (checksum, size)
