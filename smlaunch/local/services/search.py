"""SearchExpression: which documents match, in what order. Pure.

Sources: API model (SearchExpression, Filter, NestedFilters) and the forms clients write: ``Tags.KEY``,
``HyperParameters.NAME``, ``Metrics.NAME``, ``InputDataConfig.DataSource.S3DataSource.S3Uri``.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]

_TIMES = ("CreationTime", "LastModifiedTime", "TrainingStartTime", "TrainingEndTime")


class BadSearch(ValueError):
    """The text says what is wrong with the expression."""


def matches(expression: Mapping[str, Any], document: Document) -> bool:
    """Raises BadSearch for a filter that cannot be judged."""
    parts: list[bool] = [
        *(_filter(entry, document) for entry in expression.get("Filters") or ()),
        *(_nested(entry, document) for entry in expression.get("NestedFilters") or ()),
        *(matches(entry, document) for entry in expression.get("SubExpressions") or ()),
    ]
    if not parts:
        return True
    return any(parts) if expression.get("Operator") == "Or" else all(parts)


def in_order(documents: Iterable[Document], name: str, descending: bool) -> list[Document]:
    """By a property; documents that lack it come last, equal ones by their names."""
    having: list[tuple[Any, Document]] = []
    lacking: list[Document] = []
    for document in sorted(documents, key=lambda one: str(one.get("TrainingJobName", ""))):
        found = values(document, name)
        if found:
            having.append((_comparable(found[0]), document))
        else:
            lacking.append(document)
    having.sort(key=lambda pair: pair[0], reverse=descending)
    return [*(document for _, document in having), *lacking]


def values(document: Document, name: str) -> list[Any]:
    """All values of a dotted property, through lists. A tag, a metric or a hyperparameter may have dots."""
    head, _, rest = name.partition(".")
    if head == "Tags" and rest:
        return [tag["Value"] for tag in document.get("Tags") or () if tag["Key"] == rest]
    if head == "Metrics" and rest:
        known = document.get("FinalMetricDataList") or ()
        return [metric["Value"] for metric in known if metric["MetricName"] == rest]
    if head in ("HyperParameters", "Environment") and rest:
        held = document.get(head) or {}
        return [held[rest]] if rest in held else []
    return list(_walk(document, name))


def _walk(value: Any, name: str) -> Iterable[Any]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        for entry in value:
            yield from _walk(entry, name)
    elif not name:
        yield value
    elif isinstance(value, Mapping):
        head, _, rest = name.partition(".")
        if head in value:
            yield from _walk(value[head], rest)


def _nested(entry: Mapping[str, Any], document: Document) -> bool:
    """All filters must hold for one and the same member of the list."""
    prefix = entry["NestedPropertyName"]
    members = list(_walk(document, prefix))
    filters = [
        {**inner, "Name": inner["Name"].removeprefix(prefix + ".")} for inner in entry.get("Filters") or ()
    ]
    return any(all(_filter(inner, member) for inner in filters) for member in members)


def _filter(entry: Mapping[str, Any], document: Document) -> bool:
    name, wanted = entry["Name"], entry.get("Value")
    operator = entry.get("Operator") or ("Equals" if wanted is not None else "Exists")
    found = values(document, name)
    if operator in ("Exists", "NotExists"):
        if wanted is not None:
            raise BadSearch(f"Value cannot be given with the operator {operator} (property {name})")
        return bool(found) == (operator == "Exists")
    if wanted is None:
        raise BadSearch(f"Value must be given with the operator {operator} (property {name})")
    if operator == "NotEquals":
        return not any(_equal(value, wanted, name) for value in found)
    return any(_OPERATORS[operator](value, wanted, name) for value in found)


def _equal(value: Any, wanted: str, name: str) -> bool:
    if isinstance(value, bool):
        return wanted.lower() == str(value).lower()
    if isinstance(value, (int, float)):
        return bool(float(value) == _number(wanted, name))
    return str(value) == wanted


def _contains(value: Any, wanted: str, name: str) -> bool:
    if not isinstance(value, str):
        raise BadSearch(f"The operator Contains is for text properties; {name} is none")
    # Search ignores the case and any word of the value counts (developer guide, search).
    return any(word.lower() in value.lower() for word in wanted.split() or [wanted])


def _in(value: Any, wanted: str, name: str) -> bool:
    return any(_equal(value, choice, name) for choice in wanted.split(","))


def _ordered(compare: Callable[[float, float], bool]) -> Callable[[Any, str, str], bool]:
    def judged(value: Any, wanted: str, name: str) -> bool:
        if isinstance(value, str):
            try:
                value = float(value)  # a hyperparameter is text that may hold a number
            except ValueError:
                raise BadSearch(f"{name} is a text property: it has no order") from None
        return compare(float(value), _number(wanted, name))

    return judged


_OPERATORS: Mapping[str, Callable[[Any, str, str], bool]] = {
    "Equals": _equal,
    "Contains": _contains,
    "In": _in,
    "GreaterThan": _ordered(lambda value, wanted: value > wanted),
    "GreaterThanOrEqualTo": _ordered(lambda value, wanted: value >= wanted),
    "LessThan": _ordered(lambda value, wanted: value < wanted),
    "LessThanOrEqualTo": _ordered(lambda value, wanted: value <= wanted),
}


def _number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        kind = "an ISO 8601 time" if name in _TIMES else "a number"
        raise BadSearch(f"{text!r} is not {kind}, which {name} is") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.timezone.utc)
    return moment.timestamp()


def _comparable(value: Any) -> tuple[int, Any]:
    """Numbers before texts, so that any two can be compared."""
    if isinstance(value, (int, float)):
        return 0, value
    return 1, str(value)
