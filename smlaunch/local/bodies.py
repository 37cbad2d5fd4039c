"""An object's body as a file: written whole, on the disk before anybody is told, and known again or not."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

from smlaunch.local.errors import ApiError
from smlaunch.local.object_index import UNKNOWN_INODE, Row

BLOCK = 1 << 20
_SMALL = 1 << 16


class TornObject(ApiError):
    """A body that is not what was uploaded, and that nobody put there on purpose."""

    def __init__(self, root: Path, row: Row, what: str) -> None:
        file = root / row.file
        key = row.key.decode()
        old, new = shlex.quote(str(file)), shlex.quote(f"{file}.new")
        super().__init__(
            "InternalError",
            f"{file} {what}: it is not s3://{row.bucket}/{key} as it was uploaded. Upload or delete the "
            f"object, or, to take the file as it is: `cp {old} {new} && mv {new} {old}`",
            500,
            Key=key,
        )


def verdict(row: Row, found: tuple[int, int, int]) -> Literal["same", "torn", "older", "other"]:
    """What a body (size, inode, time of change) is to the row that describes it.

    ``other``: a file that somebody put in its place, or wrote to since, without making it shorter. ``torn``:
    the very file that was uploaded, with less in it. ``older``: with no sign of having been written to; its
    bytes tell whether it is the same, as in a store that was copied.
    """
    size, inode, mtime_ns = found
    if found == row.stamp:
        return "same"
    if row.inode == UNKNOWN_INODE:
        if (size, mtime_ns) == (row.size, row.mtime_ns):
            return "same"
        return "torn" if size < row.size else "other"
    if inode == row.inode and size < row.size:
        return "torn"
    return "older" if inode == row.inode and mtime_ns <= row.mtime_ns else "other"


def sync_files(paths: Sequence[str | Path]) -> None:
    """As ``sync_file``, of many: where the system can, all are on their way before one is waited for."""
    if hasattr(os, "posix_fadvise"):
        for path in paths:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                # Linux starts to write what is not yet written.
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
    for path in paths:
        sync_file(path)


def sync_file(path: str | Path) -> None:
    """The file's bytes are on the disk when this returns."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
                write_all(writer, block)
                if size == _SMALL and len(block) < size:
                    break  # a small file, whole: most are
                size = BLOCK
        finally:
            os.close(writer)
    finally:
        os.close(reader)
    return str(digest.hexdigest())


def write_all(writer: int, block: bytes | memoryview) -> None:
    """A disk that fills up takes a part of a block and says no more until the next one."""
    left = memoryview(block)
    while left:
        left = left[os.write(writer, left) :]


def _md5() -> Any:
    return hashlib.md5(usedforsecurity=False)


def etag_of(file: BinaryIO) -> str:
    digest = _md5()
    while block := file.read(BLOCK):
        digest.update(block)
    return str(digest.hexdigest())


def has_etag(file: BinaryIO, row: Row) -> bool:
    """Whether a body has the bytes that its row was written for, also of an upload in parts."""
    parts = json.loads(row.attributes).get("parts")
    if "-" not in row.etag:
        return etag_of(file) == row.etag
    digest = _md5()
    for size in parts or ():
        part, left = _md5(), size
        while left and (block := file.read(min(left, BLOCK))):
            part.update(block)
            left -= len(block)
        digest.update(part.digest())
    return not file.read(1) and f"{digest.hexdigest()}-{len(parts or ())}" == row.etag
