"""Conditions of a pipeline: check their form and evaluate them. Pure."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from smlaunch.local.pipelines.expressions import (
    DocumentPath,
    Scope,
    UnresolvedError,
    resolve,
    without_nulls,
)

_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "Equals": operator.eq,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqualTo": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqualTo": operator.le,
}
_REQUIRED_MEMBERS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(_COMPARISONS, frozenset({"LeftValue", "RightValue"})),
    "In": frozenset({"QueryValue", "Values"}),
    "Not": frozenset({"Condition"}),
    "Or": frozenset({"Conditions"}),
}
"""By type of condition; no type has optional members."""


def find_problems(condition: Any, path: DocumentPath) -> Iterator[tuple[DocumentPath, str]]:
    """Yield all errors in the form of a condition, each with its path."""
    condition_type = condition.get("Type") if isinstance(condition, Mapping) else None
    if not isinstance(condition_type, str) or condition_type not in _REQUIRED_MEMBERS:
        supported_types = ", ".join(_REQUIRED_MEMBERS)
        yield (*path, "Type"), f"{condition_type!r} is not a supported condition: {supported_types}"
        return
    required, condition = _REQUIRED_MEMBERS[condition_type], without_nulls(condition)
    for name in sorted(required - condition.keys()):
        yield (*path, name), f"is required by {condition_type}"
    for name in sorted(condition.keys() - required - {"Type"}):
        yield (*path, name), f"is not a member of {condition_type}"
    if condition_type == "In" and not isinstance(condition.get("Values", []), list):
        yield (*path, "Values"), "must be a list"
    if condition_type == "Not" and "Condition" in condition:
        yield from find_problems(condition["Condition"], (*path, "Condition"))
    if condition_type == "Or" and "Conditions" in condition:
        yield from find_list_problems(condition["Conditions"], (*path, "Conditions"))


def find_list_problems(conditions: Any, path: DocumentPath) -> Iterator[tuple[DocumentPath, str]]:
    """Yield all errors in the form of a list of conditions, each with its path."""
    if not isinstance(conditions, list) or not conditions:
        yield path, "must be a list of at least one condition"
        return
    for index, condition in enumerate(conditions):
        yield from find_problems(condition, (*path, index))


def evaluate(condition: Mapping[str, Any], scope: Scope) -> bool:
    """Return whether a condition without problems is true. Raises UnresolvedError for a missing value and for
    values that cannot be compared."""
    condition_type = condition["Type"]
    if condition_type == "Not":
        return not evaluate(condition["Condition"], scope)
    if condition_type == "Or":
        return any(evaluate(alternative, scope) for alternative in condition["Conditions"])
    if condition_type == "In":
        return resolve(condition["QueryValue"], scope) in resolve(condition["Values"], scope)
    left_value, right_value = (resolve(condition[side], scope) for side in ("LeftValue", "RightValue"))
    try:
        return _COMPARISONS[condition_type](left_value, right_value)
    except TypeError:
        raise UnresolvedError(
            f"{condition_type}: {left_value!r} and {right_value!r} cannot be compared"
        ) from None
