"""The object store: bodies of S3 objects are plain files, their metadata is in SQLite.

    <root>/<bucket>/<key>             an object's body
    <root>/_store/index.sqlite        the objects and their metadata; no bucket name begins with ``_``
    <root>/_store/odd/<hash>          bodies whose keys cannot be paths: ``..``, empty names, ``a`` beside
                                      ``a/b``, names over 255 bytes, folder markers such as ``a/``
    <root>/_store/incoming/<random>   bodies being written; published by one rename

An object exists if it has a row in the index. A row records inode, size and mtime of its body, so a reader
detects another body (a concurrent overwrite, an edit by hand, a crash between rename and commit). It reads
the row again, updates the row from the body, or reports the object as damaged
(``object_files.compare_body_to_row``). Several processes may share a root.

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

from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.stores.ext4_topdir import mark_as_topdir
from smlaunch.local.stores.object_bodies import (
    DamagedObject,
    body_matches_etag,
    compare_body_to_row,
    compute_etag,
    copy_with_md5,
    sync_file,
    sync_files,
)
from smlaunch.local.stores.object_body_paths import (
    hashed_body_path,
    is_disk_case_insensitive,
    is_valid_body_path,
    remove_abandoned_bodies,
    rename_with_parents,
)
from smlaunch.local.stores.object_index import (
    Attributes,
    BodyIdentity,
    BucketInfo,
    NoSuchBucket,
    NoSuchKey,
    ObjectIndex,
    ObjectInfo,
    ObjectRow,
    body_identity,
    common_prefix,
    delete_object_row,
    find_bucket,
    find_object_row,
    first_key_after_prefix,
    object_rows_with_prefix,
    upsert_object_row,
)
from smlaunch.local.stores.sqlite_database import sync_folder

__all__ = ["Attributes", "BucketInfo", "NoSuchBucket", "NoSuchKey", "ObjectInfo"]
__all__ += ["DamagedObject", "ObjectPage", "ObjectStore"]

MAX_KEY_BYTES = 1024
_BUCKET_NAME = re.compile(r"(?!xn--|\d+\.\d+\.\d+\.\d+$)[a-z0-9](?:[a-z0-9-]|\.(?!\.)){1,61}[a-z0-9]")
_ROWS_PER_QUERY = 1000
"""Limits how long a query blocks writers."""
_MAX_REMEMBERED_FOLDERS = 10_000
_MAX_OPEN_ATTEMPTS = 20
"""How often a reader that races with writers tries again before it updates the row from the body."""


class ObjectPage(NamedTuple):
    """One page of a listing. ``next_key``: first key of the next page, None on the last page."""

    objects: list[ObjectInfo]
    prefixes: list[str]
    next_key: bytes | None


def _row_of_replaced_body(object_row: ObjectRow, new_body: BodyIdentity, etag: str) -> ObjectRow:
    """Return an object's row after another file was put in the place of its body. What S3 computed from the
    uploaded bytes is left out."""
    attributes: Attributes = json.loads(object_row.attributes)
    for attribute_name in ("checksums", "checksum_type", "parts"):
        attributes.pop(attribute_name, None)  # type: ignore[misc]
    return object_row._replace(
        size=new_body.size,
        etag=etag,
        modified=new_body.mtime_ns / 1e9,
        attributes=json.dumps(attributes),
        inode=new_body.inode,
        mtime_ns=new_body.mtime_ns,
    )


WritePrecondition = Callable[[ObjectInfo | None], None]
"""Called inside the transaction with the object that a write would replace; raises to reject the write."""


class _PreparedBody(NamedTuple):
    """A file on the store's disk that will be the body of an object. ``path``: the user's file itself, or a
    copy."""

    key: str
    path: str
    etag: str


class ObjectStore:
    """Raises ApiError with S3's error codes; NoSuchBucket and NoSuchKey are also KeyErrors."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._store_dir = root / "_store"
        self._root_path_bytes = len(os.fsencode(root))
        for folder in (self._store_dir, self._store_dir / "odd", self._store_dir / "incoming"):
            folder.mkdir(parents=True, exist_ok=True)
        for folder in (self._store_dir, root, root.parent):
            sync_folder(folder)
        mark_as_topdir(self._store_dir / "incoming")
        self._is_case_insensitive = is_disk_case_insensitive(self._store_dir)
        self.index = ObjectIndex(self.root, self._store_dir)
        self._folders_with_synced_parents: set[str] = set()
        """Folders whose entries in all parent folders, up to the root, are synced."""
        self._remove_abandoned_files()

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
            return find_bucket(connection, bucket)

    def list_buckets(self) -> tuple[BucketInfo, ...]:
        with self.index.read_access() as connection:
            return tuple(
                BucketInfo(*row) for row in connection.execute("SELECT * FROM buckets ORDER BY name")
            )

    def delete_bucket(self, bucket: str) -> None:
        """Delete an empty bucket and its incomplete multipart uploads. Raises NoSuchBucket, and ApiError for
        a bucket with objects."""
        with self.index.write_transaction() as connection:
            find_bucket(connection, bucket)  # raises NoSuchBucket
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
                find_bucket(connection, bucket)  # raises NoSuchBucket
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
        common prefix; an empty delimiter rolls up none. Raises NoSuchBucket."""
        prefix_bytes = prefix.encode()
        objects: list[ObjectInfo] = []
        common_prefixes: list[str] = []
        with self.index.read_access() as connection:
            find_bucket(connection, bucket)  # raises NoSuchBucket
            next_key: bytes | None = max(prefix_bytes, first_key)
            while next_key is not None:  # one query for each common prefix, and a last one
                # The cursor is closed before the connection is reused: the next user may write.
                with closing(
                    object_rows_with_prefix(connection, bucket, prefix_bytes, next_key)
                ) as row_cursor:
                    next_key = None
                    for object_row in row_cursor:
                        if len(objects) + len(common_prefixes) == max_entries:
                            return ObjectPage(objects, common_prefixes, next_key=object_row.key)
                        # None without the delimiter after the prefix.
                        key_common_prefix = common_prefix(object_row.key, prefix_bytes, delimiter.encode())
                        if key_common_prefix is not None:
                            # The next query begins after all keys with this common prefix.
                            common_prefixes.append(key_common_prefix.decode())
                            next_key = first_key_after_prefix(key_common_prefix)
                            break
                        objects.append(object_row.object_info)
        return ObjectPage(objects, common_prefixes, next_key=None)

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
        path = self._store_dir / "incoming" / secrets.token_hex(12)
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
        sync_file(body_path)

        def publish_in_transaction(
            connection: sqlite3.Connection, folders_to_sync: set[str]
        ) -> tuple[ObjectInfo, str | None]:
            return self._publish_in_transaction(
                connection, folders_to_sync, bucket, key, str(body_path), etag, attributes, precondition
            )

        object_info, replaced_path = self.index.run_in_shared_transaction(publish_in_transaction)
        self._remove_replaced_body(bucket, key, replaced_path)
        published_object: ObjectInfo = object_info
        return published_object

    def _publish_in_transaction(
        self,
        connection: sqlite3.Connection,
        folders_to_sync: set[str],
        bucket: str,
        key: str,
        source_path: str,
        etag: str,
        attributes: Attributes,
        precondition: WritePrecondition | None = None,
    ) -> tuple[ObjectInfo, str | None]:
        """Make the file ``source_path`` the body of an object (the file with its bytes) and write the
        object's row. Returns the object, and the path of the replaced body, relative to the root, to remove
        after the commit (None: nothing to remove). Adds the folders whose entries have changed to
        ``folders_to_sync``; the caller syncs them before the commit. ``precondition`` gets the object that
        would be replaced, or None, and may raise ApiError."""
        # Paths are strings for speed: this runs ten thousand times for one directory of checkpoints.
        if len(key.encode()) > MAX_KEY_BYTES:
            raise ApiError("KeyTooLongError", "Your key is too long", Key=key[:64])
        replaced_row = find_object_row(connection, bucket, key)
        if precondition is not None:
            precondition(replaced_row.object_info if replaced_row else None)
        # Before the move, which keeps them: they show later whether the body was changed.
        size, inode, mtime_ns = body_identity(os.stat(source_path))  # noqa: PTH116
        body_path = self._move_body_into_place(bucket, key, source_path, folders_to_sync)
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
                self._remove_body_file(bucket, replaced_path)

    def put_object_bytes(
        self, bucket: str, key: str, data: bytes, attributes: Attributes | None = None
    ) -> ObjectInfo:
        with self.temporary_body_path() as body_path:
            body_path.write_bytes(data)
            etag = hashlib.md5(data, usedforsecurity=False).hexdigest()
            return self.publish_object(bucket, key, body_path, etag, attributes or {})

    def put_object_file(
        self, bucket: str, key: str, source: Path, move: bool = False, attributes: Attributes | None = None
    ) -> ObjectInfo:
        """Store a file as an object. ``move``: remove the source, by a rename if it is on the same disk."""
        if move and source.stat().st_dev == self._store_dir.stat().st_dev:
            with source.open("rb", buffering=0) as source_file:
                etag = compute_etag(source_file)
            return self.publish_object(bucket, key, source, etag, attributes or {})
        with self.temporary_body_path() as body_path:
            object_info = self.publish_object(
                bucket, key, body_path, copy_with_md5(source, body_path), attributes or {}
            )
        if move:
            source.unlink()
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
        incoming_folder = self._store_dir / "incoming" / secrets.token_hex(12)
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
                return _PreparedBody(key, str(source), compute_etag(source_file))
        return _PreparedBody(key, copy_path, copy_with_md5(source, copy_path))

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
                    _, replaced_path = self._publish_in_transaction(
                        connection, folders_to_sync, bucket, body.key, body.path, body.etag, attributes={}
                    )
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
            for key, source_path, _etag in prepared_bodies:
                was_moved = not os.path.exists(source_path)  # noqa: PTH110
                # A row after the rollback: of an object that existed before.
                if not was_moved or find_object_row(connection, bucket, key) is not None:
                    continue
                # The path that _move_body_into_place has chosen.
                is_path_of_body = is_valid_body_path(key, self._root_path_bytes, self._is_case_insensitive)
                stored_path = f"{bucket}/{key}" if is_path_of_body else hashed_body_path(bucket, key)
                os.replace(self.root / stored_path, source_path)  # noqa: PTH105
                self._remove_body_file(bucket, stored_path)  # and its folders, if they are empty now

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
        self._remove_body_file(bucket, object_row.body_path)
        return True

    def _remove_abandoned_files(self) -> None:
        with self.index.read_access() as connection:
            part_files = {file for (file,) in connection.execute("SELECT file FROM parts")}
        remove_abandoned_bodies(self._store_dir / "incoming", self.root, part_files)

    # Paths

    def _move_body_into_place(
        self, bucket: str, key: str, source_path: str, folders_to_sync: set[str]
    ) -> str:
        """Move the file ``source_path`` to the path of an object's body: ``<bucket>/<key>``, or a path made
        of a hash for a key that cannot be one. Returns that path, relative to the root. Adds to
        ``folders_to_sync`` the folders whose entries have changed."""
        if is_valid_body_path(key, self._root_path_bytes, self._is_case_insensitive):
            target_path = f"{self.root}/{bucket}/{key}"
            try:
                # True: it created folders that were missing above the target.
                created_folders = rename_with_parents(source_path, target_path)
            except (NotADirectoryError, IsADirectoryError, FileExistsError):
                pass  # `a` beside `a/b`: the later one gets a hashed path
            else:
                if created_folders:  # their entries in the folders above are not synced yet
                    self._folders_with_synced_parents.clear()
                self._add_folders_to_sync(target_path, folders_to_sync)
                return f"{bucket}/{key}"
        hashed_path = hashed_body_path(bucket, key)
        os.replace(source_path, self.root / hashed_path)  # noqa: PTH105
        folders_to_sync.add(str((self.root / hashed_path).parent))
        return hashed_path

    def _add_folders_to_sync(self, body_path: str, folders_to_sync: set[str]) -> None:
        """Add the folder of an object's body to ``folders_to_sync`` and, the first time that this process
        stores something in it, the folders above it up to the root: a process that created them may have been
        killed before they were synced."""
        folder = body_path.rpartition("/")[0]
        folders_to_sync.add(folder)
        if folder in self._folders_with_synced_parents:
            return
        if len(self._folders_with_synced_parents) >= _MAX_REMEMBERED_FOLDERS:  # to bound the memory
            self._folders_with_synced_parents.clear()
        self._folders_with_synced_parents.add(folder)
        while len(folder) > self._root_path_bytes:
            folder = folder.rpartition("/")[0]  # its parent
            folders_to_sync.add(folder)

    def _remove_body_file(self, bucket: str, relative_path: str) -> None:
        """Remove the file with the bytes of an object in ``bucket``, and the folders that become empty.
        ``relative_path``: of the file, relative to the root of the store."""
        body_path = self.root / relative_path
        body_path.unlink(missing_ok=True)
        bucket_folder = self.root / bucket
        for folder in body_path.parents:
            if bucket_folder not in folder.parents:
                return  # the bucket's own folder stays
            try:
                folder.rmdir()
                # When it is created again, the folders above it have to be synced again.
                self._folders_with_synced_parents.discard(str(folder))
            except OSError:
                return  # not empty, or removed by another process

    def _refresh_object_row(self, bucket: str, key: str) -> None:
        """Update an object's row in the index if its body (the file with its bytes) was changed, or delete
        the row if the body is gone. Raises DamagedObject for a body that is neither the uploaded one nor a
        deliberate replacement."""
        with self.index.write_transaction() as connection:
            object_row = find_object_row(connection, bucket, key)
            if object_row is None:
                return
            try:
                current_row = self._row_of_current_body(object_row)
            except FileNotFoundError:
                delete_object_row(connection, object_row)
                return
            except OSError as error:
                raise DamagedObject(self.root, object_row, f"cannot be read: {error.strerror}") from error
            # Its size, inode, mtime or ETag has changed.
            if current_row != object_row:
                upsert_object_row(connection, current_row)

    def _row_of_current_body(self, object_row: ObjectRow) -> ObjectRow:
        """Return an object's row in the index with the values of its body (the file with its bytes) as it is
        now. Raises OSError, and DamagedObject for a body that is neither the uploaded one nor a deliberate
        replacement (another file, or the same one written later and not shorter)."""
        with (self.root / object_row.body_path).open("rb") as body_file:
            current_body = body_identity(os.fstat(body_file.fileno()))
            if current_body == object_row.body_identity:
                return object_row  # nothing has changed: the caller raced with other writers
            comparison = compare_body_to_row(object_row, current_body)
            if comparison == "truncated":
                raise DamagedObject(
                    self.root, object_row, f"has {current_body.size} bytes of {object_row.size}"
                )
            # The uploaded bytes, in a copied or touched file.
            if comparison == "same" or body_matches_etag(body_file, object_row):
                return object_row._replace(inode=current_body.inode, mtime_ns=current_body.mtime_ns)
            if comparison == "unmodified":
                raise DamagedObject(self.root, object_row, "has other bytes, and was not written since")
            body_file.seek(0)
            return _row_of_replaced_body(object_row, current_body, compute_etag(body_file))
