"""The object store: S3 objects as plain files that a person can look at, their metadata in SQLite.

    <root>/<bucket>/<key>             an object's body
    <root>/_store/index.sqlite        what S3 knows of it beyond its bytes; no bucket name begins with ``_``
    <root>/_store/odd/<hash>          bodies whose keys cannot be paths: ``..``, empty names, ``a`` beside
                                      ``a/b``, names over 255 bytes, folder markers such as ``a/``
    <root>/_store/incoming/<random>   bodies being written; published by one rename

The index row is the truth about which objects exist. A row remembers inode, size and mtime of the body it was
written for, so a reader that meets another body (a concurrent overwrite, an edit by hand, a crash between
rename and commit) sees that and looks again, takes the body as it now is, or says that it is torn
(``bodies.verdict``). Several processes may share a root.

What a caller was told is stored survives a power cut. Each write is, in this order: the body's bytes on the
disk, its rename, the folders of its name on the disk, the row on the disk; only then does the call return.
Nothing that an answered row names is removed before the row that no longer names it is on the disk.
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
from typing import BinaryIO, NamedTuple

from smlaunch.local.bodies import TornObject, copy_hashing, etag_of, has_etag, sync_file, sync_files, verdict
from smlaunch.local.body_places import can_be_a_path, disk_folds_case, odd_place, rename_making_parents, sweep
from smlaunch.local.database import sync_folder
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
    common_prefix,
    find_bucket,
    find_row,
    remove_row,
    rows_from,
    stamp,
    write_row,
)
from smlaunch.local.spreading import spread

__all__ = ["Attributes", "BucketInfo", "NoSuchBucket", "NoSuchKey", "ObjectInfo"]
__all__ += ["ObjectStore", "Page", "TornObject"]

KEY_LIMIT = 1024
_BUCKET_NAME = re.compile(r"(?!xn--|\d+\.\d+\.\d+\.\d+$)[a-z0-9](?:[a-z0-9-]|\.(?!\.)){1,61}[a-z0-9]")
_AT_ONCE = 1000
"""Rows that one look at the index takes: writers wait no longer than that."""
_FOLDERS_KNOWN = 10_000
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
        for folder in (self._store, root, root.parent):
            sync_folder(folder)
        spread(self._store / "incoming")
        self._folds_case = disk_folds_case(self._store)
        self.index = Index(self.root, self._store)
        self._synced: set[str] = set()
        """Folders whose own names are on the disk, up to the root."""
        self._sweep()

    def close(self) -> None:
        self.index.close()

    # Buckets

    def create_bucket(self, name: str, region: str = "us-east-1") -> bool:
        """False when it was there already."""
        if not _BUCKET_NAME.fullmatch(name):
            raise ApiError("InvalidBucketName", "The specified bucket is not valid.", BucketName=name)
        with self.index.reading() as db:
            if db.execute("SELECT 1 FROM buckets WHERE name = ?", (name,)).fetchone():
                return False  # the disk need not be waited for
        with self.index.writing() as db:
            statement = "INSERT OR IGNORE INTO buckets VALUES (?, ?, ?)"
            made = db.execute(statement, (name, time.time(), region)).rowcount == 1
            (self.root / name).mkdir(exist_ok=True)
            sync_folder(self.root)
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
            parts = "SELECT file FROM parts WHERE upload IN (SELECT id FROM uploads WHERE bucket = ?)"
            files = db.execute(parts, (name,)).fetchall()
            db.execute("DELETE FROM parts WHERE upload IN (SELECT id FROM uploads WHERE bucket = ?)", (name,))
            db.execute("DELETE FROM uploads WHERE bucket = ?", (name,))
            db.execute("DELETE FROM buckets WHERE name = ?", (name,))
            # Files that are no objects, put there by hand, stay where they are.
            for folder, _, _ in os.walk(self.root / name, topdown=False):
                with suppress(OSError):
                    os.rmdir(folder)  # noqa: PTH106
        for (file,) in files:
            (self.root / file).unlink(missing_ok=True)

    # Reading

    def list(self, bucket: str, prefix: str = "") -> Iterator[ObjectInfo]:
        """All objects whose key starts with ``prefix``, in S3's order, which is that of the UTF-8 bytes."""
        after: bytes | None = b""
        while after is not None:
            page = self.page(bucket, prefix, after=after)
            yield from page.objects
            after = page.next

    def bodies(self, bucket: str, prefix: str = "") -> Iterator[tuple[str, int, str]]:
        """(key, size, file of the body) of the same objects in the same order; only to be read. Raises
        TornObject."""
        start = prefix.encode()
        after: bytes | None = start
        while after is not None:
            with self.index.reading() as db:
                find_bucket(db, bucket)
                with closing(rows_from(db, bucket, start, after)) as rows:
                    some = list(islice(rows, _AT_ONCE + 1))
            after = some.pop().key if len(some) > _AT_ONCE else None
            for row in some:
                file = f"{self.root}/{row.file}"
                yield row.key.decode(), self._size(row, file), file

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
                        shared = common_prefix(row.key, start, delimiter.encode())
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
        """The body's file. Read, copy or mount it, never write to it: bodies are replaced, not changed.
        Raises TornObject."""
        with self.index.reading() as db:
            row = find_row(db, bucket, key)
        if row is None or not (self.root / row.file).exists():
            raise NoSuchKey(bucket, key)
        self._size(row, f"{self.root}/{row.file}")
        return self.root / row.file

    def _size(self, row: Row, file: str) -> int:
        """Of the body as it is now. Raises TornObject."""
        try:
            found = stamp(os.stat(file))  # noqa: PTH116
        except FileNotFoundError:
            return row.size  # who reads it will see that it was deleted
        if verdict(row, found) == "torn":
            self._believe_the_body(
                row.bucket, row.key.decode()
            )  # which looks again, with no writer beside it
        return found[0]

    def open(self, bucket: str, key: str) -> tuple[ObjectInfo, BinaryIO]:
        """The body, open for reading, and the very metadata it was written with. Raises TornObject."""
        for _ in range(_LOOK_AGAIN):
            with self.index.reading() as db:
                row = find_row(db, bucket, key)
            if row is None:
                raise NoSuchKey(bucket, key)
            try:
                file = (self.root / row.file).open("rb", buffering=0)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise TornObject(self.root, row, f"cannot be read: {error.strerror}") from error
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
        sync_file(body)

        def work(db: sqlite3.Connection, folders: set[str]) -> tuple[ObjectInfo, str | None]:
            return self._publish(db, folders, bucket, key, str(body), etag, attributes, condition)

        info, old = self.index.change(work)
        self._remove_old(bucket, key, old)
        made: ObjectInfo = info
        return made

    def _publish(
        self,
        db: sqlite3.Connection,
        folders: set[str],
        bucket: str,
        key: str,
        body: str,
        etag: str,
        attributes: Attributes,
        condition: Condition | None = None,
    ) -> tuple[ObjectInfo, str | None]:
        """``body`` is a word and no path: this runs ten thousand times for one directory of checkpoints.
        Returns also the file that nobody needs once the transaction is over; adds to ``folders`` those whose
        names have changed."""
        if len(key.encode()) > KEY_LIMIT:
            raise ApiError("KeyTooLongError", "Your key is too long", Key=key[:64])
        old = find_row(db, bucket, key)
        if condition is not None:
            condition(old.info if old else None)
        size, inode, mtime_ns = stamp(os.stat(body))  # noqa: PTH116
        file = self._place(bucket, key, body, folders)
        text = json.dumps(attributes)
        row = Row(bucket, key.encode(), size, etag, time.time(), text, file, inode, mtime_ns)
        write_row(db, row)
        return row.info, old.file if old and old.file != file else None

    def _remove_old(self, bucket: str, key: str, file: str | None) -> None:
        """Removes a body that an object had in another place, unless it has it there again."""
        if file is None:
            return
        with self.index.writing() as db:
            row = find_row(db, bucket, key)
            if row is None or row.file != file:
                self._remove(bucket, file)

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
                etag = etag_of(file)
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
                            bodies.append((key, str(source), etag_of(file)))
                        continue
                    bodies.append((key, body, copy_hashing(source, body)))
                except OSError as error:
                    failed[key] = error
            sync_files([body for _, body, _ in bodies])
            olds: list[tuple[str, str | None]] = []
            folders: set[str] = set()
            try:
                with self.index.writing() as db:
                    for key, body, etag in bodies:
                        try:
                            olds.append((key, self._publish(db, folders, bucket, key, body, etag, {})[1]))
                        except (ApiError, OSError) as error:
                            failed[key] = error
                    for changed in folders:
                        sync_folder(changed)
            except Exception:
                self._take_back(bucket, bodies)
                raise
            for key, old in olds:
                self._remove_old(bucket, key, old)
        finally:
            shutil.rmtree(folder)
        return failed

    def _take_back(self, bucket: str, bodies: Sequence[tuple[str, str, str]]) -> None:
        """After a transaction that failed (a full disk): bodies that no row names go back to where they were.
        One that stands in for the body of an older row is that object now, as the body is believed."""
        with suppress(OSError, sqlite3.Error), self.index.reading() as db:
            for key, body, _ in bodies:
                is_path = can_be_a_path(key, self._root_length, self._folds_case)
                file = f"{bucket}/{key}" if is_path else odd_place(bucket, key)
                if os.path.exists(body) or find_row(db, bucket, key) is not None:  # noqa: PTH110
                    continue
                os.replace(self.root / file, body)  # noqa: PTH105
                self._remove(bucket, file)

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

        def work(db: sqlite3.Connection, folders: set[str]) -> bool:
            row = find_row(db, bucket, key)
            if condition is not None:
                condition(row.info if row else None)
            if row is None:
                return False
            remove_row(db, row)
            # Before the commit: afterwards another writer may already have put a new body there. What is left
            # of it after a power cut in between is a row without a body, or a body without a row: no object.
            self._remove(bucket, row.file)
            return True

        deleted: bool = self.index.change(work)
        return deleted

    def _sweep(self) -> None:
        with self.index.reading() as db:
            known = {file for (file,) in db.execute("SELECT file FROM parts")}
        sweep(self._store / "incoming", self.root, known)

    # Places

    def _place(self, bucket: str, key: str, body: str, folders: set[str]) -> str:
        """Moves the body to where it belongs; returns that place, relative to the root, and adds the folders
        whose names that changes."""
        if can_be_a_path(key, self._root_length, self._folds_case):
            target = f"{self.root}/{bucket}/{key}"
            try:
                if rename_making_parents(body, target):
                    self._synced.clear()
            except (NotADirectoryError, IsADirectoryError, FileExistsError):
                pass  # `a` beside `a/b`: the later one goes to the side folder
            else:
                self._note_folders(target, folders)
                return f"{bucket}/{key}"
        file = odd_place(bucket, key)
        os.replace(body, self.root / file)  # noqa: PTH105
        folders.add(str(self._store / "odd"))
        return file

    def _note_folders(self, target: str, folders: set[str]) -> None:
        """The folder that holds ``target`` and, once, those above it: somebody has made them, and may have
        been killed before they were on the disk."""
        folder = target.rpartition("/")[0]
        folders.add(folder)
        if folder in self._synced:
            return
        if len(self._synced) >= _FOLDERS_KNOWN:
            self._synced.clear()
        self._synced.add(folder)
        while len(folder) > self._root_length:
            folder = folder.rpartition("/")[0]
            folders.add(folder)

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
                self._synced.discard(str(folder))
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
                    found = stamp(os.fstat(file.fileno()))
                    judged = verdict(row, found)
                    if judged == "same" and found == row.stamp:
                        return  # they agree: it was only a race with many writers
                    if judged == "torn":
                        raise TornObject(self.root, row, f"has {found[0]} bytes of {row.size}")
                    size, inode, mtime_ns = found
                    if judged == "same" or has_etag(file, row):
                        write_row(db, row._replace(inode=inode, mtime_ns=mtime_ns))
                        return
                    if judged == "older":
                        raise TornObject(self.root, row, "has other bytes, and was not written since")
                    file.seek(0)
                    etag = etag_of(file)
            except FileNotFoundError:
                remove_row(db, row)
                return
            except OSError as error:
                raise TornObject(self.root, row, f"cannot be read: {error.strerror}") from error
            attributes: Attributes = json.loads(row.attributes)
            for described in ("checksums", "checksum_type", "parts"):
                attributes.pop(described, None)  # type: ignore[misc]
            text = json.dumps(attributes)
            modified = mtime_ns / 1e9
            write_row(db, Row(row.bucket, row.key, size, etag, modified, text, row.file, inode, mtime_ns))
