"""Digests of arrays by type, shape and elements, however they are stored."""

from __future__ import annotations

import ast
import hashlib
import math
import re
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

_MAX_REORDERED_ELEMENTS = 1 << 22
"""Limit for elements that are put into row-major order one by one."""

_MAX_NPY_HEADER_BYTES = 10_000
_NPY_MAGIC = b"\x93NUMPY"


class ValueDigest(NamedTuple):
    """Digest of one value in a file."""

    sha256: str
    is_weight_like: bool
    """Many numbers, or bytes of unknown format: what weights look like."""
    short_value_text: str = ""
    """A short value as text; else empty."""


def digest_npy(content: bytes) -> dict[str, ValueDigest] | None:
    """Return the digest of a NumPy .npy file with one array, under an empty path; None for other content.

    The format: 6 bytes of magic, 2 of version, the header's length, a header that is a Python literal, then
    the elements.
    """
    if content[:6] != _NPY_MAGIC or len(content) < 12:
        return None
    try:
        header, data_start = _parse_npy_header(content)
        type_text, shape, data_bytes = repr(header["descr"]), header["shape"], content[data_start:]
        # The type is, for example, '<f4': byte order, kind, bytes of an element. Any other file is no match.
        if "O" in type_text:  # Python objects: a pickle follows
            return None
        type_match = re.fullmatch(r"'[<>|=]?[biufcmMSV](\d+)(\[.*\])?'", type_text)
        if type_match is None:
            return None  # elements that are records
        element_bytes = int(type_match[1])
        if math.prod(shape) * element_bytes != len(data_bytes):
            return None  # more than one array in the file, or a type whose unit is not a byte
        strides = compute_element_strides(shape, is_fortran_order=header["fortran_order"])
        return {
            "": digest_array_elements(
                element_type=type_text,
                data_bytes=data_bytes,
                element_bytes=element_bytes,
                shape=shape,
                strides=strides,
            )
        }
    except (ValueError, TypeError, KeyError, SyntaxError, MemoryError, struct.error):
        return None


def _parse_npy_header(content: bytes) -> tuple[dict[str, Any], int]:
    """Return the header of a .npy file, and the offset of the elements behind it. Raises ValueError,
    SyntaxError or struct.error for a damaged file."""
    major_version = content[6]
    # The header's length has 2 bytes in version 1, and 4 bytes in later ones.
    header_start, length_format = (10, "<H") if major_version == 1 else (12, "<I")
    (header_bytes,) = struct.unpack(length_format, content[8:header_start])
    data_start = header_start + header_bytes
    header_end = min(data_start, header_start + _MAX_NPY_HEADER_BYTES)
    return ast.literal_eval(content[header_start:header_end].decode("latin-1").strip()), data_start


def digest_array_elements(
    element_type: str,
    data_bytes: bytes,
    element_bytes: int,
    shape: Sequence[int],
    strides: Sequence[int],
    offset: int = 0,
) -> ValueDigest:
    """Return the digest of an array by type, shape and elements in row-major order, however they are stored.

    A stride is the distance of neighbours along one axis. Strides and ``offset`` (of the first element in
    ``data_bytes``) count elements, not bytes. An array that is too large to be reordered is hashed as it is
    stored. Raises ValueError for too little data.
    """
    element_count = math.prod(shape)
    row_major_strides = compute_element_strides(shape, is_fortran_order=False)
    # The effective layout leaves out axes of length 1, whose strides have no meaning.
    is_row_major = _effective_layout(shape, strides) == _effective_layout(shape, row_major_strides)
    if is_row_major or element_count == 0:
        end = offset + element_count
        content = memoryview(data_bytes)[offset * element_bytes : end * element_bytes]
    elif 0 < element_count <= _MAX_REORDERED_ELEMENTS:
        content = memoryview(_reorder_elements(data_bytes, element_bytes, shape, strides, offset))
    else:  # the layout becomes part of what is hashed
        element_type, content = f"{element_type} {strides} {offset}", memoryview(data_bytes)
    if content.nbytes < element_count * element_bytes:
        raise ValueError("it ends too early")
    header = f"array {element_type} {tuple(shape)} ".encode()
    return ValueDigest(hashlib.sha256(header + content).hexdigest(), is_weight_like=element_count > 1)


def _reorder_elements(
    data_bytes: bytes, element_bytes: int, shape: Sequence[int], strides: Sequence[int], offset: int
) -> bytes:
    """Return an array's elements in row-major order: the last index changes fastest."""
    element_indexes = [offset]
    for length, stride in zip(shape, strides, strict=True):
        element_indexes = [index + step * stride for index in element_indexes for step in range(length)]
    return b"".join(
        data_bytes[index * element_bytes : (index + 1) * element_bytes] for index in element_indexes
    )


def _effective_layout(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Return length and stride of each axis that has more or less than one element: the stride of any other
    axis has no meaning."""
    return [(length, stride) for length, stride in zip(shape, strides, strict=True) if length != 1]


def compute_element_strides(shape: Sequence[int], is_fortran_order: bool) -> list[int]:
    """Return the distance, in elements, of neighbours along each axis of an array. In Fortran's order the
    first index changes fastest; otherwise the last one does (row-major order)."""
    axis_lengths = list(shape) if is_fortran_order else list(reversed(shape))
    strides, stride = [], 1
    for length in axis_lengths:  # from the fastest axis to the slowest
        strides.append(stride)
        stride *= length
    return strides if is_fortran_order else strides[::-1]
