"""The object store: bodies of S3 objects are plain files, their metadata is in SQLite.

    <root>/<bucket>/<key>             an object's body
    <root>/_store/index.sqlite        the objects and their metadata; no bucket name begins with ``_``
    <root>/_store/odd/<hash>          bodies whose keys cannot be paths: ``..``, empty names, ``a`` beside
                                      ``a/b``, names over 255 bytes, folder markers such as ``a/``
    <root>/_store/incoming/<random>   bodies being written; published by one rename

An object exists if it has a row in the index. A row records inode, size and mtime of its body, so a reader
detects another body (a concurrent overwrite, an edit by hand, a crash between rename and commit). It reads
the row again, updates the row from the body, or reports the object as torn (``object_files.compare_to_row``).
Several processes may share a root.

A completed write survives a power cut. It syncs, in this order: the body, its rename and the folders of its
path, the row; then the call returns. A body is removed only after the row that replaces its row is synced.
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

from smlaunch.local.api_errors import ApiError
from smlaunch.local.database import sync_folder
from smlaunch.local.ext4_topdir import mark_as_topdir
from smlaunch.local.object_files import (
    TornObject,
    compare_to_row,
    copy_with_md5,
    etag_of,
    matches_etag,
    sync_file,
    sync_files,
)
from smlaunch.local.object_index import (
    Attributes,
    BucketInfo,
    NoSuchBucket,
    NoSuchKey,
    ObjectIndex,
    ObjectInfo,
    ObjectRow,
    common_prefix,
    delete_object_row,
    end_of_prefix,
    file_identity,
    find_bucket,
    find_object_row,
    object_rows,
    upsert_object_row,
)
from smlaunch.local.object_paths import (
    hashed_path,
    is_disk_case_insensitive,
    is_valid_path,
    remove_abandoned,
    rename_with_parents,
)

__all__ = ["Attributes", "BucketInfo", "NoSuchBucket", "NoSuchKey", "ObjectInfo"]
__all__ += ["ObjectPage", "ObjectStore", "TornObject"]

MAX_KEY_BYTES = 1024
_BUCKET_NAME = re.compile(r"(?!xn--|\d+\.\d+\.\d+\.\d+$)[a-z0-9](?:[a-z0-9-]|\.(?!\.)){1,61}[a-z0-9]")
_ROWS_PER_QUERY = 1000
"""Limits how long a query blocks writers."""
_MAX_SYNCED_FOLDERS = 10_000
_MAX_OPEN_ATTEMPTS = 20
"""How often a reader that races with writers tries again before it updates the row from the body."""


class ObjectPage(NamedTuple):
    """One page of a listing. ``next_key``: first key of the next page, None on the last page."""

    objects: list[ObjectInfo]
    prefixes: list[str]
    next_key: bytes | None


WriteCondition = Callable[[ObjectInfo | None], None]
"""Called inside the transaction with the object that a write would replace; raises to reject the write."""


class ObjectStore:
    """Raises ApiError with S3's error codes; NoSuchBucket and NoSuchKey are also KeyErrors."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._store_dir = root / "_store"
        self._root_length = len(os.fsencode(root))
        for folder in (self._store_dir, self._store_dir / "odd", self._store_dir / "incoming"):
            folder.mkdir(parents=True, exist_ok=True)
        for folder in (self._store_dir, root, root.parent):
            sync_folder(folder)
        mark_as_topdir(self._store_dir / "incoming")
        self._is_case_insensitive = is_disk_case_insensitive(self._store_dir)
        self.index_db = ObjectIndex(self.root, self._store_dir)
        self._synced_folders: set[str] = set()
        """Folders whose entries in all parent folders, up to the root, are synced."""
        self._remove_abandoned_files()

    def close(self) -> None:
        self.index_db.close()

    # Buckets

    def create_bucket(self, name: str, region: str = "us-east-1") -> bool:
        """Create a bucket. Returns False when it exists already."""
        if not _BUCKET_NAME.fullmatch(name):
            raise ApiError("InvalidBucketName", "The specified bucket is not valid.", BucketName=name)
        with self.index_db.reading() as db:
            if db.execute("SELECT 1 FROM buckets WHERE name = ?", (name,)).fetchone():
                return False  # without the cost of a write transaction
        with self.index_db.writing() as db:
            statement = "INSERT OR IGNORE INTO buckets VALUES (?, ?, ?)"
            is_new = db.execute(statement, (name, time.time(), region)).rowcount == 1
            (self.root / name).mkdir(exist_ok=True)
            sync_folder(self.root)
        return is_new

    def require_bucket(self, name: str) -> BucketInfo:
        """Return a bucket. Raises NoSuchBucket."""
        with self.index_db.reading() as db:
            return find_bucket(db, name)

    def buckets(self) -> tuple[BucketInfo, ...]:
        with self.index_db.reading() as db:
            return tuple(BucketInfo(*row) for row in db.execute("SELECT * FROM buckets ORDER BY name"))

    def delete_bucket(self, name: str) -> None:
        """Delete an empty bucket and its incomplete multipart uploads."""
        with self.index_db.writing() as db:
            find_bucket(db, name)
            if db.execute("SELECT 1 FROM objects WHERE bucket = ? LIMIT 1", (name,)).fetchone():
                message = "The bucket you tried to delete is not empty"
                raise ApiError("BucketNotEmpty", message, 409, BucketName=name)
            statement = "SELECT file FROM parts WHERE upload IN (SELECT id FROM uploads WHERE bucket = ?)"
            files = db.execute(statement, (name,)).fetchall()
            db.execute("DELETE FROM parts WHERE upload IN (SELECT id FROM uploads WHERE bucket = ?)", (name,))
            db.execute("DELETE FROM uploads WHERE bucket = ?", (name,))
            db.execute("DELETE FROM buckets WHERE name = ?", (name,))
            # Files that are not objects, put there by hand, stay.
            for folder, _, _ in os.walk(self.root / name, topdown=False):
                with suppress(OSError):
                    os.rmdir(folder)  # noqa: PTH106
        for (file,) in files:
            (self.root / file).unlink(missing_ok=True)

    # Reading

    def list_objects(self, bucket: str, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects with a prefix, ordered by the UTF-8 bytes of their keys as in S3."""
        first_key: bytes | None = b""
        while first_key is not None:
            page = self.page(bucket, prefix, first_key=first_key)
            yield from page.objects
            first_key = page.next_key

    def list_bodies(self, bucket: str, prefix: str = "") -> Iterator[tuple[str, int, str]]:
        """Yield (key, size, path of the body) of the same objects in the same order. The files must not be
        written. Raises TornObject."""
        prefix_bytes = prefix.encode()
        first_key: bytes | None = prefix_bytes
        while first_key is not None:
            with self.index_db.reading() as db:
                find_bucket(db, bucket)
                with closing(object_rows(db, bucket, prefix_bytes, first_key)) as rows:
                    page_rows = list(islice(rows, _ROWS_PER_QUERY + 1))
            first_key = page_rows.pop().key if len(page_rows) > _ROWS_PER_QUERY else None
            for row in page_rows:
                file = f"{self.root}/{row.file}"
                yield row.key.decode(), self._current_size(row, file), file

    def page(
        self, bucket: str, prefix: str = "", *, delimiter: str = "", first_key: bytes = b"", limit: int = 1000
    ) -> ObjectPage:
        """Return at most ``limit`` objects and common prefixes, from ``first_key`` on."""
        prefix_bytes = prefix.encode()
        objects: list[ObjectInfo] = []
        prefixes: list[str] = []
        with self.index_db.reading() as db:
            find_bucket(db, bucket)
            next_key: bytes | None = max(prefix_bytes, first_key)
            while next_key is not None:
                # The cursor is closed before the connection is reused: the next user may write.
                with closing(object_rows(db, bucket, prefix_bytes, next_key)) as rows:
                    next_key = None
                    for row in rows:
                        if len(objects) + len(prefixes) == limit:
                            return ObjectPage(objects, prefixes, row.key)
                        group_prefix = common_prefix(row.key, prefix_bytes, delimiter.encode())
                        if group_prefix is not None:
                            prefixes.append(group_prefix.decode())
                            next_key = end_of_prefix(group_prefix)
                            break
                        objects.append(row.info)
        return ObjectPage(objects, prefixes, None)

    def head(self, bucket: str, key: str) -> ObjectInfo:
        info, file = self.open(bucket, key)
        file.close()
        return info

    def body_path(self, bucket: str, key: str) -> Path:
        """Return the path of the body, to read, copy or mount, never to write: bodies are replaced, not
        changed. Raises TornObject."""
        with self.index_db.reading() as db:
            row = find_object_row(db, bucket, key)
        if row is None or not (self.root / row.file).exists():
            raise NoSuchKey(bucket, key)
        self._current_size(row, f"{self.root}/{row.file}")
        return self.root / row.file

    def _current_size(self, row: ObjectRow, file: str) -> int:
        """Return the size of the body as it is now. Raises TornObject."""
        try:
            file_state = file_identity(os.stat(file))  # noqa: PTH116
        except FileNotFoundError:
            return row.size  # deleted meanwhile, which its reader will see
        if compare_to_row(row, file_state) == "truncated":
            self._refresh_row(row.bucket, row.key.decode())  # checks again, without concurrent writers
        return file_state[0]

    def open(self, bucket: str, key: str) -> tuple[ObjectInfo, BinaryIO]:
        """Open a body for reading, and return it with the metadata it was written with. Raises TornObject."""
        for _ in range(_MAX_OPEN_ATTEMPTS):
            with self.index_db.reading() as db:
                row = find_object_row(db, bucket, key)
            if row is None:
                raise NoSuchKey(bucket, key)
            try:
                file = (self.root / row.file).open("rb", buffering=0)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise TornObject(self.root, row, f"cannot be read: {error.strerror}") from error
            if file_identity(os.fstat(file.fileno())) == row.file_identity:
                return row.info, file
            file.close()
        self._refresh_row(bucket, key)
        return self.open(bucket, key)

    # Writing

    @contextmanager
    def incoming_file(self) -> Iterator[Path]:
        """Context with a path for a body that is being written; the file is removed if it was not
        published."""
        path = self._store_dir / "incoming" / secrets.token_hex(12)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def publish(
        self,
        bucket: str,
        key: str,
        body_file: Path,
        etag: str,
        attributes: Attributes,
        condition: WriteCondition | None = None,
    ) -> ObjectInfo:
        """Move ``body_file``, which has to be on this disk, into the store as an object, atomically."""
        sync_file(body_file)

        def publish(db: sqlite3.Connection, folders: set[str]) -> tuple[ObjectInfo, str | None]:
            return self._publish_in_transaction(
                db, folders, bucket, key, str(body_file), etag, attributes, condition
            )

        info, replaced_file = self.index_db.change(publish)
        self._remove_replaced_file(bucket, key, replaced_file)
        published: ObjectInfo = info
        return published

    def _publish_in_transaction(
        self,
        db: sqlite3.Connection,
        folders: set[str],
        bucket: str,
        key: str,
        body: str,
        etag: str,
        attributes: Attributes,
        condition: WriteCondition | None = None,
    ) -> tuple[ObjectInfo, str | None]:
        """Move a body into place and write its row. Returns the object, and the replaced file to remove after
        the commit. Adds to ``folders`` those whose entries have changed. ``body`` is no Path for speed: this
        runs ten thousand times for one directory of checkpoints."""
        if len(key.encode()) > MAX_KEY_BYTES:
            raise ApiError("KeyTooLongError", "Your key is too long", Key=key[:64])
        old_row = find_object_row(db, bucket, key)
        if condition is not None:
            condition(old_row.info if old_row else None)
        size, inode, mtime_ns = file_identity(os.stat(body))  # noqa: PTH116
        file = self._move_into_place(bucket, key, body, folders)
        attributes_json = json.dumps(attributes)
        row = ObjectRow(bucket, key.encode(), size, etag, time.time(), attributes_json, file, inode, mtime_ns)
        upsert_object_row(db, row)
        return row.info, old_row.file if old_row and old_row.file != file else None

    def _remove_replaced_file(self, bucket: str, key: str, file: str | None) -> None:
        """Remove an object's previous body, unless the object uses that file again."""
        if file is None:
            return
        with self.index_db.writing() as db:
            row = find_object_row(db, bucket, key)
            if row is None or row.file != file:
                self._remove_file(bucket, file)

    def put_bytes(
        self, bucket: str, key: str, data: bytes, attributes: Attributes | None = None
    ) -> ObjectInfo:
        with self.incoming_file() as body:
            body.write_bytes(data)
            etag = hashlib.md5(data, usedforsecurity=False).hexdigest()
            return self.publish(bucket, key, body, etag, attributes or {})

    def put_file(
        self, bucket: str, key: str, source: Path, move: bool = False, attributes: Attributes | None = None
    ) -> ObjectInfo:
        """Store a file as an object. ``move``: remove the source, by a rename if it is on the same disk."""
        if move and source.stat().st_dev == self._store_dir.stat().st_dev:
            with source.open("rb", buffering=0) as file:
                etag = etag_of(file)
            return self.publish(bucket, key, source, etag, attributes or {})
        with self.incoming_file() as body:
            info = self.publish(bucket, key, body, copy_with_md5(source, body), attributes or {})
        if move:
            source.unlink()
        return info

    def put_files(
        self, bucket: str, files: Sequence[tuple[str, Path]], move: bool = False
    ) -> dict[str, Exception]:
        """Store many files, given as (key, source), in one transaction; return the errors by key.

        A commit costs more than the copy of a small file, so this is for thousands of small files. ``move``:
        rename sources that are on the same disk; sources of failed objects stay.
        """
        error_by_key: dict[str, Exception] = {}
        incoming_folder = self._store_dir / "incoming" / secrets.token_hex(12)
        incoming_folder.mkdir()
        try:
            device = incoming_folder.stat().st_dev
            bodies = []
            for number, (key, source) in enumerate(files):
                body = f"{incoming_folder}/{number}"
                try:
                    if move and source.stat().st_dev == device:
                        with source.open("rb", buffering=0) as file:
                            bodies.append((key, str(source), etag_of(file)))
                        continue
                    bodies.append((key, body, copy_with_md5(source, body)))
                except OSError as error:
                    error_by_key[key] = error
            sync_files([body for _, body, _ in bodies])
            replaced_files: list[tuple[str, str | None]] = []
            folders: set[str] = set()
            try:
                with self.index_db.writing() as db:
                    for key, body, etag in bodies:
                        try:
                            _, old_file = self._publish_in_transaction(
                                db, folders, bucket, key, body, etag, {}
                            )
                            replaced_files.append((key, old_file))
                        except (ApiError, OSError) as error:
                            error_by_key[key] = error
                    for changed_folder in folders:
                        sync_folder(changed_folder)
            except Exception:
                self._restore_sources(bucket, bodies)
                raise
            for key, replaced_file in replaced_files:
                self._remove_replaced_file(bucket, key, replaced_file)
        finally:
            shutil.rmtree(incoming_folder)
        return error_by_key

    def _restore_sources(self, bucket: str, bodies: Sequence[tuple[str, str, str]]) -> None:
        """Move bodies back to their sources after a failed transaction (a full disk). A body that replaced
        the body of an existing row stays: ``_refresh_row`` makes it that object's body."""
        with suppress(OSError, sqlite3.Error), self.index_db.reading() as db:
            for key, body, _ in bodies:
                is_path = is_valid_path(key, self._root_length, self._is_case_insensitive)
                file = f"{bucket}/{key}" if is_path else hashed_path(bucket, key)
                if os.path.exists(body) or find_object_row(db, bucket, key) is not None:  # noqa: PTH110
                    continue
                os.replace(self.root / file, body)  # noqa: PTH105
                self._remove_file(bucket, file)

    def change_attributes(
        self, bucket: str, key: str, change: Callable[[Attributes], Attributes]
    ) -> ObjectInfo:
        """Replace an object's attributes with what ``change`` returns; the body stays."""
        with self.index_db.writing() as db:
            row = find_object_row(db, bucket, key)
            if row is None:
                raise NoSuchKey(bucket, key)
            row = row._replace(attributes=json.dumps(change(json.loads(row.attributes))))
            upsert_object_row(db, row)
            return row.info

    def delete_object(self, bucket: str, key: str, condition: WriteCondition | None = None) -> bool:
        """Delete an object. Returns False when it does not exist, which is no error in S3."""

        def delete(db: sqlite3.Connection, folders: set[str]) -> bool:
            """Delete the object's row and body in a transaction of the index; return whether it existed."""
            row = find_object_row(db, bucket, key)
            if condition is not None:
                condition(row.info if row else None)
            if row is None:
                return False
            delete_object_row(db, row)
            # Before the commit: afterwards another writer may have put a new body there. A power cut in
            # between leaves a row without a body or a body without a row, and neither is an object.
            self._remove_file(bucket, row.file)
            return True

        deleted: bool = self.index_db.change(delete)
        return deleted

    def _remove_abandoned_files(self) -> None:
        with self.index_db.reading() as db:
            part_files = {file for (file,) in db.execute("SELECT file FROM parts")}
        remove_abandoned(self._store_dir / "incoming", self.root, part_files)

    # Paths

    def _move_into_place(self, bucket: str, key: str, body: str, folders: set[str]) -> str:
        """Move a body to its path and return that path, relative to the root. Adds to ``folders`` those whose
        entries have changed."""
        if is_valid_path(key, self._root_length, self._is_case_insensitive):
            target = f"{self.root}/{bucket}/{key}"
            try:
                if rename_with_parents(body, target):
                    self._synced_folders.clear()
            except (NotADirectoryError, IsADirectoryError, FileExistsError):
                pass  # `a` beside `a/b`: the later one gets a hashed path
            else:
                self._add_unsynced_folders(target, folders)
                return f"{bucket}/{key}"
        file = hashed_path(bucket, key)
        os.replace(body, self.root / file)  # noqa: PTH105
        folders.add(str(self._store_dir / "odd"))
        return file

    def _add_unsynced_folders(self, target: str, folders: set[str]) -> None:
        """Add the folder of ``target`` and, the first time, the folders above it: a process that created them
        may have been killed before they were synced."""
        folder = target.rpartition("/")[0]
        folders.add(folder)
        if folder in self._synced_folders:
            return
        if len(self._synced_folders) >= _MAX_SYNCED_FOLDERS:
            self._synced_folders.clear()
        self._synced_folders.add(folder)
        while len(folder) > self._root_length:
            folder = folder.rpartition("/")[0]
            folders.add(folder)

    def _remove_file(self, bucket: str, file: str) -> None:
        """Remove a body and the folders that become empty."""
        path = self.root / file
        path.unlink(missing_ok=True)
        bucket_folder = self.root / bucket
        for folder in path.parents:
            if bucket_folder not in folder.parents:
                return
            try:
                folder.rmdir()
                self._synced_folders.discard(str(folder))
            except OSError:
                return  # not empty, or removed by another process

    def _refresh_row(self, bucket: str, key: str) -> None:
        """Update a row whose body has changed, or delete the row if the body is gone. Raises TornObject."""
        with self.index_db.writing() as db:
            row = find_object_row(db, bucket, key)
            if row is None:
                return
            try:
                with (self.root / row.file).open("rb") as file:
                    file_state = file_identity(os.fstat(file.fileno()))
                    comparison = compare_to_row(row, file_state)
                    if comparison == "same" and file_state == row.file_identity:
                        return  # it was a race with other writers
                    if comparison == "truncated":
                        raise TornObject(self.root, row, f"has {file_state[0]} bytes of {row.size}")
                    size, inode, mtime_ns = file_state
                    if comparison == "same" or matches_etag(file, row):
                        upsert_object_row(db, row._replace(inode=inode, mtime_ns=mtime_ns))
                        return
                    if comparison == "unmodified":
                        raise TornObject(self.root, row, "has other bytes, and was not written since")
                    file.seek(0)
                    etag = etag_of(file)
            except FileNotFoundError:
                delete_object_row(db, row)
                return
            except OSError as error:
                raise TornObject(self.root, row, f"cannot be read: {error.strerror}") from error
            attributes: Attributes = json.loads(row.attributes)
            for attribute in ("checksums", "checksum_type", "parts"):
                attributes.pop(attribute, None)  # type: ignore[misc]
            attributes_json = json.dumps(attributes)
            modified = mtime_ns / 1e9
            file_values = (attributes_json, row.file, inode, mtime_ns)
            upsert_object_row(db, ObjectRow(row.bucket, row.key, size, etag, modified, *file_values))
