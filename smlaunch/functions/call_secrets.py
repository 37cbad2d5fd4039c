"""Finds secrets in a call before it is sent: in its pickle, which has all that travels."""

from __future__ import annotations

import io
import pickle
import re
from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, ClassVar

from smlaunch.functions.named_values import NamedValue
from smlaunch.functions.pickled_call import PickledCall
from smlaunch.secrets.file_contents import SCANNED_BYTES, find_secret
from smlaunch.secrets.masking import is_secret_name, mask_document, mask_formats, mask_named_value

_WINDOW_OVERLAP_BYTES = 8192
"""More than any key takes, so that each lies in one window as a whole."""

_MAX_STRUCTURE_BYTES = 16 << 20
"""Of pickles whose values are looked at one by one; longer ones hold data."""

_MAX_TEXT_CHARACTERS = 100_000
"""Longer texts are data more often than keys."""

_MIN_CHARACTERS = 8
_RANDOM_LOOKING = re.compile(rf"(?=\S*\d)\S{{{_MIN_CHARACTERS},}}")
"""What a value with a secret's name has to look like: words of a language are none."""

_KEY_LIKE = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9_+/=.-]{16,}")
"""What an item of a list of tokens has to look like: those of a language are shorter, or have no digit."""

_PACKAGES_OF_DATA = ("numpy", "collections")
"""Whose objects are containers."""

_is_secret_name = lru_cache(4096)(is_secret_name)
_PATH_SEPARATOR = re.compile(r"[/\\]")
_WORD = re.compile(r"[^\s\"'=,;&(){}]+")


def find_call_secret(call: PickledCall) -> str | None:
    """Return the kind of secret that the call holds; None without one.

    That is a key anywhere in it, a text in the format of a secret (``hf_...``, a URL with a password), or a
    value with the name of one (``password``) that looks random: the name of a key, or the first of a pair; of
    a keyword or a parameter; of an attribute or a field; of a global or an enclosed variable; of a column; or
    a name in the code of a function."""
    content = call.content
    for start in range(0, len(content), SCANNED_BYTES - _WINDOW_OVERLAP_BYTES):
        key_kind = find_secret(content[start : start + SCANNED_BYTES])
        if key_kind is not None:
            return key_kind
    if len(content) > _MAX_STRUCTURE_BYTES:
        return None
    sent_texts = set()
    for name, value in _iter_values(content.partition(b"\n")[2], call.named_values):
        sent_texts.add(value)
        if mask_formats(value) != value or find_secret(value.encode("utf-8", "replace")):
            return f"the value of {name}" if name else "a value in a secret's format"
        if _is_named_secret(name, value):
            return f"the value of {name}"
        hidden_words = {*_WORD.findall(value)} - {*_WORD.findall(str(mask_document(value)))}
        if any(map(_RANDOM_LOOKING.fullmatch, hidden_words)):  # --password X, PASSWORD=X
            return f"the value of {name}" if name else "a value with a secret's name in a text"
    for name, value in call.attributes:
        if value in sent_texts and _is_named_secret(name, value):
            return f"the value of {name}"
    return None


def _is_named_secret(name: str, value: str) -> bool:
    if not name or _RANDOM_LOOKING.fullmatch(value) is None:
        return False
    if _is_name_of_tokens(name):
        return _KEY_LIKE.fullmatch(value) is not None
    if name.lower() == "pwd" and not _PATH_SEPARATOR.search(value):  # no working directory
        return True
    return bool(mask_named_value(name, value) != value)


def _is_name_of_tokens(name: str) -> bool:
    """``tokens``, ``API_TOKENS`` and the like; those of a text (``pad_tokens``) have another name."""
    return name.lower().endswith("tokens") and _is_secret_name(name[:-1])


class _Unbuilt:
    """What an object is made of, in place of the object: nothing of the call is run to look at it."""

    def __init__(self, *parts: Any) -> None:
        self.parts = list(parts)
        self.holds_items = False
        """What it is made of has its name, as the items of a list have."""

    def append(self, item: Any) -> None:
        self.parts.append(item)

    def extend(self, items: Any) -> None:
        self.parts += items

    def __setitem__(self, key: Any, value: Any) -> None:
        self.parts.append({key if isinstance(key, (str, bytes)) else "": value})


_PythonUnpickler: Any = pickle._Unpickler  # noqa: SLF001


class _StructureUnpickler(_PythonUnpickler):  # type: ignore[misc]
    """Reads a pickle without importing or calling anything that it names."""

    dispatch: ClassVar[dict[int, Any]] = dict(_PythonUnpickler.dispatch)

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.unbuilt: list[_Unbuilt] = []
        """All of them: a class gets its attributes by a call whose result is dropped."""

    def find_class(self, module: str, name: str) -> Any:
        found = _Unbuilt()
        found.holds_items = module.partition(".")[0] in _PACKAGES_OF_DATA
        return found

    def load_reduce(self) -> None:
        arguments = self.stack.pop()
        built = _Unbuilt(self.stack[-1], *arguments)
        built.holds_items = getattr(self.stack[-1], "holds_items", False)
        self.stack[-1] = built
        self.unbuilt.append(built)

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


def _iter_values(pickled: bytes, named_values: Iterable[NamedValue]) -> Iterator[tuple[str, str]]:
    """Yield each text of a pickle, and of values whose names it lacks, with its name; empty for one of a list
    without a secret's name."""
    unpickler = _StructureUnpickler(io.BytesIO(pickled))
    try:
        root = unpickler.load()
    except Exception:  # of a way to pickle that this does not know: keys were searched in all bytes
        return
    todo: list[NamedValue] = [("", root), *(("", unbuilt) for unbuilt in unpickler.unbuilt), *named_values]
    visited: set[tuple[int, str]] = set()
    while todo:
        name, value = todo.pop()
        if isinstance(value, (bytes, bytearray)):
            # NumPy has four bytes for a character.
            value = bytes(value[: 4 * _MAX_TEXT_CHARACTERS]).replace(b"\0", b"").decode("utf-8", "replace")
        if isinstance(value, str):
            if _MIN_CHARACTERS <= len(value) <= _MAX_TEXT_CHARACTERS:
                yield name, value
            continue
        if (id(value), name) in visited:
            continue
        visited.add((id(value), name))
        # The items of a list have its name; those of a list of tokens may be a text.
        name = "tokens" if name.lower() == "token" else name
        name = name if _is_secret_name(name) or _is_name_of_tokens(name) else ""
        if type(value) is dict:
            for key, item in value.items():
                own_name = key.decode("utf-8", "replace") if isinstance(key, bytes) else key
                own_name = own_name if isinstance(own_name, str) else ""
                todo += [(own_name if _is_secret_name(own_name) else name or own_name, item), ("", key)]
        elif isinstance(value, (list, tuple, set, frozenset, deque)):
            todo += [(name, item) for item in value]
            if isinstance(value, (list, tuple)) and len(value) == 2 and isinstance(value[0], str):
                todo.append((value[0], value[1]))
        elif isinstance(value, _Unbuilt):
            todo += [(name if value.holds_items else "", part) for part in value.parts]
