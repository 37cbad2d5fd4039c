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

from smlaunch.local.database import Contents, Database, lost, sync_folder
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
CREATE TABLE IF NOT EXISTS place (inode INTEGER NOT NULL);
"""
_LOST = (
    "which objects there are and what S3 knows of them beside their bytes (the bytes are plain files, "
    "<bucket>/<key>, and stay where they are)"
)
_TOGETHER = 64
"""Changes that share a transaction at most: none waits for many others."""
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


UNKNOWN_INODE = 0
"""Of a row whose body may have been copied since."""


class Index:
    """Connections to the index of the store in ``root``. Several processes may have it open."""

    def __init__(self, root: Path, folder: Path) -> None:
        path = folder / "index.sqlite"
        # In this order: whoever makes a bucket's folder has made the index before.
        buckets = any(entry.is_dir() and entry.name[0] not in "_." for entry in root.iterdir())
        contents = Contents(_LOST, _SCHEMA, 1, aside=root)
        if buckets and not path.exists():
            raise lost(path, "is gone", contents)
        self._database = Database(path, contents)
        self._idle: deque[sqlite3.Connection] = deque([self._database.take()])
        self._turn = threading.Lock()
        self._changes: deque[_Change] = deque()
        self._settle_in(folder)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
        self._database.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection for this thread alone. Cursors must be used up or closed before it is given back."""
        with self._connection() as db, self._database.reading(db):
            yield db

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """The same inside a transaction, which no other writer, of this process or another, shares. It is on
        the disk when this ends."""
        with self._connection() as db, self._database.writing(db):
            yield db

    def change(self, work: Callable[[sqlite3.Connection, set[str]], Any]) -> Any:
        """Calls ``work`` inside a transaction, which it shares with those that come at the same time: they
        wait for the disk together. What it raises undoes its own changes only. It adds to its second argument
        the folders in which it has changed names; those are on the disk before the transaction is."""
        mine = _Change(work)
        self._changes.append(mine)
        with self._turn:
            while not mine.done:
                self._change_all([self._changes.popleft() for _ in range(min(_TOGETHER, len(self._changes)))])
        if mine.error is not None:
            raise mine.error
        return mine.value

    def _change_all(self, changes: list[_Change]) -> None:
        folders: set[str] = set()
        try:
            with self.writing() as db:
                for change in changes:
                    db.execute("SAVEPOINT one")
                    try:
                        change.value = change.work(db, folders)
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
            change.done = True

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            db = self._idle.pop()
        except IndexError:
            db = self._database.take()
        try:
            yield db
        finally:
            self._idle.append(db)

    def _settle_in(self, folder: Path) -> None:
        """In a store that was copied or put back, no body has the inode that its row remembers."""
        inode = os.stat(folder).st_ino  # noqa: PTH116
        with self.reading() as db:
            known = [row[0] for row in db.execute("SELECT inode FROM place")]
        if known == [inode]:
            return
        with self.writing() as db:
            if known:
                db.execute("UPDATE objects SET inode = ?", (UNKNOWN_INODE,))
            db.execute("DELETE FROM place")
            db.execute("INSERT INTO place VALUES (?)", (inode,))


class _Change:
    """One change of those that share a transaction."""

    def __init__(self, work: Callable[[sqlite3.Connection, set[str]], Any]) -> None:
        self.work = work
        self.value: Any = None
        self.error: BaseException | None = None
        self.done = False


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


def common_prefix(key: bytes, prefix: bytes, delimiter: bytes) -> bytes | None:
    if not delimiter:
        return None
    found = key.find(delimiter, len(prefix))
    return None if found < 0 else key[: found + len(delimiter)]
