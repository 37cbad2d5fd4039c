"""Check a request by the API model's tables (``smlaunch/catalog/api_limits.json``)."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from smlaunch.api.job_kinds import JOB_KINDS
from smlaunch.api.validation.java_patterns import compile_matcher
from smlaunch.api.validation.violation import Violation

_LIMITS_FILE = Path(__file__).parent.parent.parent / "catalog" / "api_limits.json"
_MAX_PATTERN_LENGTH = 100_000
"""Longer values violate their length limit; matching them too would only take time."""

Shape = Mapping[str, Any]
Shapes = Mapping[str, Shape]
RequestPath = tuple[str | int, ...]


@lru_cache(maxsize=1)
def _load_service_tables() -> Mapping[str, Any]:
    services: Mapping[str, Any] = json.loads(_LIMITS_FILE.read_text(encoding="utf-8"))["services"]
    return services


def checkable_operations(service: str = "sagemaker") -> frozenset[str]:
    """Return the operations whose requests can be checked."""
    return frozenset(_load_service_tables().get(service, {}).get("operations", ()))


@lru_cache(maxsize=8)
def member_paths(operation: str, service: str = "sagemaker") -> tuple[tuple[str, ...], ...]:
    """Return the paths of all members that a request of an operation may have, through structures and lists.
    A structure in itself is followed once."""
    service_tables = _load_service_tables()[service]
    shapes: Shapes = service_tables["shapes"]

    def walk(shape_name: str, path: tuple[str, ...], around: frozenset[str]) -> Iterator[tuple[str, ...]]:
        shape = shapes[shape_name]
        if shape["type"] == "list":
            yield from walk(shape["member"], path, around)
        elif shape["type"] == "structure" and shape_name not in around:
            for member, member_shape in shape["members"].items():
                yield (*path, member)
                yield from walk(member_shape, (*path, member), around | {shape_name})

    return tuple(walk(service_tables["operations"][operation], (), frozenset()))


def check_request(operation: str, request: Mapping[str, Any], service: str = "sagemaker") -> list[Violation]:
    """Return all violations of a request, in the order of its members.

    ``request``: arguments of boto3's method, or the JSON that it sends. A member that is None counts as
    absent. Rules beyond the model are only checked if all types are right. Raises KeyError for an unknown
    operation.
    """
    service_tables = _load_service_tables()[service]
    shapes: Shapes = service_tables["shapes"]
    violations = list(_check_structure(shapes, shapes[service_tables["operations"][operation]], request, ()))
    kind = JOB_KINDS.get(operation)
    if kind is not None and not any(violation.rule == "type" for violation in violations):
        violations.extend(kind.check_rules(request))
    return violations


def _check_value(
    shapes: Shapes, shape_name: str, value: Any, path: RequestPath, map_entry_part: str = ""
) -> Iterator[Violation]:
    """Yield violations of a value in a request, by the type of its shape in the API model.

    ``shapes`` are the shapes of the model by name, ``shape_name`` is the value's. ``path`` is the value's
    in the request. ``map_entry_part``: ``key`` or ``value`` for a part of a map's entry, else empty.
    A violation names the rule that the value breaks (type, min_items, ...) and the limit in it.
    """
    shape = shapes[shape_name]
    type_name = shape["type"]
    if not _has_type(type_name, value):
        yield Violation(path, value, rule="type", limit=type_name, map_entry_part=map_entry_part)
    elif type_name == "structure":
        yield from _check_structure(shapes, shape, value, path)
    elif type_name == "list":
        yield from _check_bounds(
            shape, measured_number=len(value), value=value, path=path, rule_suffix="_items"
        )
        for index, item in enumerate(value):
            yield from _check_value(shapes, shape["member"], item, (*path, index))
    elif type_name == "map":
        yield from _check_bounds(
            shape, measured_number=len(value), value=value, path=path, rule_suffix="_items"
        )
        for key, entry_value in value.items():
            entry_path = (*path, key)
            yield from _check_value(shapes, shape["key"], key, entry_path, map_entry_part="key")
            yield from _check_value(shapes, shape["value"], entry_value, entry_path, map_entry_part="value")
    elif type_name == "string":
        yield from _check_string(shape, value, path, map_entry_part)
    elif type_name in ("integer", "long", "float", "double"):
        yield from _check_bounds(
            shape,
            measured_number=value,
            value=value,
            path=path,
            rule_suffix="",
            map_entry_part=map_entry_part,
        )


def _check_structure(
    shapes: Shapes, shape: Shape, value: Mapping[str, Any], path: RequestPath
) -> Iterator[Violation]:
    """Yield violations of a structure of the API model at ``path`` of a request: missing and unknown members,
    unions without exactly one member, and the violations of its members. None counts as absent. ``shapes``
    are the types of the API model by name. A violation names the broken rule and the limit in it."""
    shape_name_by_member: Mapping[str, str] = shape["members"]
    present_members = {
        member: member_value for member, member_value in value.items() if member_value is not None
    }
    for member in shape.get("required", ()):
        if member not in present_members:
            yield Violation((*path, member), None, rule="required", limit=None)
    for member, member_value in present_members.items():
        if member in shape_name_by_member:
            yield from _check_value(shapes, shape_name_by_member[member], member_value, (*path, member))
        else:
            yield Violation((*path, member), member, rule="unknown", limit=tuple(shape_name_by_member))
    if shape.get("union") and len(present_members) != 1:
        yield Violation(path, dict(present_members), rule="union", limit=tuple(shape_name_by_member))


def _check_string(shape: Shape, value: str, path: RequestPath, map_entry_part: str) -> Iterator[Violation]:
    """Yield violations of a string at ``path`` of a request by its shape in the API model: enum, length and
    pattern. ``map_entry_part``: ``key`` or ``value`` for a part of a map's entry, else empty."""
    if "enum" in shape:
        if value not in shape["enum"]:
            yield Violation(
                path, value, rule="enum", limit=tuple(shape["enum"]), map_entry_part=map_entry_part
            )
        return
    yield from _check_bounds(
        shape,
        measured_number=len(value),
        value=value,
        path=path,
        rule_suffix="_length",
        map_entry_part=map_entry_part,
    )
    # A longer text breaks its length limit anyway; matching it too would only take time.
    if "pattern" not in shape or len(value) > _MAX_PATTERN_LENGTH:
        return
    # The patterns are Java's; the compiled one is Python's and matches the whole text.
    matches_pattern = compile_matcher(shape["pattern"])
    if not matches_pattern(value):
        yield Violation(path, value, rule="pattern", limit=shape["pattern"], map_entry_part=map_entry_part)


def _check_bounds(
    shape: Shape,
    measured_number: float,
    value: Any,
    path: RequestPath,
    rule_suffix: str,
    map_entry_part: str = "",
) -> Iterator[Violation]:
    """Yield violations of a shape's minimum and maximum by a value. ``measured_number``: value, length or
    number of items; ``rule_suffix``: the end of the rule's name, empty, ``_length`` or ``_items``."""
    if "min" in shape and measured_number < shape["min"]:
        yield Violation(
            path, value, rule=f"min{rule_suffix}", limit=shape["min"], map_entry_part=map_entry_part
        )
    if "max" in shape and measured_number > shape["max"]:
        yield Violation(
            path, value, rule=f"max{rule_suffix}", limit=shape["max"], map_entry_part=map_entry_part
        )


def _has_type(type_name: str, value: Any) -> bool:
    """Return whether a value of a request, in Python or as read from JSON, has a type of the API model, such
    as ``structure`` (an object with known members) or ``long``. Every other type is a string."""
    if type_name == "structure":
        return isinstance(value, Mapping)
    if type_name == "map":
        return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    if type_name == "list":
        return isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    if type_name == "boolean":
        return isinstance(value, bool)
    if type_name in ("integer", "long"):  # of 32 and 64 bits
        bound = 2**31 if type_name == "integer" else 2**63
        return isinstance(value, int) and not isinstance(value, bool) and -bound <= value < bound
    if type_name in ("float", "double"):
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if type_name == "timestamp":
        return isinstance(value, (int, float, str, datetime.datetime)) and not isinstance(value, bool)
    if type_name == "blob":
        return isinstance(value, (str, bytes))
    return isinstance(value, str)
