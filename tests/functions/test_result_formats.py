"""Results and exceptions there and back: what is data travels as data, and hostile bytes run nothing."""

from __future__ import annotations

import json
import math
import pickle
import zipfile
from collections import OrderedDict
from io import BytesIO
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st

from smlaunch.functions import host_program
from smlaunch.functions.host_program import ARRAYS, JSON, PICKLE, encode_error, encode_result
from smlaunch.functions.result_decoding import ResultError, decode_exception, decode_result
from tests.tables import table

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.binary()
    | st.text(st.characters())
)
DATA = st.recursive(
    SCALARS,
    lambda items: (
        st.lists(items)
        | st.lists(items).map(tuple)
        | st.dictionaries(st.none() | st.booleans() | st.integers() | st.text() | st.binary(), items)
    ),
    max_leaves=20,
)
DTYPES = np_st.scalar_dtypes() | np_st.byte_string_dtypes() | np_st.unicode_string_dtypes()


def same(left: Any, right: Any) -> bool:
    """Whether both are the same, also in the types of their parts, signs of zero and NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return repr(left) == repr(right)
    if isinstance(left, complex):
        return same(left.real, right.real) and same(left.imag, right.imag)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same(list(left), list(right)) and all(map(same, left.values(), right.values()))
    if isinstance(left, (numpy.ndarray, numpy.generic)):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    return bool(left == right)


@settings(max_examples=60)
@given(DATA)
def test_data_comes_back_as_it_was_and_never_as_a_pickle(value: Any) -> None:
    result_format, content = encode_result(value)
    assert result_format == JSON
    json.loads(content, parse_constant=lambda name: pytest.fail(name))  # JSON as every parser reads it
    assert same(decode_result(result_format, content), value)


@settings(max_examples=60)
@given(np_st.arrays(DTYPES, np_st.array_shapes(min_dims=0, min_side=0)), SCALARS)
def test_arrays_come_back_as_they_were_and_never_as_a_pickle(array: Any, scalar: Any) -> None:
    value = {"loss": scalar, "weights": (array, [array[()] if array.ndim == 0 else array.copy()])}
    result_format, content = encode_result(value)
    assert result_format == ARRAYS
    assert same(decode_result(result_format, content), value)


class Point:
    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and other.x == self.x

    __hash__ = None  # type: ignore[assignment]


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@table(
    "value",
    [
        Point(1),
        {"point": Point(1)},
        {1, 2},
        OrderedDict(a=1),
        numpy.array([{}], dtype=object),
        numpy.ma.masked_array([1, 2], [0, 1]),
        numpy.zeros(2, dtype=[("x", "i4")]),
        nested(200),
        range(3),
        bytearray(b"x"),
    ],
)
def test_other_objects_come_back_by_pickle(value: Any) -> None:
    result_format, content = encode_result(value)
    assert result_format == PICKLE
    decoded = decode_result(result_format, content)
    assert type(decoded) is type(value)
    assert repr(decoded) == repr(value) or decoded == value


def test_a_value_that_holds_itself_or_another_one_twice_comes_back_so() -> None:
    loop: list[Any] = []
    loop.append(loop)
    decoded = decode_result(*encode_result(loop))
    assert decoded[0] is decoded
    item: list[Any] = [1]
    left, right = decode_result(*encode_result([item, item]))
    assert left is right
    array = numpy.arange(3)
    left, right = decode_result(*encode_result((array, array)))
    assert left is right


HOSTILE_PICKLE = pickle.dumps(print)  # a name of a function: harmless here, anything elsewhere


def zip_of(**members: bytes) -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name.replace("_", "."), content)
    return buffer.getvalue()


def pickled_array() -> bytes:
    buffer = BytesIO()
    numpy.save(buffer, numpy.array([print], dtype=object), allow_pickle=True)
    return buffer.getvalue()


@table(
    ("result_format", "content"),
    [
        (JSON, HOSTILE_PICKLE),
        (JSON, b""),
        (JSON, b"NaN"),
        (JSON, b"[" * 100_000),
        (JSON, b'{"tuple": [1], "list": []}'),
        (JSON, b'{"eval": "1"}'),
        (JSON, b'{"array": 0}'),
        (JSON, b'{"float": "1.5"}'),
        (JSON, b'{"dict": [[[1], 2]]}'),
        (JSON, b'{"dict": [[1]]}'),
        (JSON, b'{"bytes": "%"}'),
        (JSON, b"{}"),
        (ARRAYS, HOSTILE_PICKLE),
        (ARRAYS, zip_of(value_json=b'{"array": 0}', **{"0_npy": pickled_array()})),
        (ARRAYS, zip_of(value_json=b'{"array": 0}', **{"0_npy": HOSTILE_PICKLE})),
        (ARRAYS, zip_of(value_json=b'{"array": 1}')),
        (ARRAYS, zip_of(other_json=b"1")),
        (PICKLE, b""),
        (PICKLE, b"not a pickle"),
    ],
)
def test_bytes_of_another_format_are_refused(result_format: str, content: bytes) -> None:
    with pytest.raises(ResultError):
        decode_result(result_format, content)


@given(st.sampled_from([JSON, ARRAYS]), st.binary())
def test_any_bytes_are_a_result_or_refused(result_format: str, content: bytes) -> None:
    try:
        decode_result(result_format, content)
    except ResultError:
        return


class Unpicklable(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


class RaisesInText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@table(
    "error",
    [ValueError("x", 3), KeyError("missing"), OSError(2, "No such file", "a.txt"), RuntimeError()],
)
def test_an_exception_comes_back_as_itself(error: Exception) -> None:
    decoded = decode_exception(encode_error(error, "Traceback ...\nlast"))
    assert type(decoded.exception) is type(error)
    assert decoded.exception.args == error.args
    assert str(decoded.exception) == str(error)
    assert (decoded.traceback, decoded.problem) == ("Traceback ...\nlast", "")


@table(
    ("error", "message"),
    [
        (Unpicklable(1, 2), "1 and 2"),
        (SystemExit(3), "3"),
        (KeyboardInterrupt(), ""),
        (RaisesInText(), "(its text raises RuntimeError)"),
        (ValueError("\ud800" * 30_000), "\ud800" * 20_000),
    ],
)
def test_of_another_exception_comes_what_is_known(error: BaseException, message: str) -> None:
    content = encode_error(error, "trace" * 100_000)
    decoded = decode_exception(content)
    assert decoded.message == message
    assert decoded.type_name.endswith(type(error).__name__)
    assert decoded.traceback.endswith("trace")
    assert len(content.partition(b"\n")[0]) <= host_program.MAX_HEADER_BYTES


def header(**values: Any) -> bytes:
    known = {
        "type": "builtins.ValueError",
        "message": "m",
        "traceback": "t",
        "has_pickle": True,
        "problem": "it is what it is",
    }
    return json.dumps({"format": "1.9", **known, **values}).encode() + b"\n"


@table(
    ("content", "problem"),
    [
        (header() + b"junk", "cannot be rebuilt here"),
        (header() + pickle.dumps("text"), "holds no exception"),
        (header() + pickle.dumps(SystemExit(1)), "holds no exception"),
        (header(has_pickle=False) + HOSTILE_PICKLE, "it is what it is"),
    ],
)
def test_a_hostile_exception_is_named_and_not_raised(content: bytes, problem: str) -> None:
    decoded = decode_exception(content)
    assert decoded.exception is None
    assert problem in decoded.problem


@table(
    "content",
    [
        header(format="2.0"),
        b"",
        b"\n",
        b"[]\n",
        b"{}\n",
        b"x" * (host_program.MAX_HEADER_BYTES + 1),
        HOSTILE_PICKLE,
    ],
)
def test_other_bytes_are_no_exception(content: bytes) -> None:
    with pytest.raises(ResultError):
        decode_exception(content)


def test_math_and_numpy_scalars_keep_their_types() -> None:
    value = [numpy.float32(1.5), numpy.int64(3), numpy.bool_(True), numpy.datetime64("2026-01-01"), math.inf]
    decoded = decode_result(*encode_result(value))
    assert [type(item) for item in decoded] == [type(item) for item in value]
    assert decoded == value


def test_a_result_that_is_nested_deeper_than_pythons_recursion() -> None:
    encoded = encode_result(nested(1000))
    value, depth = decode_result(encoded.format, encoded.content), 0
    while value:
        (value,), depth = value, depth + 1
    assert depth == 1000
