"""The object store: bodies of S3 objects are plain files, their metadata is in SQLite.

    <root>/<bucket>/<key>             an object's body
    <root>/_store/index.sqlite        the objects and their metadata; no bucket name begins with ``_``
    <root>/_store/odd/<hash>          bodies whose keys cannot be paths: ``..``, empty names, ``a`` beside
                                      ``a/b``, names over 255 bytes, folder markers such as ``a/``
    <root>/_store/incoming/<random>   bodies being written; published by one rename

An object exists if it has a row in the index. A row records inode, size and mtime of its body, so a reader
detects another body (a concurrent overwrite, an edit by hand, a crash between rename and commit). It reads
the row again, updates the row from the body, or reports the object as damaged
(``object_bodies.compare_body_to_row``). Several processes may share a root.

A completed write survives a power cut. It syncs, in this order: the body, its rename and the folders of its
path, the row; then the call returns. A body is removed only after the row that replaces its row is synced.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.stores.ext4_topdir import mark_as_topdir
from smlaunch.local.stores.object_bodies import (
    DamagedObject,
    compare_body_to_row,
    compute_etag,
    copy_with_md5,
    has_own_body,
    refresh_object_row,
    sync_file,
    sync_files,
)
from smlaunch.local.stores.object_body_paths import BodyFiles
from smlaunch.local.stores.object_index import (
    Attributes,
    BucketInfo,
    NoSuchBucket,
    NoSuchKey,
    ObjectIndex,
    ObjectInfo,
    ObjectRow,
    body_identity,
    delete_object_row,
    find_object_row,
    get_bucket,
    object_rows_with_prefix,
    upsert_object_row,
)
from smlaunch.local.stores.object_listing import ObjectPage, read_page
from smlaunch.local.stores.sqlite_database import sync_folder

__all__ = ["Attributes", "BucketInfo", "NoSuchBucket", "NoSuchKey", "ObjectInfo"]
__all__ += ["DamagedObject", "ObjectPage", "ObjectStore"]

MAX_KEY_BYTES = 1024
_BUCKET_NAME = re.compile(r"(?!xn--|\d+\.\d+\.\d+\.\d+$)[a-z0-9](?:[a-z0-9-]|\.(?!\.)){1,61}[a-z0-9]")
_ROWS_PER_QUERY = 1000
"""Limits how long a query blocks writers."""
_MAX_OPEN_ATTEMPTS = 20
"""How often a reader that races with writers tries again before it updates the row from the body."""


WritePrecondition = Callable[[ObjectInfo | None], None]
"""Called inside the transaction with the object that a write would replace; raises to reject the write."""


class _PreparedBody(NamedTuple):
    """A file on the store's disk that will be the body of an object. ``path``: the user's file itself, or a
    copy."""

    key: str
    path: str
    etag: str
    attributes: Attributes


class ObjectStore:
    """Raises ApiError with S3's error codes; NoSuchBucket and NoSuchKey are also KeyErrors."""

    def __init__(self, root: Path) -> None:
        """Open the store in the directory ``root``, create what is missing in it, and remove what killed
        processes have left. Raises StateDamaged."""
        self.root = root
        self._store_dir = root / "_store"
        # odd: for keys that cannot be paths; incoming: for files that are not objects yet.
        for folder in (self._store_dir, self._store_dir / "odd", self._store_dir / "incoming"):
            folder.mkdir(parents=True, exist_ok=True)
        for folder in (self._store_dir, root, root.parent):
            sync_folder(folder)
        mark_as_topdir(self._store_dir / "incoming")
        self._body_files = BodyFiles(root, self._store_dir)
        self.index = ObjectIndex(self.root, self._store_dir)
        with self.index.read_access() as connection:
            part_files = {file for (file,) in connection.execute("SELECT file FROM parts")}
        self._body_files.remove_abandoned(part_files)

    def close(self) -> None:
        self.index.close()

    # Buckets

    def create_bucket(self, bucket: str, region: str = "us-east-1") -> bool:
        """Create a bucket. Returns False when it exists already."""
        if not _BUCKET_NAME.fullmatch(bucket):
            raise ApiError("InvalidBucketName", "The specified bucket is not valid.", BucketName=bucket)
        with self.index.read_access() as connection:
            if connection.execute("SELECT 1 FROM buckets WHERE name = ?", (bucket,)).fetchone():
                return False  # without the cost of a write transaction
        with self.index.write_transaction() as connection:
            statement = "INSERT OR IGNORE INTO buckets VALUES (?, ?, ?)"
            is_created = connection.execute(statement, (bucket, time.time(), region)).rowcount == 1
            (self.root / bucket).mkdir(exist_ok=True)
            sync_folder(self.root)
        return is_created

    def require_bucket(self, bucket: str) -> BucketInfo:
        """Return a bucket. Raises NoSuchBucket."""
        with self.index.read_access() as connection:
            return get_bucket(connection, bucket)

    def list_buckets(self) -> tuple[BucketInfo, ...]:
        with self.index.read_access() as connection:
            return tuple(
                BucketInfo(*row) for row in connection.execute("SELECT * FROM buckets ORDER BY name")
            )

    def delete_bucket(self, bucket: str) -> None:
        """Delete an empty bucket and its incomplete multipart uploads. Raises NoSuchBucket, and ApiError for
        a bucket with objects."""
        with self.index.write_transaction() as connection:
            get_bucket(connection, bucket)  # raises NoSuchBucket
            if connection.execute("SELECT 1 FROM objects WHERE bucket = ? LIMIT 1", (bucket,)).fetchone():
                message = "The bucket you tried to delete is not empty"
                raise ApiError("BucketNotEmpty", message, 409, BucketName=bucket)
            # Parts of multipart uploads are files below the store's root, not in the bucket's folder.
            statement = "SELECT file FROM parts WHERE upload IN (SELECT id FROM uploads WHERE bucket = ?)"
            part_files = connection.execute(statement, (bucket,)).fetchall()
            connection.execute(
                "DELETE FROM parts WHERE upload IN (SELECT id FROM uploads WHERE bucket = ?)", (bucket,)
            )
            connection.execute("DELETE FROM uploads WHERE bucket = ?", (bucket,))
            connection.execute("DELETE FROM buckets WHERE name = ?", (bucket,))
            # Only empty folders are removed: files that are not objects, put there by hand, stay.
            for folder, _, _ in os.walk(self.root / bucket, topdown=False):
                with suppress(OSError):
                    os.rmdir(folder)  # noqa: PTH106
        for (part_file,) in part_files:
            (self.root / part_file).unlink(missing_ok=True)

    # Reading

    def list_objects(self, bucket: str, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects with a prefix, ordered by the UTF-8 bytes of their keys as in S3."""
        first_key: bytes | None = b""
        while first_key is not None:
            page = self.list_page(bucket, prefix, first_key=first_key)
            yield from page.objects
            first_key = page.next_key

    def list_object_bodies(self, bucket: str, prefix: str = "") -> Iterator[tuple[str, int, str]]:
        """Yield (key, size in bytes, path of the file with its bytes) of the objects with a prefix, ordered
        by the UTF-8 bytes of their keys. The caller must not write to the files. Raises NoSuchBucket, and
        DamagedObject for a file that was damaged since its upload."""
        prefix_bytes = prefix.encode()
        first_key: bytes | None = prefix_bytes
        while first_key is not None:
            with self.index.read_access() as connection:
                get_bucket(connection, bucket)  # raises NoSuchBucket
                with closing(
                    object_rows_with_prefix(connection, bucket, prefix_bytes, first_key)
                ) as row_cursor:
                    page_rows = list(islice(row_cursor, _ROWS_PER_QUERY + 1))  # 1001
            # The row after the page is the first of the next page.
            first_key = page_rows.pop().key if len(page_rows) > _ROWS_PER_QUERY else None
            # Outside the read access: a changed body may have to be written to the index.
            for object_row in page_rows:
                body_path = f"{self.root}/{object_row.body_path}"
                yield object_row.key.decode(), self._current_body_size(object_row, body_path), body_path

    def list_page(
        self,
        bucket: str,
        prefix: str = "",
        *,
        delimiter: str = "",
        first_key: bytes = b"",
        max_entries: int = 1000,
    ) -> ObjectPage:
        """List objects and common prefixes as S3's ListObjectsV2 does, at most ``max_entries`` of both
        together, from ``first_key`` on. Keys that have ``delimiter`` after the prefix are rolled up into one
        common prefix; an empty delimiter rolls up none. An object whose file was replaced or removed without
        the endpoint is listed as it is now; a damaged one as it was uploaded. Raises NoSuchBucket."""

        def read() -> ObjectPage:
            with self.index.read_access() as connection:
                get_bucket(connection, bucket)  # raises NoSuchBucket
                return read_page(
                    connection, bucket, prefix.encode(), delimiter.encode(), first_key, max_entries
                )

        page = read()
        changed_rows = [row for row in page.rows if not has_own_body(self.root, row)]
        if not changed_rows:
            return page
        with self.index.write_transaction() as connection:
            for row in changed_rows:
                with suppress(DamagedObject):
                    refresh_object_row(connection, self.root, bucket, row.key.decode())
        return read()

    def head_object(self, bucket: str, key: str) -> ObjectInfo:
        object_info, body_file = self.open_object(bucket, key)
        body_file.close()
        return object_info

    def object_body_path(self, bucket: str, key: str) -> Path:
        """Return the path of the body, to read, copy or mount, never to write: bodies are replaced, not
        changed. Raises DamagedObject."""
        with self.index.read_access() as connection:
            object_row = find_object_row(connection, bucket, key)
        if object_row is None or not (self.root / object_row.body_path).exists():
            raise NoSuchKey(bucket, key)
        self._current_body_size(object_row, f"{self.root}/{object_row.body_path}")
        return self.root / object_row.body_path

    def _current_body_size(self, object_row: ObjectRow, body_path: str) -> int:
        """Return the size of the body as it is now. Raises DamagedObject."""
        try:
            current_identity = body_identity(os.stat(body_path))  # noqa: PTH116
        except FileNotFoundError:
            return object_row.size  # deleted meanwhile, which its reader will see
        if compare_body_to_row(object_row, current_identity) == "truncated":
            self._refresh_object_row(
                object_row.bucket, object_row.key.decode()
            )  # checks again, without concurrent writers
        return current_identity[0]

    def open_object(self, bucket: str, key: str) -> tuple[ObjectInfo, BinaryIO]:
        """Open the file with an object's bytes, and return it with the metadata that it was written with.
        Raises NoSuchKey and DamagedObject."""
        # 20 times, because writers may replace the object between the read of its row and the open.
        for _ in range(_MAX_OPEN_ATTEMPTS):
            with self.index.read_access() as connection:
                object_row = find_object_row(connection, bucket, key)
            if object_row is None:
                raise NoSuchKey(bucket, key)
            try:
                body_file = (self.root / object_row.body_path).open("rb", buffering=0)
            except FileNotFoundError:
                continue  # read the row again
            except OSError as error:
                raise DamagedObject(self.root, object_row, f"cannot be read: {error.strerror}") from error
            # Size, inode and mtime.
            if body_identity(os.fstat(body_file.fileno())) == object_row.body_identity:
                return object_row.object_info, body_file
            body_file.close()  # not the file of this row: a writer has replaced it
        # Not a race with writers: the file was changed or removed without the endpoint.
        self._refresh_object_row(bucket, key)  # raises for a damaged one; now the row fits the file
        return self.open_object(bucket, key)

    # Writing

    @contextmanager
    def temporary_body_path(self) -> Iterator[Path]:
        """Context with a path for a body that is being written; the file is removed if it was not
        published."""
        path = self._body_files.new_incoming_path()
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def publish_object(
        self,
        bucket: str,
        key: str,
        body_path: Path,
        etag: str,
        attributes: Attributes,
        precondition: WritePrecondition | None = None,
    ) -> ObjectInfo:
        """Move ``body_path``, which has to be on this disk, into the store as an object, atomically."""
        body = _PreparedBody(key, str(body_path), etag, attributes)
        sync_file(body_path)
        object_info, replaced_path = self.index.run_in_shared_transaction(
            lambda connection, folders_to_sync: self._publish_in_transaction(
                connection, folders_to_sync, bucket, body, precondition
            )
        )
        self._remove_replaced_body(bucket, key, replaced_path)
        published_object: ObjectInfo = object_info
        return published_object

    def _publish_in_transaction(
        self,
        connection: sqlite3.Connection,
        folders_to_sync: set[str],
        bucket: str,
        body: _PreparedBody,
        precondition: WritePrecondition | None = None,
    ) -> tuple[ObjectInfo, str | None]:
        """Make the file ``body.path`` the body of an object (the file with its bytes) and write the object's
        row. Returns the object, and the path of the replaced body, relative to the root, to remove
        after the commit (None: nothing to remove). Adds the folders whose entries have changed to
        ``folders_to_sync``; the caller syncs them before the commit. ``precondition`` gets the object that
        would be replaced, or None, and may raise ApiError."""
        # Paths are strings for speed: this runs ten thousand times for one directory of checkpoints.
        key, source_path, etag, attributes = body
        if len(key.encode()) > MAX_KEY_BYTES:
            raise ApiError("KeyTooLongError", "Your key is too long", Key=key[:64])
        replaced_row = find_object_row(connection, bucket, key)
        if precondition is not None:
            precondition(replaced_row.object_info if replaced_row else None)
        # Before the move, which keeps them: they show later whether the body was changed.
        size, inode, mtime_ns = body_identity(os.stat(source_path))  # noqa: PTH116
        body_path = self._body_files.move_into_place(bucket, key, source_path, folders_to_sync)
        object_row = ObjectRow(
            bucket=bucket,
            key=key.encode(),
            size=size,
            etag=etag,
            modified=time.time(),
            attributes=json.dumps(attributes),
            body_path=body_path,
            inode=inode,
            mtime_ns=mtime_ns,
        )
        upsert_object_row(connection, object_row)
        # The rename has already replaced a body at the same path.
        if replaced_row is None or replaced_row.body_path == body_path:
            return object_row.object_info, None
        return object_row.object_info, replaced_row.body_path

    def _remove_replaced_body(self, bucket: str, key: str, replaced_path: str | None) -> None:
        """Remove an object's previous body, unless the object uses that file again."""
        if replaced_path is None:
            return
        with self.index.write_transaction() as connection:
            object_row = find_object_row(connection, bucket, key)
            if object_row is None or object_row.body_path != replaced_path:
                self._body_files.remove(bucket, replaced_path)

    def put_object_bytes(
        self, bucket: str, key: str, data: bytes, attributes: Attributes | None = None
    ) -> ObjectInfo:
        with self.temporary_body_path() as body_path:
            body_path.write_bytes(data)
            etag = hashlib.md5(data, usedforsecurity=False).hexdigest()
            return self.publish_object(bucket, key, body_path, etag, attributes or {})

    def put_object_file(self, bucket: str, key: str, source: Path, move: bool = False) -> ObjectInfo:
        """Store a file as an object. ``move``: remove the source, by a rename if it is on the same disk."""
        with self.temporary_body_path() as copy_path:
            body = self._copy_or_hash_source(key, source, str(copy_path), move)
            object_info = self.publish_object(bucket, key, Path(body.path), body.etag, body.attributes)
        if move:
            source.unlink(missing_ok=True)  # it is gone already where it was renamed
        return object_info

    def put_object_files(
        self, bucket: str, files: Sequence[tuple[str, Path]], move: bool = False
    ) -> dict[str, Exception]:
        """Store many files as objects, given as (key, source), in one transaction; return the errors by key.
        A commit costs more than the copy of a small file, so this is for thousands of small files. ``move``:
        rename sources that are on the same disk; sources of failed objects stay. The file with an object's
        bytes is called its body."""
        error_by_key: dict[str, Exception] = {}
        # For copies of the sources, which are renamed to the objects' bodies.
        incoming_folder = self._body_files.new_incoming_path()
        incoming_folder.mkdir()
        try:
            prepared_bodies: list[_PreparedBody] = []
            for file_index, (key, source) in enumerate(files):
                try:
                    copy_path = f"{incoming_folder}/{file_index}"  # not used for a source that is moved
                    prepared_bodies.append(self._copy_or_hash_source(key, source, copy_path, move))
                except OSError as error:
                    error_by_key[key] = error
            sync_files([body.path for body in prepared_bodies])  # fsync: an object outlasts a power cut
            try:
                keys_and_replaced_paths, publish_errors = self._publish_bodies(bucket, prepared_bodies)
            except Exception:
                # The transaction was rolled back, but the files were moved already.
                self._move_bodies_back_to_sources(bucket, prepared_bodies)
                raise
            for key, replaced_path in keys_and_replaced_paths:
                self._remove_replaced_body(bucket, key, replaced_path)  # None: nothing to remove
        finally:
            shutil.rmtree(incoming_folder)
        return error_by_key | publish_errors

    def _copy_or_hash_source(self, key: str, source: Path, copy_path: str, move: bool) -> _PreparedBody:
        """Copy ``source`` to ``copy_path``, unless it may be moved and is on the store's disk."""
        if move and source.stat().st_dev == self._store_dir.stat().st_dev:
            with source.open("rb", buffering=0) as source_file:
                return _PreparedBody(key, str(source), compute_etag(source_file), {})
        return _PreparedBody(key, copy_path, copy_with_md5(source, copy_path), {})

    def _publish_bodies(
        self, bucket: str, bodies: Sequence[_PreparedBody]
    ) -> tuple[list[tuple[str, str | None]], dict[str, Exception]]:
        """Make files the bodies of objects, in one transaction. Returns the key of each new object with the
        path of the body that it replaced (None without one), and the errors of the other objects by key."""
        keys_and_replaced_paths: list[tuple[str, str | None]] = []
        error_by_key: dict[str, Exception] = {}
        folders_to_sync: set[str] = set()  # those whose entries have changed
        with self.index.write_transaction() as connection:
            for body in bodies:
                try:
                    _, replaced_path = self._publish_in_transaction(connection, folders_to_sync, bucket, body)
                    keys_and_replaced_paths.append((body.key, replaced_path))
                except (ApiError, OSError) as error:
                    error_by_key[body.key] = error
            for folder in folders_to_sync:  # before the commit: a committed object must have its file
                sync_folder(folder)
        return keys_and_replaced_paths, error_by_key

    def _move_bodies_back_to_sources(self, bucket: str, prepared_bodies: Sequence[_PreparedBody]) -> None:
        """Move files that became bodies of objects back to where they were, after their transaction has
        failed (a full disk). A body that replaced the one of an existing object stays:
        ``_refresh_object_row`` makes it that object's body."""
        with suppress(OSError, sqlite3.Error), self.index.read_access() as connection:
            for key, source_path, *_ in prepared_bodies:
                was_moved = not os.path.exists(source_path)  # noqa: PTH110
                # A row after the rollback: of an object that existed before.
                if not was_moved or find_object_row(connection, bucket, key) is not None:
                    continue
                self._body_files.move_back(bucket, key, source_path)

    def update_object_attributes(
        self, bucket: str, key: str, modify: Callable[[Attributes], Attributes]
    ) -> ObjectInfo:
        """Replace an object's attributes with what ``modify`` returns; the body stays."""
        with self.index.write_transaction() as connection:
            object_row = find_object_row(connection, bucket, key)
            if object_row is None:
                raise NoSuchKey(bucket, key)
            object_row = object_row._replace(attributes=json.dumps(modify(json.loads(object_row.attributes))))
            upsert_object_row(connection, object_row)
            return object_row.object_info

    def delete_object(self, bucket: str, key: str, precondition: WritePrecondition | None = None) -> bool:
        """Delete an object. Returns False when it does not exist, which is no error in S3. ``precondition``
        may raise ApiError."""
        was_deleted: bool = self.index.run_in_shared_transaction(
            # The folder of a deleted body is not synced: see below.
            lambda connection, _folders_to_sync: self._delete_in_transaction(
                connection, bucket, key, precondition
            )
        )
        return was_deleted

    def _delete_in_transaction(
        self,
        connection: sqlite3.Connection,
        bucket: str,
        key: str,
        precondition: WritePrecondition | None,
    ) -> bool:
        """Delete an object's row in the index and the file with its bytes; return whether it existed.
        ``precondition``: the check of the request's conditions; it gets the object, or None without one, and
        may raise ApiError."""
        object_row = find_object_row(connection, bucket, key)
        if precondition is not None:
            precondition(object_row.object_info if object_row else None)
        if object_row is None:
            return False
        delete_object_row(connection, object_row)
        # Before the commit: afterwards another writer may have put a new body there. A power cut in
        # between leaves a row without a body or a body without a row, and neither is an object.
        self._body_files.remove(bucket, object_row.body_path)
        return True

    def _refresh_object_row(self, bucket: str, key: str) -> None:
        """``refresh_object_row`` in a transaction of its own. Raises DamagedObject."""
        with self.index.write_transaction() as connection:
            refresh_object_row(connection, self.root, bucket, key)
