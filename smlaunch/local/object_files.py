"""Bodies of objects as files: copies, syncs, MD5, and whether a file is still the body that was uploaded."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

from smlaunch.local.api_errors import ApiError
from smlaunch.local.object_index import UNKNOWN_INODE, ObjectRow

BLOCK_BYTES = 1 << 20
_SMALL_FILE_BYTES = 1 << 16


class TornObject(ApiError):
    """A body that differs from the uploaded one, and not because somebody replaced it on purpose."""

    def __init__(self, root: Path, row: ObjectRow, problem: str) -> None:
        file = root / row.file
        key = row.key.decode()
        quoted_file, quoted_copy = shlex.quote(str(file)), shlex.quote(f"{file}.new")
        super().__init__(
            "InternalError",
            f"{file} {problem}: it is not s3://{row.bucket}/{key} as it was uploaded. Upload or delete the "
            f"object, or, to use the file as it is: `cp {quoted_file} {quoted_copy} && mv {quoted_copy} "
            f"{quoted_file}`",
            500,
            Key=key,
        )


def compare_to_row(
    row: ObjectRow, file_state: tuple[int, int, int]
) -> Literal["same", "truncated", "unmodified", "replaced"]:
    """Compare a body (size, inode, mtime in ns) with its row.

    ``replaced``: another file, or the same file written later and not shorter. ``truncated``: the uploaded
    file with fewer bytes. ``unmodified``: the uploaded file, with another size or mtime but not written
    since; only its bytes can show whether it is the same.
    """
    size, inode, mtime_ns = file_state
    if file_state == row.file_identity:
        return "same"
    if row.inode == UNKNOWN_INODE:
        if (size, mtime_ns) == (row.size, row.mtime_ns):
            return "same"
        return "truncated" if size < row.size else "replaced"
    if inode == row.inode and size < row.size:
        return "truncated"
    return "unmodified" if inode == row.inode and mtime_ns <= row.mtime_ns else "replaced"


def sync_files(paths: Sequence[str | Path]) -> None:
    """Flush many files to the disk. On Linux all writes are started before the first is waited for."""
    if hasattr(os, "posix_fadvise"):
        for path in paths:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                # On Linux this starts writing dirty pages.
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
    for path in paths:
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
    digest = _md5()
    reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            block_bytes = _SMALL_FILE_BYTES
            while block := os.read(reader, block_bytes):
                digest.update(block)
                write_all(writer, block)
                if block_bytes == _SMALL_FILE_BYTES and len(block) < block_bytes:
                    break  # a small file was read completely; most are
                block_bytes = BLOCK_BYTES
        finally:
            os.close(writer)
    finally:
        os.close(reader)
    return str(digest.hexdigest())


def write_all(descriptor: int, block: bytes | memoryview) -> None:
    """Write a complete block: a disk that fills up may accept only a part of it without an error."""
    remaining = memoryview(block)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


def _md5() -> Any:
    return hashlib.md5(usedforsecurity=False)


def etag_of(file: BinaryIO) -> str:
    digest = _md5()
    while block := file.read(BLOCK_BYTES):
        digest.update(block)
    return str(digest.hexdigest())


def matches_etag(file: BinaryIO, row: ObjectRow) -> bool:
    """Return whether a body's bytes match the ETag of its row, also for a multipart upload."""
    part_sizes = json.loads(row.attributes).get("parts")
    if "-" not in row.etag:
        return etag_of(file) == row.etag
    digest = _md5()
    for size in part_sizes or ():
        part_digest, remaining_bytes = _md5(), size
        while remaining_bytes and (block := file.read(min(remaining_bytes, BLOCK_BYTES))):
            part_digest.update(block)
            remaining_bytes -= len(block)
        digest.update(part_digest.digest())
    return not file.read(1) and f"{digest.hexdigest()}-{len(part_sizes or ())}" == row.etag
