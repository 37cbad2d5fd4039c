"""CBOR (RFC 8949), as much of it as AWS's rpc-v2-cbor protocol uses; the standard library has none.

Everything a client sends is read: indefinite lengths, half floats, big numbers' tags are not used. Written
are definite lengths only. Times are tag 1: seconds since the epoch.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

_BREAK = object()
_DEPTH_LIMIT = 64


class Moment(float):
    """Seconds since the epoch, written with the tag of a time."""


class BadCbor(ValueError):
    pass


def encode(value: Any) -> bytes:
    if value is None:
        return b"\xf6"
    if isinstance(value, bool):
        return b"\xf5" if value else b"\xf4"
    if isinstance(value, Moment):
        return b"\xc1\xfb" + struct.pack(">d", value)
    if isinstance(value, int):
        return _head(0, value) if value >= 0 else _head(1, -1 - value)
    if isinstance(value, float):
        return b"\xfb" + struct.pack(">d", value)
    if isinstance(value, str):
        data = value.encode()
        return _head(3, len(data)) + data
    if isinstance(value, bytes):
        return _head(2, len(value)) + value
    if isinstance(value, (list, tuple)):
        return _head(4, len(value)) + b"".join(map(encode, value))
    if isinstance(value, Mapping):
        held = [(key, item) for key, item in value.items() if item is not None]
        return _head(5, len(held)) + b"".join(encode(key) + encode(item) for key, item in held)
    raise TypeError(f"{type(value).__name__} cannot be written as CBOR: {value!r}")


def decode(data: bytes) -> Any:
    """Times come back as Moment. Raises BadCbor."""
    reader = _Reader(data)
    try:
        value = reader.value(0)
    except (IndexError, struct.error, UnicodeDecodeError, TypeError) as error:
        raise BadCbor(f"the body is no CBOR: {error}") from None
    if reader.at != len(data):
        raise BadCbor("the body goes on after its end")
    return value


def _head(major: int, number: int) -> bytes:
    if number < 24:
        return bytes([major << 5 | number])
    for size, code, form in ((1, 24, ">B"), (2, 25, ">H"), (4, 26, ">I"), (8, 27, ">Q")):
        if number < 1 << 8 * size:
            return bytes([major << 5 | code]) + struct.pack(form, number)
    raise TypeError(f"{number} is too large for CBOR")


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def value(self, depth: int) -> Any:
        if depth > _DEPTH_LIMIT:
            raise BadCbor("the body is nested too deeply")
        first = self._take(1)[0]
        major, low = first >> 5, first & 31
        if major == 7:
            return self._simple(low)
        if low == 31:
            return self._endless(major, depth)
        number = low if low < 24 else int.from_bytes(self._take(1 << low - 24), "big")
        if 27 < low < 31:
            raise BadCbor(f"a head of {first:#x} means nothing")
        if major == 0:
            return number
        if major == 1:
            return -1 - number
        if major == 2:
            return self._take(number)
        if major == 3:
            return self._take(number).decode()
        if major == 4:
            return [self.value(depth + 1) for _ in range(number)]
        if major == 5:
            return dict((self.value(depth + 1), self.value(depth + 1)) for _ in range(number))  # noqa: C402
        tagged = self.value(depth + 1)
        return Moment(tagged) if number == 1 else tagged

    def _simple(self, low: int) -> Any:
        if low in (20, 21):
            return low == 21
        if low in (22, 23):
            return None
        if low == 31:
            return _BREAK
        forms = {25: (">e", 2), 26: (">f", 4), 27: (">d", 8)}
        if low not in forms:
            raise BadCbor(f"a simple value of {low} is not known")
        form, size = forms[low]
        return struct.unpack(form, self._take(size))[0]

    def _endless(self, major: int, depth: int) -> Any:
        parts = []
        while (part := self.value(depth + 1)) is not _BREAK:
            parts.append(part)
        if major == 2:
            return b"".join(parts)
        if major == 3:
            return "".join(parts)
        if major == 4:
            return parts
        if major == 5 and len(parts) % 2 == 0:
            return dict(zip(parts[::2], parts[1::2], strict=True))
        raise BadCbor("an endless item of this kind cannot be")

    def _take(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise BadCbor("the body ends too soon")
        self.at += size
        return self.data[self.at - size : self.at]
