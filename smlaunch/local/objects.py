"""The object store: S3 objects as plain files that a person can look at, their metadata in SQLite.

    <root>/<bucket>/<key>             an object's body
    <root>/_store/index.sqlite        what S3 knows of it beyond its bytes; no bucket name begins with ``_``
    <root>/_store/odd/<hash>          bodies whose keys cannot be paths: ``..``, empty names, ``a`` beside
                                      ``a/b``, names over 255 bytes, folder markers such as ``a/``
    <root>/_store/incoming/<random>   bodies being written; published by one rename

The index row is the truth about which objects exist. A row remembers inode, size and mtime of the body it was
written for, so a reader that meets a newer body (a concurrent overwrite, an edit by hand, a crash between
rename and commit) sees that and looks again, or takes the body as it now is. Several processes may share a
root.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypedDict

from smlaunch.local.errors import ApiError

BLOCK = 1 << 20
KEY_LIMIT = 1024
_COMPONENT_LIMIT = 255
_BUCKET_NAME = re.compile(r"(?!xn--|\d+\.\d+\.\d+\.\d+$)[a-z0-9](?:[a-z0-9-]|\.(?!\.)){1,61}[a-z0-9]")
_ABANDONED = 86_400.0
"""Seconds without a write after which a body in ``incoming`` is nobody's."""
_LOOK_AGAIN = 20
"""How often a reader that raced with writers tries again before it believes the body over the row."""

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


class Page(NamedTuple):
    """``next`` is where the following page starts (a key's bytes), None on the last one."""

    objects: list[ObjectInfo]
    prefixes: list[str]
    next: bytes | None


Condition = Callable[[ObjectInfo | None], None]
"""Given the object that a write would replace; raises to refuse the write. Runs inside the transaction."""


class ObjectStore:
    """Raises ApiError with S3's own codes; NoSuchBucket and NoSuchKey are also KeyErrors."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._store = root / "_store"
        for folder in (self._store, self._store / "odd", self._store / "incoming"):
            folder.mkdir(parents=True, exist_ok=True)
        self._idle: deque[sqlite3.Connection] = deque()
        self._folds_case = _folds_case(self._store)
        with (self._store / "lock").open("w") as lock:
            # Two processes that make the index at once: switching to WAL does not wait for the other's lock.
            fcntl.flock(lock, fcntl.LOCK_EX)
            db = self._connect()
            db.executescript(f"PRAGMA journal_mode = WAL; {_SCHEMA}")
            self._idle.append(db)
            self._sweep(db)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    # Buckets

    def create_bucket(self, name: str, region: str = "us-east-1") -> bool:
        """False when it was there already."""
        if not _BUCKET_NAME.fullmatch(name):
            raise ApiError("InvalidBucketName", "The specified bucket is not valid.", BucketName=name)
        with self.writing() as db:
            statement = "INSERT OR IGNORE INTO buckets VALUES (?, ?, ?)"
            made = db.execute(statement, (name, time.time(), region)).rowcount == 1
            (self.root / name).mkdir(exist_ok=True)
        return made

    def bucket(self, name: str) -> BucketInfo:
        with self.reading() as db:
            return _bucket(db, name)

    def buckets(self) -> tuple[BucketInfo, ...]:
        with self.reading() as db:
            return tuple(BucketInfo(*row) for row in db.execute("SELECT * FROM buckets ORDER BY name"))

    def delete_bucket(self, name: str) -> None:
        """Only an empty one. Uploads that were begun in it and never completed go with it."""
        with self.writing() as db:
            _bucket(db, name)
            if db.execute("SELECT 1 FROM objects WHERE bucket = ? LIMIT 1", (name,)).fetchone():
                message = "The bucket you tried to delete is not empty"
                raise ApiError("BucketNotEmpty", message, 409, BucketName=name)
            for (upload,) in db.execute("SELECT id FROM uploads WHERE bucket = ?", (name,)).fetchall():
                for (file,) in db.execute("SELECT file FROM parts WHERE upload = ?", (upload,)):
                    (self.root / file).unlink(missing_ok=True)
                db.execute("DELETE FROM parts WHERE upload = ?", (upload,))
            db.execute("DELETE FROM uploads WHERE bucket = ?", (name,))
            db.execute("DELETE FROM buckets WHERE name = ?", (name,))
            shutil.rmtree(self.root / name, ignore_errors=True)

    # Reading

    def list(self, bucket: str, prefix: str = "") -> Iterator[ObjectInfo]:
        """All objects whose key starts with ``prefix``, in S3's order, which is that of the UTF-8 bytes."""
        after: bytes | None = b""
        while after is not None:
            page = self.page(bucket, prefix, after=after)
            yield from page.objects
            after = page.next

    def page(
        self, bucket: str, prefix: str = "", *, delimiter: str = "", after: bytes = b"", limit: int = 1000
    ) -> Page:
        """At most ``limit`` objects and common prefixes, from the first key that is not below ``after``."""
        start = prefix.encode()
        objects: list[ObjectInfo] = []
        prefixes: list[str] = []
        with self.reading() as db:
            _bucket(db, bucket)
            at: bytes | None = max(start, after)
            while at is not None:
                # Closed before the connection is given back: the next one to use it may want to write.
                with closing(_rows_from(db, bucket, start, at)) as rows:
                    at = None
                    for row in rows:
                        if len(objects) + len(prefixes) == limit:
                            return Page(objects, prefixes, row[1])
                        shared = _common_prefix(row[1], start, delimiter.encode())
                        if shared is not None:
                            prefixes.append(shared.decode())
                            at = after_prefix(shared)
                            break
                        objects.append(_info(row))
        return Page(objects, prefixes, None)

    def head(self, bucket: str, key: str) -> ObjectInfo:
        info, file = self.open(bucket, key)
        file.close()
        return info

    def path(self, bucket: str, key: str) -> Path:
        """The body's file. Read, copy or mount it, never write to it: bodies are replaced, not changed."""
        with self.reading() as db:
            row = _row(db, bucket, key)
        if row is None or not (self.root / row[6]).exists():
            raise NoSuchKey(bucket, key)
        return self.root / str(row[6])

    def open(self, bucket: str, key: str) -> tuple[ObjectInfo, BinaryIO]:
        """The body, open for reading, and the very metadata it was written with."""
        for _ in range(_LOOK_AGAIN):
            with self.reading() as db:
                row = _row(db, bucket, key)
            if row is None:
                raise NoSuchKey(bucket, key)
            try:
                file = (self.root / row[6]).open("rb", buffering=0)
            except FileNotFoundError:
                continue
            if _stamp(os.fstat(file.fileno())) == (row[2], *row[7:]):
                return _info(row), file
            file.close()
        self._believe_the_body(bucket, key)
        return self.open(bucket, key)

    # Writing

    @contextmanager
    def incoming(self) -> Iterator[Path]:
        """A name for a body that is being written; what is still there at the end is removed."""
        path = self._store / "incoming" / secrets.token_hex(12)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def publish(
        self,
        bucket: str,
        key: str,
        body: Path,
        etag: str,
        attributes: Attributes,
        condition: Condition | None = None,
    ) -> ObjectInfo:
        """Makes ``body`` (a file on this disk, which is moved) the object ``key``, all at once."""
        if len(key.encode()) > KEY_LIMIT:
            raise ApiError("KeyTooLongError", "Your key is too long", Key=key[:64])
        with self.writing() as db:
            _bucket(db, bucket)
            old = _row(db, bucket, key)
            if condition is not None:
                condition(_info(old) if old else None)
            size, inode, mtime_ns = _stamp(body.stat())
            file = self._place(bucket, key, body)
            info = ObjectInfo(bucket, key, size, etag, time.time(), json.dumps(attributes))
            db.execute(
                f"INSERT OR REPLACE INTO objects ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
                (
                    bucket,
                    key.encode(),
                    size,
                    etag,
                    info.modified,
                    info.attributes_json,
                    file,
                    inode,
                    mtime_ns,
                ),
            )
            if old and old[6] != file:
                self._remove(bucket, old[6])
        return info

    def put_bytes(
        self, bucket: str, key: str, data: bytes, attributes: Attributes | None = None
    ) -> ObjectInfo:
        with self.incoming() as body:
            body.write_bytes(data)
            etag = hashlib.md5(data, usedforsecurity=False).hexdigest()
            return self.publish(bucket, key, body, etag, attributes or {})

    def put_file(
        self, bucket: str, key: str, source: Path, move: bool = False, attributes: Attributes | None = None
    ) -> ObjectInfo:
        """``move``: take the file itself where it lies on the same disk; otherwise its bytes are copied."""
        if move and source.stat().st_dev == self._store.stat().st_dev:
            with source.open("rb", buffering=0) as file:
                etag = _etag_of(file)
            return self.publish(bucket, key, source, etag, attributes or {})
        with self.incoming() as body:
            info = self.publish(bucket, key, body, copy_hashing(source, body), attributes or {})
        if move:
            source.unlink()
        return info

    def change(self, bucket: str, key: str, change: Callable[[Attributes], Attributes]) -> ObjectInfo:
        """Replaces an object's attributes and leaves its body alone."""
        with self.writing() as db:
            row = _row(db, bucket, key)
            if row is None:
                raise NoSuchKey(bucket, key)
            text = json.dumps(change(json.loads(row[5])))
            where = (text, bucket, key.encode())
            db.execute("UPDATE objects SET attributes = ? WHERE bucket = ? AND key = ?", where)
            return _info((*row[:5], text))

    def delete(self, bucket: str, key: str, condition: Condition | None = None) -> bool:
        """False when there was none, which S3 does not call an error."""
        with self.writing() as db:
            row = _row(db, bucket, key)
            if condition is not None:
                condition(_info(row) if row else None)
            if row is None:
                return False
            db.execute("DELETE FROM objects WHERE bucket = ? AND key = ?", (bucket, key.encode()))
            # Before the commit: afterwards another writer may already have put a new body there.
            self._remove(bucket, row[6])
        return True

    # The index

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
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
        with self.reading() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.commit()
            except BaseException:
                db.rollback()
                raise

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(
            self._store / "index.sqlite", timeout=60, isolation_level=None, check_same_thread=False
        )
        # A kill -9 loses nothing either way; NORMAL may lose the last commits when the machine itself dies.
        db.execute("PRAGMA synchronous = NORMAL")
        return db

    def _sweep(self, db: sqlite3.Connection) -> None:
        """Removes bodies that a killed process was writing long ago and that no upload knows."""
        known = {file for (file,) in db.execute("SELECT file FROM parts")}
        for path in (self._store / "incoming").iterdir():
            with suppress(FileNotFoundError):
                old = time.time() - path.stat().st_mtime > _ABANDONED
                if old and str(path.relative_to(self.root)) not in known:
                    path.unlink()

    # Places

    def _place(self, bucket: str, key: str, body: Path) -> str:
        """Moves the body to where it belongs; returns that place, relative to the root."""
        if self._can_be_a_path(key):
            target = self.root / bucket / key
            try:
                _rename_making_parents(body, target)
            except (NotADirectoryError, IsADirectoryError, FileExistsError):
                pass  # `a` beside `a/b`: the later one goes to the side folder
            else:
                return f"{bucket}/{key}"
        name = hashlib.sha256(f"{bucket}/{key}".encode()).hexdigest()
        body.replace(self._store / "odd" / name)
        return f"_store/odd/{name}"

    def _can_be_a_path(self, key: str) -> bool:
        try:
            as_bytes = os.fsencode(key)
        except UnicodeEncodeError:
            return False
        if (
            as_bytes != key.encode()
            or b"\0" in as_bytes
            or len(os.fsencode(self.root)) + len(as_bytes) > 3800
        ):
            return False
        if self._folds_case and not (key.isascii() and key == key.lower()):
            return False  # such a disk takes `A` for `a`
        names = as_bytes.split(b"/")
        return all(name not in (b"", b".", b"..") and len(name) <= _COMPONENT_LIMIT for name in names)

    def _remove(self, bucket: str, file: str) -> None:
        """Removes a body, and the folders that it leaves empty."""
        path = self.root / file
        path.unlink(missing_ok=True)
        top = self.root / bucket
        for folder in path.parents:
            if top not in folder.parents:
                return
            try:
                folder.rmdir()
            except OSError:
                return  # not empty, or gone already

    def _believe_the_body(self, bucket: str, key: str) -> None:
        """The row does not describe the body that is there: describe it anew, or forget the row with it."""
        with self.writing() as db:
            row = _row(db, bucket, key)
            if row is None:
                return
            where = (bucket, key.encode())
            try:
                with (self.root / row[6]).open("rb") as file:
                    size, inode, mtime_ns = _stamp(os.fstat(file.fileno()))
                    if (size, inode, mtime_ns) == (row[2], *row[7:]):
                        return  # they agree: it was only a race with many writers
                    etag = _etag_of(file)
            except FileNotFoundError:
                db.execute("DELETE FROM objects WHERE bucket = ? AND key = ?", where)
                return
            attributes: Attributes = json.loads(row[5])
            for described in ("checksums", "checksum_type", "parts"):
                attributes.pop(described, None)  # type: ignore[misc]
            db.execute(
                "UPDATE objects SET size = ?, etag = ?, modified = ?, attributes = ?, inode = ?, mtime_ns = ?"
                " WHERE bucket = ? AND key = ?",
                (size, etag, mtime_ns / 1e9, json.dumps(attributes), inode, mtime_ns, *where),
            )


def copy_hashing(source: Path, target: Path) -> str:
    """Copies a file's bytes and returns their MD5, which is the ETag."""
    digest = _md5()
    with source.open("rb", buffering=0) as reader, target.open("wb", buffering=0) as writer:
        while block := reader.read(BLOCK):
            digest.update(block)
            writer.write(block)
    return str(digest.hexdigest())


def _md5() -> Any:
    return hashlib.md5(usedforsecurity=False)


def _etag_of(file: BinaryIO) -> str:
    digest = _md5()
    while block := file.read(BLOCK):
        digest.update(block)
    return str(digest.hexdigest())


def _bucket(db: sqlite3.Connection, name: str) -> BucketInfo:
    row = db.execute("SELECT * FROM buckets WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise NoSuchBucket(name)
    return BucketInfo(*row)


def _row(db: sqlite3.Connection, bucket: str, key: str) -> tuple[Any, ...] | None:
    row: tuple[Any, ...] | None = db.execute(
        f"SELECT {_COLUMNS} FROM objects WHERE bucket = ? AND key = ?",  # noqa: S608
        (bucket, key.encode()),
    ).fetchone()
    if row is None:
        _bucket(db, bucket)
    return row


def _rows_from(db: sqlite3.Connection, bucket: str, prefix: bytes, at: bytes) -> sqlite3.Cursor:
    end = after_prefix(prefix)
    upper, values = ("", ()) if end is None else (" AND key < ?", (end,))
    return db.execute(
        f"SELECT {_COLUMNS} FROM objects WHERE bucket = ? AND key >= ?{upper} ORDER BY key",  # noqa: S608
        (bucket, at, *values),
    )


def _info(row: tuple[Any, ...]) -> ObjectInfo:
    bucket, key, size, etag, modified, attributes = row[:6]
    return ObjectInfo(bucket, key.decode(), size, etag, modified, attributes)


def after_prefix(prefix: bytes) -> bytes | None:
    """The smallest bytes above everything that starts with ``prefix``; None when nothing is above it."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def _common_prefix(key: bytes, prefix: bytes, delimiter: bytes) -> bytes | None:
    if not delimiter:
        return None
    found = key.find(delimiter, len(prefix))
    return None if found < 0 else key[: found + len(delimiter)]


def _stamp(stat: os.stat_result) -> tuple[int, int, int]:
    return stat.st_size, stat.st_ino, stat.st_mtime_ns


def _rename_making_parents(source: Path, target: Path) -> None:
    try:
        source.replace(target)
    except FileNotFoundError:
        # Nobody prunes the new folder in between: deletes do so inside a write transaction, as this is.
        target.parent.mkdir(parents=True, exist_ok=True)
        source.replace(target)


def _folds_case(folder: Path) -> bool:
    probe = folder / f"Case-{secrets.token_hex(6)}"
    probe.touch()
    try:
        return probe.with_name(probe.name.lower()).exists()
    finally:
        probe.unlink()
