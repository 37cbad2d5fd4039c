"""The object store's index: which buckets, objects and uploads there are, in SQLite."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from smlaunch.local.errors import ApiError

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
"""
_COLUMNS = "bucket, key, size, etag, modified, attributes, file, inode, mtime_ns"


class Attributes(TypedDict, total=False):
    """What S3 stores with an object beyond its bytes; kept as JSON."""

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
    name: str
    created: float
    region: str


class Row(NamedTuple):
    """An object as the index has it. ``file`` is its body's place, relative to the root of the store."""

    bucket: str
    key: bytes
    size: int
    etag: str
    modified: float
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
    def stamp(self) -> tuple[int, int, int]:
        return self.size, self.inode, self.mtime_ns


def stamp(stat: os.stat_result) -> tuple[int, int, int]:
    """What tells one body from the next in the same place: size, inode, time of change."""
    return stat.st_size, stat.st_ino, stat.st_mtime_ns


class Index:
    """Connections to the index. Several processes may have it open."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "index.sqlite"
        self._idle: deque[sqlite3.Connection] = deque()
        with (folder / "lock").open("w") as lock:
            # Two processes that make the index at once: switching to WAL does not wait for the other's lock.
            fcntl.flock(lock, fcntl.LOCK_EX)
            db = self._connect()
            db.executescript(f"PRAGMA journal_mode = WAL; {_SCHEMA}")
            self._idle.append(db)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection for this thread alone. Cursors must be used up or closed before it is given back."""
        try:
            db = self._idle.pop()
        except IndexError:
            db = self._connect()
        try:
            yield db
        finally:
            self._idle.append(db)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """The same inside a transaction, which no other writer, of this process or another, shares."""
        with self.reading() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.commit()
            except BaseException:
                db.rollback()
                raise

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, timeout=60, isolation_level=None, check_same_thread=False)
        # A kill -9 loses nothing either way; NORMAL may lose the last commits when the machine itself dies.
        db.execute("PRAGMA synchronous = NORMAL")
        return db


def find_bucket(db: sqlite3.Connection, name: str) -> BucketInfo:
    """Raises NoSuchBucket."""
    row = db.execute("SELECT * FROM buckets WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise NoSuchBucket(name)
    return BucketInfo(*row)


def find_row(db: sqlite3.Connection, bucket: str, key: str) -> Row | None:
    """None for a key that is not there; raises NoSuchBucket."""
    row = db.execute(
        f"SELECT {_COLUMNS} FROM objects WHERE bucket = ? AND key = ?",  # noqa: S608
        (bucket, key.encode()),
    ).fetchone()
    if row is None:
        find_bucket(db, bucket)
        return None
    return Row(*row)


def rows_from(db: sqlite3.Connection, bucket: str, prefix: bytes, at: bytes) -> sqlite3.Cursor:
    """Rows below ``prefix``, by the bytes of their keys, from the first that is not below ``at``."""
    end = after_prefix(prefix)
    upper, values = ("", ()) if end is None else (" AND key < ?", (end,))
    cursor = db.execute(
        f"SELECT {_COLUMNS} FROM objects WHERE bucket = ? AND key >= ?{upper} ORDER BY key",  # noqa: S608
        (bucket, at, *values),
    )
    cursor.row_factory = _as_row
    return cursor


def write_row(db: sqlite3.Connection, row: Row) -> None:
    places = ", ".join("?" * len(row))
    db.execute(f"INSERT OR REPLACE INTO objects ({_COLUMNS}) VALUES ({places})", row)  # noqa: S608


def remove_row(db: sqlite3.Connection, row: Row) -> None:
    db.execute("DELETE FROM objects WHERE bucket = ? AND key = ?", (row.bucket, row.key))


def after_prefix(prefix: bytes) -> bytes | None:
    """The smallest bytes above everything that starts with ``prefix``; None when nothing is above it."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def _as_row(cursor: sqlite3.Cursor, values: tuple[Any, ...]) -> Row:
    return Row(*values)
