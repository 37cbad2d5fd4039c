"""S3's additional checksums: CRC32, CRC32C, CRC64NVME, SHA1 and SHA256, of objects and of multipart uploads.

Source: S3 user guide, "Checking object integrity". zlib and hashlib have CRC32 and the SHAs. The other two
are verified where awscrt is installed (``boto3[crt]``, which a client needs to send them); elsewhere what the
client says is stored and given back as it is.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Protocol

from smlaunch.local.errors import ApiError

ALGORITHMS = ("CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256")
_POLYNOMIALS = {"CRC32": 0xEDB88320, "CRC32C": 0x82F63B78, "CRC64NVME": 0x9A6C9329AC4BC9B5}
"""Reflected, as their least significant bit is the highest power."""
_WIDTHS = {"CRC32": 32, "CRC32C": 32, "CRC64NVME": 64}


class Digest(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...

    def digest(self) -> bytes: ...


class _Crc:
    def __init__(self, function: Callable[[bytes | memoryview, int], int], width: int) -> None:
        self._function = function
        self._width = width
        self._value = 0

    def update(self, data: bytes | memoryview, /) -> None:
        self._value = self._function(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._width // 8, "big")


def header(algorithm: str) -> str:
    return f"x-amz-checksum-{algorithm.lower()}"


def stated(fields: Mapping[str, str]) -> dict[str, str]:
    """{algorithm: base64} that request headers, or a body's trailers, name."""
    return {name: fields[header(name)] for name in ALGORITHMS if header(name) in fields}


def new(algorithm: str) -> Digest | None:
    """None where the algorithm is not at hand."""
    if algorithm == "CRC32":
        return _Crc(zlib.crc32, 32)
    if algorithm in ("SHA1", "SHA256"):
        return hashlib.new(algorithm.lower(), usedforsecurity=False)
    function = _crt(algorithm)
    return None if function is None else _Crc(function, _WIDTHS[algorithm])


def encode(digest: Digest) -> str:
    return base64.b64encode(digest.digest()).decode()


def mismatch(algorithm: str) -> ApiError:
    message = f"The {algorithm} you specified did not match the calculated checksum."
    return ApiError("BadDigest", message)


def composite(algorithm: str, parts: Sequence[str]) -> str | None:
    """A multipart object's checksum of its parts' checksums: ``<base64>-<count>``."""
    digest = new(algorithm)
    if digest is None:
        return None
    for part in parts:
        digest.update(base64.b64decode(part))
    return f"{encode(digest)}-{len(parts)}"


def combined(algorithm: str, parts: Sequence[tuple[str, int]]) -> str:
    """The CRC of a whole from (base64 CRC, bytes) of its parts, without reading it again."""
    width, polynomial = _WIDTHS[algorithm], _POLYNOMIALS[algorithm]
    total = 0
    for text, size in parts:
        total = _shift(total, size, polynomial, width) ^ int.from_bytes(base64.b64decode(text), "big")
    return base64.b64encode(total.to_bytes(width // 8, "big")).decode()


def _shift(crc: int, size: int, polynomial: int, width: int) -> int:
    """``crc`` after ``size`` zero bytes: its product with x**(8*size), modulo the polynomial."""
    power, square = 1 << (width - 1), _times_x(1 << (width - 1), 8, polynomial)
    while size:
        if size & 1:
            power = _multiply(power, square, polynomial, width)
        square = _multiply(square, square, polynomial, width)
        size >>= 1
    return _multiply(crc, power, polynomial, width)


def _times_x(value: int, count: int, polynomial: int) -> int:
    for _ in range(count):
        value = (value >> 1) ^ (polynomial if value & 1 else 0)
    return value


def _multiply(left: int, right: int, polynomial: int, width: int) -> int:
    product = 0
    for bit in range(width - 1, -1, -1):
        if left >> bit & 1:
            product ^= right
        right = _times_x(right, 1, polynomial)
    return product


@lru_cache(maxsize=2)
def _crt(algorithm: str) -> Callable[[bytes | memoryview, int], int] | None:
    try:
        checksums = import_module("awscrt.checksums")
    except ImportError:
        return None
    function: Callable[[bytes | memoryview, int], int] | None = getattr(checksums, algorithm.lower(), None)
    return function
