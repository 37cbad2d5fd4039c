"""The file format of a checkpoint shard: a tree of plain values and raw buffers, without pickle.

    8 bytes     "smlshrd1"
    8 bytes     length of the header, little endian
    header      JSON: the tree, with every buffer's dtype, shape, offset and length
    buffers     raw, each at a multiple of 64 bytes from the start of the file

Values that JSON cannot express exactly are objects with the key "$": tuples, sets, bytes, nan and inf,
integers beyond 64 bits, complex numbers, dicts with keys other than text. An object that occurs twice is read
back as two equal objects. The adapter that created a buffer interprets its dtype; here it is only text.
"""

import base64
import json
import mmap
import os
import struct
from collections import Counter, OrderedDict
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

from smlaunch.contract import formats

MAGIC = b"smlshrd" + str(formats.SHARD_FILE.major).encode("ascii")
ALIGNMENT = 64
"""A cache line, and more than any element type requires."""

_HEADER_LENGTH_STRUCT = struct.Struct("<Q")
_DOUBLE_STRUCT = struct.Struct(">d")
_TYPE_TAG_KEY = "$"
_MAX_DEPTH = 100
_INT64_LIMIT = 1 << 63
"""Integers below this are written as JSON numbers, which other JSON readers keep exactly too."""

BytesLike = Union[bytes, bytearray, memoryview, mmap.mmap]


class Buffer(NamedTuple):
    """A leaf of raw memory."""

    dtype: str
    """Interpreted by the code that reads the buffer back."""
    shape: Tuple[int, ...]
    data: Any
    """Any object with a contiguous buffer; after ``decode`` a memoryview on the mapped file, private to this
    process and writable."""


class UnstorableValueError(TypeError):
    """Leaves of types that the format cannot hold; the message has a line for each, by its path in
    the tree."""

    def __init__(self, problems: List[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class InvalidTreeError(ValueError):
    """The content is not a tree file, or one of an unknown version."""


class EncodedTree:
    """A tree that is ready to be written. ``size_bytes``: size of the whole file."""

    def __init__(self, header: bytes, buffers: List[memoryview]) -> None:
        self._header = header
        self._buffers = buffers
        self.size_bytes = len(header)
        for buffer in buffers:
            self.size_bytes = _aligned(self.size_bytes) + buffer.nbytes

    def chunks(self) -> Iterator[Union[bytes, memoryview]]:
        """Yield the file's content from its start; buffers without a copy."""
        yield self._header
        position = len(self._header)
        for data in self._buffers:
            start = _aligned(position)
            if start > position:
                yield bytes(start - position)
            yield data
            position = start + data.nbytes


def encode_tree(tree: Any) -> EncodedTree:
    """Encode a tree. Raises UnstorableValueError naming every leaf that is neither plain nor a Buffer.

    Plain are None, bool, int, float, complex, str, bytes, bytearray, and lists, tuples, sets, frozensets,
    dicts, OrderedDicts and Counters of plain values. Their subclasses are not, since they would be read back
    as the base class.
    """
    encoder = _TreeEncoder()
    document = encoder.encode_value(tree, "", 0)
    if encoder.problems:
        raise UnstorableValueError(encoder.problems)
    header = json.dumps(document, separators=(",", ":"), allow_nan=False).encode("ascii")
    return EncodedTree(MAGIC + _HEADER_LENGTH_STRUCT.pack(len(header)) + header, encoder.buffers)


def decode_tree(content: BytesLike) -> Any:
    """Return the tree that a file's content holds: magic number, length of the header, header (the tree as
    JSON), buffers. The tree's Buffers are views on ``content``. Raises InvalidTreeError, and FormatError for
    a newer version of the format."""
    view = memoryview(content)
    header_start = len(MAGIC) + _HEADER_LENGTH_STRUCT.size  # the length has 8 bytes
    magic = bytes(view[: len(MAGIC)])
    # The last byte of the magic number is the format's major version: a newer one raises FormatError, which
    # tells it from another kind of file.
    if magic[:-1] == MAGIC[:-1] and magic[-1:].isdigit():
        formats.SHARD_FILE.check_version(magic[-1:].decode("ascii") + ".0", "checkpoint")
    if magic != MAGIC or view.nbytes < header_start:
        raise InvalidTreeError("it does not begin with {!r}".format(MAGIC.decode("ascii")))
    (header_bytes,) = _HEADER_LENGTH_STRUCT.unpack(view[len(MAGIC) : header_start])
    header_end = header_start + header_bytes
    try:
        document = json.loads(bytes(view[header_start:header_end]).decode("ascii"))
        return _TreeDecoder(view, header_end).decode_value(document)  # the buffers begin at the header's end
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidTreeError("its header cannot be read: {!r}".format(error)) from error


def map_file(path: str) -> BytesLike:
    """Return a file's content, read from the disk as it is used. Writing to it does not change the file."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return b""  # mmap refuses empty files
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


class _TreeEncoder:
    def __init__(self) -> None:
        self.buffers: List[memoryview] = []
        self.problems: List[str] = []
        self._buffers_end = 0

    def encode_value(self, value: Any, path: str, depth: int) -> Any:
        """Return the JSON value for one node of the tree. Types that JSON does not have become objects with
        the type's tag, ``{"$": "int", "v": ...}``; a Buffer (raw bytes) becomes a reference to its place in
        the file; values that cannot be stored are collected as problems. ``path``: of the node, for messages;
        ``depth``: levels below the root."""
        if depth > _MAX_DEPTH:
            self._add_problem(
                path, "is nested more than {} levels deep; does it contain itself?".format(_MAX_DEPTH)
            )
            return None
        value_type = type(value)
        if value is None or value_type in (bool, str):
            return value
        if value_type is int:  # larger integers are lost in some JSON readers
            return value if -_INT64_LIMIT <= value < _INT64_LIMIT else {_TYPE_TAG_KEY: "int", "v": hex(value)}
        if value_type is float:
            # JSON has no nan and infinities; for these the difference is nan.
            is_finite = value - value == 0.0
            return value if is_finite else {_TYPE_TAG_KEY: "float", "v": _DOUBLE_STRUCT.pack(value).hex()}
        if value_type is Buffer:
            return self._encode_buffer(value, path)
        # A method for each type of lists, dicts and the like, whose items are encoded by this function again;
        # and for bytes, complex.
        encode_container = _ENCODER_BY_TYPE.get(value_type)
        if encode_container is None:
            self._add_problem(path, _describe_type_problem(value))
            return None
        return encode_container(self, value, path, depth + 1)

    def encode_items(self, values: Any, path: str, depth: int) -> List[Any]:
        return [
            self.encode_value(item, "{}[{}]".format(path, index), depth) for index, item in enumerate(values)
        ]

    def encode_pairs(self, value: Dict[Any, Any], path: str, depth: int) -> List[Any]:
        return [
            [
                self.encode_value(key, "{}, key {!r}".format(path or "the tree", key), depth),
                self.encode_value(item, _child_path(path, key), depth),
            ]
            for key, item in value.items()
        ]

    def encode_mapping(self, value: Dict[Any, Any], path: str, depth: int) -> Any:
        """Return a JSON object, or a list of pairs if a key is not text or is the tag."""
        if all(type(key) is str for key in value) and _TYPE_TAG_KEY not in value:
            return {
                key: self.encode_value(item, _child_path(path, key), depth) for key, item in value.items()
            }
        return {_TYPE_TAG_KEY: "dict", "v": self.encode_pairs(value, path, depth)}

    def _encode_buffer(self, buffer: Buffer, path: str) -> Any:
        """Reserve the buffer's place in the file and return its description."""
        view = memoryview(buffer.data)
        if not view.contiguous:
            self._add_problem(path, "its buffer is not contiguous; pass a contiguous copy")
            return None
        # A view with a zero in its shape has no cast.
        data = view.cast("B") if view.nbytes else memoryview(b"")
        offset = _aligned(self._buffers_end)
        self._buffers_end = offset + data.nbytes
        self.buffers.append(data)
        shape = [int(length) for length in buffer.shape]
        return {
            _TYPE_TAG_KEY: "buffer",
            "dtype": buffer.dtype,
            "shape": shape,
            "at": offset,
            "size": data.nbytes,
        }

    def _add_problem(self, path: str, problem: str) -> None:
        self.problems.append("{}: {}".format(path or "the tree", problem))


class _TreeDecoder:
    def __init__(self, view: memoryview, header_end: int) -> None:
        self._view = view
        self._header_end = header_end

    def decode_value(self, value: Any) -> Any:
        """Return the tree that one JSON value of the file's header stands for; an object with a type tag,
        ``{"$": "int", "v": ...}``, is a value of a type that JSON does not have."""
        if isinstance(value, list):
            return self.decode_items(value)
        if not isinstance(value, dict):
            return value
        tag = value.get(_TYPE_TAG_KEY)
        if tag is None:
            return {key: self.decode_value(item) for key, item in value.items()}
        if tag == "buffer":
            return self._decode_buffer(value)
        # The tag names a type, whose method decodes the member "v"; KeyError for an unknown tag.
        return _DECODER_BY_TAG[tag](self, value["v"])

    def decode_items(self, values: List[Any]) -> List[Any]:
        return [self.decode_value(item) for item in values]

    def decode_pairs(self, values: List[Any]) -> List[Tuple[Any, Any]]:
        return [(self.decode_value(key), self.decode_value(item)) for key, item in values]

    def _decode_buffer(self, description: Dict[str, Any]) -> Buffer:
        offset = _aligned(self._header_end) + description["at"]
        data = self._view[offset : offset + description["size"]]
        if data.nbytes != description["size"]:
            raise ValueError("a buffer ends beyond the file")
        return Buffer(description["dtype"], tuple(description["shape"]), data)


def _tagged_encoder(
    tag: str, encode_leaf: Callable[[Any], Any]
) -> Callable[[_TreeEncoder, Any, str, int], Any]:
    return lambda writer, value, path, depth: {_TYPE_TAG_KEY: tag, "v": encode_leaf(value)}


def _collection_encoder(tag: str) -> Callable[[_TreeEncoder, Any, str, int], Any]:
    return lambda writer, value, path, depth: {
        _TYPE_TAG_KEY: tag,
        "v": writer.encode_items(value, path, depth),
    }


def _set_encoder(tag: str) -> Callable[[_TreeEncoder, Any, str, int], Any]:
    """Items are sorted by their encoding, so that equal sets give equal bytes in every process."""
    return lambda writer, value, path, depth: {
        _TYPE_TAG_KEY: tag,
        "v": sorted(writer.encode_items(value, path, depth), key=json.dumps),
    }


def _pairs_encoder(tag: str) -> Callable[[_TreeEncoder, Any, str, int], Any]:
    return lambda writer, value, path, depth: {
        _TYPE_TAG_KEY: tag,
        "v": writer.encode_pairs(value, path, depth),
    }


def _base64_text(data: Any) -> str:
    return base64.b64encode(data).decode("ascii")


def _parse_double(digits: str) -> float:
    number: float = _DOUBLE_STRUCT.unpack(bytes.fromhex(digits))[0]
    return number


_ENCODER_BY_TYPE: Dict[type, Callable[[_TreeEncoder, Any, str, int], Any]] = {
    list: lambda writer, value, path, depth: writer.encode_items(value, path, depth),
    dict: lambda writer, value, path, depth: writer.encode_mapping(value, path, depth),
    tuple: _collection_encoder("tuple"),
    set: _set_encoder("set"),
    frozenset: _set_encoder("frozenset"),
    OrderedDict: _pairs_encoder("ordered"),
    Counter: _pairs_encoder("counter"),
    bytes: _tagged_encoder("bytes", _base64_text),
    bytearray: _tagged_encoder("bytearray", _base64_text),
    complex: _tagged_encoder(
        "complex", lambda v: [_DOUBLE_STRUCT.pack(v.real).hex(), _DOUBLE_STRUCT.pack(v.imag).hex()]
    ),
}

_DECODER_BY_TAG: Dict[str, Callable[[_TreeDecoder, Any], Any]] = {
    "int": lambda reader, value: int(value, 16),
    "float": lambda reader, value: _parse_double(value),
    "complex": lambda reader, value: complex(_parse_double(value[0]), _parse_double(value[1])),
    "bytes": lambda reader, value: base64.b64decode(value),
    "bytearray": lambda reader, value: bytearray(base64.b64decode(value)),
    "tuple": lambda reader, value: tuple(reader.decode_items(value)),
    "set": lambda reader, value: set(reader.decode_items(value)),
    "frozenset": lambda reader, value: frozenset(reader.decode_items(value)),
    "dict": lambda reader, value: dict(reader.decode_pairs(value)),
    "ordered": lambda reader, value: OrderedDict(reader.decode_pairs(value)),
    "counter": lambda reader, value: Counter(dict(reader.decode_pairs(value))),
}


def _describe_type_problem(value: Any) -> str:
    value_type = type(value)
    name = "{}.{}".format(value_type.__module__, value_type.__qualname__)
    plain_base: Optional[type] = next(
        (plain for plain in value_type.__mro__[1:] if plain in _PLAIN_TYPES), None
    )
    if plain_base is not None:
        return "a {} cannot be saved: it would be read back as a plain {}; convert it with {}(...)".format(
            name, plain_base.__name__, plain_base.__name__
        )
    return "a {} cannot be saved; pass plain values, or its state_dict()".format(name)


_PLAIN_TYPES = (bool, int, float, str, *_ENCODER_BY_TYPE)


def _child_path(path: str, key: Any) -> str:
    """Return the path of a dict's value, for messages."""
    if type(key) is str and key.isidentifier():
        return path + "." + key if path else key
    return "{}[{!r}]".format(path, key)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
