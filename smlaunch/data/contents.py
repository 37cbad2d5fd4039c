"""Files as transfers see them: in parts, known by digests, and landing whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Protocol

from smlaunch.data.tar_writer import Crc32
from smlaunch.errors import JobError, Problem
from smlaunch.ports import Check, Parcel

PART = 8 << 20
"""Bytes of a part, as other clients of S3 have them; more where it takes more than ``_PARTS`` of these."""

LARGE = 16 << 20
"""Files from this size on go in parts, several at a time; smaller ones whole."""

_PARTS = 9_000
"""S3 takes at most 10,000 parts (S3 user guide, multipart upload limits)."""

_MIB = 1 << 20
_MD5 = re.compile(r"[0-9a-f]{32}")

Algorithm = Literal["sha256", "crc32", "md5"]


class Digest(Protocol):
    def update(self, content: bytes, /) -> None: ...

    def digest(self) -> bytes: ...

    def hexdigest(self) -> str: ...


def part_size(size: int) -> int:
    """Bytes of each part of a file this large."""
    return max(PART, -(-size // _PARTS // _MIB) * _MIB)


def ranges(size: int, part: int) -> list[tuple[int, int]]:
    """Start and length of every part. An empty file has one, of nothing."""
    return [(start, min(part, size - start)) for start in range(0, size, part)] or [(0, 0)]


def read_whole(parcel: Parcel) -> bytes:
    """Raises JobError when the file cannot be read, or has not the size it had."""
    with reading(parcel.path):
        content = parcel.path.read_bytes()
    if len(content) != parcel.size:
        raise changed(parcel.path)
    return content


@contextmanager
def reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise JobError([Problem("inputs", f"{path} cannot be read: {error.strerror}")]) from error


def changed(path: Path) -> JobError:
    return JobError([Problem("inputs", f"{path} has changed while it was being sent; try again")])


# ---- digests ---------------------------------------------------------------------------------------------


def new_digest(algorithm: Algorithm, content: bytes = b"") -> Digest:
    """MD5 is what S3 makes ETags of: a checksum here, no protection against anybody."""
    if algorithm == "crc32":
        return Crc32(content)
    return hashlib.sha256(content) if algorithm == "sha256" else hashlib.md5(content, usedforsecurity=False)


def is_md5(etag: str | None) -> bool:
    """Whether it may be the MD5 sum of a whole content."""
    return etag is not None and _MD5.fullmatch(etag) is not None


def known_by(check: Check, size: int) -> tuple[Algorithm, str] | None:
    """What to compare a content with: what was sent for that before an ETag, which takes the longest; None
    where S3 tells nothing to compare."""
    known: tuple[tuple[Algorithm, str | None], ...] = (
        ("sha256", check.sha256),
        ("crc32", check.crc32),
        ("md5", check.md5),
    )
    algorithm, digest = next((row for row in known if row[1] is not None), ("md5", None))
    if digest is None:
        return None
    parts = None if check.part is None else len(ranges(size, check.part))
    # Parts may be of any sizes; where they are not of one size their digests are of what nobody can tell.
    return (algorithm, digest) if parts is None or digest.endswith(f"-{parts}") else None


def combined(algorithm: Algorithm, digests: Sequence[bytes]) -> str:
    """What S3 calls an object made of parts with these digests."""
    whole = new_digest(algorithm, b"".join(digests))
    return f"{written(algorithm, whole.digest())}-{len(digests)}"


def digest_of(path: Path, algorithm: Algorithm, part: int | None) -> str:
    """What S3 would call the file's content, put whole (``part`` None) or in parts."""
    with path.open("rb") as stream:
        if part is None:
            return written(
                algorithm, _digest(stream.fileno(), algorithm, 0, os.fstat(stream.fileno()).st_size)
            )
        size = os.fstat(stream.fileno()).st_size
        digests = [_digest(stream.fileno(), algorithm, start, length) for start, length in ranges(size, part)]
    return combined(algorithm, digests)


def _digest(descriptor: int, algorithm: Algorithm, start: int, length: int) -> bytes:
    digest = new_digest(algorithm)
    end = start + length
    while start < end and (block := os.pread(descriptor, min(_MIB, end - start), start)):
        digest.update(block)
        start += len(block)
    return digest.digest()


def written(algorithm: Algorithm, digest: bytes) -> str:
    """As S3 writes it: MD5 in hex, others in base64."""
    return digest.hex() if algorithm == "md5" else base64.b64encode(digest).decode()


# ---- landing ---------------------------------------------------------------------------------------------


class Landing:
    """A file that is being fetched, under a name of its own until it is whole."""

    def __init__(self, path: Path) -> None:
        """Raises JobError when there is no way to write there."""
        self.path = path
        self.beside = path.with_name(f".{secrets.token_hex(8)}.part")
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.beside, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)

    def write(self, content: bytes, start: int) -> None:
        view = memoryview(content)
        with writing(self.path):
            while view:
                written = os.pwrite(self._descriptor, view, start)
                view, start = view[written:], start + written

    def close(self, *, whole: bool) -> None:
        """``whole``: put it in its place; else away with it."""
        os.close(self._descriptor)
        with writing(self.path):
            if whole:
                self.beside.replace(self.path)
            else:
                self.beside.unlink()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise JobError([Problem("", f"{path} cannot be written: {error.strerror}")]) from error


def differs(key: str) -> JobError:
    text = f"what came of {key!r} is not what S3 knows the object by; nothing was kept of it, try again"
    return JobError([Problem("", text)])
