"""Pickles a function with its arguments by cloudpickle, so that the same call gives the same bytes.

Functions and classes of ``__main__`` (a script's, a notebook's), lambdas and closures travel by value; those
of other modules by name, so that the host has to have the module.
"""

from __future__ import annotations

import copyreg
import hashlib
import io
import json
import pickletools
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from smlaunch.errors import JobError, MachineError, Problem
from smlaunch.functions.host_program import CACHED_FUNCTION, CALL_FORMAT, reduce_cached_function

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


def load_cloudpickle() -> Any:
    """Return the module cloudpickle. Raises MachineError, which names the extra, if it is not installed."""
    try:
        import cloudpickle
    except ImportError:
        raise MachineError(_EXTRA_HINT) from None
    return cloudpickle


def pickle_call(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str
) -> PickledCall:
    """Pickle the call. Raises JobError for what cannot be pickled."""
    cloudpickle = load_cloudpickle()
    buffer = io.BytesIO()
    pickler = _pickler_class(cloudpickle)(buffer)
    try:
        pickler.dump((function, tuple(args), dict(kwargs)))
    except Exception as error:  # whatever the objects' own methods raise
        message = (
            f"{name} and its arguments cannot be sent to another process: {type(error).__name__}: {error}"
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
    }
    content = json.dumps(header, sort_keys=True).encode() + b"\n" + buffer.getvalue()
    return PickledCall(content, hashlib.sha256(content).hexdigest(), frozenset(pickler.modules))


_PICKLE_ADVICE = (
    "locks, connections, generators and files that are open for writing stay in their process: let the "
    "function create what it needs, or pass a path"
)


_KERNEL_FOLDER = re.compile(r"([/\\])ipykernel_\d+([/\\])")
"""Folder of the files that a kernel names its cells after."""


def _pickler_class(cloudpickle: Any) -> Any:
    """Return a subclass of cloudpickle's pickler. Defined late, because cloudpickle is an extra."""

    class CallPickler(cloudpickle.CloudPickler):  # type: ignore[misc]
        def __init__(self, file: io.BytesIO) -> None:
            super().__init__(file)
            self.modules: set[str] = set()

        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, type):
                name_class(cloudpickle, value)
            if type(value) is CACHED_FUNCTION and value.__module__ == "__main__":
                return reduce_cached_function(value)
            if isinstance(value, CodeType) and _KERNEL_FOLDER.search(value.co_filename):
                # The process id of the kernel: the same cell must give the same call after a restart.
                name = _KERNEL_FOLDER.sub(r"\1ipykernel\2", value.co_filename)
                return self.dispatch_table[CodeType](value.replace(co_filename=name))
            reduced = super().reducer_override(value)
            is_by_name = reduced is NotImplemented
            if is_by_name and isinstance(value, (type, FunctionType)):
                self.modules.add(value.__module__)
            elif isinstance(value, ModuleType):
                self.modules.add(value.__name__)
            return reduced

    return CallPickler


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
_CLASS_COUNTS: Counter[str] = Counter()
_CLASS_LOCK = Lock()


def name_class(cloudpickle: Any, class_object: type) -> None:
    """Give a class that travels by value an id that is the same in every process that runs the same program.

    cloudpickle takes a random one, so that no two launches of a script would have the same call, and none
    could attach to the run of the other. By this id, a result's class is found again in this process.
    """
    internals = cloudpickle.cloudpickle
    try:
        known_ids = internals._DYNAMIC_CLASS_TRACKER_BY_CLASS  # noqa: SLF001
        track = internals._lookup_class_or_track  # noqa: SLF001
        if class_object in known_ids or internals._should_pickle_by_reference(class_object):  # noqa: SLF001
            return
    except (AttributeError, TypeError):  # another version of cloudpickle: calls work, with random ids
        return
    path = f"{class_object.__module__}.{class_object.__qualname__}"
    # The first pickle of an instance adds this attribute to its class, which is part of the second pickle.
    copyreg._slotnames(class_object)  # type: ignore[attr-defined]  # noqa: SLF001
    with _CLASS_LOCK:  # threads may submit at once
        if class_object not in _CLASS_NUMBERS:  # a notebook may define a class several times
            _CLASS_COUNTS[path] += 1
            _CLASS_NUMBERS[class_object] = _CLASS_COUNTS[path]
        number = _CLASS_NUMBERS[class_object]
    track(hashlib.sha256(f"{path}#{number}".encode()).hexdigest()[:32], class_object)


def library_files(cloudpickle: Any) -> dict[str, bytes]:
    """Return the files of the installed cloudpickle, which is pure Python, by path: they travel with the
    call, so that the host needs no package index, and has the same version."""
    folder = Path(cloudpickle.__file__).parent
    return {f"cloudpickle/{path.name}": path.read_bytes() for path in sorted(folder.glob("*.py"))}
