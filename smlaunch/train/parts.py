"""What one rank writes of a checkpoint: a tree of plain values and raw buffers, in one file without pickle.

    8 bytes     "smlpart1"
    8 bytes     length of the header, little endian
    header      JSON: the tree, with every buffer's dtype, shape, place and length
    buffers     raw, each at a multiple of 64 bytes from the start of the file

What JSON cannot say exactly is an object with the key "$": tuples, sets, bytes, nan and inf, integers beyond
64 bits, complex numbers, dicts with keys other than text. Two places that hold one object hold two equal ones
afterwards. Whose buffers these are, torch's or NumPy's, is known to the adapter that made them: a dtype here
is only a word.
"""

import base64
import json
import mmap
import os
import struct
from collections import Counter, OrderedDict
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

MAGIC = b"smlpart1"
ALIGNMENT = 64
"""Bytes: a cache line, and more than any element type asks for."""

_LENGTH = struct.Struct("<Q")
_DOUBLE = struct.Struct(">d")
_TAG = "$"
_DEEPEST = 100
_EXACT = 1 << 63
"""Integers below this are written in digits: other readers of JSON keep them too."""

BytesLike = Union[bytes, bytearray, memoryview, mmap.mmap]


class Buffer(NamedTuple):
    """A leaf of raw memory. ``data``: anything with a contiguous buffer; after ``decode`` a memoryview on the
    mapped file, private to this process and writable. ``dtype``: a word for whoever reads it back."""

    dtype: str
    shape: Tuple[int, ...]
    data: Any


class CannotKeep(TypeError):
    """Leaves of types that no part can hold; the message has a line for each, by its path in the tree."""

    def __init__(self, problems: List[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class NotAPart(ValueError):
    """The content is no part, or one of a version that this reader does not know."""


class Encoded:
    """A tree that is ready to be written. ``size``: bytes of the whole file."""

    def __init__(self, head: bytes, buffers: List[memoryview]) -> None:
        self._head = head
        self._buffers = buffers
        self.size = len(head)
        for data in buffers:
            self.size = _aligned(self.size) + data.nbytes

    def chunks(self) -> Iterator[Union[bytes, memoryview]]:
        """The file's content from its start; buffers as they lie in memory, without a copy."""
        yield self._head
        at = len(self._head)
        for data in self._buffers:
            start = _aligned(at)
            if start > at:
                yield bytes(start - at)
            yield data
            at = start + data.nbytes


def encode(tree: Any) -> Encoded:
    """Raises CannotKeep naming every leaf that is neither plain nor a Buffer.

    Plain are None, bool, int, float, complex, str, bytes, bytearray, and lists, tuples, sets, frozensets,
    dicts, OrderedDicts and Counters of plain values; their subclasses are not, since they would come back as
    something else.
    """
    writer = _Writer()
    document = writer.value(tree, "", 0)
    if writer.problems:
        raise CannotKeep(writer.problems)
    header = json.dumps(document, separators=(",", ":"), allow_nan=False).encode("ascii")
    return Encoded(MAGIC + _LENGTH.pack(len(header)) + header, writer.buffers)


def decode(content: BytesLike) -> Any:
    """The tree in a part's content; its Buffers are views on ``content``. Raises NotAPart."""
    view = memoryview(content)
    start = len(MAGIC) + _LENGTH.size
    if bytes(view[: len(MAGIC)]) != MAGIC or view.nbytes < start:
        raise NotAPart("it does not begin with {!r}".format(MAGIC.decode("ascii")))
    end = start + _LENGTH.unpack(view[len(MAGIC) : start])[0]
    try:
        document = json.loads(bytes(view[start:end]).decode("ascii"))
        return _Reader(view, end).value(document)
    except (KeyError, TypeError, ValueError) as error:
        raise NotAPart("its header cannot be read: {!r}".format(error)) from error


def mapped(path: str) -> BytesLike:
    """A file's content, read from the disk as it is used. Writing to it changes nobody else's."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return b""  # mmap refuses empty files
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


class _Writer:
    def __init__(self) -> None:
        self.buffers: List[memoryview] = []
        self.problems: List[str] = []
        self._end = 0

    def value(self, value: Any, path: str, depth: int) -> Any:
        if depth > _DEEPEST:
            self._refuse(path, "lies more than {} levels deep; does it hold itself?".format(_DEEPEST))
            return None
        kind = type(value)
        if value is None or kind in (bool, str):
            return value
        if kind is int:
            return value if -_EXACT <= value < _EXACT else {_TAG: "int", "v": hex(value)}
        if kind is float:
            finite = value - value == 0.0
            return value if finite else {_TAG: "float", "v": _DOUBLE.pack(value).hex()}
        if kind is Buffer:
            return self._buffer(value, path)
        write = _WRITERS.get(kind)
        if write is None:
            self._refuse(path, _why_not(value))
            return None
        return write(self, value, path, depth + 1)

    def items(self, values: Any, path: str, depth: int) -> List[Any]:
        return [self.value(item, "{}[{}]".format(path, place), depth) for place, item in enumerate(values)]

    def pairs(self, value: Dict[Any, Any], path: str, depth: int) -> List[Any]:
        return [
            [
                self.value(key, "{}, key {!r}".format(path or "the tree", key), depth),
                self.value(item, _below(path, key), depth),
            ]
            for key, item in value.items()
        ]

    def mapping(self, value: Dict[Any, Any], path: str, depth: int) -> Any:
        if all(type(key) is str for key in value) and _TAG not in value:
            return {key: self.value(item, _below(path, key), depth) for key, item in value.items()}
        return {_TAG: "dict", "v": self.pairs(value, path, depth)}

    def _buffer(self, buffer: Buffer, path: str) -> Any:
        view = memoryview(buffer.data)
        if not view.contiguous:
            self._refuse(path, "its buffer is not contiguous; hand in a copy that is")
            return None
        # A view with a zero in its shape has no cast.
        data = view.cast("B") if view.nbytes else memoryview(b"")
        at = _aligned(self._end)
        self._end = at + data.nbytes
        self.buffers.append(data)
        shape = [int(length) for length in buffer.shape]
        return {_TAG: "buffer", "dtype": buffer.dtype, "shape": shape, "at": at, "size": data.nbytes}

    def _refuse(self, path: str, why: str) -> None:
        self.problems.append("{}: {}".format(path or "the tree", why))


class _Reader:
    def __init__(self, view: memoryview, header_end: int) -> None:
        self._view = view
        self._start = header_end

    def value(self, value: Any) -> Any:
        if isinstance(value, list):
            return self.items(value)
        if not isinstance(value, dict):
            return value
        tag = value.get(_TAG)
        if tag is None:
            return {key: self.value(item) for key, item in value.items()}
        if tag == "buffer":
            return self._buffer(value)
        return _READERS[tag](self, value["v"])

    def items(self, values: List[Any]) -> List[Any]:
        return [self.value(item) for item in values]

    def pairs(self, values: List[Any]) -> List[Tuple[Any, Any]]:
        return [(self.value(key), self.value(item)) for key, item in values]

    def _buffer(self, place: Dict[str, Any]) -> Buffer:
        at = _aligned(self._start) + place["at"]
        data = self._view[at : at + place["size"]]
        if data.nbytes != place["size"]:
            raise ValueError("a buffer ends beyond the file")
        return Buffer(place["dtype"], tuple(place["shape"]), data)


def _tagged(tag: str, write: Callable[[Any], Any]) -> Callable[[_Writer, Any, str, int], Any]:
    return lambda writer, value, path, depth: {_TAG: tag, "v": write(value)}


def _collection(tag: str) -> Callable[[_Writer, Any, str, int], Any]:
    return lambda writer, value, path, depth: {_TAG: tag, "v": writer.items(value, path, depth)}


def _unordered(tag: str) -> Callable[[_Writer, Any, str, int], Any]:
    """Sorted by how the items are written: the same set gives the same bytes in every process."""
    return lambda writer, value, path, depth: {
        _TAG: tag,
        "v": sorted(writer.items(value, path, depth), key=json.dumps),
    }


def _pairs(tag: str) -> Callable[[_Writer, Any, str, int], Any]:
    return lambda writer, value, path, depth: {_TAG: tag, "v": writer.pairs(value, path, depth)}


def _text(data: Any) -> str:
    return base64.b64encode(data).decode("ascii")


def _double(digits: str) -> float:
    number: float = _DOUBLE.unpack(bytes.fromhex(digits))[0]
    return number


_WRITERS: Dict[type, Callable[[_Writer, Any, str, int], Any]] = {
    list: lambda writer, value, path, depth: writer.items(value, path, depth),
    dict: lambda writer, value, path, depth: writer.mapping(value, path, depth),
    tuple: _collection("tuple"),
    set: _unordered("set"),
    frozenset: _unordered("frozenset"),
    OrderedDict: _pairs("ordered"),
    Counter: _pairs("counter"),
    bytes: _tagged("bytes", _text),
    bytearray: _tagged("bytearray", _text),
    complex: _tagged("complex", lambda v: [_DOUBLE.pack(v.real).hex(), _DOUBLE.pack(v.imag).hex()]),
}

_READERS: Dict[str, Callable[[_Reader, Any], Any]] = {
    "int": lambda reader, value: int(value, 16),
    "float": lambda reader, value: _double(value),
    "complex": lambda reader, value: complex(_double(value[0]), _double(value[1])),
    "bytes": lambda reader, value: base64.b64decode(value),
    "bytearray": lambda reader, value: bytearray(base64.b64decode(value)),
    "tuple": lambda reader, value: tuple(reader.items(value)),
    "set": lambda reader, value: set(reader.items(value)),
    "frozenset": lambda reader, value: frozenset(reader.items(value)),
    "dict": lambda reader, value: dict(reader.pairs(value)),
    "ordered": lambda reader, value: OrderedDict(reader.pairs(value)),
    "counter": lambda reader, value: Counter(dict(reader.pairs(value))),
}


def _why_not(value: Any) -> str:
    kind = type(value)
    name = "{}.{}".format(kind.__module__, kind.__qualname__)
    base: Optional[type] = next((plain for plain in kind.__mro__[1:] if plain in _PLAIN), None)
    if base is not None:
        return "a {} cannot be kept: it would come back as a plain {}; hand in {}(...) of it".format(
            name, base.__name__, base.__name__
        )
    return "a {} cannot be kept; hand in plain values, or what its state_dict() gives".format(name)


_PLAIN = (bool, int, float, str, *_WRITERS)


def _below(path: str, key: Any) -> str:
    if type(key) is str and key.isidentifier():
        return path + "." + key if path else key
    return "{}[{!r}]".format(path, key)


def _aligned(at: int) -> int:
    return -(-at // ALIGNMENT) * ALIGNMENT
