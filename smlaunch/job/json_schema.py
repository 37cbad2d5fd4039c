"""The job file as a JSON Schema, for editors and for programs that write job files.

Made from the job's own classes, so that it cannot differ from what is checked. The descriptions are the
docstrings of the classes' fields.
"""

from __future__ import annotations

import ast
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from inspect import cleandoc, getsource
from itertools import pairwise
from typing import Annotated, Any, Literal

from smlaunch.api.job_kinds import PROCESSING, TRAINING
from smlaunch.api.validation.request_check import member_paths
from smlaunch.catalog.strategies import known_strategies
from smlaunch.job.model import Entry, Job
from smlaunch.job.sections import Section, annotations_of

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"

_TYPE_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}


def job_schema() -> dict[str, Any]:
    """Return the schema (draft 2020-12), with the strategies that are installed here."""
    definitions: dict[str, Any] = {}
    schema = _section_schema(Job, definitions)
    schema["properties"]["request"]["propertyNames"] = {"enum": _request_members()}
    schema["properties"]["strategy"]["anyOf"] = [{"enum": known_strategies()}, {"type": "null"}]
    return {
        "$schema": SCHEMA_DIALECT,
        "title": "smlaunch job",
        **schema,
        "anyOf": [_states(program) for program in ("entry", "algorithm", "image")],
        "not": {"allOf": [_states("entry"), _states("algorithm")]},
        "$defs": definitions,
    }


def _request_members() -> list[str]:
    """Return the members of the requests that create jobs of any kind."""
    operations = [kind.create_operation for kind in (TRAINING, PROCESSING)]
    return sorted({path[0] for operation in operations for path in member_paths(operation)})


def _states(field: str) -> dict[str, Any]:
    """Return the schema of a mapping that gives a field a value: neither null nor an empty list."""
    return {"required": [field], "properties": {field: {"not": {"enum": [None, []]}}}}


def _section_schema(section_class: type[Section], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a section; those of the sections in it are added to ``definitions``, by class."""
    docs = _field_docs(section_class.__module__, section_class.__name__)
    annotations = annotations_of(section_class)
    properties, required_fields = {}, []
    for field in fields(section_class):
        schema = _schema_of(annotations[field.name], definitions)
        if field.default is None or isinstance(field.default, (bool, int, float, str)):
            schema["default"] = field.default
        properties[field.name] = {"description": _as_one_line(docs[field.name]).rstrip("."), **schema}
        if field.default is MISSING and field.default_factory is MISSING:
            required_fields.append(field.name)
    section_schema: dict[str, Any] = {
        "type": "object",
        "description": _as_one_line(section_class.__doc__ or ""),
        "properties": properties,
        "additionalProperties": False,
    }
    if required_fields:
        section_schema["required"] = required_fields
    if section_class is Entry:  # it states one of its fields: script, module or command
        section_schema["oneOf"] = [_states(name) for name in properties]
    return section_schema


def _schema_of(annotation: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a field's annotation."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        schema = _schema_of(arguments[0], definitions)
        for rule in arguments[1:]:
            _add_constraints(schema, rule.schema)
        return schema
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (types.UnionType, typing.Union):
        schemas = [_schema_of(argument, definitions) for argument in arguments]
        return {"anyOf": [alternative for schema in schemas for alternative in _alternatives_of(schema)]}
    if origin is tuple:
        return {"type": "array", "items": _schema_of(arguments[0], definitions)}
    if origin is Mapping:
        return {
            "type": "object",
            "propertyNames": _schema_of(arguments[0], definitions),
            "additionalProperties": _schema_of(arguments[1], definitions),
        }
    if annotation is Any:
        return {}
    if annotation in _TYPE_NAMES:
        return {"type": _TYPE_NAMES[annotation]}
    name = annotation.__name__
    if name not in definitions:
        definitions[name] = _section_schema(annotation, definitions)
    reference = {"$ref": f"#/$defs/{name}"}
    if annotation.SHORTHAND_FIELD is None:
        return reference
    # A bare string stands for this field, which is a text or nothing.
    field_schema = _schema_of(annotations_of(annotation)[annotation.SHORTHAND_FIELD], definitions)
    text_schemas = [
        alternative for alternative in _alternatives_of(field_schema) if alternative["type"] == "string"
    ]
    return {"anyOf": [*text_schemas, reference]}


def _alternatives_of(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the schemas of which a value matches one: those in ``anyOf``, or the schema itself."""
    alternatives: list[dict[str, Any]] = schema.get("anyOf", [schema])
    return alternatives


def _add_constraints(schema: dict[str, Any], constraints: typing.Mapping[str, Any]) -> None:
    """Add a rule's constraints to a schema, or to those of its alternatives that can have them."""
    for alternative in _alternatives_of(schema):
        if alternative.get("type") not in ("null", None):
            alternative.update(constraints)


@cache
def _field_docs(module_name: str, class_name: str) -> Mapping[str, str]:
    """Return the docstring below each field of a section's class, by the field's name."""
    module = ast.parse(getsource(sys.modules[module_name]))
    (class_node,) = (
        node for node in module.body if isinstance(node, ast.ClassDef) and node.name == class_name
    )
    return {
        field.target.id: cleandoc(doc.value.value)
        for field, doc in pairwise(class_node.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(doc, ast.Expr)
        and isinstance(doc.value, ast.Constant)
        and isinstance(doc.value.value, str)
    }


def _as_one_line(docstring: str) -> str:
    return " ".join(docstring.split()).replace("``", "`")
