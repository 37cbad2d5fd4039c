"""The job file as a JSON Schema, for editors and for programs that write job files.

Made from the job's own classes, so that it cannot differ from what is checked; what a field means is taken
from the sentences about it in their docstrings.
"""

from __future__ import annotations

import re
from typing import Any

from smlaunch.job import Job
from smlaunch.strategy_names import known

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_DURATION = r"^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?$"
_PATTERNS = {
    **dict.fromkeys(("max_runtime", "segment", "max_wait", "max_pending", "hang", "interval"), _DURATION),
    **dict.fromkeys(("length", "keep_alive", "time_on_one", "wanted_time"), _DURATION),
    "instance_type": r"^ml\.[a-z0-9-]+\.[a-z0-9-]+$",
    "output": "^s3://[^/]+(/.*)?$",
    "name": "^[a-z0-9](-?[a-z0-9]){0,39}$",
}
_SAID = re.compile(r"``(\w+)``: (.+?)(?=[.;] ``\w+``: |$)")
_WORD = {"type": ["string", "integer"]}


def job_schema() -> dict[str, Any]:
    """Of draft 2020-12, with the strategies that are installed here."""
    schema = Job.model_json_schema()
    parts = schema["$defs"]
    for part in (schema, *parts.values()):
        _describe(part)
    fields = schema["properties"]
    for name in ("Channel", "Checkpoints"):
        # A bare text stands for the address.
        parts[f"{name}OrAddress"] = {"anyOf": [{"type": "string"}, {"$ref": f"#/$defs/{name}"}]}
    fields["inputs"]["additionalProperties"] = {"$ref": "#/$defs/ChannelOrAddress"}
    fields["checkpoints"]["anyOf"] = [{"$ref": "#/$defs/CheckpointsOrAddress"}, {"type": "null"}]
    fields["args"]["items"] = _WORD
    fields["environment"]["additionalProperties"] = fields["tags"]["additionalProperties"] = _WORD
    fields["strategy"]["anyOf"] = [{"enum": known()}, {"type": "null"}]
    programs = [{"required": [name]} for name in ("entry", "algorithm", "image")]
    return {"$schema": DIALECT, **schema, "title": "smlaunch job", "anyOf": programs}


def _describe(part: dict[str, Any]) -> None:
    """Each field gets its own sentences, and the section keeps what is said of it as a whole."""
    text = " ".join(part.get("description", "").split())
    said = {name: sentence.rstrip(".") for name, sentence in _SAID.findall(text)}
    if said:
        part["description"] = text.partition(" ``")[0]
    for name, field in part.get("properties", {}).items():
        field.pop("title", None)
        if name in said:
            field["description"] = said[name].replace("``", "`")
        if name in _PATTERNS:
            _restrict(field, _PATTERNS[name])


def _restrict(field: dict[str, Any], pattern: str) -> None:
    kinds: list[dict[str, Any]] = field.get("anyOf", [field])
    for kind in kinds:
        if kind.get("type") == "string":
            kind["pattern"] = pattern
