"""Checks a request against the API model's tables (``smlaunch/catalog/api_limits.json``)."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from smlaunch.validate.java_patterns import matcher
from smlaunch.validate.processing import check_processing_job
from smlaunch.validate.training import check_training_job
from smlaunch.validate.violation import Violation

_TABLES = Path(__file__).parent.parent / "catalog" / "api_limits.json"
_PATTERN_ROOM = 100_000
"""Values longer than this fail by their length; matching them too would only cost time."""

Shape = Mapping[str, Any]
Shapes = Mapping[str, Shape]
Steps = tuple[str | int, ...]

_SERVICE_RULES: Mapping[tuple[str, str], Callable[[Mapping[str, Any]], Iterator[Violation]]] = {
    ("sagemaker", "CreateProcessingJob"): check_processing_job,
    ("sagemaker", "CreateTrainingJob"): check_training_job,
}


@lru_cache(maxsize=1)
def _services() -> Mapping[str, Any]:
    services: Mapping[str, Any] = json.loads(_TABLES.read_text(encoding="utf-8"))["services"]
    return services


def operations(service: str = "sagemaker") -> frozenset[str]:
    """The operations whose requests can be checked."""
    return frozenset(_services().get(service, {}).get("operations", ()))


def check(operation: str, request: Mapping[str, Any], service: str = "sagemaker") -> list[Violation]:
    """Everything that is wrong with a request, in the order of the request's own members.

    ``request`` holds what boto3's method of that name takes, or the JSON that it sends. A member that is
    None counts as absent. Rules that are not in the model are judged only when all types are right. Raises
    KeyError for an operation that is not in the tables.
    """
    tables = _services()[service]
    shapes: Shapes = tables["shapes"]
    found = list(_structure(shapes, shapes[tables["operations"][operation]], request, ()))
    rules = _SERVICE_RULES.get((service, operation))
    if rules is not None and not any(violation.rule == "type" for violation in found):
        found.extend(rules(request))
    return found


def _any(shapes: Shapes, name: str, value: Any, path: Steps, part: str = "") -> Iterator[Violation]:
    shape = shapes[name]
    kind = shape["type"]
    if not _has_type(kind, value):
        yield Violation(path, value, "type", kind, part)
    elif kind == "structure":
        yield from _structure(shapes, shape, value, path)
    elif kind == "list":
        yield from _bounds(shape, len(value), value, path, "_items")
        for index, item in enumerate(value):
            yield from _any(shapes, shape["member"], item, (*path, index))
    elif kind == "map":
        yield from _bounds(shape, len(value), value, path, "_items")
        for key, item in value.items():
            yield from _any(shapes, shape["key"], key, (*path, key), "key")
            yield from _any(shapes, shape["value"], item, (*path, key), "value")
    elif kind == "string":
        yield from _string(shape, value, path, part)
    elif kind in ("integer", "long", "float", "double"):
        yield from _bounds(shape, value, value, path, "", part)


def _structure(shapes: Shapes, shape: Shape, value: Mapping[str, Any], path: Steps) -> Iterator[Violation]:
    members: Mapping[str, str] = shape["members"]
    present = {name: item for name, item in value.items() if item is not None}
    for name in shape.get("required", ()):
        if name not in present:
            yield Violation((*path, name), None, "required", None)
    for name, item in present.items():
        if name in members:
            yield from _any(shapes, members[name], item, (*path, name))
        else:
            yield Violation((*path, name), name, "unknown", tuple(members))
    if shape.get("union") and len(present) != 1:
        yield Violation(path, dict(present), "union", tuple(members))


def _string(shape: Shape, value: str, path: Steps, part: str) -> Iterator[Violation]:
    if "enum" in shape:
        if value not in shape["enum"]:
            yield Violation(path, value, "enum", tuple(shape["enum"]), part)
        return
    yield from _bounds(shape, len(value), value, path, "_length", part)
    if "pattern" in shape and len(value) <= _PATTERN_ROOM and not matcher(shape["pattern"])(value):
        yield Violation(path, value, "pattern", shape["pattern"], part)


def _bounds(
    shape: Shape, measure: float, value: Any, path: Steps, of: str, part: str = ""
) -> Iterator[Violation]:
    if "min" in shape and measure < shape["min"]:
        yield Violation(path, value, f"min{of}", shape["min"], part)
    if "max" in shape and measure > shape["max"]:
        yield Violation(path, value, f"max{of}", shape["max"], part)


def _has_type(kind: str, value: Any) -> bool:
    if kind == "structure":
        return isinstance(value, Mapping)
    if kind == "map":
        return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    if kind == "list":
        return isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in ("integer", "long"):
        bits = 31 if kind == "integer" else 63
        return isinstance(value, int) and not isinstance(value, bool) and -(2**bits) <= value < 2**bits
    if kind in ("float", "double"):
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if kind == "timestamp":
        return isinstance(value, (int, float, str, datetime.datetime)) and not isinstance(value, bool)
    if kind == "blob":
        return isinstance(value, (str, bytes))
    return isinstance(value, str)
