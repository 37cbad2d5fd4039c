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
from smlaunch.local.api_errors import ApiError
from smlaunch.local.database import Database, DatabaseSpec, lost_data_error, sync_folder

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
    file: str
    inode: int
    mtime_ns: int

    @property
    def info(self) -> ObjectInfo:
        return ObjectInfo(
            self.bucket, self.key.decode(), self.size, self.etag, self.modified, self.attributes
        )

    @property
    def file_identity(self) -> tuple[int, int, int]:
        return self.size, self.inode, self.mtime_ns


def file_identity(stat: os.stat_result) -> tuple[int, int, int]:
    """Return what distinguishes a body from a later one at the same path: size, inode, modification time."""
    return stat.st_size, stat.st_ino, stat.st_mtime_ns


UNKNOWN_INODE = 0
"""Inode in a row whose body may have been copied since the row was written."""


class ObjectIndex:
    """The index of the object store in ``root``, for several threads and processes."""

    def __init__(self, root: Path, folder: Path) -> None:
        path = folder / "index.sqlite"
        # Before the index is opened: another process creates the index before its first bucket's folder.
        has_buckets = any(entry.is_dir() and entry.name[0] not in "_." for entry in root.iterdir())
        spec = DatabaseSpec(_DESCRIPTION, _SCHEMA, formats.OBJECTS_DATABASE, quarantine_dir=root)
        if has_buckets and not path.exists():
            raise lost_data_error(path, "is gone", spec)
        self._database = Database(path, spec)
        self._free_connections: deque[sqlite3.Connection] = deque([self._database.open_connection()])
        self._change_lock = threading.Lock()
        self._changes: deque[_PendingChange] = deque()
        self._detect_copied_store(folder)

    def close(self) -> None:
        while self._free_connections:
            self._free_connections.pop().close()
        self._database.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Context with a connection for queries. Cursors must be exhausted or closed inside it."""
        with self._connection() as db, self._database.reading(db):
            yield db

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Context with a connection in an exclusive write transaction, which is on the disk at its end."""
        with self._connection() as db, self._database.writing(db):
            yield db

    def change(self, apply: Callable[[sqlite3.Connection, set[str]], Any]) -> Any:
        """Call ``apply`` in a transaction that it shares with concurrent changes, so that they wait for the
        disk together. An exception of ``apply`` undoes its own changes only. ``apply`` adds the folders whose
        entries it changed to its second argument; they are synced before the commit."""
        change = _PendingChange(apply)
        self._changes.append(change)
        with self._change_lock:
            while not change.is_done:
                count = min(_MAX_CHANGES_PER_TRANSACTION, len(self._changes))
                self._apply_changes([self._changes.popleft() for _ in range(count)])
        if change.error is not None:
            raise change.error
        return change.result

    def _apply_changes(self, changes: list[_PendingChange]) -> None:
        """Apply changes in one transaction, and store in each its result or its error. The change of one
        error is undone alone; an error of the transaction is that of all."""
        folders: set[str] = set()
        try:
            with self.writing() as db:
                for change in changes:
                    db.execute("SAVEPOINT one")
                    try:
                        change.result = change.apply(db, folders)
                    except BaseException as error:
                        change.error = error
                        db.execute("ROLLBACK TO one")
                    db.execute("RELEASE one")
                for folder in folders:
                    sync_folder(folder)
        except BaseException as error:
            for change in changes:
                change.error = change.error or error
        for change in changes:
            change.is_done = True

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            db = self._free_connections.pop()
        except IndexError:
            db = self._database.open_connection()
        try:
            yield db
        finally:
            self._free_connections.append(db)

    def _detect_copied_store(self, folder: Path) -> None:
        """Mark all recorded inodes as unknown when the store was copied or restored from a backup."""
        inode = os.stat(folder).st_ino  # noqa: PTH116
        with self.reading() as db:
            recorded_inodes = [row[0] for row in db.execute("SELECT inode FROM place")]
        if recorded_inodes == [inode]:
            return
        with self.writing() as db:
            if recorded_inodes:
                db.execute("UPDATE objects SET inode = ?", (UNKNOWN_INODE,))
            db.execute("DELETE FROM place")
            db.execute("INSERT INTO place VALUES (?)", (inode,))


class _PendingChange:
    """A change that waits for its transaction, and its result."""

    def __init__(self, apply: Callable[[sqlite3.Connection, set[str]], Any]) -> None:
        self.apply = apply
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_done = False


def find_bucket(db: sqlite3.Connection, name: str) -> BucketInfo:
    """Return a bucket. Raises NoSuchBucket."""
    row = db.execute("SELECT * FROM buckets WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise NoSuchBucket(name)
    return BucketInfo(*row)


def find_object_row(db: sqlite3.Connection, bucket: str, key: str) -> ObjectRow | None:
    """Return None for a key that does not exist. Raises NoSuchBucket."""
    row = db.execute(
        f"SELECT {_COLUMNS} FROM objects WHERE bucket = ? AND key = ?",  # noqa: S608
        (bucket, key.encode()),
    ).fetchone()
    if row is None:
        find_bucket(db, bucket)
        return None
    return ObjectRow(*row)


def object_rows(db: sqlite3.Connection, bucket: str, prefix: bytes, first_key: bytes) -> sqlite3.Cursor:
    """Return a cursor over the rows with a prefix, ordered by key bytes, from ``first_key`` on."""
    end = end_of_prefix(prefix)
    upper_bound, bound_parameters = ("", ()) if end is None else (" AND key < ?", (end,))
    cursor = db.execute(
        f"SELECT {_COLUMNS} FROM objects WHERE bucket = ? AND key >= ?{upper_bound} ORDER BY key",  # noqa: S608
        (bucket, first_key, *bound_parameters),
    )
    cursor.row_factory = _as_row
    return cursor


def upsert_object_row(db: sqlite3.Connection, row: ObjectRow) -> None:
    placeholders = ", ".join("?" * len(row))
    db.execute(f"INSERT OR REPLACE INTO objects ({_COLUMNS}) VALUES ({placeholders})", row)  # noqa: S608


def delete_object_row(db: sqlite3.Connection, row: ObjectRow) -> None:
    db.execute("DELETE FROM objects WHERE bucket = ? AND key = ?", (row.bucket, row.key))


def end_of_prefix(prefix: bytes) -> bytes | None:
    """Return the smallest bytes that are greater than all keys with ``prefix``; None when there are none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def _as_row(cursor: sqlite3.Cursor, values: tuple[Any, ...]) -> ObjectRow:
    return ObjectRow(*values)


def common_prefix(key: bytes, prefix: bytes, delimiter: bytes) -> bytes | None:
    """Return the key's part up to the first delimiter after ``prefix``; None without one."""
    if not delimiter:
        return None
    delimiter_index = key.find(delimiter, len(prefix))
    return None if delimiter_index < 0 else key[: delimiter_index + len(delimiter)]
