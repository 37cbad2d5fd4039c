"""The Checkpointer's settings, checked when it is made. A component may be called as its owner likes, also by
the name of a setting: what is no such setting is refused then, not when a training is under way."""

import operator
import os
from typing import Any, Callable, List, Mapping, NamedTuple

from smlaunch.train.order import ResumableOrder

_TRANSPORT = ("rank", "world_size", "begin_max", "gather")


class _Kind(NamedTuple):
    wanted: str
    fits: Callable[[Any], bool]


def check(settings: Mapping[str, Any]) -> None:
    """By their names, None where one is not given. ValueError with a line for each that cannot be."""
    problems: List[str] = []
    for name, value in settings.items():
        kind = _KINDS[name]
        if value is None or kind.fits(value):
            continue
        plain = isinstance(value, (str, int, float))
        given = repr(value) if plain else "a " + type(value).__name__
        way_out = "" if plain else "; a component of your own needs another name"
        problems.append("{}: {}, not {}{}".format(name, kind.wanted, given, way_out))
    if problems:
        raise ValueError("\n".join(problems))


def _is_count(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and operator.index(value) >= 1
    except TypeError:
        return False


def _is_duration(value: Any) -> bool:
    try:
        return not isinstance(value, (bool, str)) and float(value) >= 0  # false for nan
    except (TypeError, ValueError):
        return False


def _are_names(value: Any) -> bool:
    return isinstance(value, (list, tuple, set, frozenset)) and all(isinstance(name, str) for name in value)


_KINDS: Mapping[str, _Kind] = {
    "order": _Kind("a ResumableOrder", lambda value: isinstance(value, ResumableOrder)),
    "shared": _Kind("a list of names of components", _are_names),
    "directory": _Kind("a path", lambda value: isinstance(value, (str, os.PathLike))),
    "every": _Kind("seconds between two saves", _is_duration),
    "every_steps": _Kind("a number of steps, at least 1", _is_count),
    "keep": _Kind("how many checkpoints stay, at least 1", _is_count),
    "deterministic": _Kind("True, False or None", lambda value: isinstance(value, bool)),
    "group": _Kind(
        "a transport with " + ", ".join(_TRANSPORT),
        lambda value: all(hasattr(value, name) for name in _TRANSPORT),
    ),
}
