"""Bodies of objects as files: copies, syncs, MD5, and whether a file is still the body that was uploaded."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.state_errors import STATE_DAMAGED_CODE
from smlaunch.local.stores.object_index import (
    UNKNOWN_INODE,
    Attributes,
    BodyIdentity,
    ObjectRow,
    body_identity,
    delete_object_row,
    find_object_row,
    upsert_object_row,
)

BLOCK_BYTES = 1 << 20
_SMALL_FILE_BYTES = 1 << 16


class DamagedObject(ApiError):
    """A body that differs from the uploaded one, and not because somebody replaced it on purpose."""

    def __init__(self, root: Path, row: ObjectRow, problem: str) -> None:
        file = root / row.body_path
        key = row.key.decode()
        quoted_file, quoted_copy = shlex.quote(str(file)), shlex.quote(f"{file}.new")
        super().__init__(
            STATE_DAMAGED_CODE,  # not InternalError: clients would wait for it to pass
            f"{file} {problem}: it is not s3://{row.bucket}/{key} as it was uploaded. Upload or delete the "
            f"object, or, to use the file as it is: `cp {quoted_file} {quoted_copy} && mv {quoted_copy} "
            f"{quoted_file}`",
            500,
            Key=key,
        )


def compare_body_to_row(
    object_row: ObjectRow, current_body: BodyIdentity
) -> Literal["same", "truncated", "unmodified", "replaced"]:
    """Compare the file that holds an object's bytes (its body) with the object's row in the index, which has
    the size, inode and mtime of the uploaded file: its ``body_identity``.
    ``replaced``: another file, or the same file written later and not shorter. ``truncated``: the uploaded
    file with fewer bytes. ``unmodified``: the uploaded file, with another size or mtime but not written
    since; only its bytes can show whether it is the same."""
    if current_body == object_row.body_identity:
        return "same"
    is_shorter = current_body.size < object_row.size
    # The whole store was copied, so inodes tell nothing; its rows then have 0.
    if object_row.inode == UNKNOWN_INODE:
        if (current_body.size, current_body.mtime_ns) == (object_row.size, object_row.mtime_ns):
            return "same"
        return "truncated" if is_shorter else "replaced"
    if current_body.inode != object_row.inode:
        return "replaced"
    if is_shorter:
        return "truncated"
    is_written_later = current_body.mtime_ns > object_row.mtime_ns
    return "replaced" if is_written_later else "unmodified"


def has_own_body(root: Path, object_row: ObjectRow) -> bool:
    """Return whether the file at an object's path is the one that its row was written for."""
    try:
        current_body = body_identity(os.stat(f"{root}/{object_row.body_path}"))  # noqa: PTH116
    except OSError:
        return False
    return compare_body_to_row(object_row, current_body) == "same"


def refresh_object_row(connection: sqlite3.Connection, root: Path, bucket: str, key: str) -> None:
    """Update an object's row in the index if its body (the file with its bytes) was changed, or delete the
    row if the body is gone. Raises DamagedObject for a body that is neither the uploaded one nor a deliberate
    replacement. ``connection``: in a write transaction."""
    object_row = find_object_row(connection, bucket, key)
    if object_row is None:
        return
    try:
        current_row = row_of_current_body(root, object_row)
    except FileNotFoundError:
        delete_object_row(connection, object_row)
        return
    except OSError as error:
        raise DamagedObject(root, object_row, f"cannot be read: {error.strerror}") from error
    # Its size, inode, mtime or ETag has changed.
    if current_row != object_row:
        upsert_object_row(connection, current_row)


def row_of_current_body(root: Path, object_row: ObjectRow) -> ObjectRow:
    """Return an object's row in the index with the values of its body (the file with its bytes) as it is
    now. Raises OSError, and DamagedObject for a body that is neither the uploaded one nor a deliberate
    replacement (another file, or the same one written later and not shorter)."""
    with (root / object_row.body_path).open("rb") as body_file:
        current_body = body_identity(os.fstat(body_file.fileno()))
        if current_body == object_row.body_identity:
            return object_row  # nothing has changed: the caller raced with other writers
        comparison = compare_body_to_row(object_row, current_body)
        if comparison == "truncated":
            raise DamagedObject(root, object_row, f"has {current_body.size} bytes of {object_row.size}")
        # The uploaded bytes, in a copied or touched file.
        if comparison == "same" or body_matches_etag(body_file, object_row):
            return object_row._replace(inode=current_body.inode, mtime_ns=current_body.mtime_ns)
        if comparison == "unmodified":
            raise DamagedObject(root, object_row, "has other bytes, and was not written since")
        body_file.seek(0)
        return _row_of_replaced_body(object_row, current_body, compute_etag(body_file))


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


def sync_files(paths: Sequence[str | Path]) -> None:
    """Flush many files to the disk (fsync). On Linux all writes are started before the first is waited
    for."""
    if hasattr(os, "posix_fadvise"):
        for path in paths:
            file_fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                # On Linux this starts writing dirty pages. Offset and length 0: the whole file.
                os.posix_fadvise(file_fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file_fd)
    for path in paths:  # waits until they are on the disk
        sync_file(path)


def sync_file(path: str | Path) -> None:
    """Flush a file to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_with_md5(source: str | Path, target: str | Path) -> str:
    """Copy a file and return its MD5 in hex, the ETag."""
    digest = _new_md5()
    source_fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        target_fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            block = os.read(source_fd, _SMALL_FILE_BYTES)
            is_whole_file = len(block) < _SMALL_FILE_BYTES  # as most are
            while block:
                digest.update(block)
                write_all(target_fd, block)
                block = b"" if is_whole_file else os.read(source_fd, BLOCK_BYTES)
        finally:
            os.close(target_fd)
    finally:
        os.close(source_fd)
    return str(digest.hexdigest())


def write_all(descriptor: int, block: bytes | memoryview) -> None:
    """Write a complete block: a disk that fills up may accept only a part of it without an error."""
    remaining = memoryview(block)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


def _new_md5() -> Any:
    return hashlib.md5(usedforsecurity=False)


def compute_etag(file: BinaryIO) -> str:
    digest = _new_md5()
    while block := file.read(BLOCK_BYTES):
        digest.update(block)
    return str(digest.hexdigest())


def body_matches_etag(body_file: BinaryIO, object_row: ObjectRow) -> bool:
    """Return whether the bytes of an object's body, an open file at its start, match the ETag in its row."""
    is_multipart_upload = "-" in object_row.etag
    if not is_multipart_upload:
        return compute_etag(body_file) == object_row.etag
    part_sizes = json.loads(object_row.attributes).get("parts") or ()
    etag = _compute_multipart_etag(body_file, part_sizes)
    has_more_bytes = bool(body_file.read(1))
    return not has_more_bytes and etag == object_row.etag


def _compute_multipart_etag(body_file: BinaryIO, part_sizes: Sequence[int]) -> str:
    """Return the ETag of a multipart upload: the MD5 of its parts' MD5s, a hyphen and the number of parts."""
    md5_of_part_md5s = _new_md5()
    for part_bytes in part_sizes:
        part_md5 = _new_md5()
        remaining_bytes = part_bytes
        while remaining_bytes:
            block = body_file.read(min(remaining_bytes, BLOCK_BYTES))
            if not block:
                break  # the file is too short: the ETag will differ
            part_md5.update(block)
            remaining_bytes -= len(block)
        md5_of_part_md5s.update(part_md5.digest())
    return f"{md5_of_part_md5s.hexdigest()}-{len(part_sizes)}"
