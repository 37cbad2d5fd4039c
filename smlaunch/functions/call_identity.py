"""Says what a call is, so that the same call of another process is known again.

A pickle cannot say it: its bytes hold addresses, ids, line numbers, and an order that depends on what else
was pickled. Described is what a host can see of the call, by value: the code of each function, the
attributes of each class, the globals that they read, and the arguments. Each is a part with a hash of its
own, so that a message can name what is different.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import marshal
import pickle
import sys
import typing
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from smlaunch.functions.named_values import name_arguments
from smlaunch.functions.script_pickling import call_deeply, script_pickler_class
from smlaunch.functions.sent_files import find_sent_file

_PLAIN_TYPES = frozenset((type(None), bool, int, float, complex, str, bytes))
_MARSHAL_VERSION = 2
"""Of later ones the bytes depend on which objects are the same, not only on their values."""

_VOLATILE_ATTRIBUTES = ("__slotnames__", "__firstlineno__", "__static_attributes__")
"""Of a class: a cache, a line number, and names in methods' code in any order."""

SCRIPT_FILE = "the file of the script"
"""A part without content: the call reads ``__file__``, so that the whole text of the script may matter."""


def identify_call(
    cloudpickle: Any,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    folder: Path | None,
) -> dict[str, str]:
    """Return the hash of each part of the call, by what messages call it. ``folder``: the one that is sent.
    Raises whatever the objects' own methods raise."""

    def describe() -> dict[str, str]:
        description = _Description(cloudpickle, folder)
        description.add_part("function", "what is called", lambda: description.add(function))
        for name, value in [*name_arguments(function, args), *kwargs.items()]:
            description.add_part(("argument", name), f"the argument {name}", partial(description.add, value))
        return description.hashes

    return call_deeply(describe)


def hash_of_parts(parts: Mapping[str, str]) -> str:
    """Return the hash of the whole call."""
    return hashlib.sha256(repr(sorted(parts.items())).encode("utf-8", "surrogatepass")).hexdigest()


class _Part:
    def __init__(self, name: str) -> None:
        self.name = name
        self.digest = hashlib.sha256()
        self.places = 0
        """Of objects that it has described."""


class _Description:
    """The parts of one call. An object that can change is described where it is met first; later it is named
    by its place there, so that sharing and cycles are part of the description."""

    def __init__(self, cloudpickle: Any, folder: Path | None) -> None:
        self.hashes: dict[str, str] = {}
        self._internals = cloudpickle.cloudpickle
        self._pickler = script_pickler_class(cloudpickle)(io.BytesIO())
        self._folder = folder
        self._open_parts: list[_Part] = []
        self._counts: dict[str, int] = {}
        self._name_by_part: dict[Any, str] = {}
        """By the id of a function or a class, and what else tells parts apart."""
        self._places: dict[int, str] = {}
        self._described: list[Any] = []
        """All that have a place, which keeps their ids theirs."""
        self._plain_hashes: dict[int, bytes] = {}
        """Of tuples and frozen sets of plain values alone: their value is all that can be told of them."""

    def add_part(self, key: Any, name: str, describe: Callable[[], None]) -> None:
        """Let what ``describe`` describes be a part, made once for each key. The open part names it,
        in the same way each time."""
        if key not in self._name_by_part:
            count = self._counts[name] = self._counts.get(name, 0) + 1
            numbered_name = self._name_by_part[key] = name if count == 1 else f"{name} ({count})"
            self._open_parts.append(_Part(numbered_name))
            describe()
            self.hashes[numbered_name] = self._open_parts.pop().digest.hexdigest()
        if self._open_parts:
            self._put("part", self._name_by_part[key])

    def _put(self, kind: str, content: bytes | memoryview | str = b"") -> None:
        if isinstance(content, str):
            content = content.encode("utf-8", "surrogatepass")
        digest = self._open_parts[-1].digest
        digest.update(f"{kind} {len(content)}:".encode())
        digest.update(content)

    def add(self, value: Any) -> None:
        """Describe the value in the open part."""
        value_type = type(value)
        if value_type is bytes:
            self._put("bytes", value)
        elif value_type in _PLAIN_TYPES:
            self._put("plain", marshal.dumps(value, _MARSHAL_VERSION))
        elif value_type is CodeType:
            self._add_code(value)
        elif value_type is pickle.PickleBuffer:
            self._put("buffer", value.raw())
        elif value_type in (tuple, frozenset) and (plain := self._plain_hash(value)) is not None:
            self._put("plain", plain)
        elif (name := self._name_by_part.get(id(value))) is not None:
            self._put("part", name)
        elif (place := self._places.get(id(value))) is not None:
            self._put("again", place)
        elif isinstance(value, (list, tuple, dict, set, frozenset, weakref.WeakSet)) or _is_storage(value):
            self._remember(value)
            self._add_content(value)
        else:
            self._add_reduced(value, self._reduce(value))

    def _remember(self, value: Any) -> None:
        part = self._open_parts[-1]
        part.places += 1
        self._places[id(value)] = f"object {part.places} of {part.name}"
        self._described.append(value)

    def _add_content(self, value: Any) -> None:
        value_type = type(value)
        if value_type is list or value_type is tuple:
            self._put(value_type.__name__, str(len(value)))
            if not self._put_if_plain(value):
                for item in value:
                    self.add(item)
        elif value_type is dict:
            self._put("dict", str(len(value)))
            if not (self._put_if_plain([*value]) and self._put_if_plain([*value.values()])):
                for key, item in value.items():
                    self.add(key)
                    self.add(item)
        elif isinstance(value, (set, frozenset, weakref.WeakSet)):
            self.add(value_type)
            self._put("set", b"".join(sorted(self._hash_alone(item) for item in value)))
            self.add(dict(getattr(value, "__dict__", ())) if value_type not in (set, frozenset) else None)
        elif _is_storage(value):
            self._add_storage(value)
        else:  # of a class below one of these
            self._add_reduced_parts(value, self._reduce(value))

    def _put_if_plain(self, items: Sequence[Any]) -> bool:
        is_plain = set(map(type, items)) <= _PLAIN_TYPES
        if is_plain:
            self._put("items", marshal.dumps([*items], _MARSHAL_VERSION))
        return is_plain

    def _plain_hash(self, value: Any) -> bytes | None:
        """Return the hash of a tuple or a frozen set of which nothing can change; None for another value."""
        if type(value) in _PLAIN_TYPES:
            return hashlib.sha256(marshal.dumps(value, _MARSHAL_VERSION)).digest()
        if type(value) not in (tuple, frozenset):
            return None
        if id(value) not in self._plain_hashes:
            hashes = [self._plain_hash(item) for item in value]
            if None in hashes:
                return None
            ordered = hashes if type(value) is tuple else sorted(hashes, key=lambda item: item or b"")
            content = type(value).__name__.encode() + b"".join(item or b"" for item in ordered)
            self._plain_hashes[id(value)] = hashlib.sha256(content).digest()
            self._described.append(value)
        return self._plain_hashes[id(value)]

    def _hash_alone(self, item: Any) -> bytes:
        """Return the hash of an item of a set, which is the same wherever in the set it comes."""
        plain = self._plain_hash(item)
        if plain is not None:
            return plain
        count = len(self._described)
        self._open_parts.append(_Part("an item"))
        self.add(item)
        digest = self._open_parts.pop().digest
        for described in self._described[count:]:
            self._places.pop(id(described), None)
        return bytes(digest.digest())

    def _reduce(self, value: Any) -> Any:
        """Return how the value is pickled, as the pickler finds out."""
        reduced = self._pickler.reducer_override(value)
        if reduced is not NotImplemented:
            return reduced
        if isinstance(value, ModuleType) and sys.modules.get(value.__name__) is value:
            return value.__name__
        reducer = self._pickler.dispatch_table.get(type(value))
        if reducer is not None:
            return reducer(value)
        if isinstance(value, (type, FunctionType)):
            return f"{value.__module__}.{value.__qualname__}"
        return value.__reduce_ex__(self._pickler.proto)

    def _add_reduced(self, value: Any, reduced: Any) -> None:
        if isinstance(reduced, str):
            is_full = isinstance(value, (type, FunctionType, ModuleType))
            self._put("name", reduced if is_full else f"{pickle.whichmodule(value, reduced)}.{reduced}")  # type: ignore[attr-defined]
        elif isinstance(value, FunctionType):
            self._described.append(value)
            self.add_part(id(value), f"the function {value.__qualname__}", lambda: self._add_function(value))
        elif isinstance(value, type) and len(reduced) == 6:
            self._described.append(value)
            self.add_part(
                id(value), f"the class {value.__qualname__}", lambda: self._add_class(value, reduced)
            )
        else:
            self._remember(value)
            self._add_reduced_parts(value, reduced)

    def _add_reduced_parts(self, value: Any, reduced: tuple[Any, ...]) -> None:
        function, args, *further = reduced
        if isinstance(value, typing.TypeVar) and function is self._internals._make_typevar:  # noqa: SLF001
            args = args[:-1]  # without the random id
        self._put("reduced", str(len(further)))
        self.add(function)
        self.add(args)
        for part in further:
            self.add([*part] if isinstance(part, Iterator) else part)

    def _add_code(self, code: CodeType) -> None:
        """Neither lines nor the file count, which in a notebook is named by the cell's text."""
        self._put("code", code.co_code)
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_name
        self._put("plain", repr((counts, names)))
        self._put("exceptions", getattr(code, "co_exceptiontable", b""))
        for constant in code.co_consts:
            self.add(constant)

    def _add_function(self, function: FunctionType) -> None:
        self._add_code(function.__code__)
        self.add((function.__module__, function.__qualname__, function.__doc__, function.__defaults__))
        self._add_sorted(function.__kwdefaults__ or {})
        self._add_sorted(function.__annotations__)
        self._add_sorted(vars(function))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # it is not filled
                self._add_variable(id(cell), f"the enclosed variable {name}", cell.cell_contents)
        variables = function.__globals__
        for name in sorted(self._internals._extract_code_globals(function.__code__)):  # noqa: SLF001
            if name == "__file__":
                self.hashes[SCRIPT_FILE] = ""
                self.add(find_sent_file(str(variables.get(name)), self._folder))
            elif name in variables:
                self._add_variable((id(variables), name), f"the global {name}", variables[name])

    def _add_variable(self, key: Any, name: str, value: Any) -> None:
        self._put("variable", name)
        if isinstance(value, (type, FunctionType)):  # a part itself, or a name
            self.add(value)
        else:
            self.add_part(key, name, lambda: self.add(value))

    def _add_class(self, class_object: type, reduced: tuple[Any, ...]) -> None:
        make, (*arguments, _, _), (attributes, _), *_ = reduced  # an id, and nothing
        self.add((make, class_object.__module__, class_object.__qualname__, *arguments))
        parts = {name: part for name, part in attributes.items() if name not in _VOLATILE_ATTRIBUTES}
        if _is_written_by_dataclass(class_object, parts.get("__doc__")):
            del parts["__doc__"]
        self.add({*parts.pop("_abc_impl", ())})
        self._add_sorted(parts)
        self.add([name for name in parts if not name.startswith("__")])

    def _add_sorted(self, variables: Mapping[str, Any]) -> None:
        for name in sorted(variables):
            self._put("name", name)
            self.add(variables[name])

    def _add_storage(self, storage: Any) -> None:
        """A tensor's memory. Its pickle has the address."""
        memory = getattr(storage, "_untyped_storage", storage)  # which the public way warns of
        self._put("storage", f"{type(storage).__qualname__} {getattr(storage, 'dtype', '')} {memory.device}")
        if memory.device.type != "meta" and memory.nbytes():
            memory = memory.cpu()
            buffer = (ctypes.c_char * memory.nbytes()).from_address(memory.data_ptr())
            self._put("memory", memoryview(buffer).cast("B"))


def _is_written_by_dataclass(class_object: type, docstring: Any) -> bool:
    """Whether a docstring repeats the fields, with the ``repr`` of their defaults: addresses of functions,
    and sets in any order."""
    is_dataclass = "__dataclass_fields__" in vars(class_object)
    return is_dataclass and isinstance(docstring, str) and docstring.startswith(f"{class_object.__name__}(")


def _is_storage(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, (torch.TypedStorage, torch.UntypedStorage))
