"""Pickles a function with its arguments by cloudpickle.

Functions and classes of ``__main__`` (a script's, a notebook's), lambdas and closures travel by value; those
of other modules by name, so that the host has to have the module.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickletools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from types import CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from smlaunch.errors import JobError, MachineError, Problem
from smlaunch.functions.call_identity import identify_call
from smlaunch.functions.host_program import CALL_FORMAT
from smlaunch.functions.named_values import attributes_with_secret_names, name_all_arguments, named_values_of
from smlaunch.functions.script_pickling import script_pickler_class
from smlaunch.functions.sent_files import find_plain_folders, find_sent_file

_EXTRA_HINT = (
    "functions are sent by cloudpickle, which is not installed: pip install '.[functions]' in a checkout of "
    "smlaunch"
)


_MAX_READ_PICKLE_BYTES = 16 << 20
"""Of pickles that are checked for names of the script; longer ones hold data."""


class PickledCall(NamedTuple):
    """A call as the host reads it, and what it needs there."""

    content: bytes
    """The call file (host_program)."""
    sha256: str
    modules: frozenset[str]
    """Names of the modules that the host imports to load it."""
    named_values: tuple[tuple[str, Any], ...] = ()
    """Values whose names the pickle lacks, such as those of parameters."""
    attributes: tuple[tuple[str, str], ...] = ()
    """Attributes with secrets' names that may have been left out of the pickle."""
    parts: Mapping[str, str] = MappingProxyType({})
    """What the call is, the same in every process (call_identity)."""


def load_cloudpickle() -> Any:
    """Return the module cloudpickle. Raises MachineError, which names the extra, if it is not installed."""
    try:
        import cloudpickle
    except ImportError:
        raise MachineError(_EXTRA_HINT) from None
    return cloudpickle


def pickle_call(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    name: str,
    folder: Path | None = None,
) -> PickledCall:
    """Pickle the call. ``folder``: the one that is sent, where ``__file__`` of a function's module is found
    on a host. Raises JobError for what cannot be pickled."""
    cloudpickle = load_cloudpickle()
    buffer = io.BytesIO()
    pickler = _pickler_class(cloudpickle)(buffer, folder)
    try:
        pickler.dump((function, tuple(args), dict(kwargs)))
    except Exception as error:  # whatever the objects' own methods raise
        holder = find_holder(pickler.reduced, args, kwargs)
        message = (
            f"{name} and its arguments cannot be sent to another process"
            f"{f', because of {holder}' if holder else ''}: {type(error).__name__}: {error}"
        )
        raise JobError([Problem("function", f"{message}; {_PICKLE_ADVICE}")]) from error
    if len(buffer.getbuffer()) <= _MAX_READ_PICKLE_BYTES:
        names = names_of_main(buffer.getvalue())
        if names:
            message = (
                f"{names[0]} is no plain function or class of the script, so that it would travel by its "
                "name, and hosts do not have the script: move it to a module beside the script"
            )
            raise JobError([Problem("function", message)])
    header = {
        "format": CALL_FORMAT,
        "python": "{}.{}".format(*sys.version_info[:2]),
        "cloudpickle": cloudpickle.__version__,
        "function": name,
        "plain_folders": find_plain_folders(pickler.modules, folder),
    }
    content = json.dumps(header, sort_keys=True).encode() + b"\n" + buffer.getvalue()
    sha256 = hashlib.sha256(content).hexdigest()
    try:
        parts = identify_call(cloudpickle, function, args, kwargs, folder)
    except Exception:  # of methods that answer only once, for example: then only this very call is the same
        parts = {"the call": sha256}
    named_values = (*name_all_arguments(function, args), *pickler.named_values)
    return PickledCall(
        content, sha256, frozenset(pickler.modules), named_values, tuple(pickler.attributes), parts
    )


_PICKLE_ADVICE = (
    "locks, connections, generators and files that are open for writing stay in their process: let the "
    "function create what it needs, or pass a path"
)


def _pickler_class(cloudpickle: Any) -> Any:
    """Return a subclass of cloudpickle's pickler. Defined late, because cloudpickle is an extra."""

    class CallPickler(script_pickler_class(cloudpickle)):  # type: ignore[misc]
        def __init__(self, file: io.BytesIO, folder: Path | None) -> None:
            super().__init__(file)
            self.modules: set[str] = set()
            self.named_values: list[tuple[str, Any]] = []
            self.attributes: list[tuple[str, str]] = []
            self.reduced: list[Any] = []
            """What was pickled other than by its own type alone, in the order of the visits."""
            self._folder = folder
            self._sent_files: dict[str, Any] = {}

        def reducer_override(self, value: Any) -> Any:
            self.reduced.append(value)
            if isinstance(value, type):
                name_class(cloudpickle, value)
            reduced = super().reducer_override(value)
            is_by_name = reduced is NotImplemented
            if not (is_by_name and isinstance(value, FunctionType)):  # whose module is sent as it is
                self.named_values += named_values_of(value)
                self.attributes += attributes_with_secret_names(value)
            if is_by_name and isinstance(value, (type, FunctionType)):
                self.modules.add(value.__module__)
            elif isinstance(value, ModuleType):
                self.modules.add(value.__name__)
            elif isinstance(value, FunctionType):
                self._let_file_be_the_sent_one(reduced)
            return reduced

        def _let_file_be_the_sent_one(self, reduced: Any) -> None:
            """``__file__`` on a host is the file in the folder that was sent, not this machine's."""
            (_, module_variables, *_), (_, state) = reduced[1:3]
            for variables in (module_variables, state["__globals__"]):
                file = variables.get("__file__")
                if isinstance(file, str):
                    sent_file = self._sent_files.setdefault(file, find_sent_file(file, self._folder))
                    variables["__file__"] = sent_file

    return CallPickler


def find_holder(reduced: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return a name for the last one of the pickled objects, at which pickling failed: the argument, global,
    attribute or enclosed variable that it is, or that a container with it is. Empty if none is found."""
    failed = reduced[-1] if reduced else None
    for holder in reversed(reduced[:-1]):
        for name, value in _named_parts(holder):
            if _holds(value, failed):
                return name
    arguments = [*((f"argument {index}", arg) for index, arg in enumerate(args, 1)), *kwargs.items()]
    return next((name for name, value in arguments if _holds(value, failed)), "")


def _named_parts(holder: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(holder, FunctionType):
        for name in _names_in_code(holder.__code__):
            yield name, holder.__globals__.get(name)
        for name, cell in zip(holder.__code__.co_freevars, holder.__closure__ or (), strict=True):
            with suppress(ValueError):  # not filled yet
                yield name, cell.cell_contents
    parts = getattr(holder, "__dict__", {})
    label = getattr(holder, "__qualname__", type(holder).__qualname__)
    for name, value in parts.items():
        yield f"{label}.{name}", value


def _names_in_code(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, CodeType):  # of a comprehension, for example
            yield from _names_in_code(part)


def _holds(value: Any, searched: Any, depth: int = 3) -> bool:
    if value is searched or depth == 0:
        return value is searched
    items: Iterable[Any] = ()
    if type(value) in (list, tuple, set):
        items = value
    elif type(value) is dict:
        items = value.values()
    return any(_holds(item, searched, depth - 1) for item in items)


def names_of_main(pickled: bytes) -> list[str]:
    """Return the names that a pickle looks up in ``__main__``, which on a host is another program."""
    names, texts, memo = [], [""], []
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name == "MEMOIZE":
            memo.append(texts[-1])
        elif opcode.name in ("BINGET", "LONG_BINGET"):
            texts.append(memo[int(argument or 0)])
        elif opcode.name == "STACK_GLOBAL" and texts[-2] == "__main__":
            names.append(texts[-1])
        else:
            texts.append(argument if isinstance(argument, str) else "")
        del texts[:-2]
    return names


_CLASS_NUMBERS: WeakKeyDictionary[type, int] = WeakKeyDictionary()
"""Of classes that no name of their module leads to: within a function, or defined once more since."""

_CLASS_COUNTS: Counter[str] = Counter()
_CLASS_LOCK = Lock()


def name_class(cloudpickle: Any, class_object: type) -> None:
    """Give a class that travels by value an id that is the same in every process that runs the same program.

    cloudpickle takes a random one. By this id, a result's class is found again in this process, also one that
    has been defined once more since, or that a function made.
    """
    internals = cloudpickle.cloudpickle
    try:
        id_by_class = internals._DYNAMIC_CLASS_TRACKER_BY_CLASS  # noqa: SLF001
        class_by_id = internals._DYNAMIC_CLASS_TRACKER_BY_ID  # noqa: SLF001
        if internals._should_pickle_by_reference(class_object):  # noqa: SLF001
            return
    except (AttributeError, TypeError):  # another version of cloudpickle: calls work, with random ids
        return
    path = f"{class_object.__module__}.{class_object.__qualname__}"
    is_found_by_name = _find_by_name(class_object) is class_object
    with _CLASS_LOCK:  # threads may submit at once
        if not is_found_by_name and class_object not in _CLASS_NUMBERS:
            _CLASS_COUNTS[path] += 1
            _CLASS_NUMBERS[class_object] = _CLASS_COUNTS[path]
        number = 0 if is_found_by_name else _CLASS_NUMBERS[class_object]
        class_id = hashlib.sha256(f"{path}#{number}".encode()).hexdigest()[:32]
        # Also of a class that had an id: a cell that is run again defines the class once more, and the new
        # one takes over the id, so that the cell's call is the same and its result is of the new class.
        id_by_class[class_object], class_by_id[class_id] = class_id, class_object


def _find_by_name(class_object: type) -> Any:
    found: Any = sys.modules.get(class_object.__module__)
    for name in class_object.__qualname__.split("."):
        found = getattr(found, name, None)
    return found


def library_files(cloudpickle: Any) -> dict[str, bytes]:
    """Return the files of the installed cloudpickle, which is pure Python, by path: they travel with the
    call, so that the host needs no package index, and has the same version."""
    folder = Path(cloudpickle.__file__).parent
    return {f"cloudpickle/{path.name}": path.read_bytes() for path in sorted(folder.glob("*.py"))}
