"""Expressions in a pipeline's definition, such as ``{"Get": "Steps.Train.ModelArtifacts..."}``: find, check
and resolve them. Pure: the caller supplies the values as a Scope.

Source: definitions that the SDK, version 2, writes (facts: sagemaker.md 6.3).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from smlaunch.api.job_kinds import PROCESSING, TRAINING
from smlaunch.local.json_types import JsonMapping, JsonObject

DocumentPath = tuple[str | int, ...]
"""Path to a value in a JSON document: field names and list indices."""

FUNCTIONS = ("Get", "Std:Join", "Std:JsonGet")
EXECUTION_VARIABLES = (
    *("PipelineName", "PipelineArn", "PipelineExecutionId", "PipelineExecutionArn"),
    *("StartDateTime", "CurrentDateTime", TRAINING.name_field, PROCESSING.name_field),
)
"""Names that may follow ``Execution.``; the last two are the name of the job that the step itself creates."""

_PATH_ELEMENT_PATTERN = re.compile(r"""\.?([^.\[\]'"]+)|\[(\d+)\]|\['([^']*)'\]|\["([^"]*)"\]""")
_IDENTIFYING_FIELDS = ("MetricName", "OutputName", "InputName", "ChannelName", "Key", "Name")
"""Members that identify an entry of a list where a path has a name instead of an index."""


class UnresolvedError(Exception):
    """A value does not exist. The text has the reference and the reason."""


class ExpressionScope(Protocol):
    """Values that expressions refer to. Every method raises UnresolvedError."""

    def parameter_value(self, name: str) -> Any:
        """Return the value of a parameter of the pipeline."""

    def execution_variable(self, name: str) -> Any:
        """Return the value of one of ``EXECUTION_VARIABLES``."""

    def describe_step(self, name: str) -> JsonMapping:
        """Return the Describe response of a step's job."""

    def read_property_file(self, step: str, name: str) -> Any:
        """Return the parsed JSON of a step's property file."""

    def read_s3_json(self, uri: str) -> Any:
        """Return the parsed JSON of an S3 object."""


def without_nulls(document: JsonMapping) -> JsonObject:
    """Return an object of a definition without its null fields: the SDK, version 3, writes null for some
    absent fields."""
    return {name: value for name, value in document.items() if value is not None}


def format_document_path(path: DocumentPath) -> str:
    """Return a path in a JSON document as text, such as ``Steps[0].Arguments``."""
    text = ""
    for element in path:
        if isinstance(element, int):
            text += f"[{element}]"
        else:
            text += f".{element}" if text else element
    return text


def function_name_of_expression(value: Any) -> str | None:
    """Return the name of the function if ``value`` is an expression, of a supported function or not."""
    if isinstance(value, Mapping) and len(value) == 1:
        (name,) = value
        if name == "Get" or str(name).startswith("Std:"):
            return str(name)
    return None


def find_expressions(value: Any, path: DocumentPath = ()) -> Iterator[tuple[DocumentPath, JsonMapping]]:
    """Yield (path, expression) for every expression in ``value``, a JSON document or a part of one at
    ``path``. An expression is an object with one function, such as ``{"Get": "Parameters.Epochs"}``; an outer
    one comes before those within it."""
    if function_name_of_expression(value) is not None:
        yield path, value
    if isinstance(value, Mapping):
        for name, field_value in value.items():
            yield from find_expressions(field_value, (*path, str(name)))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from find_expressions(item, (*path, index))


def parse_document_path(text: str) -> DocumentPath | None:
    """Return the field names and list indices of a path such as ``Outputs['train'].S3Output``, here
    ``("Outputs", "train", "S3Output")``; None if ``text`` is not a path."""
    elements: list[str | int] = []
    offset = 0
    while offset < len(text):
        element_match = _PATH_ELEMENT_PATTERN.match(text, offset)
        if element_match is None:
            return None
        # One group has matched: .name, [0], ['name'] or ["name"].
        plain_name, index, single_quoted_name, double_quoted_name = element_match.groups()
        if index is not None:
            elements.append(int(index))
        elif plain_name is not None:
            elements.append(plain_name)
        else:  # a quoted name may be empty
            elements.append(double_quoted_name if single_quoted_name is None else single_quoted_name)
        offset = element_match.end()
    return tuple(elements)


def referenced_step_name(reference: str) -> str | None:
    """Return the name of the step that the text of a ``Get`` refers to; None if it refers to no step."""
    namespace, _, referenced_path = reference.partition(".")
    path = parse_document_path(referenced_path) if namespace == "Steps" else None
    return str(path[0]) if path else None


def find_expression_problem(expression: JsonMapping) -> str | None:
    """Return the error in the form of one expression, such as ``{"Get": "Steps.Train.ModelArtifacts"}``;
    None if there is none. Whether the referenced value exists is not checked."""
    ((function_name, argument),) = expression.items()  # an expression has one field
    if function_name == "Get":
        return _find_get_problem(argument)
    if function_name == "Std:Join":
        if not isinstance(argument, Mapping) or set(argument) != {"On", "Values"}:
            return "Std:Join takes On and Values"
        if not isinstance(argument["On"], str) or not isinstance(argument["Values"], list):
            return "Std:Join takes a string On and a list Values"
        return None
    if function_name == "Std:JsonGet":
        return _find_json_get_problem(argument)
    return f"the function {function_name} is not supported here; supported are {', '.join(FUNCTIONS)}"


def _find_get_problem(argument: Any) -> str | None:
    """Return why ``argument`` is not a valid argument of the function Get of pipeline definitions, such as
    ``Steps.Train.ModelArtifacts``; None if it is."""
    if not isinstance(argument, str):
        return "Get takes a string"
    namespace, _, referenced_path = argument.partition(".")
    path_elements = parse_document_path(referenced_path)
    if namespace not in ("Steps", "Parameters", "Execution") or not path_elements:
        return f"{argument!r} is not one of Steps.NAME.FIELD, Parameters.NAME and Execution.NAME"
    if namespace == "Execution" and referenced_path not in EXECUTION_VARIABLES:
        return f"{argument!r} is not supported here; supported are {', '.join(EXECUTION_VARIABLES)}"
    if namespace == "Steps" and len(path_elements) < 2:
        return f"{argument!r} does not name a field of the step"
    return None


def _find_json_get_problem(argument: Any) -> str | None:
    """Return why ``argument`` is not a valid argument of the function Std:JsonGet; None if it is. The
    function gets the value at ``Path`` (JSONPath) of a JSON file: a property file that a step has written, or
    an S3 object. A JSONPath may begin with $."""
    is_object = isinstance(argument, Mapping)
    if not is_object or set(argument) not in ({"PropertyFile", "Path"}, {"S3Uri", "Path"}):
        return "Std:JsonGet takes Path and one of PropertyFile and S3Uri"
    json_path = argument["Path"]
    if not isinstance(json_path, str) or not parse_document_path(_without_dollar_root(json_path)):
        return (
            f"the Path {json_path!r} is not supported here; supported are names, ['names'] and [0], "
            "separated by dots"
        )
    if "PropertyFile" in argument and parse_property_file(argument["PropertyFile"]) is None:
        return 'PropertyFile must be {"Get": "Steps.NAME.PropertyFiles.FILE"}'
    return None


def parse_property_file(value: Any) -> tuple[str, str] | None:
    """Return step and name of the property file that an expression refers to; None for anything else."""
    if function_name_of_expression(value) != "Get" or not isinstance(value["Get"], str):
        return None
    namespace, _, referenced_path = value["Get"].partition(".")
    path = parse_document_path(referenced_path)
    if namespace != "Steps" or path is None or len(path) != 3 or path[1] != "PropertyFiles":
        return None
    return str(path[0]), str(path[2])


def resolve_expressions(value: Any, scope: ExpressionScope) -> Any:
    """Return a JSON document of a pipeline with all its expressions, such as ``{"Get":
    "Parameters.Epochs"}``, replaced by their values, which ``scope`` has. Raises UnresolvedError if a value
    does not exist."""
    function_name = function_name_of_expression(value)  # None: not an expression
    if function_name == "Get":
        return _resolve_get(value["Get"], scope)
    if function_name == "Std:Join":
        join_argument = value["Std:Join"]
        joined_items = [resolve_expressions(item, scope) for item in join_argument["Values"]]
        return str(join_argument["On"]).join(expression_value_text(item) for item in joined_items)
    if function_name == "Std:JsonGet":
        return _resolve_json_get(value["Std:JsonGet"], scope)
    if isinstance(value, Mapping):
        return {key: resolve_expressions(item, scope) for key, item in value.items()}
    if isinstance(value, list):
        return [resolve_expressions(item, scope) for item in value]
    return value


def expression_value_text(value: Any) -> str:
    """Return a value as Std:Join writes it: a string as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def _resolve_get(reference: str, scope: ExpressionScope) -> Any:
    """Return the value that a reference such as ``Parameters.Epochs`` or ``Steps.Train.ModelArtifacts``
    names. Raises UnresolvedError."""
    namespace, _, referenced_path = reference.partition(".")
    if namespace == "Parameters":
        return scope.parameter_value(referenced_path)
    if namespace == "Execution":
        return scope.execution_variable(referenced_path)
    step_name, *field_path = parse_document_path(referenced_path) or ()
    return value_at_path(scope.describe_step(str(step_name)), field_path, reference)


def _resolve_json_get(argument: JsonMapping, scope: ExpressionScope) -> Any:
    """Return the value at ``Path`` of a JSON file: an S3 object, or a property file that a step has written.
    Raises UnresolvedError."""
    document_path = parse_document_path(_without_dollar_root(argument["Path"])) or ()
    if "S3Uri" in argument:
        uri = resolve_expressions(argument["S3Uri"], scope)
        return value_at_path(scope.read_s3_json(uri), document_path, f"{argument['Path']} of {uri}")
    step_name, file_name = parse_property_file(argument["PropertyFile"]) or ("", "")
    content = scope.read_property_file(step_name, file_name)
    return value_at_path(content, document_path, f"{argument['Path']} of the property file {file_name}")


def _without_dollar_root(path: str) -> str:
    return path[2:] if path.startswith("$.") else path[1:] if path.startswith("$[") else path


def value_at_path(value: Any, path: Sequence[str | int], reference: str) -> Any:
    """Return the value at a path of a document. Raises UnresolvedError, which names ``reference``."""
    for element in path:
        try:
            value = _select_field_or_item(value, element)
        except (KeyError, IndexError, TypeError):
            raise UnresolvedError(f"{reference}: there is no {element!r}") from None
    return value


def _select_field_or_item(container: Any, path_element: str | int) -> Any:
    """Return the field of a JSON object, or the item of a list, that a path element selects. In a list, a
    name selects the item that has it in an identifying field, such as ``{"OutputName": "train"}``. Raises
    KeyError, IndexError or TypeError."""
    if isinstance(container, list) and isinstance(path_element, str):
        for list_item in container:  # an object with one of OutputName, ChannelName, Name and others
            identifying_values = [list_item.get(name) for name in _IDENTIFYING_FIELDS]
            if path_element in identifying_values:
                return list_item
        raise KeyError(path_element)
    if isinstance(container, str):
        raise TypeError  # a string has no fields, but Python would index it
    return container[path_element]
