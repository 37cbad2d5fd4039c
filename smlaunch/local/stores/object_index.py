"""The object store's index: which buckets, objects and uploads there are, in SQLite."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from smlaunch.contract import formats
from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.stores.sqlite_database import Database, DatabaseSpec, lost_data_error, sync_folder

_SCHEMA = """
CREATE TABLE IF NOT EXISTS buckets (name TEXT PRIMARY KEY, created REAL NOT NULL, region TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS objects (
    bucket TEXT NOT NULL, key BLOB NOT NULL, size INTEGER NOT NULL, etag TEXT NOT NULL,
    modified REAL NOT NULL, attributes TEXT NOT NULL, file TEXT NOT NULL, inode INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL, PRIMARY KEY (bucket, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS uploads (
    id TEXT PRIMARY KEY, bucket TEXT NOT NULL, key BLOB NOT NULL, created REAL NOT NULL,
    attributes TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS parts (
    upload TEXT NOT NULL, number INTEGER NOT NULL, size INTEGER NOT NULL, etag TEXT NOT NULL,
    modified REAL NOT NULL, checksums TEXT NOT NULL, file TEXT NOT NULL,
    PRIMARY KEY (upload, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS place (inode INTEGER NOT NULL);
"""
_DESCRIPTION = (
    "which objects there are and what S3 knows of them beside their bytes (the bytes are plain files, "
    "<bucket>/<key>, and stay where they are)"
)
_MAX_CHANGES_PER_TRANSACTION = 64
"""Limits how long a change waits for the others in its transaction."""
_COLUMNS = "bucket, key, size, etag, modified, attributes, file, inode, mtime_ns"


class Attributes(TypedDict, total=False):
    """What S3 stores with an object beside its bytes. Stored as JSON."""

    headers: dict[str, str]
    metadata: dict[str, str]
    tags: dict[str, str]
    checksums: dict[str, str]
    checksum_type: str
    parts: list[int]


class NoSuchBucket(ApiError, KeyError):
    def __init__(self, bucket: str) -> None:
        super().__init__("NoSuchBucket", "The specified bucket does not exist", 404, BucketName=bucket)


class NoSuchKey(ApiError, KeyError):
    def __init__(self, bucket: str, key: str) -> None:
        super().__init__("NoSuchKey", "The specified key does not exist.", 404, Key=key)
        self.bucket = bucket


class ObjectInfo(NamedTuple):
    """``size`` in bytes, ``etag`` without quotes, ``modified`` in seconds since the epoch."""

    bucket: str
    key: str
    size: int
    etag: str
    modified: float
    """Seconds since the epoch."""
    attributes_json: str = "{}"

    @property
    def attributes(self) -> Attributes:
        attributes: Attributes = json.loads(self.attributes_json)
        return attributes


class BucketInfo(NamedTuple):
    """A bucket."""

    name: str
    created: float
    """Seconds since the epoch."""

    region: str


class ObjectRow(NamedTuple):
    """An object's row in the index. ``file``: path of its body, relative to the root of the store; ``inode``
    and ``mtime_ns``: of the body when the row was written."""

    bucket: str
    key: bytes
    size: int
    etag: str
    modified: float
    """Seconds since the epoch."""

    attributes: str
    body_path: str
    inode: int
    mtime_ns: int

    @property
    def object_info(self) -> ObjectInfo:
        return ObjectInfo(
            self.bucket, self.key.decode(), self.size, self.etag, self.modified, self.attributes
        )

    @property
    def body_identity(self) -> BodyIdentity:
        return BodyIdentity(self.size, self.inode, self.mtime_ns)


class BodyIdentity(NamedTuple):
    """What distinguishes an object's body from a later one at the same path. ``size`` in bytes."""

    size: int
    inode: int
    mtime_ns: int


def body_identity(body_stat: os.stat_result) -> BodyIdentity:
    return BodyIdentity(body_stat.st_size, body_stat.st_ino, body_stat.st_mtime_ns)


UNKNOWN_INODE = 0
"""Inode in a row whose body may have been copied since the row was written."""


class ObjectIndex:
    """The index of the object store in ``root``, for several threads and processes."""

    def __init__(self, root: Path, folder: Path) -> None:
        """Open the index in ``folder`` of the object store at ``root``. Raises StateDamaged."""
        path = folder / "index.sqlite"
        # Before the index is opened: another process creates the index before its first bucket's folder.
        has_buckets = any(entry.is_dir() and entry.name[0] not in "_." for entry in root.iterdir())
        spec = DatabaseSpec(_DESCRIPTION, _SCHEMA, formats.OBJECTS_DATABASE, quarantine_dir=root)
        if has_buckets and not path.exists():
            raise lost_data_error(path, "is gone", spec)
        self._database = Database(path, spec)
        self._free_connections: deque[sqlite3.Connection] = deque([self._database.open_connection()])
        self._change_lock = threading.Lock()
        self._pending_changes: deque[_PendingIndexChange] = deque()
        self._detect_copied_store(folder)

    def close(self) -> None:
        while self._free_connections:
            self._free_connections.pop().close()
        self._database.close()

    @contextmanager
    def read_access(self) -> Iterator[sqlite3.Connection]:
        """Context with a connection for queries. Cursors must be exhausted or closed inside it."""
        with self._connection() as connection, self._database.read_access(connection):
            yield connection

    @contextmanager
    def write_transaction(self) -> Iterator[sqlite3.Connection]:
        """Context with a connection in an exclusive write transaction, which is on the disk at its end."""
        with self._connection() as connection, self._database.write_transaction(connection):
            yield connection

    def run_in_shared_transaction(self, apply_change: Callable[[sqlite3.Connection, set[str]], Any]) -> Any:
        """Call ``apply_change`` in a transaction that it shares with concurrent changes, so that they wait
        for the disk together. An exception of ``apply_change`` undoes its own changes only. ``apply_change``
        adds the folders whose entries it changed to its second argument; they are synced before the
        commit."""
        pending_change = _PendingIndexChange(apply_change)
        self._pending_changes.append(pending_change)
        with self._change_lock:
            while not pending_change.is_done:
                batch_size = min(_MAX_CHANGES_PER_TRANSACTION, len(self._pending_changes))
                self._apply_in_one_transaction([self._pending_changes.popleft() for _ in range(batch_size)])
        if pending_change.error is not None:
            raise pending_change.error
        return pending_change.result

    def _apply_in_one_transaction(self, pending_changes: list[_PendingIndexChange]) -> None:
        """Apply the changes of several threads in one transaction of the object index, and store in each its
        result or its error. A change that raises is undone alone; an error of the transaction is that of
        all. A change adds the folders whose entries it changed to ``folders_to_sync``. A waiting thread reads
        the result when ``is_done`` is set."""
        folders_to_sync: set[str] = set()
        try:
            with self.write_transaction() as connection:
                for pending_change in pending_changes:
                    connection.execute("SAVEPOINT before_change")  # a transaction in the transaction
                    try:
                        pending_change.result = pending_change.apply(connection, folders_to_sync)
                    except BaseException as error:
                        pending_change.error = error
                        connection.execute("ROLLBACK TO before_change")
                    connection.execute("RELEASE before_change")
                # Before the commit: a committed object must have its file after a power cut.
                for folder in folders_to_sync:
                    sync_folder(folder)
        except BaseException as error:
            for pending_change in pending_changes:
                pending_change.error = pending_change.error or error
        for pending_change in pending_changes:
            pending_change.is_done = True

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            connection = self._free_connections.pop()
        except IndexError:
            connection = self._database.open_connection()
        try:
            yield connection
        finally:
            self._free_connections.append(connection)

    def _detect_copied_store(self, folder: Path) -> None:
        """Mark all recorded inodes as unknown when the store was copied or restored from a backup."""
        inode = os.stat(folder).st_ino  # noqa: PTH116
        with self.read_access() as connection:
            recorded_inodes = [row[0] for row in connection.execute("SELECT inode FROM place")]
        if recorded_inodes == [inode]:
            return
        with self.write_transaction() as connection:
            if recorded_inodes:
                connection.execute("UPDATE objects SET inode = ?", (UNKNOWN_INODE,))
            connection.execute("DELETE FROM place")
            connection.execute("INSERT INTO place VALUES (?)", (inode,))


class _PendingIndexChange:
    """A change that waits for its transaction, and its result."""

    def __init__(self, apply: Callable[[sqlite3.Connection, set[str]], Any]) -> None:
        self.apply = apply
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_done = False


def get_bucket(connection: sqlite3.Connection, name: str) -> BucketInfo:
    """Return a bucket. Raises NoSuchBucket."""
    row = connection.execute("SELECT * FROM buckets WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise NoSuchBucket(name)
    return BucketInfo(*row)


def find_object_row(connection: sqlite3.Connection, bucket: str, key: str) -> ObjectRow | None:
    """Return None for a key that does not exist. Raises NoSuchBucket."""
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM objects WHERE bucket = ? AND key = ?",  # noqa: S608
        (bucket, key.encode()),
    ).fetchone()
    if row is None:
        get_bucket(connection, bucket)
        return None
    return ObjectRow(*row)


def object_rows_with_prefix(
    connection: sqlite3.Connection, bucket: str, prefix: bytes, first_key: bytes
) -> sqlite3.Cursor:
    """Return a cursor over the rows with a prefix, ordered by key bytes, from ``first_key`` on."""
    end = first_key_after_prefix(prefix)
    upper_bound, bound_parameters = ("", ()) if end is None else (" AND key < ?", (end,))
    cursor = connection.execute(
        f"SELECT {_COLUMNS} FROM objects WHERE bucket = ? AND key >= ?{upper_bound} ORDER BY key",  # noqa: S608
        (bucket, first_key, *bound_parameters),
    )
    cursor.row_factory = _as_row
    return cursor


def upsert_object_row(connection: sqlite3.Connection, row: ObjectRow) -> None:
    placeholders = ", ".join("?" * len(row))
    connection.execute(f"INSERT OR REPLACE INTO objects ({_COLUMNS}) VALUES ({placeholders})", row)  # noqa: S608


def delete_object_row(connection: sqlite3.Connection, row: ObjectRow) -> None:
    connection.execute("DELETE FROM objects WHERE bucket = ? AND key = ?", (row.bucket, row.key))


def first_key_after_prefix(prefix: bytes) -> bytes | None:
    """Return the smallest bytes that are greater than all keys with ``prefix``; None when there are none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def _as_row(cursor: sqlite3.Cursor, values: tuple[Any, ...]) -> ObjectRow:
    return ObjectRow(*values)
