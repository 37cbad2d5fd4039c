"""The RecordIO framing that RecordWrapperType RecordIO puts around every object in Pipe mode.

A record is four bytes of magic number, four bytes of length (both little-endian), the data, and zero bytes
up to the next multiple of four. Source: MXNet, note_data_loading; the readers of AWS's sagemaker-tensorflow
and of the Python SDK. The length's upper three bits tell the parts of a record that was split; none is split
here, since those readers disagree on how to join parts. All of them read whole records, whatever is in them.
"""

from __future__ import annotations

import struct

MAGIC = 0xCED7230A
LIMIT = (1 << 29) - 1
"""Bytes. A longer length would run into the three bits that tell parts."""

_HEADER = struct.Struct("<II")


def header(size: int) -> bytes:
    """What comes before ``size`` bytes of data. Raises ValueError beyond LIMIT."""
    if size > LIMIT:
        raise ValueError(f"{size} bytes are more than a RecordIO record can hold ({LIMIT})")
    return _HEADER.pack(MAGIC, size)


def padding(size: int) -> bytes:
    """What comes after ``size`` bytes of data."""
    return bytes(-size % 4)
