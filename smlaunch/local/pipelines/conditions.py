"""Conditions of a pipeline: what they may be made of, and whether they hold. Pure."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from smlaunch.local.pipelines.expressions import Scope, Steps, Unresolved, present, resolve

_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "Equals": operator.eq,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqualTo": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqualTo": operator.le,
}
_MEMBERS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(_COMPARISONS, frozenset({"LeftValue", "RightValue"})),
    "In": frozenset({"QueryValue", "Values"}),
    "Not": frozenset({"Condition"}),
    "Or": frozenset({"Conditions"}),
}


def problems(condition: Any, path: Steps) -> Iterator[tuple[Steps, str]]:
    """All that is wrong with the form of a condition."""
    kind = condition.get("Type") if isinstance(condition, Mapping) else None
    if not isinstance(kind, str) or kind not in _MEMBERS:
        yield (*path, "Type"), f"{kind!r} is no condition; there are {', '.join(_MEMBERS)}"
        return
    wanted, condition = _MEMBERS[kind], present(condition)
    for name in sorted(wanted - condition.keys()):
        yield (*path, name), f"is needed by {kind}"
    for name in sorted(condition.keys() - wanted - {"Type"}):
        yield (*path, name), f"is unknown to {kind}"
    if kind == "In" and not isinstance(condition.get("Values", []), list):
        yield (*path, "Values"), "a list is needed"
    if kind == "Not" and "Condition" in condition:
        yield from problems(condition["Condition"], (*path, "Condition"))
    if kind == "Or" and "Conditions" in condition:
        yield from several(condition["Conditions"], (*path, "Conditions"))


def several(conditions: Any, path: Steps) -> Iterator[tuple[Steps, str]]:
    if not isinstance(conditions, list) or not conditions:
        yield path, "a list with at least one condition is needed"
        return
    for index, condition in enumerate(conditions):
        yield from problems(condition, (*path, index))


def holds(condition: Mapping[str, Any], scope: Scope) -> bool:
    """Raises Unresolved, also for values that cannot be compared."""
    kind = condition["Type"]
    if kind == "Not":
        return not holds(condition["Condition"], scope)
    if kind == "Or":
        return any(holds(one, scope) for one in condition["Conditions"])
    if kind == "In":
        return resolve(condition["QueryValue"], scope) in resolve(condition["Values"], scope)
    left_value, right_value = (resolve(condition[side], scope) for side in ("LeftValue", "RightValue"))
    try:
        return _COMPARISONS[kind](left_value, right_value)
    except TypeError:
        raise Unresolved(f"{kind}: {left_value!r} and {right_value!r} cannot be compared") from None
