"""Digests of files and of their parts as S3 computes them, and files that are written atomically."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from smlaunch.aws.interfaces import ObjectChecksum, TransferItem
from smlaunch.data.tar_writer import Crc32
from smlaunch.errors import JobError, Problem, write_error

MIN_PART_BYTES = 8 << 20
"""Bytes of a part, as in other clients of S3; more if the file would need more than ``_MAX_PARTS`` parts."""

LARGE_FILE_BYTES = 16 << 20
"""Files from this size on are sent in parts, several at a time; smaller ones whole."""

_MAX_PARTS = 9_000
"""S3 accepts at most 10,000 parts (S3 user guide, multipart upload limits)."""

_MIB = 1 << 20
_MD5 = re.compile(r"[0-9a-f]{32}")

DigestAlgorithm = Literal["sha256", "crc32", "md5"]


class RunningDigest(Protocol):
    def update(self, content: bytes, /) -> None: ...

    def digest(self) -> bytes: ...

    def hexdigest(self) -> str: ...


def part_size(size: int) -> int:
    """Return the bytes of each part of a file of this size."""
    return max(MIN_PART_BYTES, -(-size // _MAX_PARTS // _MIB) * _MIB)


def part_ranges(size: int, part_bytes: int) -> list[tuple[int, int]]:
    """Return start and length of every part. An empty file has one empty part."""
    return [(start, min(part_bytes, size - start)) for start in range(0, size, part_bytes)] or [(0, 0)]


def read_file(item: TransferItem) -> bytes:
    """Raises JobError when the file cannot be read, or has not the size and the SHA-256 that the item
    states."""
    with explain_read_error(item.path):
        content = item.path.read_bytes()
    if len(content) != item.size:
        raise changed_file_error(item)
    require_sha256(item, hashlib.sha256(content))
    return content


def require_sha256(item: TransferItem, digest: RunningDigest) -> None:
    """Raise JobError if the item states another SHA-256 than ``digest``, which is that of what was read."""
    if item.sha256 is not None and digest.digest() != item.sha256:
        raise changed_file_error(item)


@contextmanager
def explain_read_error(path: Path) -> Iterator[None]:
    """Turn an OSError into a JobError that names the file."""
    try:
        yield
    except OSError as error:
        raise JobError([Problem("inputs", f"{path} cannot be read: {error.strerror}")]) from error


def changed_file_error(item: TransferItem) -> JobError:
    text = (
        f"{item.path} has changed while it was being sent; try again"
        if item.sha256 is None
        else f"{item.path} has changed since the plan was made; plan again"
    )
    return JobError([Problem("inputs", text)])


# ---- digests ---------------------------------------------------------------------------------------------


def new_digest(algorithm: DigestAlgorithm, content: bytes = b"") -> RunningDigest:
    """Return a running digest. MD5 is what S3's ETags are made of: a checksum here, not a protection."""
    if algorithm == "crc32":
        return Crc32(content)
    return hashlib.sha256(content) if algorithm == "sha256" else hashlib.md5(content, usedforsecurity=False)


def is_md5(etag: str | None) -> bool:
    """Return whether an ETag may be the MD5 sum of a whole object."""
    return etag is not None and _MD5.fullmatch(etag) is not None


class ExpectedDigest(NamedTuple):
    """A digest that S3 has of an object."""

    algorithm: DigestAlgorithm
    value: str
    """A digest of the digests of parts ends with their number, such as ``-3``."""


def expected_digest(checksum: ObjectChecksum, size: int) -> ExpectedDigest | None:
    """Return the digest, of those that S3 has of an object, to compare a content with: a checksum sent with
    the upload rather than an ETag (MD5), which takes longest to compute. None if S3 has none that can be
    compared. ``size``: of the object in bytes."""
    candidates: tuple[tuple[DigestAlgorithm, str | None], ...] = (
        ("sha256", checksum.sha256),
        ("crc32", checksum.crc32),
        ("md5", checksum.md5),
    )
    for algorithm, digest in candidates:
        if digest is None:
            continue
        if checksum.part_size is not None:
            part_count = len(part_ranges(size, checksum.part_size))
            # Another number of parts means unequal sizes: these cannot be reproduced, so nothing is compared.
            if not digest.endswith(f"-{part_count}"):
                return None
        return ExpectedDigest(algorithm, digest)
    return None


def multipart_digest(algorithm: DigestAlgorithm, digests: Sequence[bytes]) -> str:
    """Return the digest S3 shows for an object made of parts with these digests."""
    combined = new_digest(algorithm, b"".join(digests))
    return f"{encode_digest(algorithm, combined.digest())}-{len(digests)}"


def file_digest(
    path: Path,
    algorithm: DigestAlgorithm,
    part_bytes: int | None,
    content_digest: RunningDigest | None = None,
) -> str:
    """Return the digest S3 would show for the file, uploaded whole (``part_bytes`` None) or in parts of
    this size. ``content_digest`` is updated with the same bytes, which are read once."""
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        ranges = [(0, size)] if part_bytes is None else part_ranges(size, part_bytes)
        digests = [
            _digest_range(stream.fileno(), algorithm, start, length, content_digest)
            for start, length in ranges
        ]
    return (
        encode_digest(algorithm, digests[0]) if part_bytes is None else multipart_digest(algorithm, digests)
    )


def _digest_range(
    descriptor: int,
    algorithm: DigestAlgorithm,
    start: int,
    length: int,
    content_digest: RunningDigest | None,
) -> bytes:
    digest = new_digest(algorithm)
    end = start + length
    while start < end:
        block = os.pread(descriptor, min(_MIB, end - start), start)
        if not block:  # the file is shorter
            break
        digest.update(block)
        if content_digest is not None:
            content_digest.update(block)
        start += len(block)
    return digest.digest()


def encode_digest(algorithm: DigestAlgorithm, digest: bytes) -> str:
    """Return the digest as S3 writes it: MD5 in hex, others in base64."""
    return digest.hex() if algorithm == "md5" else base64.b64encode(digest).decode()


# ---- writing ---------------------------------------------------------------------------------------------


class AtomicFile:
    """A file that is being downloaded, under a temporary name until it is complete."""

    def __init__(self, path: Path) -> None:
        """Raises JobError if the file cannot be created."""
        self.path = path
        self.temporary_path = path.with_name(f".{secrets.token_hex(8)}.part")
        with explain_write_error(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.temporary_path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)

    def write(self, content: bytes, start: int) -> None:
        view = memoryview(content)
        with explain_write_error(self.path):
            while view:
                written_bytes = os.pwrite(self._descriptor, view, start)
                view, start = view[written_bytes:], start + written_bytes

    def close(self, *, is_complete: bool) -> None:
        """Move a complete file to its path; delete an incomplete one."""
        os.close(self._descriptor)
        with explain_write_error(self.path):
            if is_complete:
                self.temporary_path.replace(self.path)
            else:
                self.temporary_path.unlink()


@contextmanager
def explain_write_error(path: Path) -> Iterator[None]:
    """Turn an OSError into a JobError that names the file."""
    try:
        yield
    except OSError as error:
        raise write_error("", path, error) from error


def wrong_content_error(key: str) -> JobError:
    text = f"the content received for {key!r} does not match S3's checksum; it was discarded, try again"
    return JobError([Problem("", text)])
