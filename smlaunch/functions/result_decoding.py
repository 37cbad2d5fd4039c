"""Rebuilds results and exceptions of a function's run from bytes whose hash has been compared."""

from __future__ import annotations

import base64
import io
import json
import math
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

from smlaunch.functions.host_program import (
    ARRAYS,
    CALL_FORMAT,
    JSON,
    MAX_HEADER_BYTES,
    VALUE_MEMBER,
    array_member,
)
from smlaunch.functions.script_pickling import ScriptUnpickler


class ResultError(ValueError):
    """The bytes are no result, or cannot be rebuilt here. The message is a clause."""


def decode_result(result_format: str, content: bytes) -> Any:
    """Return the value of ``host_program.encode_result``. Only the format ``pickle`` can run code. Raises
    ResultError."""
    if result_format == JSON:
        return decode_value(_load_json(content), [])
    if result_format == ARRAYS:
        return _decode_arrays(content)
    return load_pickle(content)


def _load_json(content: bytes) -> Any:
    try:
        return json.loads(content.decode("ascii"), parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise ResultError(f"it is not the JSON that was announced: {error}") from None


def _reject_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _decode_arrays(content: bytes) -> Any:
    try:
        import numpy
    except ImportError:
        raise ResultError("it holds arrays, and NumPy is not installed here") from None
    arrays = []
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            document = _load_json(archive.read(VALUE_MEMBER))
            for index in range(len(archive.namelist()) - 1):
                with archive.open(array_member(index)) as member:
                    arrays.append(numpy.lib.format.read_array(member, allow_pickle=False))
    except (zipfile.BadZipFile, KeyError, ValueError, OSError, EOFError, NotImplementedError) as error:
        raise ResultError(f"its arrays cannot be read: {error}") from None
    return decode_value(document, arrays)


def decode_value(document: Any, arrays: list[Any]) -> Any:
    """Return the value that ``host_program.encode_value`` has written. Raises ResultError."""
    try:
        return _decode_item(document, arrays)
    except (KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
        raise ResultError(f"it is no result of smlaunch: {type(error).__name__}: {error}") from None


def _decode_item(item: Any, arrays: list[Any]) -> Any:
    if isinstance(item, list):
        return [_decode_item(part, arrays) for part in item]
    if not isinstance(item, dict):
        return item
    ((kind, content),) = item.items()
    return _DECODERS[kind](content, arrays)


def _decode_float(text: str, _: list[Any]) -> float:
    value = float(text)
    if math.isfinite(value):
        raise ValueError(f"{text} is a number of JSON")
    return value


_DECODERS: dict[str, Callable[[Any, list[Any]], Any]] = {
    "tuple": lambda items, arrays: tuple(_decode_item(item, arrays) for item in items),
    "dict": lambda pairs, arrays: {
        _decode_item(key, arrays): _decode_item(value, arrays) for key, value in pairs
    },
    "int": lambda text, _: int(text, 16),
    "float": _decode_float,
    "complex": lambda parts, arrays: complex(*(_decode_item(part, arrays) for part in parts)),
    "bytes": lambda text, _: base64.b64decode(text, validate=True),
    "array": lambda index, arrays: arrays[index],
    "scalar": lambda index, arrays: arrays[index][()],
}


class RemoteException(NamedTuple):
    """An exception of a rank."""

    type_name: str
    message: str
    traceback: str
    exception: Exception | None
    """The exception itself; None if it cannot be rebuilt here."""
    problem: str
    """Why it cannot be; empty otherwise."""


def decode_exception(content: bytes) -> RemoteException:
    """Return what ``host_program.encode_error`` has written. Raises ResultError for other bytes."""
    header_line, _, pickled = content.partition(b"\n")
    if len(header_line) > MAX_HEADER_BYTES:
        raise ResultError("its first line is too long")
    header = _load_json(header_line)
    try:
        type_name, message, traceback = (str(header[key]) for key in ("type", "message", "traceback"))
        has_pickle, header_format = bool(header["has_pickle"]), str(header["format"])
        problem = str(header["problem"])
    except (KeyError, TypeError) as error:
        raise ResultError(f"it is no exception of a rank: {error}") from None
    if header_format.partition(".")[0] != CALL_FORMAT.partition(".")[0]:
        raise ResultError(f"it has format {header_format}; this release reads {CALL_FORMAT}")
    if not has_pickle:
        return RemoteException(type_name, message, traceback, None, problem)
    try:
        exception = load_pickle(pickled)
    except ResultError as error:
        return RemoteException(type_name, message, traceback, None, str(error))
    if not isinstance(exception, Exception):
        return RemoteException(type_name, message, traceback, None, "its pickle holds no exception")
    return RemoteException(type_name, message, traceback, exception, "")


def load_pickle(content: bytes) -> Any:
    """Return the unpickled object. Raises ResultError for one that cannot be rebuilt here."""
    try:
        return ScriptUnpickler(io.BytesIO(content), finds_by_name=True).load()
    except Exception as error:  # whatever the objects' own methods raise
        raise ResultError(f"it cannot be rebuilt here: {type(error).__name__}: {error}") from error
