"""The part file returns what was written, type for type and bit for bit, or refuses it with its path."""

from __future__ import annotations

import math
import random
import struct
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smlaunch.train.tree_format import (
    ALIGNMENT,
    Buffer,
    InvalidTreeError,
    UnstorableValueError,
    decode_tree,
    encode_tree,
    map_file,
)

_KEYS = st.one_of(st.text(), st.integers(), st.booleans(), st.none(), st.binary(), st.tuples(st.integers()))
_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=1 << 62, max_value=1 << 80).map(lambda number: -number),
    st.floats(),
    st.complex_numbers(),
    st.text(st.characters()),
    st.binary(),
    st.binary().map(bytearray),
    st.sets(st.integers()),
    st.frozensets(st.text()),
    st.builds(lambda data: Buffer("uint8", (len(data),), data), st.binary(max_size=200)),
)
_TREES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(_KEYS, inner),
        st.dictionaries(st.text(), inner).map(OrderedDict),
        st.dictionaries(st.text(), st.integers()).map(Counter),
    ),
    max_leaves=20,
)


def encode_to_bytes(tree: Any) -> bytes:
    encoded = encode_tree(tree)
    content = b"".join(encoded.chunks())
    assert len(content) == encoded.size_bytes
    return content


def is_same_tree(left: Any, right: Any) -> bool:
    """Compares type, order and bits: nan is nan, 0.0 is not -0.0, 1 is not True."""
    if isinstance(left, Buffer) and isinstance(right, Buffer):
        return left[:2] == right[:2] and bytes(left.data) == bytes(right.data)
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return len(left) == len(right) and all(
            is_same_tree(*pair) for pair in zip(left.items(), right.items(), strict=True)
        )
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(is_same_tree(*pair) for pair in zip(left, right, strict=True))
    if isinstance(left, float):
        return struct.pack(">d", left) == struct.pack(">d", right)
    if isinstance(left, complex):
        return is_same_tree(left.real, right.real) and is_same_tree(left.imag, right.imag)
    return bool(left == right)


@given(_TREES)
def test_a_tree_comes_back_as_it_was(tree: Any) -> None:
    content = encode_to_bytes(tree)
    assert is_same_tree(tree, decode_tree(content))
    assert encode_to_bytes(decode_tree(content)) == content, "what was read gives the same file again"


def test_the_state_of_pythons_generator_comes_back(tmp_path: Path) -> None:
    generator = random.Random(3)
    generator.gauss(0, 1)
    path = tmp_path / "state"
    path.write_bytes(encode_to_bytes({"python": generator.getstate()}))
    other = random.Random()
    other.setstate(decode_tree(map_file(str(path)))["python"])
    assert [other.random() for _ in range(700)] == [generator.random() for _ in range(700)]


def test_buffers_are_aligned_mapped_and_private(tmp_path: Path) -> None:
    data = [bytes([1 + number % 200]) * number for number in (1, 63, 64, 65, 0, 4096)]
    path = tmp_path / "part"
    path.write_bytes(encode_to_bytes([Buffer("any", (len(part),), part) for part in data]))
    content = path.read_bytes()
    buffers = decode_tree(map_file(str(path)))
    assert [bytes(buffer.data) for buffer in buffers] == data
    for part in data[1:4]:
        assert content.index(part) % ALIGNMENT == 0
    buffers[1].data[0] = 255
    assert path.read_bytes() == content


def test_one_set_gives_one_content_whatever_its_order() -> None:
    strings = [f"word {number}" for number in range(100)]
    assert encode_to_bytes(set(strings)) == encode_to_bytes({*strings[50:], *strings[:50]})


class Colour(IntEnum):
    RED = 1


class Pair(NamedTuple):
    left: int
    right: int


@pytest.mark.parametrize(
    ("tree", "path", "cause"),
    [
        (
            {"scheduler": {"foo": [1, 2, 3, object()]}},
            "scheduler.foo[3]",
            "a builtins.object cannot be saved",
        ),
        (
            {"a b": {5: Colour.RED}},
            "['a b'][5]",
            "it would be read back as a plain int; convert it with int(...)",
        ),
        (Pair(1, 2), "the tree", "it would be read back as a plain tuple"),
        ({"x": defaultdict(list)}, "x", "it would be read back as a plain dict"),
        ({"f": math.sin}, "f", "cannot be saved; pass plain values"),
        ({object: 1}, "the tree, key <class 'object'>", "a builtins.type cannot be saved"),
        ({"b": Buffer("any", (4,), memoryview(b"12345678")[::2])}, "b", "its buffer is not contiguous"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_its_path(tree: Any, path: str, cause: str) -> None:
    with pytest.raises(UnstorableValueError) as caught:
        encode_tree({"fine": 1, **tree} if isinstance(tree, dict) else tree)
    (problem,) = caught.value.problems
    assert problem.startswith(path + ": ") and cause in problem


def test_everything_that_cannot_be_kept_is_named_at_once() -> None:
    with pytest.raises(UnstorableValueError) as caught:
        encode_tree({"a": object(), "b": [object()], "c": 1})
    assert [problem.partition(":")[0] for problem in caught.value.problems] == ["a", "b[0]"]


def test_a_tree_that_holds_itself_is_refused() -> None:
    tree: list[Any] = []
    tree.append(tree)
    with pytest.raises(UnstorableValueError, match="does it contain itself"):
        encode_tree(tree)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: b"",
        lambda content: content[:10],
        lambda content: content[:40],
        lambda content: content[:-1],
        lambda content: b"smlshred" + content[8:],
        lambda content: content.replace(b'"buffer"', b'"wonder"'),
    ],
)
def test_another_file_is_no_part(spoil: Callable[[bytes], bytes]) -> None:
    with pytest.raises(InvalidTreeError):
        decode_tree(spoil(encode_to_bytes({"a": Buffer("any", (3,), b"abc")})))
