"""Names of values that a pickle lacks, by which a secret is recognized: those of parameters, of enclosed
variables, of columns, and of constants in a function's code."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import CodeType, FunctionType, MemberDescriptorType
from typing import Any

from smlaunch.functions.named_constants import named_constants
from smlaunch.secrets.masking import is_secret_name

NamedValue = tuple[str, Any]

_MAX_ROWS = 1000
"""Of a column that is looked at."""

_WAYS_TO_PICKLE = ("__getstate__", "__reduce__", "__reduce_ex__", "__getnewargs__", "__getnewargs_ex__")


def name_arguments(function: Callable[..., Any], args: Sequence[Any]) -> list[NamedValue]:
    """Return the positional arguments with the names of the function's parameters; numbers where it has
    none."""
    names: list[str] = []
    with suppress(TypeError, ValueError):  # a function of C
        names = [
            parameter.name
            for parameter in inspect.signature(function).parameters.values()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
    names += [str(number) for number in range(len(names) + 1, len(args) + 1)]
    return list(zip(names, args, strict=False))


def name_all_arguments(function: Callable[..., Any], args: Sequence[Any]) -> list[NamedValue]:
    """Return the positional arguments with the names of the parameters that take them, which may be one
    ``*parameter`` for several; an empty name where there is none."""
    rest_name = ""
    with suppress(TypeError, ValueError):
        for parameter in inspect.signature(function).parameters.values():
            rest_name = parameter.name if parameter.kind is parameter.VAR_POSITIONAL else rest_name
    return [
        # As items of a list, which have the list's name.
        (rest_name, [value]) if name.isdigit() else (name, value)
        for name, value in name_arguments(function, args)
    ]


def named_values_of(value: Any) -> Iterator[NamedValue]:
    """Yield what has a name in the value itself, and none in its pickle."""
    if isinstance(value, CodeType):
        yield from named_constants(value)
    elif isinstance(value, FunctionType):
        code, defaults = value.__code__, value.__defaults__ or ()
        names = code.co_varnames[: code.co_argcount][code.co_argcount - len(defaults) :]
        yield from zip(names, defaults, strict=True)
        for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=True):
            with suppress(ValueError):  # it is not filled
                yield name, cell.cell_contents
    elif isinstance(value, functools.partial):
        yield from name_all_arguments(value.func, value.args)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from zip(value._fields, value, strict=False)
    elif str(type(value).__module__).partition(".")[0] in ("pandas", "polars", "numpy"):
        yield from _secret_columns(value)


def attributes_with_secret_names(value: Any) -> Iterator[tuple[str, str]]:
    """Yield texts of an object that pickles itself in its own way, which may leave them out, or their
    names."""
    if _pickles_itself(type(value)):
        for name, part in (*getattr(value, "__dict__", {}).items(), *_slot_values(value)):
            if type(part) is str and is_secret_name(name):
                yield name, part


def _slot_values(value: Any) -> Iterator[tuple[str, Any]]:
    for base in type(value).__mro__:
        for name, member in vars(base).items():
            if isinstance(member, MemberDescriptorType):
                with suppress(AttributeError):  # it has no value
                    yield name, member.__get__(value)


def _pickles_itself(value_type: type) -> bool:
    return any(getattr(value_type, name, None) is not getattr(object, name, None) for name in _WAYS_TO_PICKLE)


def _secret_columns(table: Any) -> Iterator[NamedValue]:
    names = getattr(table, "columns", None)
    if names is None:
        names = getattr(getattr(table, "dtype", None), "names", None)  # fields of a structured array
    with suppress(Exception):  # of other objects of these packages
        for name in () if names is None else names:
            if isinstance(name, str) and is_secret_name(name):
                yield name, [*table[name][:_MAX_ROWS]]
        name = getattr(table, "name", None)
        if isinstance(name, str) and is_secret_name(name):  # a column alone
            yield name, [*table[:_MAX_ROWS]]
