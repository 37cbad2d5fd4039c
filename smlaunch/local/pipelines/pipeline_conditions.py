"""Conditions of a pipeline: check their form and evaluate them. Pure."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from smlaunch.local.pipelines.expressions import (
    DocumentPath,
    ExpressionScope,
    UnresolvedError,
    resolve_expressions,
    without_nulls,
)

_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "Equals": operator.eq,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqualTo": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqualTo": operator.le,
}
_REQUIRED_FIELDS_BY_CONDITION_TYPE: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(_COMPARISONS, frozenset({"LeftValue", "RightValue"})),
    "In": frozenset({"QueryValue", "Values"}),
    "Not": frozenset({"Condition"}),
    "Or": frozenset({"Conditions"}),
}
"""By type of condition; no type has optional fields."""


def find_condition_problems(condition: Any, path: DocumentPath) -> Iterator[tuple[DocumentPath, str]]:
    """Yield (path, sentence) for every error in the form of a condition at ``path`` of a pipeline's
    definition, such as ``{"Type": "LessThan", "LeftValue": ..., "RightValue": 0.1}``."""
    condition_type = condition.get("Type") if isinstance(condition, Mapping) else None
    if not isinstance(condition_type, str) or condition_type not in _REQUIRED_FIELDS_BY_CONDITION_TYPE:
        supported_types = ", ".join(_REQUIRED_FIELDS_BY_CONDITION_TYPE)
        yield (*path, "Type"), f"{condition_type!r} is not a supported condition: {supported_types}"
        return
    required_fields = _REQUIRED_FIELDS_BY_CONDITION_TYPE[condition_type]  # no type has optional ones
    condition = without_nulls(condition)
    for name in sorted(required_fields - condition.keys()):
        yield (*path, name), f"is required by {condition_type}"
    for name in sorted(condition.keys() - required_fields - {"Type"}):
        yield (*path, name), f"is not a member of {condition_type}"
    if condition_type == "In" and not isinstance(condition.get("Values", []), list):
        yield (*path, "Values"), "must be a list"
    if condition_type == "Not" and "Condition" in condition:
        yield from find_condition_problems(condition["Condition"], (*path, "Condition"))
    if condition_type == "Or" and "Conditions" in condition:
        yield from find_condition_list_problems(condition["Conditions"], (*path, "Conditions"))


def find_condition_list_problems(conditions: Any, path: DocumentPath) -> Iterator[tuple[DocumentPath, str]]:
    """Yield (path, sentence) for every error in the form of a list of conditions at ``path`` of a pipeline's
    definition."""
    if not isinstance(conditions, list) or not conditions:
        yield path, "must be a list of at least one condition"
        return
    for index, condition in enumerate(conditions):
        yield from find_condition_problems(condition, (*path, index))


def evaluate_condition(condition: Mapping[str, Any], scope: ExpressionScope) -> bool:
    """Return whether a condition of a pipeline is true; its form was checked before. ``scope`` has the values
    of the expressions in it. Raises UnresolvedError for a missing value and for values that cannot be
    compared."""
    condition_type = condition["Type"]
    if condition_type == "Not":
        return not evaluate_condition(condition["Condition"], scope)
    if condition_type == "Or":
        return any(evaluate_condition(alternative, scope) for alternative in condition["Conditions"])
    if condition_type == "In":
        queried_value = resolve_expressions(condition["QueryValue"], scope)
        return queried_value in resolve_expressions(condition["Values"], scope)
    # All other types compare two values: Equals, GreaterThan, ...
    left_value = resolve_expressions(condition["LeftValue"], scope)
    right_value = resolve_expressions(condition["RightValue"], scope)
    try:
        return _COMPARISONS[condition_type](left_value, right_value)
    except TypeError:
        raise UnresolvedError(
            f"{condition_type}: {left_value!r} and {right_value!r} cannot be compared"
        ) from None
