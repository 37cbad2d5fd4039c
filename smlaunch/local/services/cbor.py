"""CBOR (RFC 8949), as far as AWS's rpc-v2-cbor protocol uses it. The standard library has no CBOR.

The decoder also reads indefinite lengths and half floats, but no bignums; the encoder writes definite lengths
only. Times have tag 1: seconds since the epoch.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

_BREAK_CODE = object()
_MAX_DEPTH = 64


class CborTimestamp(float):
    """Seconds since the epoch, encoded with the tag for times."""


class InvalidCbor(ValueError):
    pass


def encode(value: Any) -> bytes:
    """Return a value as CBOR; members of an object that are None are left out. Raises TypeError."""
    if value is None:
        return b"\xf6"
    if isinstance(value, bool):
        return b"\xf5" if value else b"\xf4"
    if isinstance(value, CborTimestamp):
        return b"\xc1\xfb" + struct.pack(">d", value)
    if isinstance(value, int):
        return _encode_head(0, value) if value >= 0 else _encode_head(1, -1 - value)
    if isinstance(value, float):
        return b"\xfb" + struct.pack(">d", value)
    if isinstance(value, str):
        data = value.encode()
        return _encode_head(3, len(data)) + data
    if isinstance(value, bytes):
        return _encode_head(2, len(value)) + value
    if isinstance(value, (list, tuple)):
        return _encode_head(4, len(value)) + b"".join(map(encode, value))
    if isinstance(value, Mapping):
        members = [(key, item) for key, item in value.items() if item is not None]
        return _encode_head(5, len(members)) + b"".join(encode(key) + encode(item) for key, item in members)
    raise TypeError(f"{type(value).__name__} cannot be written as CBOR: {value!r}")


def decode(data: bytes) -> Any:
    """Decode one item; times become CborTimestamp. Raises InvalidCbor."""
    reader = _CborReader(data)
    try:
        value = reader.read_value(0)
    except (IndexError, struct.error, UnicodeDecodeError, TypeError) as error:
        raise InvalidCbor(f"the body is not CBOR: {error}") from None
    if reader.position != len(data):
        raise InvalidCbor("the body goes on after its end")
    return value


def _encode_head(major: int, number: int) -> bytes:
    """Return the first bytes of an item: its major type, 0 to 7, and its number (a value, or a length)."""
    if number < 24:
        return bytes([major << 5 | number])
    for size_bytes, code, struct_format in ((1, 24, ">B"), (2, 25, ">H"), (4, 26, ">I"), (8, 27, ">Q")):
        if number < 1 << 8 * size_bytes:
            return bytes([major << 5 | code]) + struct.pack(struct_format, number)
    raise TypeError(f"{number} is too large for CBOR")


class _CborReader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def read_value(self, depth: int) -> Any:
        """Read the item at the current position. ``depth``: the number of items around it. Raises
        InvalidCbor."""
        if depth > _MAX_DEPTH:
            raise InvalidCbor("the body is nested too deeply")
        initial_byte = self._read_bytes(1)[0]
        major, additional = initial_byte >> 5, initial_byte & 31
        if major == 7:
            return self._read_simple(additional)
        if additional == 31:
            return self._read_indefinite(major, depth)
        number = (
            additional if additional < 24 else int.from_bytes(self._read_bytes(1 << additional - 24), "big")
        )
        if 27 < additional < 31:
            raise InvalidCbor(f"an initial byte of {initial_byte:#x} has no meaning")
        if major == 0:
            return number
        if major == 1:
            return -1 - number
        if major == 2:
            return self._read_bytes(number)
        if major == 3:
            return self._read_bytes(number).decode()
        if major == 4:
            return [self.read_value(depth + 1) for _ in range(number)]
        if major == 5:
            return dict((self.read_value(depth + 1), self.read_value(depth + 1)) for _ in range(number))  # noqa: C402
        tagged = self.read_value(depth + 1)
        return CborTimestamp(tagged) if number == 1 else tagged

    def _read_simple(self, additional: int) -> Any:
        """Read the rest of an item of major type 7: a boolean, None, a float, or the end of an indefinite
        item. ``additional``: the lower 5 bits of its first byte."""
        if additional in (20, 21):
            return additional == 21
        if additional in (22, 23):
            return None
        if additional == 31:
            return _BREAK_CODE
        float_formats = {25: (">e", 2), 26: (">f", 4), 27: (">d", 8)}
        if additional not in float_formats:
            raise InvalidCbor(f"a simple value of {additional} is not known")
        struct_format, size = float_formats[additional]
        return struct.unpack(struct_format, self._read_bytes(size))[0]

    def _read_indefinite(self, major: int, depth: int) -> Any:
        """Read the parts of an item without a stated length, up to its end. ``major``: its major type."""
        items = []
        while (item := self.read_value(depth + 1)) is not _BREAK_CODE:
            items.append(item)
        if major == 2:
            return b"".join(items)
        if major == 3:
            return "".join(items)
        if major == 4:
            return items
        if major == 5 and len(items) % 2 == 0:
            return dict(zip(items[::2], items[1::2], strict=True))
        raise InvalidCbor("an item of this type cannot have an indefinite length")

    def _read_bytes(self, size: int) -> bytes:
        if self.position + size > len(self.data):
            raise InvalidCbor("the body is truncated")
        self.position += size
        return self.data[self.position - size : self.position]
