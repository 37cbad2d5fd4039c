"""Pack from S3 and into S3. From S3 to S3, only the shards being written are on this machine's disk.

Objects are fetched in parallel, in packing order and a limited number ahead. A shard is assembled in a
temporary file, checksummed on the way, and uploaded in parallel parts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import TYPE_CHECKING

from smlaunch.aws.interfaces import CallError, ObjectStorage, Transfer, TransferItem
from smlaunch.data.pack_destination import (
    FINISHED_MESSAGE,
    FOREIGN_FILE_MESSAGE,
    UNFINISHED_MESSAGE,
    WORK_FOLDER,
    checksum_from_shard_record,
    destination_error,
    encode_record,
    is_shard_name,
    record_key,
)
from smlaunch.data.packing_list import PackingList, SourceFiles
from smlaunch.data.s3_transfer import FastTransfer, FastTransferFailed
from smlaunch.data.shard_index import (
    INDEX_FILE,
    SHARDS_FOLDER,
    ShardIndex,
    ShardRecord,
    encode_shard_index,
    parse_shard_index,
)
from smlaunch.data.tar_shard_writers import ChangedFile, PackStopped, ShardFailed, ShardWriter, TarShard
from smlaunch.data.tar_writer import BLOCK_BYTES, ArchiveOutput, tar_header
from smlaunch.errors import JobError, Problem

if TYPE_CHECKING:
    from smlaunch.data.tar_writer import ChecksumKind

_LARGE_OBJECT_BYTES = 8 << 20
"""An object from this size on is copied in pieces instead of being fetched ahead."""

_CONCURRENT_FETCHES = 32
"""Objects fetched at a time for one shard, so that S3's latencies overlap."""

_MISSING_CODES = frozenset(("NoSuchKey", "404", "NotFound"))

FetchObject = Callable[[str, int], bytes | None]
"""Returns a small object's content by its key and listed size; None if the object is gone."""


def obstore_fetch(fast_transfer: FastTransfer, storage: ObjectStorage, bucket: str) -> FetchObject:
    """Return a function that fetches by obstore, and by botocore what obstore cannot or could not fetch."""

    def fetch(key: str, size: int) -> bytes | None:
        if size and fast_transfer.supports_key(key):
            try:
                # One byte more than expected shows whether the object has grown.
                return b"".join(fast_transfer.get_range(bucket, key, 0, size + 1, None))
            except FastTransferFailed:
                pass
        return storage.get_bytes(bucket, key)

    return fetch


class S3PackSource:
    """The objects below ``prefix``, which is treated as a folder. ``fetch_object``: a faster way than the
    storage's own to get a small object, callable from many threads."""

    has_s3_keys = True

    def __init__(
        self, storage: ObjectStorage, bucket: str, prefix: str, fetch_object: FetchObject | None = None
    ) -> None:
        self._storage, self._bucket = storage, bucket
        self._prefix = prefix if not prefix or prefix.endswith("/") else prefix + "/"
        self._fetch_object = fetch_object or (lambda key, size: storage.get_bytes(bucket, key))

    def open(self) -> AbstractContextManager[object]:
        return nullcontext()

    def list_files(self) -> SourceFiles:
        """Return the objects below the source prefix, to be packed, without folder markers. S3 has no time of
        the last change that would show a changed content, so it is 0. Raises JobError if there are none."""
        prefix_length = len(self._prefix)
        names: list[bytes] = []
        sizes: list[int] = []
        for entry in self._storage.list_objects(self._bucket, self._prefix):
            # Consoles create such empty objects to display a folder.
            if entry.size or not entry.key.endswith("/"):
                # A key that is not valid Unicode is reported later, with all others that cannot be packed.
                names.append(entry.key[prefix_length:].encode(errors="surrogatepass"))
                sizes.append(entry.size)
        if not names:
            raise JobError([Problem("SRC", f"there are no objects below s3://{self._bucket}/{self._prefix}")])
        return SourceFiles(names, sizes, [0] * len(names))

    def shard_writer(self, files: PackingList, checksum: ChecksumKind) -> ShardWriter:
        return _S3ShardWriter(self._storage, self._bucket, self._prefix, self._fetch_object, files, checksum)


class _S3ShardWriter:
    def __init__(
        self,
        storage: ObjectStorage,
        bucket: str,
        prefix: str,
        fetch_object: FetchObject,
        files: PackingList,
        checksum: ChecksumKind,
    ) -> None:
        self._storage, self._bucket, self._prefix = storage, bucket, prefix
        self._fetch_object, self._packing_list, self._checksum = fetch_object, files, checksum
        self._stop_requested = Event()

    def stop(self) -> None:
        self._stop_requested.set()

    def write_shard(self, shard: TarShard, archive_path: Path) -> str:
        """Write the tar archive of a shard's objects to ``archive_path`` and return its checksum with its
        kind. Raises ShardFailed if objects have changed, PackStopped after ``stop``."""
        changed_files: list[ChangedFile] = []
        with (
            archive_path.open("xb", buffering=_LARGE_OBJECT_BYTES) as archive,
            ThreadPoolExecutor(_CONCURRENT_FETCHES, "fetch") as pool,  # downloads objects ahead
        ):
            output = ArchiveOutput(archive.write, self._checksum)  # computes this kind of checksum of it
            # The index in the packing list; the content, still being fetched, or the key of a large object.
            for index, content in self._fetch_objects_in_order(shard, pool):
                if self._stop_requested.is_set():
                    raise PackStopped("stopped")
                name, size = self._packing_list.names[index], self._packing_list.sizes[index]
                output.write(tar_header(name, size))
                problem = self._write_object_content(name, size, content, output)
                if problem is not None:
                    changed_files.append(ChangedFile(name.decode(), problem))
                output.write(bytes(-size % BLOCK_BYTES))  # up to a whole block of 512 bytes
            output.write_end_of_archive()
        if changed_files:
            raise ShardFailed(changed_files)
        return output.checksum

    def _fetch_objects_in_order(
        self, shard: TarShard, pool: ThreadPoolExecutor
    ) -> Iterator[tuple[int, PendingContentOrKey]]:
        """Yield each object of a shard in packing order: its index in the packing list, and its content,
        which may still be being fetched, or the key of an object too large for memory. At most
        ``_CONCURRENT_FETCHES`` are fetched or wait to be written."""
        pending: deque[tuple[int, PendingContentOrKey]] = deque()
        for index in range(shard.first_file, shard.end_file):
            key = self._prefix + self._packing_list.names[index].decode()
            size = self._packing_list.sizes[index]
            is_large = size >= _LARGE_OBJECT_BYTES  # 8 MiB: read later, in chunks
            pending.append((index, key if is_large else pool.submit(self._fetch_object, key, size)))
            if len(pending) == _CONCURRENT_FETCHES:
                yield pending.popleft()
        yield from pending

    def _write_object_content(
        self, name: bytes, size: int, content: PendingContentOrKey, output: ArchiveOutput
    ) -> str | None:
        """Write one object's content into the archive. ``content``: being fetched, or a large object's key,
        which is then read in chunks. Return what is wrong with the object, or None."""
        if not isinstance(content, str):
            body = content.result()
            if body is None:
                return "is gone"
            output.write(body)
            return None if len(body) == size else _SIZE_CHANGED_PROBLEM
        written_bytes = 0
        try:
            for chunk in self._storage.read_chunks(self._bucket, content):
                output.write(chunk)
                written_bytes += len(chunk)
                if self._stop_requested.is_set():
                    raise PackStopped("stopped")
        except CallError as error:
            if error.code in _MISSING_CODES:  # such as NoSuchKey
                return "is gone"
            raise
        return None if written_bytes == size else _SIZE_CHANGED_PROBLEM


PendingContentOrKey = Future["bytes | None"] | str
"""A content that is being fetched, or the key of a large object."""

_SIZE_CHANGED_PROBLEM = "has another size than when it was listed"


class S3Destination:
    """A prefix, treated as a folder. An upload is visible when it is complete, or not at all, so a shard that
    has its record is checked by size only. ``transfer``: a faster way than the storage's own to send a shard.
    """

    def __init__(
        self, storage: ObjectStorage, bucket: str, prefix: str, transfer: Transfer | None = None
    ) -> None:
        self._storage, self._bucket, self._transfer = storage, bucket, transfer
        self._prefix = prefix if not prefix or prefix.endswith("/") else prefix + "/"
        self._size_by_existing_name: dict[str, int] = {}

    @contextmanager
    def open_for_writing(self, resume: bool) -> Iterator[None]:
        """List and check the destination prefix of a pack, and mark it as one. ``resume``: an interrupted or
        finished pack may be there. Raises JobError for a prefix with other files."""
        prefix_length = len(self._prefix)
        self._size_by_existing_name = {}
        # Shards, the records of an unfinished pack, and the index of a finished one.
        for name_prefix in (SHARDS_FOLDER, WORK_FOLDER, INDEX_FILE):
            for entry in self._storage.list_objects(self._bucket, self._prefix + name_prefix):
                self._size_by_existing_name[entry.key[prefix_length:]] = entry.size
        self._check_existing_objects(resume)
        # Marks the prefix as a pack's, so that a resumed pack accepts the shards in it.
        self._put_object(WORK_FOLDER + "begun", b"")
        with TemporaryDirectory(prefix="smlaunch-pack-") as folder:
            self._temporary_folder = Path(folder)
            yield

    def _check_existing_objects(self, resume: bool) -> None:
        """Raise JobError if the destination has a pack, finished or not, that is not to be resumed, or
        objects among the shards that no pack has written."""
        uri = f"s3://{self._bucket}/{self._prefix}"
        if not resume and INDEX_FILE in self._size_by_existing_name:
            raise destination_error(f"{uri} {FINISHED_MESSAGE}")
        has_records = any(name.startswith(WORK_FOLDER) for name in self._size_by_existing_name)
        if not resume and has_records:
            raise destination_error(f"{uri} {UNFINISHED_MESSAGE}")
        shard_names = [name for name in self._size_by_existing_name if name.startswith(SHARDS_FOLDER)]
        belongs_to_pack = has_records or INDEX_FILE in self._size_by_existing_name
        # Objects that no pack has written.
        foreign_names = [name for name in shard_names if not belongs_to_pack or not is_shard_name(name)]
        if foreign_names:
            raise destination_error(uri + " " + FOREIGN_FILE_MESSAGE.format(name=foreign_names[0]))

    def finished_index(self) -> ShardIndex | None:
        """Return the index of a finished pack at the destination; None if there is none. Raises JobError for
        one that cannot be read."""
        if INDEX_FILE not in self._size_by_existing_name:
            return None
        try:
            return parse_shard_index(self._storage.get_bytes(self._bucket, self._prefix + INDEX_FILE) or b"")
        except ValueError as error:
            raise destination_error(f"s3://{self._bucket}/{self._prefix}{INDEX_FILE}: {error}") from None

    def delete_other_shards(self, names: set[str]) -> None:
        old_names = [
            name
            for name in self._size_by_existing_name
            if name.startswith(SHARDS_FOLDER) and name not in names
        ]
        self._delete(old_names)

    def checksum_of_reusable_shard(self, shard: TarShard, fingerprint: str) -> str | None:
        if (
            self._size_by_existing_name.get(shard.name) != shard.archive_bytes
            or record_key(shard) not in self._size_by_existing_name
        ):
            return None
        content = self._storage.get_bytes(self._bucket, self._prefix + record_key(shard))
        return checksum_from_shard_record(content, shard, fingerprint)

    def has_shard(self, record: ShardRecord) -> bool:
        return self._size_by_existing_name.get(record.name) == record.bytes

    def temporary_path(self, shard: TarShard) -> Path:
        return self._temporary_folder / shard.name[len(SHARDS_FOLDER) :]

    def publish_shard(self, shard: TarShard, archive_path: Path, checksum: str, fingerprint: str) -> None:
        # A record must never describe bytes that are being replaced.
        if record_key(shard) in self._size_by_existing_name:
            self._delete([record_key(shard)])
        key = self._prefix + shard.name
        if self._transfer is None:
            self._storage.put_file(self._bucket, key, archive_path)
        else:
            self._transfer.upload_files(
                self._bucket, [TransferItem(key, archive_path, shard.archive_bytes)], lambda size, files: None
            )
        self._put_object(record_key(shard), encode_record(shard, checksum, fingerprint))

    def publish_index(self, index: ShardIndex) -> None:
        self._put_object(INDEX_FILE, encode_shard_index(index))
        record_keys = [
            entry.key for entry in self._storage.list_objects(self._bucket, self._prefix + WORK_FOLDER)
        ]
        self._storage.delete_objects(self._bucket, record_keys)

    def _put_object(self, name: str, content: bytes) -> None:
        self._storage.put_bytes(self._bucket, self._prefix + name, content)

    def _delete(self, names: Sequence[str]) -> None:
        if names:
            self._storage.delete_objects(self._bucket, [self._prefix + name for name in names])
