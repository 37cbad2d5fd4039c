"""S3's additional checksums: CRC32, CRC32C, CRC64NVME, SHA1 and SHA256, of objects and of multipart uploads.

Source: S3 user guide, "Checking object integrity". zlib and hashlib provide CRC32, SHA1 and SHA256. The other
two are verified if awscrt is installed (``boto3[crt]``, which a client needs to send them); otherwise the
client's value is stored and returned unverified.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Protocol

from smlaunch.local.front.api_errors import ApiError

ALGORITHMS = ("CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256")
_POLYNOMIAL_BY_ALGORITHM = {"CRC32": 0xEDB88320, "CRC32C": 0x82F63B78, "CRC64NVME": 0x9A6C9329AC4BC9B5}
"""Reflected: the least significant bit is the highest power."""
_BITS_BY_ALGORITHM = {"CRC32": 32, "CRC32C": 32, "CRC64NVME": 64}


class ChecksumDigest(Protocol):
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


def header_name(algorithm: str) -> str:
    return f"x-amz-checksum-{algorithm.lower()}"


def checksums_in_headers(fields: Mapping[str, str]) -> dict[str, str]:
    """Return the checksums in request headers or a body's trailers, as {algorithm: base64}."""
    return {name: fields[header_name(name)] for name in ALGORITHMS if header_name(name) in fields}


def checksum_headers(checksums: Mapping[str, str], checksum_type: str = "") -> dict[str, str]:
    """Return the headers of a response that has checksums, given by algorithm, and their type, if given."""
    headers = {header_name(algorithm): value for algorithm, value in checksums.items()}
    if headers and checksum_type:
        headers["x-amz-checksum-type"] = checksum_type
    return headers


def checksum_elements(checksums: Mapping[str, str], checksum_type: str = "") -> dict[str, str]:
    """Return the XML elements of a response that has checksums, given by algorithm, and their type, if
    given."""
    elements = {f"Checksum{algorithm}": value for algorithm, value in checksums.items()}
    if elements and checksum_type:
        elements["ChecksumType"] = checksum_type
    return elements


def new_checksum_digest(algorithm: str) -> ChecksumDigest | None:
    """Return a new digest of one of S3's checksum algorithms, such as CRC32C; None for CRC32C and CRC64NVME
    when the package awscrt, which computes them, is not installed."""
    if algorithm == "CRC32":
        return _Crc(zlib.crc32, width=32)
    if algorithm in ("SHA1", "SHA256"):
        return hashlib.new(algorithm.lower(), usedforsecurity=False)
    crc_function = _import_awscrt_crc(algorithm)
    return None if crc_function is None else _Crc(crc_function, width=_BITS_BY_ALGORITHM[algorithm])


def encode_digest(digest: ChecksumDigest) -> str:
    return base64.b64encode(digest.digest()).decode()


def checksum_mismatch_error(algorithm: str) -> ApiError:
    message = f"The {algorithm} you specified did not match the calculated checksum."
    return ApiError("BadDigest", message)


def composite_checksum(algorithm: str, part_checksums: Sequence[str]) -> str | None:
    """Return the checksum of the parts' checksums, ``<base64>-<count>``; None when the algorithm is not
    installed."""
    digest = new_checksum_digest(algorithm)
    if digest is None:
        return None
    for checksum in part_checksums:
        digest.update(base64.b64decode(checksum))
    return f"{encode_digest(digest)}-{len(part_checksums)}"


def combined_crc(algorithm: str, crcs_and_sizes: Sequence[tuple[str, int]]) -> str:
    """Compute the CRC of an object from (base64 CRC, size in bytes) of its parts, without reading them."""
    width, polynomial = _BITS_BY_ALGORITHM[algorithm], _POLYNOMIAL_BY_ALGORITHM[algorithm]
    crc = 0
    for part_crc, size in crcs_and_sizes:
        crc = _crc_after_zero_bytes(crc, size, polynomial, width) ^ int.from_bytes(
            base64.b64decode(part_crc), "big"
        )
    return base64.b64encode(crc.to_bytes(width // 8, "big")).decode()


def _crc_after_zero_bytes(crc: int, size: int, polynomial: int, width: int) -> int:
    """Return ``crc`` after ``size`` zero bytes: its product with x**(8*size), modulo the polynomial."""
    power, square = 1 << (width - 1), _multiply_by_power_of_x(1 << (width - 1), 8, polynomial)
    while size:
        if size & 1:
            power = _multiply_polynomials(power, square, polynomial, width)
        square = _multiply_polynomials(square, square, polynomial, width)
        size >>= 1
    return _multiply_polynomials(crc, power, polynomial, width)


def _multiply_by_power_of_x(value: int, count: int, polynomial: int) -> int:
    for _ in range(count):
        value = (value >> 1) ^ (polynomial if value & 1 else 0)
    return value


def _multiply_polynomials(multiplier: int, multiplicand: int, polynomial: int, width: int) -> int:
    product = 0
    for bit in range(width - 1, -1, -1):
        if multiplier >> bit & 1:
            product ^= multiplicand
        multiplicand = _multiply_by_power_of_x(multiplicand, 1, polynomial)
    return product


@lru_cache(maxsize=2)
def _import_awscrt_crc(algorithm: str) -> Callable[[bytes | memoryview, int], int] | None:
    try:
        checksums = import_module("awscrt.checksums")
    except ImportError:
        return None
    function: Callable[[bytes | memoryview, int], int] | None = getattr(checksums, algorithm.lower(), None)
    return function
