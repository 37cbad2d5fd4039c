"""Finds secrets in a call before it is sent: in its pickle, its arguments and the globals that it uses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

from smlaunch.secrets.file_contents import SCANNED_BYTES, find_secret
from smlaunch.secrets.masking import mask_document, mask_named_value

_WINDOW_OVERLAP_BYTES = 8192
"""More than any key takes, so that each lies in one window as a whole."""

_MAX_DEPTH = 6
_MAX_VALUES = 20_000
_MAX_TEXT_CHARACTERS = 100_000
"""Longer texts are data more often than keys."""


def find_call_secret(
    content: bytes, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str | None:
    """Return the kind of secret that the call holds; None without one.

    That is a key in its pickle (``content``), or a value with the name of a secret (``password``) or in the
    format of one (``hf_...``, a URL with a password) among the arguments, their members and attributes, and
    the globals that the function uses."""
    for start in range(0, len(content), SCANNED_BYTES - _WINDOW_OVERLAP_BYTES):
        key_kind = find_secret(content[start : start + SCANNED_BYTES])
        if key_kind is not None:
            return key_kind
    for count, (name, value) in enumerate(_iter_named_values(function, args, kwargs)):
        if count == _MAX_VALUES:
            return None
        if name and mask_named_value(name, value) != value:
            return f"the value of {name}"
        if not name and mask_document(value) != value:
            return "a value in a secret's format"
    return None


def _iter_named_values(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield each text of the call with the name that it has there; empty for one of a list."""
    used_variables: dict[str, Any] = {}
    if isinstance(function, FunctionType):
        variables = inspect.getclosurevars(function)
        used_variables = {**variables.globals, **variables.nonlocals}
    # Name, value, and how many containers it is in.
    pending: list[tuple[str, Any, int]] = [
        *((name, value, 0) for name, value in {**used_variables, **kwargs}.items()),
        *(("", value, 0) for value in args),
    ]
    seen_ids: set[int] = set()
    while pending:
        name, value, depth = pending.pop()
        if isinstance(value, bytes):
            value = value[:_MAX_TEXT_CHARACTERS].decode("utf-8", "replace")
        if isinstance(value, str):
            if len(value) <= _MAX_TEXT_CHARACTERS:
                yield name, value
            continue
        is_code = isinstance(value, (type, FunctionType, ModuleType))
        is_own = type(value).__module__.partition(".")[0] == "smlaunch"  # a Target, which is never sent
        if depth == _MAX_DEPTH or id(value) in seen_ids or is_code or is_own:
            continue
        seen_ids.add(id(value))
        pending += [(member_name, member, depth + 1) for member_name, member in _iter_members(value)]
        if len(pending) > _MAX_VALUES:
            return


def _iter_members(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the items of a container or the attributes of an object, each with its name, empty if none."""
    if isinstance(value, Mapping):
        yield from ((key if isinstance(key, str) else "", item) for key, item in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from (("", item) for item in value)
    else:
        yield from getattr(value, "__dict__", {}).items()
