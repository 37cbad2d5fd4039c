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

import hashlib
import json
import os
import re
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from smlaunch.local.errors import ApiError
from smlaunch.local.object_index import (
    Attributes,
    BucketInfo,
    Index,
    NoSuchBucket,
    NoSuchKey,
    ObjectInfo,
    Row,
    after_prefix,
    find_bucket,
    find_row,
    remove_row,
    rows_from,
    stamp,
    write_row,
)
from smlaunch.local.spreading import spread

__all__ = ["Attributes", "BucketInfo", "NoSuchBucket", "NoSuchKey", "ObjectInfo", "ObjectStore", "Page"]

BLOCK = 1 << 20
_SMALL = 1 << 16
KEY_LIMIT = 1024
_COMPONENT_LIMIT = 255
_BUCKET_NAME = re.compile(r"(?!xn--|\d+\.\d+\.\d+\.\d+$)[a-z0-9](?:[a-z0-9-]|\.(?!\.)){1,61}[a-z0-9]")
_AT_ONCE = 1000
"""Rows that one look at the index takes: writers wait no longer than that."""
_ABANDONED = 86_400.0
"""Seconds without a write after which a body in ``incoming`` is nobody's."""
_LOOK_AGAIN = 20
"""How often a reader that raced with writers tries again before it believes the body over the row."""


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
        self._root_length = len(os.fsencode(root))
        for folder in (self._store, self._store / "odd", self._store / "incoming"):
            folder.mkdir(parents=True, exist_ok=True)
        spread(self._store / "incoming")
        self._folds_case = _folds_case(self._store)
        self.index = Index(self._store)
        self._sweep()

    def close(self) -> None:
        self.index.close()

    # Buckets

    def create_bucket(self, name: str, region: str = "us-east-1") -> bool:
        """False when it was there already."""
        if not _BUCKET_NAME.fullmatch(name):
            raise ApiError("InvalidBucketName", "The specified bucket is not valid.", BucketName=name)
        with self.index.writing() as db:
            statement = "INSERT OR IGNORE INTO buckets VALUES (?, ?, ?)"
            made = db.execute(statement, (name, time.time(), region)).rowcount == 1
            (self.root / name).mkdir(exist_ok=True)
        return made

    def bucket(self, name: str) -> BucketInfo:
        with self.index.reading() as db:
            return find_bucket(db, name)

    def buckets(self) -> tuple[BucketInfo, ...]:
        with self.index.reading() as db:
            return tuple(BucketInfo(*row) for row in db.execute("SELECT * FROM buckets ORDER BY name"))

    def delete_bucket(self, name: str) -> None:
        """Only an empty one. Uploads that were begun in it and never completed go with it."""
        with self.index.writing() as db:
            find_bucket(db, name)
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

    def bodies(self, bucket: str, prefix: str = "") -> Iterator[tuple[str, int, str]]:
        """(key, size, file of the body) of the same objects in the same order; only to be read."""
        start = prefix.encode()
        after: bytes | None = start
        while after is not None:
            with self.index.reading() as db:
                find_bucket(db, bucket)
                with closing(rows_from(db, bucket, start, after)) as rows:
                    some = list(islice(rows, _AT_ONCE + 1))
            after = some.pop().key if len(some) > _AT_ONCE else None
            for row in some:
                yield row.key.decode(), row.size, f"{self.root}/{row.file}"

    def page(
        self, bucket: str, prefix: str = "", *, delimiter: str = "", after: bytes = b"", limit: int = 1000
    ) -> Page:
        """At most ``limit`` objects and common prefixes, from the first key that is not below ``after``."""
        start = prefix.encode()
        objects: list[ObjectInfo] = []
        prefixes: list[str] = []
        with self.index.reading() as db:
            find_bucket(db, bucket)
            at: bytes | None = max(start, after)
            while at is not None:
                # Closed before the connection is given back: the next one to use it may want to write.
                with closing(rows_from(db, bucket, start, at)) as rows:
                    at = None
                    for row in rows:
                        if len(objects) + len(prefixes) == limit:
                            return Page(objects, prefixes, row.key)
                        shared = _common_prefix(row.key, start, delimiter.encode())
                        if shared is not None:
                            prefixes.append(shared.decode())
                            at = after_prefix(shared)
                            break
                        objects.append(row.info)
        return Page(objects, prefixes, None)

    def head(self, bucket: str, key: str) -> ObjectInfo:
        info, file = self.open(bucket, key)
        file.close()
        return info

    def path(self, bucket: str, key: str) -> Path:
        """The body's file. Read, copy or mount it, never write to it: bodies are replaced, not changed."""
        with self.index.reading() as db:
            row = find_row(db, bucket, key)
        if row is None or not (self.root / row.file).exists():
            raise NoSuchKey(bucket, key)
        return self.root / row.file

    def open(self, bucket: str, key: str) -> tuple[ObjectInfo, BinaryIO]:
        """The body, open for reading, and the very metadata it was written with."""
        for _ in range(_LOOK_AGAIN):
            with self.index.reading() as db:
                row = find_row(db, bucket, key)
            if row is None:
                raise NoSuchKey(bucket, key)
            try:
                file = (self.root / row.file).open("rb", buffering=0)
            except FileNotFoundError:
                continue
            if stamp(os.fstat(file.fileno())) == row.stamp:
                return row.info, file
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
        with self.index.writing() as db:
            return self._publish(db, bucket, key, str(body), etag, attributes, condition)

    def _publish(
        self,
        db: sqlite3.Connection,
        bucket: str,
        key: str,
        body: str,
        etag: str,
        attributes: Attributes,
        condition: Condition | None = None,
    ) -> ObjectInfo:
        """``body`` is a word and no path: this runs ten thousand times for one directory of checkpoints."""
        if len(key.encode()) > KEY_LIMIT:
            raise ApiError("KeyTooLongError", "Your key is too long", Key=key[:64])
        old = find_row(db, bucket, key)
        if condition is not None:
            condition(old.info if old else None)
        size, inode, mtime_ns = stamp(os.stat(body))  # noqa: PTH116
        file = self._place(bucket, key, body)
        text = json.dumps(attributes)
        row = Row(bucket, key.encode(), size, etag, time.time(), text, file, inode, mtime_ns)
        write_row(db, row)
        if old and old.file != file:
            self._remove(bucket, old.file)
        return row.info

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

    def put_files(
        self, bucket: str, files: Sequence[tuple[str, Path]], move: bool = False
    ) -> dict[str, Exception]:
        """Many objects, of (key, file to copy), that become visible together; returns what failed, by key.

        A commit costs more than a small file's copy, so this is for thousands of those. ``move``: take the
        files themselves where they lie on the same disk; what failed stays where it is.
        """
        failed: dict[str, Exception] = {}
        folder = self._store / "incoming" / secrets.token_hex(12)
        folder.mkdir()
        try:
            device = folder.stat().st_dev
            bodies = []
            for number, (key, source) in enumerate(files):
                body = f"{folder}/{number}"
                try:
                    if move and source.stat().st_dev == device:
                        with source.open("rb", buffering=0) as file:
                            bodies.append((key, str(source), _etag_of(file)))
                        continue
                    bodies.append((key, body, copy_hashing(source, body)))
                except OSError as error:
                    failed[key] = error
            with self.index.writing() as db:
                for key, body, etag in bodies:
                    try:
                        self._publish(db, bucket, key, body, etag, {})
                    except (ApiError, OSError) as error:
                        failed[key] = error
        finally:
            shutil.rmtree(folder)
        return failed

    def change(self, bucket: str, key: str, change: Callable[[Attributes], Attributes]) -> ObjectInfo:
        """Replaces an object's attributes and leaves its body alone."""
        with self.index.writing() as db:
            row = find_row(db, bucket, key)
            if row is None:
                raise NoSuchKey(bucket, key)
            row = row._replace(attributes=json.dumps(change(json.loads(row.attributes))))
            write_row(db, row)
            return row.info

    def delete(self, bucket: str, key: str, condition: Condition | None = None) -> bool:
        """False when there was none, which S3 does not call an error."""
        with self.index.writing() as db:
            row = find_row(db, bucket, key)
            if condition is not None:
                condition(row.info if row else None)
            if row is None:
                return False
            remove_row(db, row)
            # Before the commit: afterwards another writer may already have put a new body there.
            self._remove(bucket, row.file)
        return True

    def _sweep(self) -> None:
        """Removes bodies that a killed process was writing long ago and that no upload knows."""
        with self.index.reading() as db:
            known = {file for (file,) in db.execute("SELECT file FROM parts")}
        for path in (self._store / "incoming").iterdir():
            with suppress(FileNotFoundError):
                old = time.time() - path.stat().st_mtime > _ABANDONED
                if old and path.is_dir():
                    shutil.rmtree(path)
                elif old and str(path.relative_to(self.root)) not in known:
                    path.unlink()

    # Places

    def _place(self, bucket: str, key: str, body: str) -> str:
        """Moves the body to where it belongs; returns that place, relative to the root."""
        if self._can_be_a_path(key):
            try:
                _rename_making_parents(body, f"{self.root}/{bucket}/{key}")
            except (NotADirectoryError, IsADirectoryError, FileExistsError):
                pass  # `a` beside `a/b`: the later one goes to the side folder
            else:
                return f"{bucket}/{key}"
        name = hashlib.sha256(f"{bucket}/{key}".encode()).hexdigest()
        os.replace(body, self._store / "odd" / name)  # noqa: PTH105
        return f"_store/odd/{name}"

    def _can_be_a_path(self, key: str) -> bool:
        try:
            as_bytes = os.fsencode(key)
        except UnicodeEncodeError:
            return False
        if as_bytes != key.encode() or b"\0" in as_bytes or self._root_length + len(as_bytes) > 3800:
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
        with self.index.writing() as db:
            row = find_row(db, bucket, key)
            if row is None:
                return
            try:
                with (self.root / row.file).open("rb") as file:
                    size, inode, mtime_ns = stamp(os.fstat(file.fileno()))
                    if (size, inode, mtime_ns) == row.stamp:
                        return  # they agree: it was only a race with many writers
                    etag = _etag_of(file)
            except FileNotFoundError:
                remove_row(db, row)
                return
            attributes: Attributes = json.loads(row.attributes)
            for described in ("checksums", "checksum_type", "parts"):
                attributes.pop(described, None)  # type: ignore[misc]
            text = json.dumps(attributes)
            modified = mtime_ns / 1e9
            write_row(db, Row(row.bucket, row.key, size, etag, modified, text, row.file, inode, mtime_ns))


def copy_hashing(source: str | Path, target: str | Path) -> str:
    """Copies a file's bytes and returns their MD5, which is the ETag."""
    digest = _md5()
    reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            size = _SMALL
            while block := os.read(reader, size):
                digest.update(block)
                _write(writer, block)
                if size == _SMALL and len(block) < size:
                    break  # a small file, whole: most are
                size = BLOCK
        finally:
            os.close(writer)
    finally:
        os.close(reader)
    return str(digest.hexdigest())


def _write(writer: int, block: bytes) -> None:
    left = memoryview(block)
    while left:
        left = left[os.write(writer, left) :]


def _md5() -> Any:
    return hashlib.md5(usedforsecurity=False)


def _etag_of(file: BinaryIO) -> str:
    digest = _md5()
    while block := file.read(BLOCK):
        digest.update(block)
    return str(digest.hexdigest())


def _common_prefix(key: bytes, prefix: bytes, delimiter: bytes) -> bytes | None:
    if not delimiter:
        return None
    found = key.find(delimiter, len(prefix))
    return None if found < 0 else key[: found + len(delimiter)]


def _rename_making_parents(source: str, target: str) -> None:
    try:
        os.replace(source, target)  # noqa: PTH105
    except FileNotFoundError:
        # Nobody prunes the new folder in between: deletes do so inside a write transaction, as this is.
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        os.replace(source, target)  # noqa: PTH105


def _folds_case(folder: Path) -> bool:
    probe = folder / f"Case-{secrets.token_hex(6)}"
    probe.touch()
    try:
        return probe.with_name(probe.name.lower()).exists()
    finally:
        probe.unlink()
