"""What a file holds, value by value, so that two files are compared by that and not by their bytes: archives
have times in them, and the same tensors can be pickled in many ways.

Read without running anything: NumPy's .npy and .npz, PyTorch's and other pickles, safetensors, JSON, text,
and zip, tar and gzip around them. Whatever else, or what cannot be read, is one value: its bytes.
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

from smlaunch.runs.verify import pickles
from smlaunch.runs.verify.pickles import Called, Kept, Members, Name, Pairs, Unreadable

LARGEST = 1 << 29
"""Bytes of a file that is read into memory, and of all that is unpacked from it."""

_DEEPEST = 3
"""Archives in archives."""

_MOST_VALUES = 300_000
_MOST_MOVED = 1 << 22
"""Elements that are put in another order one by one."""

_SHOWN = 40
_T = TypeVar("_T")
_ZIP, _ZIP_END, _GZIP, _NPY = b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b", b"\x93NUMPY"
_HEADER = struct.Struct("<Q")


class Leaf(NamedTuple):
    """``bulk``: many numbers, or bytes that are not understood: what weights look like. ``text``: a short
    value as it reads."""

    digest: str
    bulk: bool
    text: str = ""


Leaves = Mapping[str, Leaf]
"""By their places in the file; "" for a file that is one value."""

Mask = Callable[[str], str]
"""Takes out of a text what differs from run to run by nature, as a job's own name."""


def leaves(content: bytes, mask: Mask = str) -> Leaves:
    """Of a whole file."""
    try:
        return _Reader(mask).read(content, 0)
    except Exception:  # what a broken or hostile file may raise is not foreseen; its bytes can be compared
        return {"": _opaque(content)}


def opaque(chunks: Iterator[bytes]) -> Leaves:
    """Of a file that is too large to be read whole."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return {"": Leaf(digest.hexdigest(), bulk=True)}


def _opaque(content: bytes) -> Leaf:
    return Leaf(hashlib.sha256(content).hexdigest(), bulk=True)


class _Reader:
    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._left = LARGEST
        self._values = 0

    def read(self, content: bytes, depth: int) -> dict[str, Leaf]:
        for known in (_npy, self._safetensors, self._json):
            found = known(content)
            if found is not None:
                return found
        packed = None if depth >= _DEEPEST else self._packed(content)
        if packed is not None:
            return self._all(packed, depth)
        if content[:1] == b"\x80":
            return self._pickle(content, {})
        return {"": self._text(content) or _opaque(content)}

    # ---- archives ------------------------------------------------------------------------------------------

    def _packed(self, content: bytes) -> dict[str, bytes] | None:
        try:
            if content[:4] == _ZIP:
                with zipfile.ZipFile(io.BytesIO(content)) as archive:
                    if content.rfind(_ZIP_END) + 22 + len(archive.comment) != len(content):
                        raise Unreadable("something follows the archive")
                    files = [info for info in archive.infolist() if not info.is_dir()]
                    return _by_place((info.filename, self._taken(archive.open(info))) for info in files)
            if content[:2] == _GZIP:
                return {"": self._taken(gzip.GzipFile(fileobj=io.BytesIO(content)))}
            if content[257:262] == b"ustar":
                with tarfile.open(fileobj=io.BytesIO(content)) as tar:
                    members = [member for member in tar if member.isfile()]
                    return _by_place((one.name, self._taken(tar.extractfile(one))) for one in members)
        except Unreadable:
            raise
        except Exception as error:  # zipfile, zlib and tarfile raise what they like for a broken file
            raise Unreadable(str(error)) from error
        return None

    def _taken(self, file: Any) -> bytes:
        """What is unpacked counts against one limit: a small file may hold a very large one."""
        with file:
            content: bytes = file.read(self._left + 1)
        self._left -= len(content)
        if self._left < 0:
            raise Unreadable("too large when it is unpacked")
        return content

    def _all(self, files: Mapping[str, bytes], depth: int) -> dict[str, Leaf]:
        main = next((name for name in files if name.endswith("/data.pkl")), "")
        root = main.removesuffix("data.pkl")  # PyTorch's, named like the file
        storages = {
            name.removeprefix(f"{root}data/"): content
            for name, content in files.items()
            if main and name.startswith(f"{root}data/")
        }

        def found() -> Iterator[tuple[str, Leaf]]:
            for name, content in files.items():
                if main and (name.startswith(f"{root}data/") or name == f"{root}.data/serialization_id"):
                    continue
                if main and name == main:
                    yield from self._pickle(content, storages).items()
                    continue
                inside = name.removeprefix(root).removesuffix(".npy")
                for place, leaf in self.read(content, depth + 1).items():
                    yield " ".join(filter(None, (inside, place))), leaf

        return _by_place(found())

    # ---- single formats ------------------------------------------------------------------------------------

    def _safetensors(self, content: bytes) -> dict[str, Leaf] | None:
        if len(content) < 10 or content[8:9] != b"{":
            return None
        end = 8 + _HEADER.unpack(content[:8])[0]
        if end > len(content):
            return None
        try:
            header = json.loads(content[8:end])
            found = {}
            for name, row in header.items():
                if name == "__metadata__":
                    found.update({f"{name}.{key}": self._value(value) for key, value in row.items()})
                    continue
                start, stop = row["data_offsets"]
                said = f"{row['dtype']} {row['shape']}".encode()
                data = content[end + start : end + stop]
                found[name] = Leaf(hashlib.sha256(said + data).hexdigest(), math.prod(row["shape"]) > 1)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
        return found

    def _json(self, content: bytes) -> dict[str, Leaf] | None:
        if content[:1] == b"\x80":
            return None
        try:
            tree = json.loads(content)
        except ValueError:
            return None
        return _by_place(self._walk(_pairs_of(tree), "", _Storages({})))

    def _pickle(self, content: bytes, storages: Mapping[str, bytes]) -> dict[str, Leaf]:
        return _by_place(self._walk(pickles.read(content), "", _Storages(storages)))

    def _text(self, content: bytes) -> Leaf | None:
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError:
            return None
        if "\0" in text:
            return None
        words = re.split(r"[\s,;]+", text.strip())
        bulk = len(words) > 1 and all(map(_is_number, words))
        masked = self._mask(text)
        return Leaf(hashlib.sha256(masked.encode()).hexdigest(), bulk, _short(masked))

    # ---- trees ---------------------------------------------------------------------------------------------

    def _walk(self, node: Any, path: str, storages: _Storages) -> Iterator[tuple[str, Leaf]]:
        """Down to arrays, lists of numbers and single values."""
        self._values += 1
        if self._values > _MOST_VALUES:
            raise Unreadable("too many values")
        array = storages.array(node)
        if array is not None:
            yield path, array
        elif isinstance(node, Called):
            if node.state is None and not node.items and not node.pairs and not node.arguments:
                yield path, Leaf(storages.digest(node), bulk=False)
                return
            made = (node.what, node.arguments)
            yield _below(path, "()"), Leaf(storages.digest(made), storages.is_bulk(node.arguments))
            for part in (node.pairs, _state_of(node), node.items):
                if part:
                    yield from self._walk(part, path, storages)
        elif isinstance(node, Pairs) and node:
            for key, value in node:
                name = key if isinstance(key, str) else f"[{key!r}]"
                if not isinstance(key, (str, int)):
                    name = f"({storages.digest(key)[:8]})"
                yield from self._walk(value, _below(path, name), storages)
        elif isinstance(node, (list, tuple)) and not isinstance(node, (Name, Kept, Members)) and node:
            if storages.are_numbers(node):
                yield path, Leaf(storages.digest(node), bulk=len(node) > 1)
                return
            for place, item in enumerate(node):
                yield from self._walk(item, f"{path}[{place}]", storages)
        else:
            yield path, self._value(node, storages)

    def _value(self, value: Any, storages: _Storages | None = None) -> Leaf:
        if isinstance(value, str):
            value = self._mask(value)
        digest = (storages or _Storages({})).digest(value)
        plain = isinstance(value, (str, int, float)) or value is None
        large = isinstance(value, (bytes, bytearray)) and len(value) > 16
        return Leaf(digest, large, _short(value if isinstance(value, str) else repr(value)) if plain else "")


class _Storages:
    """Digests of what a pickle holds. ``raw``: PyTorch's storages beside it, by their keys."""

    def __init__(self, raw: Mapping[str, bytes]) -> None:
        self._raw = raw
        self._known: dict[int, tuple[Any, str]] = {}
        self._numbers: dict[int, bool] = {}

    def digest(self, node: Any) -> str:
        """Of its value: an object that is held twice has the same digest as two equal ones."""
        known = self._known.get(id(node))
        if known is not None:
            if not known[1]:
                raise Unreadable("it holds itself")
            return known[1]
        if isinstance(node, (list, tuple, Called)):
            self._known[id(node)] = (node, "")
        array = self.array(node)
        found = hashlib.sha256(self._said(node) if array is None else array.digest.encode()).hexdigest()
        if isinstance(node, (list, tuple, Called)):
            self._known[id(node)] = (node, found)  # with the node: its id stays its own
        return found

    def are_numbers(self, items: Sequence[Any]) -> bool:
        """Rows of numbers, in any depth."""
        known = self._numbers.get(id(items))
        if known is None:
            known = self._numbers[id(items)] = all(
                isinstance(item, (int, float)) or (type(item) in (list, tuple) and self.are_numbers(item))
                for item in items
            )
        return known

    def is_bulk(self, node: Any) -> bool:
        if isinstance(node, (bytes, bytearray)):
            return len(node) > 16
        if isinstance(node, (list, tuple)):
            return len(node) > 1 and all(isinstance(item, float) for item in node)
        return False

    def array(self, node: Any) -> Leaf | None:
        """A tensor or an array, by its type, shape and elements in the order of rows; None for others."""
        if not isinstance(node, Called) or not isinstance(node.what, Name):
            return None
        try:
            if node.what in _TENSORS:
                return self._tensor(node.arguments)
            if node.what in _PARAMETERS:
                return self.array(node.arguments[0])
            if node.what.name == "_reconstruct" and node.what.module in _NUMPY:
                _, shape, dtype, is_fortran, data = node.state
                kind = self.digest(dtype)
                return _array(
                    kind, _data(data), _size(shape, _data(data)), shape, _strides(shape, is_fortran)
                )
        except (TypeError, ValueError, IndexError, KeyError, AttributeError, struct.error):
            return None
        return None

    def _tensor(self, arguments: Any) -> Leaf | None:
        kept, offset, shape, strides = arguments[:4]
        _, kind, key, _, count = kept.what
        raw = self._raw[str(key)]
        size = len(raw) // count if count else 1
        return _array(kind.name, raw, size, shape, strides, offset)

    def _said(self, node: Any) -> bytes:
        """Never read back: only two equal things say the same."""
        if isinstance(node, Kept):
            what = node.what
            raw = self._raw.get(str(what[2])) if isinstance(what, tuple) and len(what) > 2 else None
            if raw is None:
                return b"kept " + self.digest(what).encode()
            return b"storage " + self.digest(what[1]).encode() + hashlib.sha256(raw).digest()
        if isinstance(node, Name):
            return f"name {node.module} {node.name}".encode("utf-8", "surrogatepass")
        if isinstance(node, Pairs):
            pairs = sorted(self.digest(key) + self.digest(value) for key, value in node)
            return ("dict " + " ".join(pairs)).encode()
        if isinstance(node, Members):
            return ("set " + " ".join(sorted(map(self.digest, node)))).encode()
        if isinstance(node, (list, tuple)):
            kind = "list" if isinstance(node, list) else "tuple"
            if all(type(item) in (int, float, bool) for item in node):
                return f"{kind} of {node!r}".encode()
            return f"{kind} {' '.join(map(self.digest, node))}".encode()
        if isinstance(node, Called):
            parts: tuple[Any, ...] = (node.what, node.arguments, _state_of(node), node.items, node.pairs)
            return ("called " + " ".join(map(self.digest, parts))).encode()
        if isinstance(node, (bytes, bytearray)):
            return b"bytes " + bytes(node)
        return f"{type(node).__name__} {node!r}".encode("utf-8", "surrogatepass")


_TENSORS = (Name("torch._utils", "_rebuild_tensor_v2"), Name("torch._utils", "_rebuild_tensor_v3"))
_PARAMETERS = (Name("torch._utils", "_rebuild_parameter"),)
_NUMPY = ("numpy._core.multiarray", "numpy.core.multiarray")


def _npy(content: bytes) -> dict[str, Leaf] | None:
    if content[:6] != _NPY or len(content) < 12:
        return None
    start, length = (10, "<H") if content[6] == 1 else (12, "<I")
    try:
        end = start + struct.unpack(length, content[8:start])[0]
        header = ast.literal_eval(content[start : min(end, start + 10_000)].decode("latin-1").strip())
        kind, shape, data = repr(header["descr"]), header["shape"], content[end:]
        if "O" in kind:  # a pickle follows
            return None
        simple = re.fullmatch(r"'[<>|=]?[biufcmMSV](\d+)(\[.*\])?'", kind)
        if simple is None or math.prod(shape) * int(simple[1]) != len(data):
            return None  # records, or more than one array in the file
        return {"": _array(kind, data, int(simple[1]), shape, _strides(shape, header["fortran_order"]))}
    except (ValueError, TypeError, KeyError, SyntaxError, MemoryError, struct.error):
        return None


def _array(
    kind: str, data: bytes, size: int, shape: Sequence[int], strides: Sequence[int], offset: int = 0
) -> Leaf:
    """``size``: bytes of an element. ``strides``, ``offset``: in elements."""
    count = math.prod(shape)
    rows = tuple(_strides(shape, False))
    moved = [(length, stride) for length, stride in zip(shape, strides, strict=True) if length != 1]
    straight = [(length, stride) for length, stride in zip(shape, rows, strict=True) if length != 1]
    if count == 0 or moved == straight:
        content = memoryview(data)[offset * size : (offset + count) * size]
    elif 0 < count <= _MOST_MOVED:
        places = [offset]
        for length, stride in zip(shape, strides, strict=True):
            places = [place + step * stride for place in places for step in range(length)]
        content = memoryview(b"".join(data[place * size : (place + 1) * size] for place in places))
    else:
        kind, content = f"{kind} {strides} {offset}", memoryview(data)
    if content.nbytes < count * size:
        raise ValueError("it ends too early")
    said = f"array {kind} {tuple(shape)} ".encode()
    return Leaf(hashlib.sha256(said + content).hexdigest(), bulk=count > 1)


def _strides(shape: Sequence[int], is_fortran: bool) -> list[int]:
    found, step = [], 1
    for length in shape if is_fortran else reversed(shape):
        found.append(step)
        step *= length
    return found if is_fortran else found[::-1]


def _size(shape: Sequence[int], data: bytes) -> int:
    count = math.prod(shape)
    return len(data) // count if count else 1


def _data(data: Any) -> bytes:
    """Pickles of protocols before 3 have no bytes: they are written as latin-1 text."""
    if isinstance(data, Called) and data.what == Name("_codecs", "encode"):
        return bytes(data.arguments[0], "latin-1")
    return bytes(data)


def _pairs_of(tree: Any) -> Any:
    """JSON's dicts as a pickle's."""
    if isinstance(tree, dict):
        return Pairs((key, _pairs_of(value)) for key, value in tree.items())
    if isinstance(tree, list):
        return [_pairs_of(item) for item in tree]
    return tree


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _state_of(node: Called) -> Any:
    """Without the layers' versions that PyTorch hangs on a ``state_dict()``, and on no copy of it."""
    state = node.state
    if node.what == Name("collections", "OrderedDict") and isinstance(state, Pairs):
        return Pairs(pair for pair in state if pair[0] != "_metadata") or None
    return state


def _by_place(found: Iterable[tuple[str, _T]]) -> dict[str, _T]:
    """None is lost where two have one name."""
    by_place: dict[str, _T] = {}
    for place, value in found:
        number, name = 1, place
        while name in by_place:
            number += 1
            name = f"{place} #{number}"
        by_place[name] = value
    return by_place


def _below(path: str, name: str) -> str:
    return name if not path else path + name if name.startswith(("[", "(")) else f"{path}.{name}"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else ""
