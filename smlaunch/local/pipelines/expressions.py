"""Expressions in a pipeline's definition, such as ``{"Get": "Steps.Train.ModelArtifacts..."}``: find, check
and resolve them. Pure: the caller supplies the values as a Scope.

Source: definitions that the SDK, version 2, writes (facts: sagemaker.md 6.3).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

DocumentPath = tuple[str | int, ...]
"""Path to a value in a JSON document: member names and list indices."""

FUNCTIONS = ("Get", "Std:Join", "Std:JsonGet")
EXECUTION_VARIABLES = (
    *("PipelineName", "PipelineArn", "PipelineExecutionId", "PipelineExecutionArn"),
    *("StartDateTime", "CurrentDateTime", "TrainingJobName", "ProcessingJobName"),
)
"""Names that may follow ``Execution.``; the last two are the name of the job that the step itself creates."""

_PATH_ELEMENT = re.compile(r"""\.?([^.\[\]'"]+)|\[(\d+)\]|\['([^']*)'\]|\["([^"]*)"\]""")
_NAME_MEMBERS = ("MetricName", "OutputName", "InputName", "ChannelName", "Key", "Name")
"""Members that identify an entry of a list where a path has a name instead of an index."""


class UnresolvedError(Exception):
    """A value does not exist. The text has the reference and the reason."""


class Scope(Protocol):
    """Values that expressions refer to. Every method raises UnresolvedError."""

    def parameter_value(self, name: str) -> Any:
        """Return the value of a parameter of the pipeline."""

    def execution_variable(self, name: str) -> Any:
        """Return the value of one of ``EXECUTION_VARIABLES``."""

    def describe_step(self, name: str) -> Mapping[str, Any]:
        """Return the Describe response of a step's job."""

    def read_property_file(self, step: str, name: str) -> Any:
        """Return the parsed JSON of a step's property file."""

    def read_s3_json(self, uri: str) -> Any:
        """Return the parsed JSON of an S3 object."""


def without_nulls(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object of a definition without its null members: the SDK, version 3, writes null for some
    absent members."""
    return {name: value for name, value in document.items() if value is not None}


def format_path(path: DocumentPath) -> str:
    """Return a path as text, such as ``Steps[0].Arguments``."""
    text = ""
    for element in path:
        text += f"[{element}]" if isinstance(element, int) else f".{element}" if text else element
    return text


def function_name(value: Any) -> str | None:
    """Return the name of the function if ``value`` is an expression, of a supported function or not."""
    if isinstance(value, Mapping) and len(value) == 1:
        (name,) = value
        if name == "Get" or str(name).startswith("Std:"):
            return str(name)
    return None


def find_expressions(value: Any, path: DocumentPath = ()) -> Iterator[tuple[DocumentPath, Mapping[str, Any]]]:
    """Yield every expression in a document with its path, an outer one before those within it."""
    if function_name(value) is not None:
        yield path, value
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from find_expressions(item, (*path, str(name)))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from find_expressions(item, (*path, index))


def parse_path(text: str) -> DocumentPath | None:
    """Parse a path such as ``Outputs['train'].S3Output``; None if ``text`` is not a path."""
    elements: list[str | int] = []
    offset = 0
    while offset < len(text):
        match = _PATH_ELEMENT.match(text, offset)
        if match is None:
            return None
        plain_name, index, *quoted_names = match.groups()
        if index is not None:
            elements.append(int(index))
        else:
            elements.append(next(name for name in (plain_name, *quoted_names) if name is not None))
        offset = match.end()
    return tuple(elements)


def referenced_step(reference: str) -> str | None:
    """Return the name of the step that the text of a ``Get`` refers to; None if it refers to no step."""
    namespace, _, rest = reference.partition(".")
    path = parse_path(rest) if namespace == "Steps" else None
    return str(path[0]) if path else None


def find_problem(expression: Mapping[str, Any]) -> str | None:
    """Return the error in the form of one expression. Whether the referenced value exists is not checked."""
    ((name, body),) = expression.items()
    if name == "Get":
        return _get_problem(body)
    if name == "Std:Join":
        if not isinstance(body, Mapping) or set(body) != {"On", "Values"}:
            return "Std:Join takes On and Values"
        if not isinstance(body["On"], str) or not isinstance(body["Values"], list):
            return "Std:Join takes a string On and a list Values"
        return None
    if name == "Std:JsonGet":
        return _json_get_problem(body)
    return f"the function {name} is not supported here; supported are {', '.join(FUNCTIONS)}"


def _get_problem(body: Any) -> str | None:
    """Return why ``body`` is not a valid argument of the function Get; None if it is."""
    if not isinstance(body, str):
        return "Get takes a string"
    namespace, _, rest = body.partition(".")
    path = parse_path(rest)
    if namespace not in ("Steps", "Parameters", "Execution") or not path:
        return f"{body!r} is not one of Steps.NAME.FIELD, Parameters.NAME and Execution.NAME"
    if namespace == "Execution" and rest not in EXECUTION_VARIABLES:
        return f"{body!r} is not supported here; supported are {', '.join(EXECUTION_VARIABLES)}"
    if namespace == "Steps" and len(path) < 2:
        return f"{body!r} does not name a field of the step"
    return None


def _json_get_problem(body: Any) -> str | None:
    """Return why ``body`` is not a valid argument of the function Std:JsonGet; None if it is."""
    if not isinstance(body, Mapping) or set(body) not in ({"PropertyFile", "Path"}, {"S3Uri", "Path"}):
        return "Std:JsonGet takes Path and one of PropertyFile and S3Uri"
    if not isinstance(body["Path"], str) or not parse_path(_without_root(body["Path"])):
        return (
            f"the Path {body['Path']!r} is not supported here; supported are names, ['names'] and [0], "
            "separated by dots"
        )
    if "PropertyFile" in body and parse_property_file(body["PropertyFile"]) is None:
        return 'PropertyFile must be {"Get": "Steps.NAME.PropertyFiles.FILE"}'
    return None


def parse_property_file(value: Any) -> tuple[str, str] | None:
    """Return step and name of the property file that an expression refers to; None for anything else."""
    if function_name(value) != "Get" or not isinstance(value["Get"], str):
        return None
    namespace, _, rest = value["Get"].partition(".")
    path = parse_path(rest)
    if namespace != "Steps" or path is None or len(path) != 3 or path[1] != "PropertyFiles":
        return None
    return str(path[0]), str(path[2])


def resolve(value: Any, scope: Scope) -> Any:
    """Return a document with all its expressions replaced by their values. Raises UnresolvedError."""
    name = function_name(value)
    if name == "Get":
        return _resolve_get(value["Get"], scope)
    if name == "Std:Join":
        items = [resolve(item, scope) for item in value[name]["Values"]]
        return str(value[name]["On"]).join(to_text(item) for item in items)
    if name == "Std:JsonGet":
        return _resolve_json_get(value[name], scope)
    if isinstance(value, Mapping):
        return {key: resolve(item, scope) for key, item in value.items()}
    if isinstance(value, list):
        return [resolve(item, scope) for item in value]
    return value


def to_text(value: Any) -> str:
    """Return a value as Std:Join writes it: a string as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def _resolve_get(reference: str, scope: Scope) -> Any:
    namespace, _, rest = reference.partition(".")
    if namespace == "Parameters":
        return scope.parameter_value(rest)
    if namespace == "Execution":
        return scope.execution_variable(rest)
    step, *field_path = parse_path(rest) or ()
    return get_at_path(scope.describe_step(str(step)), field_path, reference)


def _resolve_json_get(body: Mapping[str, Any], scope: Scope) -> Any:
    path = parse_path(_without_root(body["Path"])) or ()
    if "S3Uri" in body:
        uri = resolve(body["S3Uri"], scope)
        return get_at_path(scope.read_s3_json(uri), path, f"{body['Path']} of {uri}")
    step, name = parse_property_file(body["PropertyFile"]) or ("", "")
    content = scope.read_property_file(step, name)
    return get_at_path(content, path, f"{body['Path']} of the property file {name}")


def _without_root(path: str) -> str:
    return path[2:] if path.startswith("$.") else path[1:] if path.startswith("$[") else path


def get_at_path(value: Any, path: Sequence[str | int], reference: str) -> Any:
    """Return the value at a path of a document. Raises UnresolvedError, which names ``reference``."""
    for element in path:
        try:
            value = _get_element(value, element)
        except (KeyError, IndexError, TypeError):
            raise UnresolvedError(f"{reference}: there is no {element!r}") from None
    return value


def _get_element(value: Any, element: str | int) -> Any:
    """Return the member ``element`` of an object or a list; a string names the list's item by one of its
    naming members. Raises KeyError, IndexError or TypeError."""
    if isinstance(value, list) and isinstance(element, str):
        for item in value:
            if any(item.get(member) == element for member in _NAME_MEMBERS):
                return item
        raise KeyError(element)
    if isinstance(value, str):
        raise TypeError  # a string has no fields, but Python would index it
    return value[element]
