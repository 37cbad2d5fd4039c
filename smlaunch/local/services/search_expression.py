"""SearchExpression of the Search operation: filter and sort documents. Pure.

Sources: API model (SearchExpression, Filter, NestedFilters) and the forms clients write: ``Tags.KEY``,
``HyperParameters.NAME``, ``Metrics.NAME``, ``InputDataConfig.DataSource.S3DataSource.S3Uri``.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]

_TIME_PROPERTIES = ("CreationTime", "LastModifiedTime", "TrainingStartTime", "TrainingEndTime")


class InvalidSearch(ValueError):
    """An invalid expression; the message explains the mistake."""


def matches(expression: Mapping[str, Any], document: Document) -> bool:
    """Return whether a document matches an expression. Raises InvalidSearch."""
    results: list[bool] = [
        *(_filter_matches(entry, document) for entry in expression.get("Filters") or ()),
        *(_nested_filter_matches(entry, document) for entry in expression.get("NestedFilters") or ()),
        *(matches(entry, document) for entry in expression.get("SubExpressions") or ()),
    ]
    if not results:
        return True
    return any(results) if expression.get("Operator") == "Or" else all(results)


def sort_documents(documents: Iterable[Document], name: str, descending: bool) -> list[Document]:
    """Sort documents by a property, then by name. Documents without the property come last."""
    with_value: list[tuple[Any, Document]] = []
    without_value: list[Document] = []
    for document in sorted(documents, key=lambda document: str(document.get("TrainingJobName", ""))):
        found_values = property_values(document, name)
        if found_values:
            with_value.append((_sort_key(found_values[0]), document))
        else:
            without_value.append(document)
    with_value.sort(key=lambda pair: pair[0], reverse=descending)
    return [*(document for _, document in with_value), *without_value]


def property_values(document: Document, name: str) -> list[Any]:
    """Return all values of a dotted property, through lists. Names of tags, metrics and hyperparameters may
    contain dots."""
    first_name, _, remaining_name = name.partition(".")
    if first_name == "Tags" and remaining_name:
        return [tag["Value"] for tag in document.get("Tags") or () if tag["Key"] == remaining_name]
    if first_name == "Metrics" and remaining_name:
        metrics = document.get("FinalMetricDataList") or ()
        return [metric["Value"] for metric in metrics if metric["MetricName"] == remaining_name]
    if first_name in ("HyperParameters", "Environment") and remaining_name:
        members = document.get(first_name) or {}
        return [members[remaining_name]] if remaining_name in members else []
    return list(_values_at(document, name))


def _values_at(value: Any, name: str) -> Iterable[Any]:
    """Yield the values at a dotted path of names; a list stands for all its entries."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        for entry in value:
            yield from _values_at(entry, name)
    elif not name:
        yield value
    elif isinstance(value, Mapping):
        first_name, _, remaining_name = name.partition(".")
        if first_name in value:
            yield from _values_at(value[first_name], remaining_name)


def _nested_filter_matches(entry: Mapping[str, Any], document: Document) -> bool:
    """Return whether one member of the list matches all filters."""
    prefix = entry["NestedPropertyName"]
    members = list(_values_at(document, prefix))
    filters = [
        {**nested_filter, "Name": nested_filter["Name"].removeprefix(prefix + ".")}
        for nested_filter in entry.get("Filters") or ()
    ]
    return any(all(_filter_matches(nested_filter, member) for nested_filter in filters) for member in members)


def _filter_matches(entry: Mapping[str, Any], document: Document) -> bool:
    """Return whether a document matches one filter of an expression. Raises InvalidSearch."""
    name, filter_value = entry["Name"], entry.get("Value")
    operator = entry.get("Operator") or ("Equals" if filter_value is not None else "Exists")
    found_values = property_values(document, name)
    if operator in ("Exists", "NotExists"):
        if filter_value is not None:
            raise InvalidSearch(f"Value cannot be given with the operator {operator} (property {name})")
        return bool(found_values) == (operator == "Exists")
    if filter_value is None:
        raise InvalidSearch(f"Value must be given with the operator {operator} (property {name})")
    if operator == "NotEquals":
        return not any(_equal(value, filter_value, name) for value in found_values)
    return any(_COMPARISON_BY_OPERATOR[operator](value, filter_value, name) for value in found_values)


def _equal(value: Any, filter_value: str, name: str) -> bool:
    if isinstance(value, bool):
        return filter_value.lower() == str(value).lower()
    if isinstance(value, (int, float)):
        return bool(float(value) == _parse_number_or_time(filter_value, name))
    return str(value) == filter_value


def _contains(value: Any, filter_value: str, name: str) -> bool:
    if not isinstance(value, str):
        raise InvalidSearch(f"The operator Contains is for text properties; {name} is not one")
    # Search ignores case, and one matching word is enough (developer guide, search).
    return any(word.lower() in value.lower() for word in filter_value.split() or [filter_value])


def _is_in(value: Any, filter_value: str, name: str) -> bool:
    return any(_equal(value, choice, name) for choice in filter_value.split(","))


def _number_comparison(compare: Callable[[float, float], bool]) -> Callable[[Any, str, str], bool]:
    def compare_numbers(value: Any, filter_value: str, name: str) -> bool:
        if isinstance(value, str):
            try:
                value = float(value)  # hyperparameters are strings that may contain a number
            except ValueError:
                raise InvalidSearch(f"{name} is a text property: it has no order") from None
        return compare(float(value), _parse_number_or_time(filter_value, name))

    return compare_numbers


_COMPARISON_BY_OPERATOR: Mapping[str, Callable[[Any, str, str], bool]] = {
    "Equals": _equal,
    "Contains": _contains,
    "In": _is_in,
    "GreaterThan": _number_comparison(lambda value, wanted: value > wanted),
    "GreaterThanOrEqualTo": _number_comparison(lambda value, wanted: value >= wanted),
    "LessThan": _number_comparison(lambda value, wanted: value < wanted),
    "LessThanOrEqualTo": _number_comparison(lambda value, wanted: value <= wanted),
}


def _parse_number_or_time(text: str, name: str) -> float:
    """Parse a number, or a time as seconds since the epoch. ``name``: the property, for the message. Raises
    InvalidSearch."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        kind = "an ISO 8601 time" if name in _TIME_PROPERTIES else "a number"
        raise InvalidSearch(f"{text!r} is not {kind}, which {name} is") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.timezone.utc)
    return moment.timestamp()


def _sort_key(value: Any) -> tuple[int, Any]:
    """Return a key that sorts numbers before strings, so that any two values can be compared."""
    if isinstance(value, (int, float)):
        return 0, value
    return 1, str(value)
