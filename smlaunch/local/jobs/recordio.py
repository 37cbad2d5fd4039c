"""The RecordIO format that RecordWrapperType RecordIO puts around every object in Pipe mode.

A record is four bytes of magic number, four bytes of length (both little-endian), the data, and zero bytes
up to the next multiple of four. Source: MXNet, note_data_loading; the readers of AWS's sagemaker-tensorflow
and of the Python SDK. The upper three bits of the length mark the parts of a split record. No record is
split here, since those readers join parts in different ways; all of them read unsplit records correctly.
"""

from __future__ import annotations

import struct

MAGIC = 0xCED7230A
MAX_RECORD_BYTES = (1 << 29) - 1
"""A longer length would use the three bits that mark parts."""

_HEADER = struct.Struct("<II")


def header(size: int) -> bytes:
    """Return what precedes ``size`` bytes of data. Raises ValueError above MAX_RECORD_BYTES."""
    if size > MAX_RECORD_BYTES:
        raise ValueError(f"{size} bytes are more than a RecordIO record can hold ({MAX_RECORD_BYTES})")
    return _HEADER.pack(MAGIC, size)


def padding(size: int) -> bytes:
    """Return what follows ``size`` bytes of data."""
    return bytes(-size % 4)
