"""CBOR (RFC 8949), as far as AWS's rpc-v2-cbor protocol uses it. Times have tag 1: seconds since the epoch.

botocore's parser of responses decodes requests too. It has no encoder for responses; the one here writes
definite lengths only.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from smlaunch.local.services.timestamp import Timestamp

_UNSIGNED_INTEGER, _NEGATIVE_INTEGER, _BYTE_STRING, _TEXT_STRING, _ARRAY, _MAP = range(6)
"""The major types of RFC 8949: the upper 3 bits of an item's initial byte."""


class InvalidCbor(ValueError):
    pass


def encode(value: Any) -> bytes:
    """Return a value as one CBOR item: the initial bytes of RFC 8949 (type, and value or length) and the
    content. Fields of an object that are None are left out. Raises TypeError for a type that CBOR does not
    have."""
    if value is None:  # in a list; fields of an object are left out below
        return b"\xf6"
    if isinstance(value, bool):  # before int, of which it is a subclass
        return b"\xf5" if value else b"\xf4"
    if isinstance(value, Timestamp):  # tag 1, then a 64-bit float; before float, its base class
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
        fields = [(key, item) for key, item in value.items() if item is not None]
        return _encode_initial_bytes(_MAP, len(fields)) + b"".join(
            encode(key) + encode(item) for key, item in fields
        )
    raise TypeError(f"{type(value).__name__} cannot be written as CBOR: {value!r}")


def decode(data: bytes) -> Any:
    """Decode one item; times become Timestamp. Raises InvalidCbor."""
    # Imported by the first request that needs it: it takes 3 MB.
    from botocore.parsers import BaseCBORParser, ResponseParserError

    parser = BaseCBORParser(timestamp_parser=Timestamp)
    stream = parser.get_peekable_stream_from_bytes(data)
    try:
        value = parser.parse_data_item(stream)
    except (ResponseParserError, UnicodeDecodeError, TypeError) as error:
        raise InvalidCbor(f"the body is not CBOR: {error}") from None
    except (OverflowError, MemoryError):
        raise InvalidCbor("the body is truncated: it states a length that it cannot have") from None
    except RecursionError:
        raise InvalidCbor("the body is nested too deeply") from None
    if stream.read(1):
        raise InvalidCbor("the body goes on after its end")
    return value


def _encode_initial_bytes(major_type: int, argument: int) -> bytes:
    """Return the first bytes of a CBOR item. The upper 3 bits of the initial byte are the item's major type.
    The argument (RFC 8949: a value or a length) is its lower 5 bits if it is below 24; otherwise these bits
    (the additional information) say in how many bytes after it the argument is. Raises TypeError."""
    if argument < 24:  # 24 to 27 say that the argument follows
        return bytes([major_type << 5 | argument])
    for size_bytes, additional_info in ((1, 24), (2, 25), (4, 26), (8, 27)):
        if argument < 1 << 8 * size_bytes:
            return bytes([major_type << 5 | additional_info]) + argument.to_bytes(size_bytes, "big")
    raise TypeError(f"{argument} is too large for CBOR")
