"""Check a request by the API model's tables (``smlaunch/catalog/api_limits.json``)."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from smlaunch.api.validation.java_patterns import compile_matcher
from smlaunch.api.validation.processing_rules import check_processing_job
from smlaunch.api.validation.training_rules import check_training_job
from smlaunch.api.validation.violation import Violation

_LIMITS_FILE = Path(__file__).parent.parent.parent / "catalog" / "api_limits.json"
_MAX_PATTERN_LENGTH = 100_000
"""Longer values violate their length limit; matching them too would only take time."""

Shape = Mapping[str, Any]
Shapes = Mapping[str, Shape]
RequestPath = tuple[str | int, ...]

_SERVICE_RULES: Mapping[tuple[str, str], Callable[[Mapping[str, Any]], Iterator[Violation]]] = {
    ("sagemaker", "CreateProcessingJob"): check_processing_job,
    ("sagemaker", "CreateTrainingJob"): check_training_job,
}


@lru_cache(maxsize=1)
def _services() -> Mapping[str, Any]:
    services: Mapping[str, Any] = json.loads(_LIMITS_FILE.read_text(encoding="utf-8"))["services"]
    return services


def checkable_operations(service: str = "sagemaker") -> frozenset[str]:
    """Operations whose requests can be checked."""
    return frozenset(_services().get(service, {}).get("operations", ()))


def check_request(operation: str, request: Mapping[str, Any], service: str = "sagemaker") -> list[Violation]:
    """All violations of a request, in the order of its members.

    ``request``: arguments of boto3's method, or the JSON that it sends. A member that is None counts as
    absent. Rules beyond the model are only checked if all types are right. Raises KeyError for an unknown
    operation.
    """
    tables = _services()[service]
    shapes: Shapes = tables["shapes"]
    violations = list(_check_structure(shapes, shapes[tables["operations"][operation]], request, ()))
    rules = _SERVICE_RULES.get((service, operation))
    if rules is not None and not any(violation.rule == "type" for violation in violations):
        violations.extend(rules(request))
    return violations


def _check_value(
    shapes: Shapes, name: str, value: Any, path: RequestPath, map_part: str = ""
) -> Iterator[Violation]:
    """Yield violations of any value, by its shape's type.

    ``name``: of the shape in the API model. ``path``: of the value in the request. ``map_part``: ``key`` or
    ``value`` for a part of a map's entry.
    """
    shape = shapes[name]
    type_name = shape["type"]
    if not _has_type(type_name, value):
        yield Violation(path, value, "type", type_name, map_part)
    elif type_name == "structure":
        yield from _check_structure(shapes, shape, value, path)
    elif type_name == "list":
        yield from _check_bounds(shape, len(value), value, path, "_items")
        for index, item in enumerate(value):
            yield from _check_value(shapes, shape["member"], item, (*path, index))
    elif type_name == "map":
        yield from _check_bounds(shape, len(value), value, path, "_items")
        for key, item in value.items():
            yield from _check_value(shapes, shape["key"], key, (*path, key), "key")
            yield from _check_value(shapes, shape["value"], item, (*path, key), "value")
    elif type_name == "string":
        yield from _check_string(shape, value, path, map_part)
    elif type_name in ("integer", "long", "float", "double"):
        yield from _check_bounds(shape, value, value, path, "", map_part)


def _check_structure(
    shapes: Shapes, shape: Shape, value: Mapping[str, Any], path: RequestPath
) -> Iterator[Violation]:
    """Yield violations of a structure: missing and unknown members, unions, and those of its members."""
    members: Mapping[str, str] = shape["members"]
    present_members = {name: item for name, item in value.items() if item is not None}
    for name in shape.get("required", ()):
        if name not in present_members:
            yield Violation((*path, name), None, "required", None)
    for name, item in present_members.items():
        if name in members:
            yield from _check_value(shapes, members[name], item, (*path, name))
        else:
            yield Violation((*path, name), name, "unknown", tuple(members))
    if shape.get("union") and len(present_members) != 1:
        yield Violation(path, dict(present_members), "union", tuple(members))


def _check_string(shape: Shape, value: str, path: RequestPath, map_part: str) -> Iterator[Violation]:
    """Yield violations of a string: enum, length and pattern."""
    if "enum" in shape:
        if value not in shape["enum"]:
            yield Violation(path, value, "enum", tuple(shape["enum"]), map_part)
        return
    yield from _check_bounds(shape, len(value), value, path, "_length", map_part)
    if (
        "pattern" in shape
        and len(value) <= _MAX_PATTERN_LENGTH
        and not compile_matcher(shape["pattern"])(value)
    ):
        yield Violation(path, value, "pattern", shape["pattern"], map_part)


def _check_bounds(
    shape: Shape, measured: float, value: Any, path: RequestPath, suffix: str, map_part: str = ""
) -> Iterator[Violation]:
    """Violations of minimum and maximum. ``measured``: value, length or number of items; ``suffix``: of
    the rule's name."""
    if "min" in shape and measured < shape["min"]:
        yield Violation(path, value, f"min{suffix}", shape["min"], map_part)
    if "max" in shape and measured > shape["max"]:
        yield Violation(path, value, f"max{suffix}", shape["max"], map_part)


def _has_type(type_name: str, value: Any) -> bool:
    """Return whether the value has the API model's type."""
    if type_name == "structure":
        return isinstance(value, Mapping)
    if type_name == "map":
        return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    if type_name == "list":
        return isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    if type_name == "boolean":
        return isinstance(value, bool)
    if type_name in ("integer", "long"):
        bits = 31 if type_name == "integer" else 63
        return isinstance(value, int) and not isinstance(value, bool) and -(2**bits) <= value < 2**bits
    if type_name in ("float", "double"):
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if type_name == "timestamp":
        return isinstance(value, (int, float, str, datetime.datetime)) and not isinstance(value, bool)
    if type_name == "blob":
        return isinstance(value, (str, bytes))
    return isinstance(value, str)
