"""Checksums of objects, computed from the checksums of their parts."""

from __future__ import annotations

import base64
import hashlib
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smlaunch.local.services.s3 import checksums

# The catalogue of parametrised CRC algorithms: reflected polynomial, and the check value of "123456789".
CHECKS = {"CRC32": 0xCBF43926, "CRC32C": 0xE3069283, "CRC64NVME": 0xAE8B14860A799888}


def slow_crc(algorithm: str, data: bytes) -> int:
    polynomial = {"CRC32": 0xEDB88320, "CRC32C": 0x82F63B78, "CRC64NVME": 0x9A6C9329AC4BC9B5}[algorithm]
    ones = (1 << (64 if algorithm == "CRC64NVME" else 32)) - 1
    value = ones
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (polynomial if value & 1 else 0)
    return value ^ ones


def encode_checksum(algorithm: str, value: int) -> str:
    return base64.b64encode(value.to_bytes(8 if algorithm == "CRC64NVME" else 4, "big")).decode()


@pytest.mark.parametrize("algorithm", CHECKS)
def test_the_polynomials(algorithm: str) -> None:
    assert slow_crc(algorithm, b"123456789") == CHECKS[algorithm]


@pytest.mark.parametrize("algorithm", CHECKS)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=4))
def test_combined_crc_of_parts(algorithm: str, parts: list[bytes]) -> None:
    part_checksums = [(encode_checksum(algorithm, slow_crc(algorithm, part)), len(part)) for part in parts]
    expected = encode_checksum(algorithm, slow_crc(algorithm, b"".join(parts)))
    assert checksums.combined_crc(algorithm, part_checksums) == expected


def test_combined_crc_of_a_large_object() -> None:
    first, second = bytes(10_000_000), b"x" * 7_654_321
    part_checksums = [(encode_checksum("CRC32", zlib.crc32(part)), len(part)) for part in (first, second)]
    assert checksums.combined_crc("CRC32", part_checksums) == encode_checksum(
        "CRC32", zlib.crc32(first + second)
    )


def test_composite_checksums() -> None:
    parts = [base64.b64encode(hashlib.sha256(part).digest()).decode() for part in (b"a", b"b")]
    digest = hashlib.sha256(hashlib.sha256(b"a").digest() + hashlib.sha256(b"b").digest()).digest()
    assert checksums.composite_checksum("SHA256", parts) == f"{base64.b64encode(digest).decode()}-2"
