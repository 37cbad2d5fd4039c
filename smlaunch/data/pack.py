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

from smlaunch.data.folder_worker_pool import FolderWorkerPool
from smlaunch.data.pack_destination import PackDestination
from smlaunch.data.packing_list import Grouping, PackingList, SourceFiles, make_packing_list, unpackable_files
from smlaunch.data.parallel_stat import stat_files
from smlaunch.data.shard_index import ShardIndex, ShardRecord
from smlaunch.data.tar_shard_writers import (
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
from smlaunch.errors import JobError, MachineError, Problem, ServiceError, disk_full_message, is_disk_full

if TYPE_CHECKING:
    from smlaunch.data.tar_writer import ChecksumKind

PackEngine = Literal["python", "tar"]
"""What writes the shards of a folder. Both take the same time; ``python`` notices every file that has
changed, and does not read a shard again for its checksum."""

DEFAULT_SHARD_BYTES = 150_000_000
"""AWS's advice for small files: group them into containers of about 150 MB (facts: best practices for
training data)."""

_MAX_REPORTED_PROBLEMS = 20
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
        with destination.open_for_writing(options.resume):
            finished = destination.finished_index()
            if finished is not None:
                index = _check_finished_pack(finished, files, shards, destination)
                destination.publish_index(index)
                return PackResult(index, len(shards), ())
            destination.delete_other_shards({shard.name for shard in shards})
            writer = source.shard_writer(files, options.checksum)
            records, reused_shards = _write_shards(writer, files, shards, destination, options, on_progress)
            index = ShardIndex(
                group=options.grouping,
                files=len(files.names),
                samples=len(files.sample_starts),
                bytes=files.total_bytes,
                shards=tuple(records),
            )
            destination.publish_index(index)
    return PackResult(index, reused_shards, tuple(_iter_pack_warnings(files, shards, options)))


def _list_source(source: PackSource, grouping: Grouping) -> PackingList:
    source_files = source.list_files()
    _raise_if_problems(
        f"{_printable(name)} {reason}"
        for name, reason in unpackable_files(source_files, are_s3_keys=source.has_s3_keys)
    )
    return make_packing_list(source_files, grouping)


def _pack_shard(
    shard: TarShard,
    writer: ShardWriter,
    packing_list: PackingList,
    destination: PackDestination,
    options: PackOptions,
) -> tuple[str, bool]:
    """Write one tar shard, unless the interrupted pack that is resumed has written the same. Return its
    checksum with its kind, as ``crc32:0a1b2c3d``, and whether the existing shard is reused."""
    fingerprint = shard.fingerprint(packing_list)  # a hash of the files' names, sizes and times
    checksum = destination.checksum_of_reusable_shard(shard, fingerprint) if options.resume else None
    if checksum is not None and checksum.partition(":")[0] == options.checksum:
        return checksum, True
    archive_path = destination.temporary_path(shard)
    try:
        checksum = writer.write_shard(shard, archive_path)
        destination.publish_shard(shard, archive_path, checksum, fingerprint)
    finally:
        archive_path.unlink(missing_ok=True)
    return checksum, False


def _pop_finished(
    pending: dict[Future[tuple[str, bool]], TarShard],
) -> Iterator[tuple[TarShard, Future[tuple[str, bool]]]]:
    """Yield shards with their futures as these finish, and remove them from ``pending``, until it is
    empty."""
    while pending:
        for future in wait(pending, return_when=FIRST_COMPLETED).done:
            yield pending.pop(future), future


def _write_shards(
    writer: ShardWriter,
    packing_list: PackingList,
    shards: Sequence[TarShard],
    destination: PackDestination,
    options: PackOptions,
    on_progress: Callable[[int, int], object],
) -> tuple[list[ShardRecord], int]:
    """Write all tar shards of the files in the packing list in parallel. Return their records (name, size,
    checksum, ...) for the index, in order, and the number of shards that an interrupted pack had already
    written. ``on_progress`` gets the bytes of finished shards, and of all.

    Raises JobError naming files that have changed (other shards are finished), ServiceError if nothing can be
    written any more, and MachineError for a full disk.
    """
    total_bytes = sum(shard.archive_bytes for shard in shards)
    done_bytes = reused_shards = 0
    record_by_name: dict[str, ShardRecord] = {}
    changed_files: list[ChangedFile] = []

    def pack_shard(shard: TarShard) -> tuple[str, bool]:
        return _pack_shard(shard, writer, packing_list, destination, options)

    with ThreadPoolExecutor(options.workers or os.cpu_count() or 1, "pack") as pool:
        # Each future gives a shard's checksum, and whether an interrupted pack had already written it.
        pending: dict[Future[tuple[str, bool]], TarShard] = {
            pool.submit(pack_shard, shard): shard for shard in shards
        }
        try:
            for shard, future in _pop_finished(pending):
                try:
                    checksum, is_reused = future.result()
                except ShardFailed as error:  # the other shards are still written
                    changed_files.extend(error.changed_files)
                    continue
                reused_shards += is_reused
                record_by_name[shard.name] = shard.to_record(packing_list, checksum)
                done_bytes += shard.archive_bytes
                on_progress(done_bytes, total_bytes)
        except (PackStopped, OSError) as error:
            if is_disk_full(error):
                folder = destination.temporary_path(shards[0]).parent
                raise MachineError(f"{disk_full_message(folder, error)} with --resume") from error
            raise ServiceError(f"{error}; finished shards stay, continue with --resume") from error
        finally:
            # After an error or Ctrl-C, do not wait for shards that are no longer needed.
            if pending:
                pool.shutdown(wait=False, cancel_futures=True)
                writer.stop()  # ends the shards that are being written
    problems = (f"{_printable(os.fsencode(file.name))} {file.problem}" for file in sorted(changed_files))
    _raise_if_problems(problems, "; --resume packs the remaining files")
    return [record_by_name[shard.name] for shard in shards], reused_shards


def _raise_if_problems(problems: Iterable[str], remedy: str = "") -> None:
    """Raise a JobError with the first ``_MAX_REPORTED_PROBLEMS`` messages and the number of others, if there
    are any. ``remedy``: the end of each message."""
    messages = list(problems)
    if not messages:
        return
    reported = messages[:_MAX_REPORTED_PROBLEMS]
    if len(messages) > len(reported):
        reported.append(f"and {len(messages) - len(reported):,} more")
    raise JobError([Problem("SRC", text + remedy) for text in reported])


def _printable(name: bytes) -> str:
    text = repr(name.decode(errors="backslashreplace"))
    return text if len(text) <= 120 else f"{text[:80]}...{text[-20:]} ({len(name):,} bytes)"


def _check_finished_pack(
    finished: ShardIndex, files: PackingList, shards: Sequence[TarShard], destination: PackDestination
) -> ShardIndex:
    """Return the index of a finished pack if it is the requested one. Raises JobError otherwise."""
    planned = [shard.to_record(files, "") for shard in shards]
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


def _iter_pack_warnings(
    packing_list: PackingList, shards: Sequence[TarShard], options: PackOptions
) -> Iterator[str]:
    """Yield warnings about the packed files and shards: samples (files that belong together) that WebDataset
    skips, too few shards, or shards of unequal size. ``packing_list``: all packed files, in their order."""
    # WebDataset's key of a sample is the name of its files up to the first dot; some files have none.
    if packing_list.unkeyed_names:
        yield (
            f"{len(packing_list.unkeyed_names):,} files have no name before a first dot, such as "
            f"{_printable(packing_list.unkeyed_names[0])}: each is a sample of its own, and webdataset "
            f"skips it"
        )
    # Hosts read equally many shards, so that the number of shards is a multiple of the hosts', and at least
    # what was asked for; it is another one only if there are too few samples.
    wanted_shard_count = options.shard_count or options.hosts
    if len(shards) < wanted_shard_count or len(shards) % options.hosts:
        yield f"only {len(shards)} shards: there are no more samples"
    largest_bytes = max(shard.archive_bytes for shard in shards)
    mean_bytes = sum(shard.archive_bytes for shard in shards) / len(shards)
    if largest_bytes > 1.1 * mean_bytes:
        ratio = largest_bytes / mean_bytes
        yield f"one shard is {ratio:.2f} times the mean: a sample is never divided between shards"


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
        self._source_folder, self._engine, self._follow_links = root, engine, follow_links
        self._workers = FolderWorkerPool(str(root), workers or os.cpu_count() or 1, follow_links)

    @contextmanager
    def open(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._workers.close()

    def list_files(self) -> SourceFiles:
        """Return the files below the source folder, to be packed. Raises JobError for a source that is no
        folder, and for files that cannot be read or are not regular files."""
        if not self._source_folder.is_dir():
            problem = "is a file, not a folder" if self._source_folder.exists() else "does not exist"
            raise JobError([Problem("SRC", f"{self._source_folder} {problem}")])
        # Three columns, with the mode, size and time of the last change of each file.
        names, (modes, sizes, mtimes_ns), unreadable_folders = stat_files(
            str(self._source_folder), self._workers, self._follow_links
        )
        problems = [f"{_printable(name)} cannot be read: {reason}" for name, reason in unreadable_folders]
        # The names are only gone through if any file is not a regular one.
        if not set(map(stat.S_IFMT, set(modes))) <= {stat.S_IFREG}:
            problems += [
                f"{_printable(name)} {_describe_file_type_problem(mode)}"
                for name, mode in zip(names, modes, strict=True)
                if not stat.S_ISREG(mode)
            ]
        remedy = "; only files are packed"
        if not self._follow_links:
            remedy += " (see --follow-links)"
        _raise_if_problems(sorted(problems), remedy)
        return SourceFiles(names, sizes, mtimes_ns)

    def shard_writer(self, files: PackingList, checksum: ChecksumKind) -> ShardWriter:
        if self._engine == "python":
            return PythonShardWriter(files, self._workers, checksum)
        program = find_gnu_tar()
        if program is None:
            raise JobError([Problem("--engine", "there is no GNU tar here; leave the option out")])
        return GnuTarShardWriter(self._source_folder, files, program, self._follow_links, checksum)


def _describe_file_type_problem(mode: int) -> str:
    """Return why a file cannot be packed that is not a regular one. ``mode``: as ``stat_files`` returns it: 0
    for a file that is gone, a bare errno for one that cannot be looked up."""
    file_type = stat.S_IFMT(mode)
    if mode == 0:
        return "disappeared while it was listed"
    if file_type == 0:
        return f"cannot be read: {os.strerror(mode)}"
    type_names = {stat.S_IFLNK: "link", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
    return "is a " + type_names.get(file_type, "device")
