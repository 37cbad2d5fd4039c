"""``pack``: a folder or an S3 prefix becomes tar shards and an index, in a folder or in S3.

While it goes on, PLACE/.pack/ holds one small record per finished shard. A pack that was killed goes on from
them: a shard whose files are the same, and whose bytes still have the recorded checksum, is kept.

    list the source -> refuse what cannot be carried -> plan all shards -> write those not there -> index
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from smlaunch.data.file_sizes import look_up
from smlaunch.data.folder_workers import FolderWorkers
from smlaunch.data.grouping import Found, Group, Listing, listing, refusals
from smlaunch.data.pack_place import Place
from smlaunch.data.shard_index import ShardIndex, ShardRecord
from smlaunch.data.tar_shards import (
    Changed,
    NoWay,
    PythonWriter,
    Shard,
    ShardFailed,
    TarWriter,
    Writer,
    gnu_tar,
    plan_shards,
)
from smlaunch.errors import JobError, Problem, ServiceError

if TYPE_CHECKING:
    from smlaunch.data.tar_writer import Checksum

Engine = Literal["python", "tar"]
"""Who writes the shards of a folder. Both take the same time; ours sees every file that has changed, and does
not read a shard once more for its checksum."""

SHARD_SIZE = 150_000_000
"""Bytes. AWS's advice for small files: group them into containers of about 150 MB (facts: best practices for
training data)."""

_SHOWN = 20
"""Problems named one by one; of the rest the number is told."""


@dataclass(frozen=True)
class Wanted:
    """``size``: bytes of a shard, about; or ``count``: how many shards. ``hosts``: the number of shards is a
    multiple of it. ``workers``: shards written at once. ``checksum``: of each shard, in the index; SHA-256 is
    for who must be sure that nobody has tampered with them, and takes two to five times as long."""

    size: int | None = SHARD_SIZE
    count: int | None = None
    hosts: int = 1
    group: Group = "basename"
    resume: bool = False
    workers: int | None = None
    checksum: Checksum = "crc32"


class Source(Protocol):
    """Where files come from. ``keys``: they are S3 keys, which may be called anything."""

    keys: bool

    def open(self) -> AbstractContextManager[object]:
        """While the files are listed and read."""

    def find(self) -> Found:
        """Every file, in any order. Raises JobError for what is no file and would be left out unseen."""

    def writer(self, files: Listing, checksum: Checksum) -> Writer: ...


@dataclass(frozen=True)
class Packed:
    """``kept``: shards that were there already. ``notes``: what the user should know."""

    index: ShardIndex
    kept: int
    notes: tuple[str, ...]


def _silent(done: int, total: int) -> None:
    pass


def pack(
    source: Source, place: Place, wanted: Wanted, heard: Callable[[int, int], object] = _silent
) -> Packed:
    """Packs, or goes on packing. ``heard`` is told (bytes of shards done, of all) after each shard.

    Raises JobError naming every file that cannot be carried, or that changed or went while it was packed (the
    other shards are kept, and no index is written); ServiceError when nothing can be written any more.
    """
    with source.open():
        files = _listed(source, wanted.group)
        shards = plan_shards(files, size=wanted.size, count=wanted.count, multiple=wanted.hosts)
        if not shards:
            raise JobError([Problem("SRC", "there are no files in it")])
        with place.open(wanted.resume):
            finished = place.index()
            if finished is not None:
                index = _unchanged(finished, files, shards, place)
                place.finish(index)
                return Packed(index, len(shards), ())
            place.clear({shard.name for shard in shards})
            writer = source.writer(files, wanted.checksum)
            records, kept = _write_all(writer, files, shards, place, wanted, heard)
            index = ShardIndex(wanted.group, len(files.names), len(files.starts), files.total, tuple(records))
            place.finish(index)
    return Packed(index, kept, tuple(_notes(files, shards, wanted)))


def _listed(source: Source, group: Group) -> Listing:
    found = source.find()
    _refuse(f"{_printable(name)} {reason}" for name, reason in refusals(found, keys=source.keys))
    return listing(found, group)


def _write_all(
    writer: Writer,
    files: Listing,
    shards: Sequence[Shard],
    place: Place,
    wanted: Wanted,
    heard: Callable[[int, int], object],
) -> tuple[list[ShardRecord], int]:
    total, done, kept = sum(shard.size for shard in shards), 0, 0
    records: dict[str, ShardRecord] = {}
    changed: list[Changed] = []

    def one(shard: Shard) -> tuple[str, bool]:
        fingerprint = shard.fingerprint(files)
        checksum = place.kept(shard, fingerprint) if wanted.resume else None
        if checksum is not None and checksum.partition(":")[0] == wanted.checksum:
            return checksum, True
        out = place.room(shard)
        try:
            checksum = writer.write(shard, out)
            place.take(shard, out, checksum, fingerprint)
        finally:
            out.unlink(missing_ok=True)
        return checksum, False

    with ThreadPoolExecutor(wanted.workers or os.cpu_count() or 1, "pack") as pool:
        pending: dict[Future[tuple[str, bool]], Shard] = {pool.submit(one, shard): shard for shard in shards}
        try:
            while pending:
                for future in wait(pending, return_when=FIRST_COMPLETED).done:
                    shard = pending.pop(future)
                    try:
                        checksum, was_there = future.result()
                    except ShardFailed as error:
                        changed.extend(error.changed)
                        continue
                    kept += was_there
                    records[shard.name] = shard.record(files, checksum)
                    done += shard.size
                    heard(done, total)
        except (NoWay, OSError) as error:
            raise ServiceError(f"{error}; what is finished is kept: --resume goes on") from error
        finally:
            # Whatever ends this early: nobody waits for shards that nobody will have.
            if pending:
                pool.shutdown(wait=False, cancel_futures=True)
                writer.stop()
    told = (f"{_printable(os.fsencode(name))} {what}" for name, what in sorted(changed))
    _refuse(told, "; --resume packs what is left")
    return [records[shard.name] for shard in shards], kept


def _refuse(problems: Iterable[str], cure: str = "") -> None:
    told = list(problems)
    if not told:
        return
    more = [f"and {len(told) - _SHOWN:,} more"] if len(told) > _SHOWN else []
    raise JobError([Problem("SRC", text + cure) for text in [*told[:_SHOWN], *more]])


def _printable(name: bytes) -> str:
    text = repr(name.decode(errors="backslashreplace"))
    return text if len(text) <= 120 else f"{text[:80]}...{text[-20:]} ({len(name):,} bytes)"


def _unchanged(finished: ShardIndex, files: Listing, shards: Sequence[Shard], place: Place) -> ShardIndex:
    """The index of a pack that is whole, when it is the one asked for."""
    planned = [shard.record(files, "") for shard in shards]
    if planned != [replace(record, checksum="") for record in finished.shards]:
        message = "holds a finished pack of other files, or in other shards; pack to another place"
        raise JobError([Problem("DST", message)])
    missing = [record.name for record in finished.shards if not place.holds(record)]
    if missing:
        message = (
            f"holds a finished pack, but {missing[0]} is missing or spoilt; remove index.json, then --resume"
        )
        raise JobError([Problem("DST", message)])
    return finished


def _notes(files: Listing, shards: Sequence[Shard], wanted: Wanted) -> Iterator[str]:
    if files.alone:
        yield (
            f"{len(files.alone):,} files have no name before a first dot, such as "
            f"{_printable(files.alone[0])}: each is a sample of its own, and webdataset passes over it"
        )
    asked = wanted.count or wanted.hosts
    if len(shards) < asked or len(shards) % wanted.hosts:
        yield f"{len(shards)} shards: there are no more samples than that"
    largest, mean = max(shard.size for shard in shards), sum(shard.size for shard in shards) / len(shards)
    if largest > 1.1 * mean:
        yield f"one shard is {largest / mean:.2f} times the mean: a sample is never parted over shards"


class FolderSource:
    """The files of a directory. ``follow_links``: a link to a file is packed as that file; one to a folder,
    and any link without the option, is refused by name."""

    keys = False

    def __init__(
        self,
        root: Path,
        *,
        engine: Engine = "python",
        follow_links: bool = False,
        workers: int | None = None,
    ) -> None:
        self._root, self._engine, self._follow = root, engine, follow_links
        self._workers = FolderWorkers(str(root), workers or os.cpu_count() or 1, follow_links)

    @contextmanager
    def open(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._workers.close()

    def find(self) -> Found:
        if not self._root.is_dir():
            what = "is a file, a folder is needed" if self._root.exists() else "does not exist"
            raise JobError([Problem("SRC", f"{self._root} {what}")])
        names, (modes, sizes, stamps), unreadable = look_up(str(self._root), self._workers, self._follow)
        problems = [f"{_printable(name)} cannot be read: {reason}" for name, reason in unreadable]
        if not set(map(stat.S_IFMT, set(modes))) <= {stat.S_IFREG}:
            problems += [
                f"{_printable(name)} {_kind(mode)}"
                for name, mode in zip(names, modes, strict=True)
                if not stat.S_ISREG(mode)
            ]
        cure = "; only files are packed" if self._follow else "; only files are packed (see --follow-links)"
        _refuse(sorted(problems), cure)
        return Found(names, sizes, stamps)

    def writer(self, files: Listing, checksum: Checksum) -> Writer:
        if self._engine == "python":
            return PythonWriter(files, self._workers, checksum)
        program = gnu_tar()
        if program is None:
            raise JobError([Problem("--engine", "there is no GNU tar here; leave the option out")])
        return TarWriter(self._root, files, program, self._follow, checksum)


def _kind(mode: int) -> str:
    kinds = {stat.S_IFLNK: "link", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
    if mode and not stat.S_IFMT(mode):  # an errno (folder_worker)
        return f"cannot be read: {os.strerror(mode)}"
    return "is a " + kinds.get(stat.S_IFMT(mode), "device") if mode else "went while it was listed"
