"""Checks of the Checkpointer's settings when it is created. A component may have any name, also that of a
setting: a value that is not valid for the setting is then refused at once, not during the training."""

import operator
import os
from typing import Any, Callable, List, Mapping, NamedTuple

from smlaunch.train.resumable_order import ResumableOrder

_GROUP_MEMBERS = ("rank", "world_size", "begin_max", "gather")


class _SettingRule(NamedTuple):
    expected: str
    is_valid: Callable[[Any], bool]


def check_settings(settings: Mapping[str, Any]) -> None:
    """Check the arguments of a Checkpointer, by their names; None means not given. Raises ValueError with a
    line for each invalid one."""
    problems: List[str] = []
    for name, value in settings.items():
        rule = _RULE_BY_SETTING[name]  # a predicate (is_valid), and what it expects, in words
        if value is None or rule.is_valid(value):
            continue
        if isinstance(value, (str, int, float)):  # short enough to be shown
            problems.append("{}: {}, not {!r}".format(name, rule.expected, value))
        else:
            # Perhaps an object to be saved, registered under a name that is also a setting's.
            hint = "a component of your own needs another name"
            problems.append("{}: {}, not a {}; {}".format(name, rule.expected, type(value).__name__, hint))
    if problems:
        raise ValueError("\n".join(problems))


def _is_count(value: Any) -> bool:
    """Return whether the value is an integer of at least 1."""
    try:
        return not isinstance(value, bool) and operator.index(value) >= 1
    except TypeError:
        return False


def _is_duration(value: Any) -> bool:
    """Return whether the value is a number of seconds, 0 or more."""
    try:
        return not isinstance(value, (bool, str)) and float(value) >= 0  # false for nan
    except (TypeError, ValueError):
        return False


def _are_names(value: Any) -> bool:
    return isinstance(value, (list, tuple, set, frozenset)) and all(isinstance(name, str) for name in value)


_RULE_BY_SETTING: Mapping[str, _SettingRule] = {
    "order": _SettingRule("a ResumableOrder", lambda value: isinstance(value, ResumableOrder)),
    "shared": _SettingRule("a list of names of components", _are_names),
    "directory": _SettingRule("a path", lambda value: isinstance(value, (str, os.PathLike))),
    "every": _SettingRule("seconds between two saves", _is_duration),
    "every_steps": _SettingRule("a number of steps, at least 1", _is_count),
    "keep": _SettingRule("how many checkpoints stay, at least 1", _is_count),
    "deterministic": _SettingRule("True, False or None", lambda value: isinstance(value, bool)),
    "group": _SettingRule(
        "a transport with " + ", ".join(_GROUP_MEMBERS),
        lambda value: all(hasattr(value, name) for name in _GROUP_MEMBERS),
    ),
}
