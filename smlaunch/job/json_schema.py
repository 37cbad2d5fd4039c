"""The job file as a JSON Schema, for editors and for programs that write job files.

Made from the job's own classes, so that it cannot differ from what is checked. The descriptions are the
docstrings of the classes' fields.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from inspect import cleandoc, getsource
from itertools import pairwise
from typing import Any

from smlaunch.job.model import Job
from smlaunch.strategies.registry import known_strategies

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"

_DURATION = r"^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?$"
_PATTERN_BY_FIELD = {
    **dict.fromkeys(("max_runtime", "segment", "max_wait", "max_pending", "hang", "interval"), _DURATION),
    **dict.fromkeys(("length", "keep_alive", "time_on_one", "wanted_time"), _DURATION),
    "instance_type": r"^ml\.[a-z0-9-]+\.[a-z0-9-]+$",
    "output": "^s3://[^/]+(/.*)?$",
    "name": "^[a-z0-9](-?[a-z0-9]){0,39}$",
}
_TEXT_OR_INTEGER = {"type": ["string", "integer"]}


def job_schema() -> dict[str, Any]:
    """Return the schema (draft 2020-12), with the strategies that are installed here."""
    schema = Job.model_json_schema()
    sections = schema["$defs"]
    docs_by_class = _field_docs_by_class()
    for class_name, section in (("Job", schema), *sections.items()):
        _describe_fields(section, docs_by_class.get(class_name, {}))
    fields = schema["properties"]
    for name in ("Channel", "Checkpoints"):
        # A bare string stands for the address.
        sections[f"{name}OrAddress"] = {"anyOf": [{"type": "string"}, {"$ref": f"#/$defs/{name}"}]}
    fields["inputs"]["additionalProperties"] = {"$ref": "#/$defs/ChannelOrAddress"}
    fields["checkpoints"]["anyOf"] = [{"$ref": "#/$defs/CheckpointsOrAddress"}, {"type": "null"}]
    fields["args"]["items"] = _TEXT_OR_INTEGER
    fields["environment"]["additionalProperties"] = fields["tags"]["additionalProperties"] = _TEXT_OR_INTEGER
    fields["strategy"]["anyOf"] = [{"enum": known_strategies()}, {"type": "null"}]
    programs = [{"required": [name]} for name in ("entry", "algorithm", "image")]
    return {"$schema": SCHEMA_DIALECT, **schema, "title": "smlaunch job", "anyOf": programs}


def _field_docs_by_class() -> dict[str, dict[str, str]]:
    """Return the docstring below each field of the job's classes, by class and field name."""
    docs: dict[str, dict[str, str]] = {}
    for node in ast.parse(getsource(sys.modules[Job.__module__])).body:
        if isinstance(node, ast.ClassDef):
            docs[node.name] = {
                field.target.id: cleandoc(doc.value.value)
                for field, doc in pairwise(node.body)
                if isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(doc, ast.Expr)
                and isinstance(doc.value, ast.Constant)
                and isinstance(doc.value.value, str)
            }
    return docs


def _describe_fields(section: dict[str, Any], docs: Mapping[str, str]) -> None:
    """Add each field's description and pattern."""
    if "description" in section:
        section["description"] = " ".join(section["description"].split()).replace("``", "`")
    for name, field in section.get("properties", {}).items():
        field.pop("title", None)
        if name in docs:
            field["description"] = " ".join(docs[name].split()).rstrip(".").replace("``", "`")
        if name in _PATTERN_BY_FIELD:
            _add_pattern(field, _PATTERN_BY_FIELD[name])


def _add_pattern(field: dict[str, Any], pattern: str) -> None:
    alternatives: list[dict[str, Any]] = field.get("anyOf", [field])
    for alternative in alternatives:
        if alternative.get("type") == "string":
            alternative["pattern"] = pattern
