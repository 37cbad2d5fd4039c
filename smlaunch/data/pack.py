"""``pack``: turn a folder or an S3 prefix into tar shards and an index, in a folder or in S3.

While a pack runs, DST/.pack/ holds a small record per finished shard. A killed pack resumes from them: a
shard is reused if its files are the same and its bytes still have the recorded checksum.

    list the source -> reject unpackable files -> plan all shards -> write missing shards -> write the index
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

from smlaunch.data.file_stats import stat_files
from smlaunch.data.folder_worker_pool import FolderWorkerPool
from smlaunch.data.pack_destination import PackDestination
from smlaunch.data.packing_list import Grouping, PackingList, SourceFiles, make_packing_list, unpackable_files
from smlaunch.data.shard_index import ShardIndex, ShardRecord
from smlaunch.data.tar_shards import (
    ChangedFile,
    GnuTarShardWriter,
    PackStopped,
    PythonShardWriter,
    ShardFailed,
    ShardWriter,
    TarShard,
    find_gnu_tar,
    plan_shards,
)
from smlaunch.errors import JobError, Problem, ServiceError

if TYPE_CHECKING:
    from smlaunch.data.tar_writer import ChecksumKind

PackEngine = Literal["python", "tar"]
"""What writes the shards of a folder. Both take the same time; ``python`` notices every file that has
changed, and does not read a shard again for its checksum."""

DEFAULT_SHARD_BYTES = 150_000_000
"""AWS's advice for small files: group them into containers of about 150 MB (facts: best practices for
training data)."""

_MAX_PROBLEMS = 20
"""Problems named one by one; further ones are only counted."""


@dataclass(frozen=True)
class PackOptions:
    """How to pack."""

    shard_bytes: int | None = DEFAULT_SHARD_BYTES
    """Approximate size of a shard. Ignored if ``shard_count`` is given."""
    shard_count: int | None = None
    hosts: int = 1
    """The number of shards is a multiple of it."""
    grouping: Grouping = "basename"
    resume: bool = False
    workers: int | None = None
    """Shards written at a time; None: one per CPU."""
    checksum: ChecksumKind = "crc32"
    """Recorded per shard in the index. SHA-256 also detects tampering, and takes two to five times as
    long."""


class PackSource(Protocol):
    """Where files come from. ``has_s3_keys``: their names are S3 keys, which may contain anything."""

    has_s3_keys: bool

    def open(self) -> AbstractContextManager[object]:
        """Hold what listing and reading the files need."""

    def list_files(self) -> SourceFiles:
        """Return every file, in any order. Raises JobError for anything that is not a file and would be left
        out silently."""

    def shard_writer(self, files: PackingList, checksum: ChecksumKind) -> ShardWriter: ...


@dataclass(frozen=True)
class PackResult:
    """A finished pack."""

    index: ShardIndex
    reused_shards: int
    """Number of shards that existed already."""
    notes: tuple[str, ...]
    """What the user should know."""


def _ignore_progress(done_bytes: int, total_bytes: int) -> None:
    pass


def pack(
    source: PackSource,
    destination: PackDestination,
    options: PackOptions,
    on_progress: Callable[[int, int], object] = _ignore_progress,
) -> PackResult:
    """Pack a source, or continue an interrupted pack. After each shard ``on_progress`` gets the bytes of
    shards done, and of all.

    Raises JobError naming every file that cannot be packed, or that changed or disappeared meanwhile (the
    other shards stay, and no index is written); ServiceError if nothing can be written any more.
    """
    with source.open():
        files = _list_source(source, options.grouping)
        shards = plan_shards(
            files, shard_bytes=options.shard_bytes, count=options.shard_count, host_count=options.hosts
        )
        if not shards:
            raise JobError([Problem("SRC", "there are no files in it")])
        with destination.open(options.resume):
            finished = destination.finished_index()
            if finished is not None:
                index = _check_finished_pack(finished, files, shards, destination)
                destination.publish_index(index)
                return PackResult(index, len(shards), ())
            destination.delete_other_shards({shard.name for shard in shards})
            writer = source.shard_writer(files, options.checksum)
            records, reused_shards = _write_shards(writer, files, shards, destination, options, on_progress)
            index = ShardIndex(
                options.grouping,
                len(files.names),
                len(files.sample_starts),
                files.total_bytes,
                tuple(records),
            )
            destination.publish_index(index)
    return PackResult(index, reused_shards, tuple(_notes(files, shards, options)))


def _list_source(source: PackSource, grouping: Grouping) -> PackingList:
    source_files = source.list_files()
    _raise_problems(
        f"{_printable(name)} {reason}"
        for name, reason in unpackable_files(source_files, are_s3_keys=source.has_s3_keys)
    )
    return make_packing_list(source_files, grouping)


def _write_shards(
    writer: ShardWriter,
    files: PackingList,
    shards: Sequence[TarShard],
    destination: PackDestination,
    options: PackOptions,
    on_progress: Callable[[int, int], object],
) -> tuple[list[ShardRecord], int]:
    """Write all shards in parallel. Return their records and the number of reused shards."""
    total_bytes, done_bytes, reused_shards = sum(shard.archive_bytes for shard in shards), 0, 0
    records: dict[str, ShardRecord] = {}
    changed_files: list[ChangedFile] = []

    def pack_shard(shard: TarShard) -> tuple[str, bool]:
        """Return the shard's checksum, and whether an existing shard is reused."""
        fingerprint = shard.fingerprint(files)
        checksum = destination.reusable_checksum(shard, fingerprint) if options.resume else None
        if checksum is not None and checksum.partition(":")[0] == options.checksum:
            return checksum, True
        archive_path = destination.temporary_path(shard)
        try:
            checksum = writer.write(shard, archive_path)
            destination.publish_shard(shard, archive_path, checksum, fingerprint)
        finally:
            archive_path.unlink(missing_ok=True)
        return checksum, False

    with ThreadPoolExecutor(options.workers or os.cpu_count() or 1, "pack") as pool:
        pending: dict[Future[tuple[str, bool]], TarShard] = {
            pool.submit(pack_shard, shard): shard for shard in shards
        }
        try:
            while pending:
                for future in wait(pending, return_when=FIRST_COMPLETED).done:
                    shard = pending.pop(future)
                    try:
                        checksum, is_reused = future.result()
                    except ShardFailed as error:
                        changed_files.extend(error.changed_files)
                        continue
                    reused_shards += is_reused
                    records[shard.name] = shard.record(files, checksum)
                    done_bytes += shard.archive_bytes
                    on_progress(done_bytes, total_bytes)
        except (PackStopped, OSError) as error:
            raise ServiceError(f"{error}; finished shards stay, continue with --resume") from error
        finally:
            # After an error or Ctrl-C, do not wait for shards that are no longer needed.
            if pending:
                pool.shutdown(wait=False, cancel_futures=True)
                writer.stop()
    messages = (f"{_printable(os.fsencode(name))} {problem}" for name, problem in sorted(changed_files))
    _raise_problems(messages, "; --resume packs the remaining files")
    return [records[shard.name] for shard in shards], reused_shards


def _raise_problems(problems: Iterable[str], remedy: str = "") -> None:
    """Raise a JobError with the first ``_MAX_PROBLEMS`` messages and the number of others, if there
    are any."""
    messages = list(problems)
    if not messages:
        return
    remaining = [f"and {len(messages) - _MAX_PROBLEMS:,} more"] if len(messages) > _MAX_PROBLEMS else []
    raise JobError([Problem("SRC", text + remedy) for text in [*messages[:_MAX_PROBLEMS], *remaining]])


def _printable(name: bytes) -> str:
    text = repr(name.decode(errors="backslashreplace"))
    return text if len(text) <= 120 else f"{text[:80]}...{text[-20:]} ({len(name):,} bytes)"


def _check_finished_pack(
    finished: ShardIndex, files: PackingList, shards: Sequence[TarShard], destination: PackDestination
) -> ShardIndex:
    """Return the index of a finished pack if it is the requested one. Raises JobError otherwise."""
    planned = [shard.record(files, "") for shard in shards]
    if planned != [replace(record, checksum="") for record in finished.shards]:
        message = "holds a finished pack of other files, or with other shards; choose another destination"
        raise JobError([Problem("DST", message)])
    missing = [record.name for record in finished.shards if not destination.has_shard(record)]
    if missing:
        message = (
            f"holds a finished pack, but {missing[0]} is missing or damaged; remove index.json, then --resume"
        )
        raise JobError([Problem("DST", message)])
    return finished


def _notes(files: PackingList, shards: Sequence[TarShard], options: PackOptions) -> Iterator[str]:
    """Yield what the user should know of the packed files and shards."""
    if files.unkeyed_names:
        yield (
            f"{len(files.unkeyed_names):,} files have no name before a first dot, such as "
            f"{_printable(files.unkeyed_names[0])}: each is a sample of its own, and webdataset "
            f"skips it"
        )
    wanted_count = options.shard_count or options.hosts
    if len(shards) < wanted_count or len(shards) % options.hosts:
        yield f"only {len(shards)} shards: there are no more samples"
    largest, mean = (
        max(shard.archive_bytes for shard in shards),
        sum(shard.archive_bytes for shard in shards) / len(shards),
    )
    if largest > 1.1 * mean:
        yield f"one shard is {largest / mean:.2f} times the mean: a sample is never divided between shards"


class FolderSource:
    """The files of a directory. ``follow_links``: a link to a file is packed as that file. A link to a
    folder, and any link without this option, is refused by name."""

    has_s3_keys = False

    def __init__(
        self,
        root: Path,
        *,
        engine: PackEngine = "python",
        follow_links: bool = False,
        workers: int | None = None,
    ) -> None:
        self._root, self._engine, self._follow_links = root, engine, follow_links
        self._workers = FolderWorkerPool(str(root), workers or os.cpu_count() or 1, follow_links)

    @contextmanager
    def open(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._workers.close()

    def list_files(self) -> SourceFiles:
        """Return the files to pack. Raises JobError for a source that is no folder, and for files that cannot
        be read or are not regular files."""
        if not self._root.is_dir():
            problem = "is a file, not a folder" if self._root.exists() else "does not exist"
            raise JobError([Problem("SRC", f"{self._root} {problem}")])
        names, (modes, sizes, stamps), unreadable = stat_files(
            str(self._root), self._workers, self._follow_links
        )
        problems = [f"{_printable(name)} cannot be read: {reason}" for name, reason in unreadable]
        if not set(map(stat.S_IFMT, set(modes))) <= {stat.S_IFREG}:
            problems += [
                f"{_printable(name)} {_file_problem(mode)}"
                for name, mode in zip(names, modes, strict=True)
                if not stat.S_ISREG(mode)
            ]
        remedy = (
            "; only files are packed"
            if self._follow_links
            else "; only files are packed (see --follow-links)"
        )
        _raise_problems(sorted(problems), remedy)
        return SourceFiles(names, sizes, stamps)

    def shard_writer(self, files: PackingList, checksum: ChecksumKind) -> ShardWriter:
        if self._engine == "python":
            return PythonShardWriter(files, self._workers, checksum)
        program = find_gnu_tar()
        if program is None:
            raise JobError([Problem("--engine", "there is no GNU tar here; leave the option out")])
        return GnuTarShardWriter(self._root, files, program, self._follow_links, checksum)


def _file_problem(mode: int) -> str:
    """Return why a file with this mode cannot be packed."""
    kinds = {stat.S_IFLNK: "link", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
    if mode and not stat.S_IFMT(mode):  # an errno (folder_worker)
        return f"cannot be read: {os.strerror(mode)}"
    return "is a " + kinds.get(stat.S_IFMT(mode), "device") if mode else "disappeared while it was listed"
