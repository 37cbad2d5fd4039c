"""Finds secrets in a call before it is sent: in its pickle, which has all that travels."""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, ClassVar

from smlaunch.functions.pickled_call import PickledCall
from smlaunch.secrets.file_contents import SCANNED_BYTES, find_secret
from smlaunch.secrets.masking import mask_document, mask_formats, mask_named_value

_WINDOW_OVERLAP_BYTES = 8192
"""More than any key takes, so that each lies in one window as a whole."""

_MAX_STRUCTURE_BYTES = 16 << 20
"""Of pickles whose values are looked at one by one; longer ones hold data."""

_MAX_TEXT_CHARACTERS = 100_000
"""Longer texts are data more often than keys."""

_RANDOM_LOOKING = re.compile(r"(?=\S*\d)\S{8,}")
"""What a value with a secret's name has to look like: words of a language are none."""


_WORD = re.compile(r"[^\s\"'=,;&(){}]+")


def find_call_secret(call: PickledCall) -> str | None:
    """Return the kind of secret that the call holds; None without one.

    That is a key anywhere in it, a text in the format of a secret (``hf_...``, a URL with a password), or a
    value with the name of one (``password``) that looks random, as a key of a dict, a keyword, an attribute,
    a global, a class attribute, a default of a function or a field of a named tuple."""
    content = call.content
    for start in range(0, len(content), SCANNED_BYTES - _WINDOW_OVERLAP_BYTES):
        key_kind = find_secret(content[start : start + SCANNED_BYTES])
        if key_kind is not None:
            return key_kind
    if len(content) > _MAX_STRUCTURE_BYTES:
        return None
    for name, value in chain(call.named_texts, _iter_values(content.partition(b"\n")[2])):
        if mask_formats(value) != value or find_secret(value.encode("utf-8", "replace")):
            return f"the value of {name}" if name else "a value in a secret's format"
        if name and _RANDOM_LOOKING.fullmatch(value) and mask_named_value(name, value) != value:
            return f"the value of {name}"
        hidden_words = {*_WORD.findall(value)} - {*_WORD.findall(str(mask_document(value)))}
        if any(map(_RANDOM_LOOKING.fullmatch, hidden_words)):  # --password X, PASSWORD=X
            return f"the value of {name}" if name else "a value with a secret's name in a text"
    return None


class _Unbuilt:
    """What an object is made of, in place of the object: nothing of the call is run to look at it."""

    def __init__(self, *parts: Any) -> None:
        self.parts = list(parts)

    def append(self, item: Any) -> None:
        self.parts.append(item)

    def extend(self, items: Any) -> None:
        self.parts += items

    def __setitem__(self, key: Any, value: Any) -> None:
        self.parts.append({key if isinstance(key, str) else "": value})


_PythonUnpickler: Any = pickle._Unpickler  # noqa: SLF001


class _StructureUnpickler(_PythonUnpickler):  # type: ignore[misc]
    """Reads a pickle without importing or calling anything that it names."""

    dispatch: ClassVar[dict[int, Any]] = dict(_PythonUnpickler.dispatch)

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.unbuilt: list[_Unbuilt] = []
        """All of them: a class gets its attributes by a call whose result is dropped."""

    def find_class(self, module: str, name: str) -> Any:
        return _Unbuilt()

    def load_reduce(self) -> None:
        arguments = self.stack.pop()
        self.stack[-1] = _Unbuilt(self.stack[-1], *arguments)
        self.unbuilt.append(self.stack[-1])

    def load_newobj_ex(self) -> None:
        keywords = self.stack.pop()
        self.load_reduce()
        self.stack[-1].append(keywords)

    def load_build(self) -> None:
        state = self.stack.pop()
        if isinstance(self.stack[-1], _Unbuilt):
            self.stack[-1].append(state)

    dispatch[pickle.REDUCE[0]] = dispatch[pickle.NEWOBJ[0]] = load_reduce
    dispatch[pickle.NEWOBJ_EX[0]] = load_newobj_ex
    dispatch[pickle.BUILD[0]] = load_build


def _iter_values(pickled: bytes) -> Iterator[tuple[str, str]]:
    """Yield each text of a pickle with the name that it has there; empty for one of a list."""
    unpickler = _StructureUnpickler(io.BytesIO(pickled))
    try:
        root = unpickler.load()
    except Exception:  # of a way to pickle that this does not know: keys were searched in all bytes
        return
    todo: list[tuple[str, Any]] = [("", root), *(("", unbuilt) for unbuilt in unpickler.unbuilt)]
    seen_ids: set[int] = set()
    while todo:
        name, value = todo.pop()
        if isinstance(value, (bytes, bytearray)):
            # NumPy has four bytes for a character.
            value = bytes(value[: 4 * _MAX_TEXT_CHARACTERS]).replace(b"\0", b"").decode("utf-8", "replace")
        if isinstance(value, str):
            if len(value) <= _MAX_TEXT_CHARACTERS:
                yield name, value
            continue
        if id(value) in seen_ids:
            continue
        seen_ids.add(id(value))
        if isinstance(value, Mapping):
            todo += [(key if isinstance(key, str) else "", item) for key, item in value.items()]
            todo += [("", key) for key in value]
        elif isinstance(value, (list, tuple, set, frozenset)):
            todo += [("", item) for item in value]
        elif isinstance(value, _Unbuilt):
            todo += [("", part) for part in value.parts]
