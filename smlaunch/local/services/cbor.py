"""CBOR (RFC 8949), as far as AWS's rpc-v2-cbor protocol uses it. The standard library has no CBOR.

The decoder also reads indefinite lengths and half floats, but no bignums; the encoder writes definite lengths
only. Times have tag 1: seconds since the epoch.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

_UNSIGNED_INTEGER, _NEGATIVE_INTEGER, _BYTE_STRING, _TEXT_STRING = range(4)
_ARRAY, _MAP, _TAG, _SIMPLE_VALUE_OR_FLOAT = range(4, 8)
"""The major types of RFC 8949: the upper 3 bits of an item's initial byte."""
_INDEFINITE_LENGTH = 31
_BREAK_CODE = object()
"""Stands for the item that ends an item of indefinite length."""
_MAX_DEPTH = 64


class CborTimestamp(float):
    """Seconds since the epoch, encoded with the tag for times."""


class InvalidCbor(ValueError):
    pass


def encode(value: Any) -> bytes:
    """Return a value as one CBOR item: the initial bytes of RFC 8949 (type, and value or length) and the
    content. Members of an object that are None are left out. Raises TypeError for a type that CBOR does not
    have."""
    if value is None:  # in a list; members of an object are left out below
        return b"\xf6"
    if isinstance(value, bool):  # before int, of which it is a subclass
        return b"\xf5" if value else b"\xf4"
    if isinstance(value, CborTimestamp):  # tag 1, then a 64-bit float; before float, its base class
        return b"\xc1\xfb" + struct.pack(">d", value)
    if isinstance(value, int):
        if value < 0:  # -1 is written as 0, -2 as 1
            return _encode_initial_bytes(_NEGATIVE_INTEGER, -1 - value)
        return _encode_initial_bytes(_UNSIGNED_INTEGER, value)
    if isinstance(value, float):  # 64 bits
        return b"\xfb" + struct.pack(">d", value)
    if isinstance(value, str):
        data = value.encode()
        return _encode_initial_bytes(_TEXT_STRING, len(data)) + data
    if isinstance(value, bytes):
        return _encode_initial_bytes(_BYTE_STRING, len(value)) + value
    if isinstance(value, (list, tuple)):
        return _encode_initial_bytes(_ARRAY, len(value)) + b"".join(map(encode, value))
    if isinstance(value, Mapping):
        members = [(key, item) for key, item in value.items() if item is not None]
        return _encode_initial_bytes(_MAP, len(members)) + b"".join(
            encode(key) + encode(item) for key, item in members
        )
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


def _encode_initial_bytes(major_type: int, argument: int) -> bytes:
    """Return the first bytes of a CBOR item. The upper 3 bits of the initial byte are the item's major type.
    The argument (RFC 8949: a value or a length) is its lower 5 bits if it is below 24; otherwise these bits
    (the additional information) say in how many bytes after it the argument is. Raises TypeError."""
    if argument < 24:  # 24 to 27 say that the argument follows
        return bytes([major_type << 5 | argument])
    for size_bytes, additional_info, struct_format in (
        (1, 24, ">B"),
        (2, 25, ">H"),
        (4, 26, ">I"),
        (8, 27, ">Q"),
    ):
        if argument < 1 << 8 * size_bytes:
            return bytes([major_type << 5 | additional_info]) + struct.pack(struct_format, argument)
    raise TypeError(f"{argument} is too large for CBOR")


class _CborReader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def read_value(self, depth: int) -> Any:
        """Read the CBOR item at the current position, and return it as a Python value. ``depth``: the number
        of items around it, which is limited. Raises InvalidCbor."""
        if depth > _MAX_DEPTH:
            raise InvalidCbor("the body is nested too deeply")
        # The initial byte: 3 bits of major type, 5 bits of additional information (RFC 8949).
        initial_byte = self._read_bytes(1)[0]
        major_type, additional_info = initial_byte >> 5, initial_byte & 31
        if major_type == _SIMPLE_VALUE_OR_FLOAT:
            return self._read_simple_value_or_float(additional_info)
        if additional_info == _INDEFINITE_LENGTH:
            return self._read_item_of_indefinite_length(major_type, depth)
        # The argument (a value or a length) is the additional information itself, below 24; from 24 to 27
        # that says instead that the argument is in the next 1, 2, 4 or 8 bytes.
        argument = additional_info
        if additional_info >= 24:
            argument = int.from_bytes(self._read_bytes(1 << additional_info - 24), "big")
        if additional_info in (28, 29, 30):  # reserved
            raise InvalidCbor(f"an initial byte of {initial_byte:#x} has no meaning")
        if major_type == _UNSIGNED_INTEGER:
            return argument
        if major_type == _NEGATIVE_INTEGER:
            return -1 - argument
        if major_type == _BYTE_STRING:
            return self._read_bytes(argument)
        if major_type == _TEXT_STRING:
            return self._read_bytes(argument).decode()
        if major_type == _ARRAY:
            return [self.read_value(depth + 1) for _ in range(argument)]
        if major_type == _MAP:
            return dict((self.read_value(depth + 1), self.read_value(depth + 1)) for _ in range(argument))  # noqa: C402
        # A tag, whose argument is its number, and the tagged item; 1 is the tag of times.
        tagged_value = self.read_value(depth + 1)
        return CborTimestamp(tagged_value) if argument == 1 else tagged_value

    def _read_simple_value_or_float(self, additional_info: int) -> Any:
        """Read the rest of a CBOR item of major type 7: a boolean, None, a float, or the break code, which
        ends an item of indefinite length. ``additional_info``: the lower 5 bits of its initial byte, which
        tell these apart."""
        if additional_info in (20, 21):  # false and true
            return additional_info == 21
        if additional_info in (22, 23):  # null and undefined
            return None
        if additional_info == _INDEFINITE_LENGTH:  # 31, which means the break in an item of this type
            return _BREAK_CODE
        # struct format and bytes of floats of half, single and double precision
        float_formats = {25: (">e", 2), 26: (">f", 4), 27: (">d", 8)}
        if additional_info not in float_formats:
            raise InvalidCbor(f"a simple value of {additional_info} is not known")
        struct_format, size = float_formats[additional_info]
        return struct.unpack(struct_format, self._read_bytes(size))[0]

    def _read_item_of_indefinite_length(self, major_type: int, depth: int) -> Any:
        """Read the parts of a CBOR item without a stated length, up to the break code, and return the item as
        a Python value. The parts of a map are its keys and values in turn. Raises InvalidCbor."""
        items = []
        while (item := self.read_value(depth + 1)) is not _BREAK_CODE:
            items.append(item)
        if major_type == _BYTE_STRING:
            return b"".join(items)
        if major_type == _TEXT_STRING:
            return "".join(items)
        if major_type == _ARRAY:
            return items
        if major_type == _MAP and len(items) % 2 == 0:
            return dict(zip(items[::2], items[1::2], strict=True))
        raise InvalidCbor("an item of this type cannot have an indefinite length")

    def _read_bytes(self, size: int) -> bytes:
        if self.position + size > len(self.data):
            raise InvalidCbor("the body is truncated")
        self.position += size
        return self.data[self.position - size : self.position]
