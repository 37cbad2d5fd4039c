"""Digests of a file's values, so that files are compared by value and not by their bytes: archives contain
times, and the same tensors can be pickled in many ways.

Nothing is executed. Supported: NumPy's .npy and .npz, PyTorch's and other pickles, safetensors, JSON, text,
and zip, tar and gzip around them. Any other or unreadable file is one value: its bytes.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import io
import json
import math
import re
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from smlaunch.verify import pickles
from smlaunch.verify.pickles import (
    ConstructedObject,
    DictItems,
    GlobalRef,
    PersistentRef,
    SetItems,
    UnreadableContent,
)

MAX_FILE_BYTES = 1 << 29
"""Limit for a file that is read into memory, and for all that is unpacked from it."""

_MAX_ARCHIVE_DEPTH = 3
"""Nested archives."""

_MAX_VALUES = 300_000
_MAX_REORDERED_ELEMENTS = 1 << 22
"""Limit for elements that are put into row-major order one by one."""

_MAX_SHORT_TEXT = 40
_T = TypeVar("_T")
_ZIP, _ZIP_END, _GZIP, _NPY = b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b", b"\x93NUMPY"
_HEADER = struct.Struct("<Q")


class ValueDigest(NamedTuple):
    """Digest of one value in a file."""

    digest: str
    is_bulk: bool
    """Many numbers, or bytes of unknown format: what weights look like."""
    short_text: str = ""
    """A short value as text; else empty."""


ValueDigests = Mapping[str, ValueDigest]
"""By path in the file; "" for a file that is one value."""

TextMask = Callable[[str], str]
"""Removes from a text what differs from run to run by nature, such as a job's name."""


def digest_values(content: bytes, mask: TextMask = str) -> ValueDigests:
    """Return the digests of a file's values."""
    try:
        return _FileReader(mask).read(content, 0)
    except Exception:  # a broken or hostile file may raise anything; its bytes are compared instead
        return {"": _digest_bytes(content)}


def digest_chunks(chunks: Iterator[bytes]) -> ValueDigests:
    """Return the digest of a file that is too large for memory."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return {"": ValueDigest(digest.hexdigest(), is_bulk=True)}


def _digest_bytes(content: bytes) -> ValueDigest:
    return ValueDigest(hashlib.sha256(content).hexdigest(), is_bulk=True)


class _FileReader:
    def __init__(self, mask: TextMask) -> None:
        self._mask = mask
        self._remaining_bytes = MAX_FILE_BYTES
        self._value_count = 0

    def read(self, content: bytes, depth: int) -> dict[str, ValueDigest]:
        """Return digests of all values in a file of any known format. ``depth``: number of archives around
        it."""
        for read_format in (_read_npy, self._read_safetensors, self._read_json):
            digests = read_format(content)
            if digests is not None:
                return digests
        members = None if depth >= _MAX_ARCHIVE_DEPTH else self._unpack(content)
        if members is not None:
            return self._read_members(members, depth)
        if content[:1] == b"\x80":
            return self._read_pickle(content, {})
        return {"": self._read_text(content) or _digest_bytes(content)}

    # ---- archives ------------------------------------------------------------------------------------------

    def _unpack(self, content: bytes) -> dict[str, bytes] | None:
        """Return the files of a zip, gzip or tar archive by path; None for other content. Raises
        UnreadableContent."""
        try:
            if content[:4] == _ZIP:
                with zipfile.ZipFile(io.BytesIO(content)) as archive:
                    if content.rfind(_ZIP_END) + 22 + len(archive.comment) != len(content):
                        raise UnreadableContent("something follows the archive")
                    files = [info for info in archive.infolist() if not info.is_dir()]
                    return _by_unique_path(
                        (info.filename, self._read_member(archive.open(info))) for info in files
                    )
            if content[:2] == _GZIP:
                return {"": self._read_member(gzip.GzipFile(fileobj=io.BytesIO(content)))}
            if content[257:262] == b"ustar":
                with tarfile.open(fileobj=io.BytesIO(content)) as tar:
                    members = [member for member in tar if member.isfile()]
                    return _by_unique_path(
                        (member.name, self._read_member(tar.extractfile(member))) for member in members
                    )
        except UnreadableContent:
            raise
        except Exception as error:  # zipfile, zlib and tarfile raise many types for a broken file
            raise UnreadableContent(str(error)) from error
        return None

    def _read_member(self, file: Any) -> bytes:
        """Read one unpacked file. All of them count against one limit, because a small archive may hold a
        huge file."""
        with file:
            content: bytes = file.read(self._remaining_bytes + 1)
        self._remaining_bytes -= len(content)
        if self._remaining_bytes < 0:
            raise UnreadableContent("too large when it is unpacked")
        return content

    def _read_members(self, files: Mapping[str, bytes], depth: int) -> dict[str, ValueDigest]:
        """Return digests of the values in an archive. ``depth``: number of archives around them."""
        pickle_name = next((name for name in files if name.endswith("/data.pkl")), "")
        root = pickle_name.removesuffix("data.pkl")  # PyTorch's, named like the file
        storages = {
            name.removeprefix(f"{root}data/"): content
            for name, content in files.items()
            if pickle_name and name.startswith(f"{root}data/")
        }

        def member_digests() -> Iterator[tuple[str, ValueDigest]]:
            for name, content in files.items():
                if pickle_name and (
                    name.startswith(f"{root}data/") or name == f"{root}.data/serialization_id"
                ):
                    continue
                if pickle_name and name == pickle_name:
                    yield from self._read_pickle(content, storages).items()
                    continue
                name_in_archive = name.removeprefix(root).removesuffix(".npy")
                for value_path, digest in self.read(content, depth + 1).items():
                    yield " ".join(filter(None, (name_in_archive, value_path))), digest

        return _by_unique_path(member_digests())

    # ---- single formats ------------------------------------------------------------------------------------

    def _read_safetensors(self, content: bytes) -> dict[str, ValueDigest] | None:
        """Return digests of the tensors of a safetensors file; None for other content."""
        if len(content) < 10 or content[8:9] != b"{":
            return None
        end = 8 + _HEADER.unpack(content[:8])[0]
        if end > len(content):
            return None
        try:
            header = json.loads(content[8:end])
            digests = {}
            for name, tensor_info in header.items():
                if name == "__metadata__":
                    digests.update(
                        {f"{name}.{key}": self._digest_value(value) for key, value in tensor_info.items()}
                    )
                    continue
                start, stop = tensor_info["data_offsets"]
                type_and_shape = f"{tensor_info['dtype']} {tensor_info['shape']}".encode()
                data = content[end + start : end + stop]
                digests[name] = ValueDigest(
                    hashlib.sha256(type_and_shape + data).hexdigest(), math.prod(tensor_info["shape"]) > 1
                )
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
        return digests

    def _read_json(self, content: bytes) -> dict[str, ValueDigest] | None:
        if content[:1] == b"\x80":
            return None
        try:
            tree = json.loads(content)
        except ValueError:
            return None
        return _by_unique_path(self._walk(_as_dict_items(tree), "", _PickleDigester({})))

    def _read_pickle(self, content: bytes, storages: Mapping[str, bytes]) -> dict[str, ValueDigest]:
        return _by_unique_path(self._walk(pickles.parse_pickle(content), "", _PickleDigester(storages)))

    def _read_text(self, content: bytes) -> ValueDigest | None:
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError:
            return None
        if "\0" in text:
            return None
        words = re.split(r"[\s,;]+", text.strip())
        is_bulk = len(words) > 1 and all(map(_is_number, words))
        masked_text = self._mask(text)
        return ValueDigest(
            hashlib.sha256(masked_text.encode()).hexdigest(), is_bulk, _short_or_empty(masked_text)
        )

    # ---- trees ---------------------------------------------------------------------------------------------

    def _walk(self, node: Any, path: str, storages: _PickleDigester) -> Iterator[tuple[str, ValueDigest]]:
        """Yield the digest of each array, list of numbers and single value in a tree."""
        self._value_count += 1
        if self._value_count > _MAX_VALUES:
            raise UnreadableContent("too many values")
        array = storages.array_digest(node)
        if array is not None:
            yield path, array
        elif isinstance(node, ConstructedObject):
            if node.state is None and not node.list_items and not node.dict_items and not node.arguments:
                yield path, ValueDigest(storages.digest(node), is_bulk=False)
                return
            constructor_call = (node.constructor, node.arguments)
            yield (
                _join_path(path, "()"),
                ValueDigest(storages.digest(constructor_call), storages.is_bulk(node.arguments)),
            )
            for content in (node.dict_items, _state_without_metadata(node), node.list_items):
                if content:
                    yield from self._walk(content, path, storages)
        elif isinstance(node, DictItems) and node:
            for key, value in node:
                name = key if isinstance(key, str) else f"[{key!r}]"
                if not isinstance(key, (str, int)):
                    name = f"({storages.digest(key)[:8]})"
                yield from self._walk(value, _join_path(path, name), storages)
        elif (
            isinstance(node, (list, tuple))
            and not isinstance(node, (GlobalRef, PersistentRef, SetItems))
            and node
        ):
            if storages.is_numeric(node):
                yield path, ValueDigest(storages.digest(node), is_bulk=len(node) > 1)
                return
            for index, item in enumerate(node):
                yield from self._walk(item, f"{path}[{index}]", storages)
        else:
            yield path, self._digest_value(node, storages)

    def _digest_value(self, value: Any, storages: _PickleDigester | None = None) -> ValueDigest:
        """Return the digest of one value. ``storages``: digests of the tensors that a pickle refers to."""
        if isinstance(value, str):
            value = self._mask(value)
        digest = (storages or _PickleDigester({})).digest(value)
        is_plain = isinstance(value, (str, int, float)) or value is None
        is_large = isinstance(value, (bytes, bytearray)) and len(value) > 16
        return ValueDigest(
            digest,
            is_large,
            _short_or_empty(value if isinstance(value, str) else repr(value)) if is_plain else "",
        )


class _PickleDigester:
    """Digests of a pickle's values. ``storage_bytes``: PyTorch's storages beside the pickle, by key."""

    def __init__(self, storage_bytes: Mapping[str, bytes]) -> None:
        self._storage_bytes = storage_bytes
        self._digest_by_id: dict[int, tuple[Any, str]] = {}
        self._is_numeric_by_id: dict[int, bool] = {}

    def digest(self, node: Any) -> str:
        """Return the digest of a value. An object that is referenced twice has the same digest as two equal
        ones."""
        known_digest = self._digest_by_id.get(id(node))
        if known_digest is not None:
            if not known_digest[1]:
                raise UnreadableContent("it contains itself")
            return known_digest[1]
        if isinstance(node, (list, tuple, ConstructedObject)):
            self._digest_by_id[id(node)] = (node, "")
        array = self.array_digest(node)
        digest = hashlib.sha256(
            self._canonical_bytes(node) if array is None else array.digest.encode()
        ).hexdigest()
        if isinstance(node, (list, tuple, ConstructedObject)):
            self._digest_by_id[id(node)] = (
                node,
                digest,
            )  # keeps the node alive, so that its id is not reused
        return digest

    def is_numeric(self, items: Sequence[Any]) -> bool:
        """Return whether these are nested lists of numbers."""
        is_known_numeric = self._is_numeric_by_id.get(id(items))
        if is_known_numeric is None:
            is_known_numeric = self._is_numeric_by_id[id(items)] = all(
                isinstance(item, (int, float)) or (type(item) in (list, tuple) and self.is_numeric(item))
                for item in items
            )
        return is_known_numeric

    def is_bulk(self, node: Any) -> bool:
        if isinstance(node, (bytes, bytearray)):
            return len(node) > 16
        if isinstance(node, (list, tuple)):
            return len(node) > 1 and all(isinstance(item, float) for item in node)
        return False

    def array_digest(self, node: Any) -> ValueDigest | None:
        """Return the digest of a tensor or array by type, shape and elements in row-major order; None for
        other values."""
        if not isinstance(node, ConstructedObject) or not isinstance(node.constructor, GlobalRef):
            return None
        try:
            if node.constructor in _TENSOR_CONSTRUCTORS:
                return self._tensor_digest(node.arguments)
            if node.constructor in _PARAMETER_CONSTRUCTORS:
                return self.array_digest(node.arguments[0])
            if node.constructor.name == "_reconstruct" and node.constructor.module in _NUMPY_MODULES:
                _, shape, dtype, is_fortran, data = node.state
                kind = self.digest(dtype)
                return _digest_array(
                    kind,
                    _array_bytes(data),
                    _element_size(shape, _array_bytes(data)),
                    shape,
                    _strides(shape, is_fortran),
                )
        except (TypeError, ValueError, IndexError, KeyError, AttributeError, struct.error):
            return None
        return None

    def _tensor_digest(self, arguments: Any) -> ValueDigest | None:
        storage, offset, shape, strides = arguments[:4]
        _, kind, key, _, count = storage.persistent_id
        data = self._storage_bytes[str(key)]
        size = len(data) // count if count else 1
        return _digest_array(kind.name, data, size, shape, strides, offset)

    def _canonical_bytes(self, node: Any) -> bytes:
        """Return bytes that only equal values share. They are never parsed."""
        if isinstance(node, PersistentRef):
            persistent_id = node.persistent_id
            storage_bytes = (
                self._storage_bytes.get(str(persistent_id[2]))
                if isinstance(persistent_id, tuple) and len(persistent_id) > 2
                else None
            )
            if storage_bytes is None:
                return b"kept " + self.digest(persistent_id).encode()
            return (
                b"storage " + self.digest(persistent_id[1]).encode() + hashlib.sha256(storage_bytes).digest()
            )
        if isinstance(node, GlobalRef):
            return f"name {node.module} {node.name}".encode("utf-8", "surrogatepass")
        if isinstance(node, DictItems):
            pairs = sorted(self.digest(key) + self.digest(value) for key, value in node)
            return ("dict " + " ".join(pairs)).encode()
        if isinstance(node, SetItems):
            return ("set " + " ".join(sorted(map(self.digest, node)))).encode()
        if isinstance(node, (list, tuple)):
            kind = "list" if isinstance(node, list) else "tuple"
            if all(type(item) in (int, float, bool) for item in node):
                return f"{kind} of {node!r}".encode()
            return f"{kind} {' '.join(map(self.digest, node))}".encode()
        if isinstance(node, ConstructedObject):
            parts: tuple[Any, ...] = (
                node.constructor,
                node.arguments,
                _state_without_metadata(node),
                node.list_items,
                node.dict_items,
            )
            return ("called " + " ".join(map(self.digest, parts))).encode()
        if isinstance(node, (bytes, bytearray)):
            return b"bytes " + bytes(node)
        return f"{type(node).__name__} {node!r}".encode("utf-8", "surrogatepass")


_TENSOR_CONSTRUCTORS = (
    GlobalRef("torch._utils", "_rebuild_tensor_v2"),
    GlobalRef("torch._utils", "_rebuild_tensor_v3"),
)
_PARAMETER_CONSTRUCTORS = (GlobalRef("torch._utils", "_rebuild_parameter"),)
_NUMPY_MODULES = ("numpy._core.multiarray", "numpy.core.multiarray")


def _read_npy(content: bytes) -> dict[str, ValueDigest] | None:
    """Return the digest of a NumPy file with one array; None for other content."""
    if content[:6] != _NPY or len(content) < 12:
        return None
    start, length = (10, "<H") if content[6] == 1 else (12, "<I")
    try:
        end = start + struct.unpack(length, content[8:start])[0]
        header = ast.literal_eval(content[start : min(end, start + 10_000)].decode("latin-1").strip())
        type_text, shape, data = repr(header["descr"]), header["shape"], content[end:]
        if "O" in type_text:  # a pickle follows
            return None
        type_match = re.fullmatch(r"'[<>|=]?[biufcmMSV](\d+)(\[.*\])?'", type_text)
        if type_match is None or math.prod(shape) * int(type_match[1]) != len(data):
            return None  # records, or more than one array in the file
        return {
            "": _digest_array(
                type_text, data, int(type_match[1]), shape, _strides(shape, header["fortran_order"])
            )
        }
    except (ValueError, TypeError, KeyError, SyntaxError, MemoryError, struct.error):
        return None


def _digest_array(
    kind: str, data: bytes, element_size: int, shape: Sequence[int], strides: Sequence[int], offset: int = 0
) -> ValueDigest:
    """Digest an array's elements in row-major order. ``element_size`` is in bytes, ``strides`` and ``offset``
    in elements."""
    count = math.prod(shape)
    row_major_strides = tuple(_strides(shape, False))
    stored_layout = [(length, stride) for length, stride in zip(shape, strides, strict=True) if length != 1]
    row_major_layout = [
        (length, stride) for length, stride in zip(shape, row_major_strides, strict=True) if length != 1
    ]
    if count == 0 or stored_layout == row_major_layout:
        content = memoryview(data)[offset * element_size : (offset + count) * element_size]
    elif 0 < count <= _MAX_REORDERED_ELEMENTS:
        element_indexes = [offset]
        for length, stride in zip(shape, strides, strict=True):
            element_indexes = [index + step * stride for index in element_indexes for step in range(length)]
        content = memoryview(
            b"".join(data[index * element_size : (index + 1) * element_size] for index in element_indexes)
        )
    else:
        kind, content = f"{kind} {strides} {offset}", memoryview(data)
    if content.nbytes < count * element_size:
        raise ValueError("it ends too early")
    header = f"array {kind} {tuple(shape)} ".encode()
    return ValueDigest(hashlib.sha256(header + content).hexdigest(), is_bulk=count > 1)


def _strides(shape: Sequence[int], is_fortran: bool) -> list[int]:
    """Return how many elements lie between neighbours along each axis of an array."""
    strides, stride = [], 1
    for length in shape if is_fortran else reversed(shape):
        strides.append(stride)
        stride *= length
    return strides if is_fortran else strides[::-1]


def _element_size(shape: Sequence[int], data: bytes) -> int:
    count = math.prod(shape)
    return len(data) // count if count else 1


def _array_bytes(data: Any) -> bytes:
    """Return the bytes of an array's data. Pickle protocols before 3 have no bytes and store latin-1 text."""
    if isinstance(data, ConstructedObject) and data.constructor == GlobalRef("_codecs", "encode"):
        return bytes(data.arguments[0], "latin-1")
    return bytes(data)


def _as_dict_items(tree: Any) -> Any:
    """Convert JSON's dicts to the form of a pickle's dicts."""
    if isinstance(tree, dict):
        return DictItems((key, _as_dict_items(value)) for key, value in tree.items())
    if isinstance(tree, list):
        return [_as_dict_items(item) for item in tree]
    return tree


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _state_without_metadata(node: ConstructedObject) -> Any:
    """Return an object's state without the layer versions that PyTorch adds to a ``state_dict()``, but not to
    its copies."""
    state = node.state
    if node.constructor == GlobalRef("collections", "OrderedDict") and isinstance(state, DictItems):
        return DictItems(pair for pair in state if pair[0] != "_metadata") or None
    return state


def _by_unique_path(path_value_pairs: Iterable[tuple[str, _T]]) -> dict[str, _T]:
    """Return a dict in which duplicate paths get a number, so that no value is lost."""
    value_by_path: dict[str, _T] = {}
    for path, value in path_value_pairs:
        number, name = 1, path
        while name in value_by_path:
            number += 1
            name = f"{path} #{number}"
        value_by_path[name] = value
    return value_by_path


def _join_path(path: str, name: str) -> str:
    return name if not path else path + name if name.startswith(("[", "(")) else f"{path}.{name}"


def _short_or_empty(text: str) -> str:
    return text if len(text) <= _MAX_SHORT_TEXT else ""
