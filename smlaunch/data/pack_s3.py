"""Packing from S3 and into S3. From S3 to S3 only the shards being written lie on this machine's disk.

Objects are fetched many at once, in the order of packing and only so far ahead; a shard is put together in a
temporary file, summed in passing, and uploaded in parallel parts.
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

from smlaunch.data.grouping import Found, Listing
from smlaunch.data.pack_place import (
    FINISHED,
    FOREIGN,
    UNFINISHED,
    WORK,
    is_shard,
    record_key,
    record_of,
    recorded,
    refuse,
)
from smlaunch.data.shard_index import INDEX, SHARDS, ShardIndex, ShardRecord, index_json, read_index
from smlaunch.data.tar_shards import Changed, NoWay, Shard, ShardFailed, Writer
from smlaunch.data.tar_writer import BLOCK, Output, header
from smlaunch.data.transfer import Quick, QuickFailed
from smlaunch.errors import JobError, Problem
from smlaunch.ports import CallError, ObjectStorage, Parcel, Transfer

if TYPE_CHECKING:
    from smlaunch.data.tar_writer import Checksum

_LARGE = 8 << 20
"""Bytes: an object from here on is copied piece by piece instead of being fetched ahead."""

_AHEAD = 32
"""Objects fetched at once for one shard: what S3 takes to answer is waited for in parallel."""

_GONE = frozenset(("NoSuchKey", "404", "NotFound"))

Fetch = Callable[[str, int], bytes | None]
"""A small object's content by its key and the size it was listed with; None when it is gone."""


def quick_fetch(quick: Quick, storage: ObjectStorage, bucket: str) -> Fetch:
    """By obstore; whatever it cannot do, or says it could not, by the port, which says what is the matter."""

    def fetch(key: str, size: int) -> bytes | None:
        if size and quick.takes(key):
            try:
                # One byte more than there should be: an object that has grown is seen.
                return b"".join(quick.get_range(bucket, key, 0, size + 1, None))
            except QuickFailed:
                pass
        return storage.get_bytes(bucket, key)

    return fetch


class S3Source:
    """The objects below ``prefix``, which is taken as a folder. ``fetch``: a faster way than the port's own
    to get a small object, callable from many threads."""

    keys = True

    def __init__(self, storage: ObjectStorage, bucket: str, prefix: str, fetch: Fetch | None = None) -> None:
        self._storage, self._bucket = storage, bucket
        self._prefix = prefix if not prefix or prefix.endswith("/") else prefix + "/"
        self._fetch = fetch or (lambda key, size: storage.get_bytes(bucket, key))

    def open(self) -> AbstractContextManager[object]:
        return nullcontext()

    def find(self) -> Found:
        cut = len(self._prefix)
        names, sizes = [], []
        for entry in self._storage.list(self._bucket, self._prefix):
            # What consoles make to show a folder: nothing is in it.
            if entry.size or not entry.key.endswith("/"):
                names.append(entry.key[cut:].encode(errors="surrogatepass"))
                sizes.append(entry.size)
        if not names:
            raise JobError([Problem("SRC", f"there is nothing below s3://{self._bucket}/{self._prefix}")])
        return Found(names, sizes, [0] * len(names))

    def writer(self, files: Listing, checksum: Checksum) -> Writer:
        return _ObjectWriter(self._storage, self._bucket, self._prefix, self._fetch, files, checksum)


class _ObjectWriter:
    def __init__(
        self,
        storage: ObjectStorage,
        bucket: str,
        prefix: str,
        fetch: Fetch,
        files: Listing,
        checksum: Checksum,
    ) -> None:
        self._storage, self._bucket, self._prefix = storage, bucket, prefix
        self._fetch, self._files, self._checksum = fetch, files, checksum
        self._stopped = Event()

    def stop(self) -> None:
        self._stopped.set()

    def write(self, shard: Shard, out: Path) -> str:
        changed: list[Changed] = []
        with out.open("xb", buffering=_LARGE) as archive, ThreadPoolExecutor(_AHEAD, "fetch") as pool:
            output = Output(archive.write, self._checksum)
            for index, content in self._in_order(shard, pool):
                if self._stopped.is_set():
                    raise NoWay("stopped")
                name, size = self._files.names[index], self._files.sizes[index]
                output.put(header(name, size))
                what = self._copy(name, size, content, output)
                if what is not None:
                    changed.append(Changed(name.decode(), what))
                output.put(bytes(-size % BLOCK))
            output.end()
        if changed:
            raise ShardFailed(changed)
        return output.checksum

    def _in_order(self, shard: Shard, pool: ThreadPoolExecutor) -> Iterator[tuple[int, Content]]:
        """Index and content of each object; at most ``_AHEAD`` are fetched or wait to be written."""
        ahead: deque[tuple[int, Content]] = deque()
        for index in range(shard.begin, shard.end):
            key = self._prefix + self._files.names[index].decode()
            size = self._files.sizes[index]
            ahead.append((index, pool.submit(self._fetch, key, size) if size < _LARGE else key))
            if len(ahead) == _AHEAD:
                yield ahead.popleft()
        yield from ahead

    def _copy(self, name: bytes, size: int, content: Content, output: Output) -> str | None:
        """What is the matter with the object; None when all of it has been written."""
        if not isinstance(content, str):
            whole = content.result()
            if whole is None:
                return "is gone"
            output.put(whole)
            return None if len(whole) == size else _OTHER_SIZE
        written = 0
        try:
            for piece in self._storage.chunks(self._bucket, content):
                output.put(piece)
                written += len(piece)
                if self._stopped.is_set():
                    raise NoWay("stopped")
        except CallError as error:
            if error.code in _GONE:
                return "is gone"
            raise
        return None if written == size else _OTHER_SIZE


Content = Future["bytes | None"] | str
"""What is being fetched, or the key of a large object."""

_OTHER_SIZE = "has another size than when it was listed"


class S3Place:
    """A prefix, taken as a folder. An upload is seen when it is whole, or not at all; a shard that has its
    record is trusted by its size. ``transfer``: a faster way than the port's own to send a shard."""

    def __init__(
        self, storage: ObjectStorage, bucket: str, prefix: str, transfer: Transfer | None = None
    ) -> None:
        self._storage, self._bucket, self._transfer = storage, bucket, transfer
        self._prefix = prefix if not prefix or prefix.endswith("/") else prefix + "/"
        self._there: dict[str, int] = {}

    @contextmanager
    def open(self, resume: bool) -> Iterator[None]:
        cut = len(self._prefix)
        self._there = {
            entry.key[cut:]: entry.size
            for part in (SHARDS, WORK, INDEX)
            for entry in self._storage.list(self._bucket, self._prefix + part)
        }
        where = f"s3://{self._bucket}/{self._prefix}"
        if not resume and INDEX in self._there:
            raise refuse(f"{where} {FINISHED}")
        records = any(name.startswith(WORK) for name in self._there)
        if not resume and records:
            raise refuse(f"{where} {UNFINISHED}")
        shards = [name for name in self._there if name.startswith(SHARDS)]
        ours = records or INDEX in self._there
        foreign = [name for name in shards if not ours or not is_shard(name)]
        if foreign:
            raise refuse(where + " " + FOREIGN.format(name=foreign[0]))
        # So that what comes to lie here is known as ours from the start.
        self._put(WORK + "begun", b"")
        with TemporaryDirectory(prefix="smlaunch-pack-") as folder:
            self._rooms = Path(folder)
            yield

    def index(self) -> ShardIndex | None:
        if INDEX not in self._there:
            return None
        try:
            return read_index(self._storage.get_bytes(self._bucket, self._prefix + INDEX) or b"")
        except ValueError as error:
            raise refuse(f"s3://{self._bucket}/{self._prefix}{INDEX}: {error}") from None

    def clear(self, names: set[str]) -> None:
        old = [name for name in self._there if name.startswith(SHARDS) and name not in names]
        self._delete(old)

    def kept(self, shard: Shard, fingerprint: str) -> str | None:
        if self._there.get(shard.name) != shard.size or record_key(shard) not in self._there:
            return None
        content = self._storage.get_bytes(self._bucket, self._prefix + record_key(shard))
        return recorded(content, shard, fingerprint)

    def holds(self, record: ShardRecord) -> bool:
        return self._there.get(record.name) == record.bytes

    def room(self, shard: Shard) -> Path:
        return self._rooms / shard.name[len(SHARDS) :]

    def take(self, shard: Shard, written: Path, checksum: str, fingerprint: str) -> None:
        # A record must never speak of bytes that are being replaced.
        if record_key(shard) in self._there:
            self._delete([record_key(shard)])
        key = self._prefix + shard.name
        if self._transfer is None:
            self._storage.put_file(self._bucket, key, written)
        else:
            self._transfer.put(self._bucket, [Parcel(key, written, shard.size)], lambda size, files: None)
        self._put(record_key(shard), record_of(shard, checksum, fingerprint))

    def finish(self, index: ShardIndex) -> None:
        self._put(INDEX, index_json(index))
        work = [entry.key for entry in self._storage.list(self._bucket, self._prefix + WORK)]
        self._storage.delete(self._bucket, work)

    def _put(self, name: str, content: bytes) -> None:
        self._storage.put_bytes(self._bucket, self._prefix + name, content)

    def _delete(self, names: Sequence[str]) -> None:
        if names:
            self._storage.delete(self._bucket, [self._prefix + name for name in names])
