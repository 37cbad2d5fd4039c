"""Parameters of a pipeline: parse their declarations and the values of an execution. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smlaunch.local.pipelines.expressions import DocumentPath, without_nulls

_TYPES = ("String", "Integer", "Float", "Boolean")
_MEMBERS = frozenset({"Name", "Type", "Description", "DefaultValue", "EnumValues"})
_NAME = re.compile(r"[A-Za-z0-9\-_]{1,256}")


@dataclass(frozen=True)
class Parameter:
    """A declared parameter."""

    name: str
    type: str
    """String, Integer, Float or Boolean."""
    default: Any = None
    """None if every execution has to give a value."""
    allowed_values: tuple[Any, ...] = ()
    """Empty if every value of the type is allowed."""


def parse_parameters(documents: Any) -> tuple[dict[str, Parameter], list[tuple[DocumentPath, str]]]:
    """Parse the list ``Parameters`` of a definition. Returns the parameters by name, and all errors in them
    with their paths."""
    parameters: dict[str, Parameter] = {}
    problems: list[tuple[DocumentPath, str]] = []
    if not isinstance(documents, list):
        return parameters, [(("Parameters",), "must be a list")]
    for index, document in enumerate(documents):
        path: DocumentPath = ("Parameters", index)
        if not isinstance(document, dict):
            problems.append((path, "must be an object"))
            continue
        document = without_nulls(document)
        name, parameter_type = document.get("Name"), document.get("Type", "String")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            problems.append(((*path, "Name"), f"{name!r} is not a name of letters, digits, - and _"))
            continue
        if name in parameters:
            problems.append(((*path, "Name"), f"{name!r} is declared already"))
        if parameter_type not in _TYPES:
            problems.append(((*path, "Type"), f"{parameter_type!r} is not one of {', '.join(_TYPES)}"))
            parameter_type = "String"
        unknown_members = document.keys() - _MEMBERS
        problems += [((*path, member), "is not a known member") for member in sorted(unknown_members)]
        allowed_values = document.get("EnumValues", [])
        if not isinstance(allowed_values, list):
            problems.append(((*path, "EnumValues"), "must be a list"))
            allowed_values = []
        default = document.get("DefaultValue")
        parameters[name] = Parameter(name, parameter_type, default, tuple(allowed_values))
        if default is not None:
            problem = _find_value_problem(parameters[name], default)
            if problem:
                problems.append(((*path, "DefaultValue"), problem))
    return parameters, problems


def parse_values(
    parameters: Mapping[str, Parameter], entries: Sequence[Mapping[str, str]]
) -> tuple[dict[str, Any], list[str]]:
    """Parse the values that an execution is started with.

    ``entries`` are those of StartPipelineExecution's PipelineParameters, with values as text. Returns the
    value of every parameter, defaults included, and all errors.
    """
    problems: list[str] = []
    values = {
        name: parameter.default for name, parameter in parameters.items() if parameter.default is not None
    }
    for entry in entries:
        name, text = entry["Name"], entry["Value"]
        if name not in parameters:
            declared = ", ".join(parameters) or "none"
            problems.append(f"{name}: the pipeline has no such parameter; it has {declared}")
            continue
        value = _parse_value(parameters[name].type, text)
        problem = _find_value_problem(parameters[name], text if value is None else value)
        if problem:
            problems.append(f"{name}: {problem}")
        values[name] = value
    missing_names = [name for name in parameters if name not in values]
    problems += [f"{name}: has no default, so a value is required" for name in missing_names]
    return values, problems


def _parse_value(parameter_type: str, text: str) -> Any:
    """Return None if the text is not a value of the type."""
    if parameter_type == "String":
        return text
    if parameter_type == "Boolean":
        return {"true": True, "false": False}.get(text.strip().lower())
    try:
        return int(text) if parameter_type == "Integer" else float(text)
    except ValueError:
        return None


def _find_value_problem(parameter: Parameter, value: Any) -> str | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    has_type = {
        "String": isinstance(value, str),
        "Boolean": isinstance(value, bool),
        "Integer": is_number and isinstance(value, int),
        "Float": is_number and math.isfinite(value),
    }[parameter.type]
    if not has_type:
        return f"{value!r} is not of type {parameter.type}"
    if parameter.allowed_values and value not in parameter.allowed_values:
        return f"{value!r} is not one of {json.dumps(list(parameter.allowed_values))}"
    return None
