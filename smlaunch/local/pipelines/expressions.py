"""What a pipeline's definition writes instead of a value: ``{"Get": "Steps.Train.ModelArtifacts..."}`` and
the functions around it. Pure; whoever resolves hands in where the values come from.

Source: definitions that the SDK, version 2, writes (facts: sagemaker.md 6.3).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

Steps = tuple[str | int, ...]
"""A place in a document: member names and list indices."""

OPERATORS = ("Get", "Std:Join", "Std:JsonGet")
EXECUTION = (
    *("PipelineName", "PipelineArn", "PipelineExecutionId", "PipelineExecutionArn"),
    *("StartDateTime", "CurrentDateTime", "TrainingJobName", "ProcessingJobName"),
)
"""What can stand after ``Execution.``; the last two are the name of the job that the step itself creates."""

_STEP = re.compile(r"""\.?([^.\[\]'"]+)|\[(\d+)\]|\['([^']*)'\]|\["([^"]*)"\]""")


class Unresolved(Exception):
    """A value is not there; the text says which, and why."""


class Scope(Protocol):
    """Where values come from. Every method raises Unresolved."""

    def parameter(self, name: str) -> Any: ...

    def execution(self, name: str) -> Any: ...

    def step(self, name: str) -> Mapping[str, Any]:
        """What Describe answers about a step's job."""

    def property_file(self, step: str, name: str) -> Any:
        """A property file's content, read as JSON."""

    def s3_json(self, uri: str) -> Any: ...


def present(document: Mapping[str, Any]) -> dict[str, Any]:
    """A definition's member that is null is absent: the SDK, version 3, writes some so."""
    return {name: value for name, value in document.items() if value is not None}


def dotted(path: Steps) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def operator(value: Any) -> str | None:
    """The name of the function if ``value`` is one, known or not."""
    if isinstance(value, Mapping) and len(value) == 1:
        (name,) = value
        if name == "Get" or str(name).startswith("Std:"):
            return str(name)
    return None


def expressions(value: Any, path: Steps = ()) -> Iterator[tuple[Steps, Mapping[str, Any]]]:
    """Every function in a document, the outer before those within it."""
    if operator(value) is not None:
        yield path, value
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from expressions(item, (*path, str(name)))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from expressions(item, (*path, index))


def parse_path(text: str) -> Steps | None:
    """``Outputs['train'].S3Output`` as its parts; None for what is no such path."""
    found: list[str | int] = []
    at = 0
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None:
            return None
        name, index, *quoted = match.groups()
        found.append(int(index) if index is not None else next(x for x in (name, *quoted) if x is not None))
        at = match.end()
    return tuple(found)


def step_of(reference: str) -> str | None:
    """The step that a ``Get`` asks about; None for parameters and the execution's own values."""
    head, _, rest = reference.partition(".")
    parsed = parse_path(rest) if head == "Steps" else None
    return str(parsed[0]) if parsed else None


def problem(expression: Mapping[str, Any]) -> str | None:
    """What is wrong with the form of one function; what it refers to is not looked at."""
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
    return f"the function {name} is not had here; there are {', '.join(OPERATORS)}"


def _get_problem(body: Any) -> str | None:
    if not isinstance(body, str):
        return "Get takes a string"
    head, _, rest = body.partition(".")
    path = parse_path(rest)
    if head not in ("Steps", "Parameters", "Execution") or not path:
        return f"{body!r} is none of Steps.NAME.FIELD, Parameters.NAME and Execution.NAME"
    if head == "Execution" and rest not in EXECUTION:
        return f"{body!r} is not had here; there are {', '.join(EXECUTION)}"
    if head == "Steps" and len(path) < 2:
        return f"{body!r} names no field of the step"
    return None


def _json_get_problem(body: Any) -> str | None:
    if not isinstance(body, Mapping) or set(body) not in ({"PropertyFile", "Path"}, {"S3Uri", "Path"}):
        return "Std:JsonGet takes Path with one of PropertyFile and S3Uri"
    if not isinstance(body["Path"], str) or not parse_path(_without_root(body["Path"])):
        return f"the Path {body['Path']!r} is not had here; names, ['names'] and [0] are, parted by dots"
    if "PropertyFile" in body and property_file(body["PropertyFile"]) is None:
        return 'PropertyFile is {"Get": "Steps.NAME.PropertyFiles.FILE"}'
    return None


def property_file(value: Any) -> tuple[str, str] | None:
    """(step, name of the file)"""
    if operator(value) != "Get" or not isinstance(value["Get"], str):
        return None
    head, _, rest = value["Get"].partition(".")
    path = parse_path(rest)
    if head != "Steps" or path is None or len(path) != 3 or path[1] != "PropertyFiles":
        return None
    return str(path[0]), str(path[2])


def resolve(value: Any, scope: Scope) -> Any:
    """A document with all functions replaced by their values. Raises Unresolved."""
    name = operator(value)
    if name == "Get":
        return _get(value["Get"], scope)
    if name == "Std:Join":
        parts = [resolve(item, scope) for item in value[name]["Values"]]
        return str(value[name]["On"]).join(as_text(part) for part in parts)
    if name == "Std:JsonGet":
        return _json_get(value[name], scope)
    if isinstance(value, Mapping):
        return {key: resolve(item, scope) for key, item in value.items()}
    if isinstance(value, list):
        return [resolve(item, scope) for item in value]
    return value


def as_text(value: Any) -> str:
    """As Std:Join writes it: strings as they are, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def _get(reference: str, scope: Scope) -> Any:
    head, _, rest = reference.partition(".")
    if head == "Parameters":
        return scope.parameter(rest)
    if head == "Execution":
        return scope.execution(rest)
    name, *fields = parse_path(rest) or ()
    return walk(scope.step(str(name)), fields, reference)


def _json_get(body: Mapping[str, Any], scope: Scope) -> Any:
    path = parse_path(_without_root(body["Path"])) or ()
    if "S3Uri" in body:
        uri = resolve(body["S3Uri"], scope)
        return walk(scope.s3_json(uri), path, f"{body['Path']} of {uri}")
    step, name = property_file(body["PropertyFile"]) or ("", "")
    return walk(scope.property_file(step, name), path, f"{body['Path']} of the property file {name}")


def _without_root(path: str) -> str:
    return path[2:] if path.startswith("$.") else path[1:] if path.startswith("$[") else path


_NAMES = ("MetricName", "OutputName", "InputName", "ChannelName", "Key", "Name")
"""What an entry of a list is known by, where a path has a name instead of a number."""


def walk(value: Any, path: Sequence[str | int], location: str) -> Any:
    """``told`` names the whole reference, for the error. Raises Unresolved."""
    for step in path:
        try:
            value = _entry(value, step)
        except (KeyError, IndexError, TypeError):
            raise Unresolved(f"{location}: there is no {step!r}") from None
    return value


def _entry(value: Any, step: str | int) -> Any:
    if isinstance(value, list) and isinstance(step, str):
        for item in value:
            if any(item.get(name) == step for name in _NAMES):
                return item
        raise KeyError(step)
    if isinstance(value, str):
        raise TypeError  # a string has no fields, though Python would index it
    return value[step]
