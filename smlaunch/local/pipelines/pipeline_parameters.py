"""Parameters of a pipeline: parse their declarations and the values of an execution. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smlaunch.local.json_types import JsonMapping
from smlaunch.local.pipelines.expressions import DocumentPath, without_nulls

_PARAMETER_TYPES = ("String", "Integer", "Float", "Boolean")
_PARAMETER_FIELDS = frozenset({"Name", "Type", "Description", "DefaultValue", "EnumValues"})
_NAME_PATTERN = re.compile(r"[A-Za-z0-9\-_]{1,256}")


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


def parse_parameters(parameter_documents: Any) -> tuple[dict[str, Parameter], list[tuple[DocumentPath, str]]]:
    """Parse the list ``Parameters`` of a pipeline's definition. Returns the parameters by name, and (path,
    sentence) for every error in them."""
    parameters: dict[str, Parameter] = {}
    problems: list[tuple[DocumentPath, str]] = []
    if not isinstance(parameter_documents, list):
        return parameters, [(("Parameters",), "must be a list")]
    for index, parameter_document in enumerate(parameter_documents):
        path: DocumentPath = ("Parameters", index)
        if not isinstance(parameter_document, dict):
            problems.append((path, "must be an object"))
            continue
        name = parameter_document.get("Name")
        if not isinstance(name, str) or not _NAME_PATTERN.fullmatch(name):
            problems.append(((*path, "Name"), f"{name!r} is not a name of letters, digits, - and _"))
            continue
        if name in parameters:  # the later declaration is checked too
            problems.append(((*path, "Name"), f"{name!r} is declared already"))
        parameters[name], field_problems = _parse_parameter(name, without_nulls(parameter_document))
        problems += [((*path, field_name), message) for field_name, message in field_problems]
    return parameters, problems


def _parse_parameter(name: str, parameter_document: JsonMapping) -> tuple[Parameter, list[tuple[str, str]]]:
    """Parse the declaration of a parameter. Returns it, and (field, sentence) for every error; a wrong field
    is replaced by its default, so that the others can be checked."""
    problems: list[tuple[str, str]] = []
    parameter_type = parameter_document.get("Type", "String")
    if parameter_type not in _PARAMETER_TYPES:
        problems.append(("Type", f"{parameter_type!r} is not one of {', '.join(_PARAMETER_TYPES)}"))
        parameter_type = "String"
    unknown_fields = sorted(parameter_document.keys() - _PARAMETER_FIELDS)
    problems += [(field_name, "is not a known member") for field_name in unknown_fields]
    allowed_values = parameter_document.get("EnumValues", [])
    if not isinstance(allowed_values, list):
        problems.append(("EnumValues", "must be a list"))
        allowed_values = []
    default = parameter_document.get("DefaultValue")
    parameter = Parameter(name, parameter_type, default, tuple(allowed_values))
    default_problem = None if default is None else _find_value_problem(parameter, default)
    if default_problem:
        problems.append(("DefaultValue", default_problem))
    return parameter, problems


def parse_values(
    parameters: Mapping[str, Parameter], entries: Sequence[Mapping[str, str]]
) -> tuple[dict[str, Any], list[str]]:
    """Parse the parameter values that an execution of a pipeline is started with.

    ``entries`` are those of StartPipelineExecution's PipelineParameters, with values as text. Returns the
    value of every parameter, defaults included, and all errors.
    """
    problems: list[str] = []
    values = {
        name: parameter.default for name, parameter in parameters.items() if parameter.default is not None
    }
    for entry in entries:
        name, value_text = entry["Name"], entry["Value"]
        if name not in parameters:
            declared_names = ", ".join(parameters) or "none"
            problems.append(f"{name}: the pipeline has no such parameter; it has {declared_names}")
            continue
        value = _parse_value(parameters[name].type, value_text)  # None: not of the type
        # The text that is no value of the type is shown in the problem.
        value_problem = _find_value_problem(parameters[name], value_text if value is None else value)
        if value_problem:
            problems.append(f"{name}: {value_problem}")
        values[name] = value
    missing_names = [name for name in parameters if name not in values]
    problems += [f"{name}: has no default, so a value is required" for name in missing_names]
    return values, problems


def _parse_value(parameter_type: str, value_text: str) -> Any:
    """Return the value that ``value_text`` stands for, by the type of a pipeline's parameter: String,
    Integer, Float or Boolean. None if the text is not a value of the type."""
    if parameter_type == "String":
        return value_text
    if parameter_type == "Boolean":
        return {"true": True, "false": False}.get(value_text.strip().lower())
    try:
        return int(value_text) if parameter_type == "Integer" else float(value_text)
    except ValueError:
        return None


def _find_value_problem(parameter: Parameter, value: Any) -> str | None:
    """Return why ``value`` cannot be the value of a parameter; None if it can."""
    if not _is_of_type(value, parameter.type):
        return f"{value!r} is not of type {parameter.type}"
    if parameter.allowed_values and value not in parameter.allowed_values:
        return f"{value!r} is not one of {json.dumps(list(parameter.allowed_values))}"
    return None


def _is_of_type(value: Any, parameter_type: str) -> bool:
    """Return whether a JSON value is of a parameter's type: String, Boolean, Integer or Float."""
    if parameter_type == "String":
        return isinstance(value, str)
    if parameter_type == "Boolean":
        return isinstance(value, bool)
    if isinstance(value, bool):  # in Python, a bool is an int too
        return False
    if parameter_type == "Integer":
        return isinstance(value, int)
    return isinstance(value, (int, float)) and math.isfinite(value)
