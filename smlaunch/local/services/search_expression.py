"""SearchExpression of the Search operation: filter and sort documents. Pure.

Sources: API model (SearchExpression, Filter, NestedFilters) and the forms clients write: ``Tags.KEY``,
``HyperParameters.NAME``, ``Metrics.NAME``, ``InputDataConfig.DataSource.S3DataSource.S3Uri``.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from smlaunch.local.json_types import JsonMapping

Document = JsonMapping

_TIME_PROPERTIES = ("CreationTime", "LastModifiedTime", "TrainingStartTime", "TrainingEndTime")


class InvalidSearch(ValueError):
    """An invalid expression; the message explains the mistake."""


def document_matches(expression: JsonMapping, document: Document) -> bool:
    """Return whether a document matches a SearchExpression: all of its conditions, or one of them if its
    Operator is Or. Without conditions every document matches. Raises InvalidSearch."""
    filters = expression.get("Filters") or ()
    nested_filters = expression.get("NestedFilters") or ()
    subexpressions = expression.get("SubExpressions") or ()
    results = [_document_matches_filter(search_filter, document) for search_filter in filters]
    results += [_document_matches_nested_filter(nested_filter, document) for nested_filter in nested_filters]
    results += [document_matches(subexpression, document) for subexpression in subexpressions]
    if not results:
        return True
    return any(results) if expression.get("Operator") == "Or" else all(results)


def sort_documents(documents: Iterable[Document], property_name: str, descending: bool) -> list[Document]:
    """Sort documents (described training jobs) by a property, then by job name. Those without the property
    come last."""
    with_value: list[tuple[Any, Document]] = []
    without_value: list[Document] = []
    for document in sorted(documents, key=lambda document: str(document.get("TrainingJobName", ""))):
        found_values = find_property_values(document, property_name)
        if found_values:
            with_value.append((_sort_key(found_values[0]), document))
        else:
            without_value.append(document)
    with_value.sort(key=lambda pair: pair[0], reverse=descending)
    return [*(document for _, document in with_value), *without_value]


def find_property_values(document: Document, property_name: str) -> list[Any]:
    """Return all values that a document (a described training job) has at a dotted property: ``Tags.KEY`` or
    ``InputDataConfig.DataSource.S3DataSource.S3Uri``, where each entry of the list InputDataConfig has a
    value."""
    # Names of tags, metrics, hyperparameters and variables may contain dots: what follows is one name.
    first_name, _, remaining_name = property_name.partition(".")
    if first_name == "Tags" and remaining_name:
        return [tag["Value"] for tag in document.get("Tags") or () if tag["Key"] == remaining_name]
    if first_name == "Metrics" and remaining_name:
        # A job has the property Metrics.NAME in the list FinalMetricDataList.
        metrics = document.get("FinalMetricDataList") or ()
        return [metric["Value"] for metric in metrics if metric["MetricName"] == remaining_name]
    if first_name in ("HyperParameters", "Environment") and remaining_name:
        value_by_name = document.get(first_name) or {}
        return [value_by_name[remaining_name]] if remaining_name in value_by_name else []
    return list(_iterate_values_at(document, property_name))


def _iterate_values_at(node: Any, property_path: str) -> Iterable[Any]:
    """Yield the values at a dotted path of field names below ``node``, a JSON value. A list stands for all
    its entries. The empty path is ``node`` itself."""
    if isinstance(node, Sequence) and not isinstance(node, str):
        for entry in node:
            yield from _iterate_values_at(entry, property_path)
    elif not property_path:
        yield node
    elif isinstance(node, Mapping):
        first_name, _, remaining_name = property_path.partition(".")
        if first_name in node:
            yield from _iterate_values_at(node[first_name], remaining_name)


def _document_matches_nested_filter(nested_filter: JsonMapping, document: Document) -> bool:
    """Return whether one entry of the list that the nested filter names matches all of its filters."""
    list_name = nested_filter["NestedPropertyName"]
    entry_filters = [
        {**search_filter, "Name": search_filter["Name"].removeprefix(f"{list_name}.")}
        for search_filter in nested_filter.get("Filters") or ()
    ]
    return any(
        all(_document_matches_filter(entry_filter, entry) for entry_filter in entry_filters)
        for entry in _iterate_values_at(document, list_name)
    )


def _document_matches_filter(search_filter: JsonMapping, document: Document) -> bool:
    """Return whether a document matches one Filter (Name, Operator, Value) of a SearchExpression. A property
    may have several values, one for each entry of a list: one that fits is enough. Raises InvalidSearch."""
    property_name, filter_value = search_filter["Name"], search_filter.get("Value")
    operator = search_filter.get("Operator") or ("Equals" if filter_value is not None else "Exists")
    found_values = find_property_values(document, property_name)
    if operator in ("Exists", "NotExists"):
        if filter_value is not None:
            raise InvalidSearch(
                f"Value cannot be given with the operator {operator} (property {property_name})"
            )
        return bool(found_values) if operator == "Exists" else not found_values
    if filter_value is None:
        raise InvalidSearch(f"Value must be given with the operator {operator} (property {property_name})")
    if operator == "NotEquals":  # no value may be equal; a property without values fits too
        return not any(_equals_filter_value(value, filter_value, property_name) for value in found_values)
    compare = _COMPARISON_BY_OPERATOR[operator]  # takes value, filter value, name for a message
    return any(compare(value, filter_value, property_name) for value in found_values)


def _equals_filter_value(value: Any, filter_value: str, name: str) -> bool:
    if isinstance(value, bool):
        return filter_value.lower() == str(value).lower()
    if isinstance(value, (int, float)):
        return bool(float(value) == _parse_number_or_time(filter_value, name))
    return str(value) == filter_value


def _contains_any_filter_word(value: Any, filter_value: str, name: str) -> bool:
    """Return whether the value of the property ``name`` contains a word of ``filter_value`` (the operator
    Contains). Raises InvalidSearch if it is not text."""
    if not isinstance(value, str):
        raise InvalidSearch(f"The operator Contains is for text properties; {name} is not one")
    # Search ignores case, and one matching word is enough (developer guide, search).
    return any(word.lower() in value.lower() for word in filter_value.split() or [filter_value])


def _is_in_filter_list(value: Any, filter_value: str, name: str) -> bool:
    return any(_equals_filter_value(value, choice, name) for choice in filter_value.split(","))


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
    "Equals": _equals_filter_value,
    "Contains": _contains_any_filter_word,
    "In": _is_in_filter_list,
    "GreaterThan": _number_comparison(lambda value, wanted: value > wanted),
    "GreaterThanOrEqualTo": _number_comparison(lambda value, wanted: value >= wanted),
    "LessThan": _number_comparison(lambda value, wanted: value < wanted),
    "LessThanOrEqualTo": _number_comparison(lambda value, wanted: value <= wanted),
}


def _parse_number_or_time(text: str, property_name: str) -> float:
    """Parse a number, or an ISO 8601 time, which becomes seconds since the epoch. ``property_name`` is for
    the message. Raises InvalidSearch."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        # Python before 3.11 does not take the Z for UTC.
        parsed_time = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        kind = "an ISO 8601 time" if property_name in _TIME_PROPERTIES else "a number"
        raise InvalidSearch(f"{text!r} is not {kind}, which {property_name} is") from None
    if parsed_time.tzinfo is None:  # without an offset, the time is UTC
        parsed_time = parsed_time.replace(tzinfo=datetime.timezone.utc)
    return parsed_time.timestamp()


def _sort_key(value: Any) -> tuple[int, Any]:
    """Return a key that sorts numbers before strings, so that any two values can be compared."""
    if isinstance(value, (int, float)):
        return 0, value
    return 1, str(value)
