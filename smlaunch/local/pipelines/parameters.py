"""A pipeline's parameters: what they may be, and their values at the start of an execution. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smlaunch.local.pipelines.expressions import Steps, present

TYPES = ("String", "Integer", "Float", "Boolean")
_MEMBERS = frozenset({"Name", "Type", "Description", "DefaultValue", "EnumValues"})
_NAME = re.compile(r"[A-Za-z0-9\-_]{1,256}")


@dataclass(frozen=True)
class Parameter:
    """``default`` None: a value has to be given. ``values``: those there are, if not all of the type."""

    name: str
    type: str
    default: Any = None
    values: tuple[Any, ...] = ()


def read(documents: Any) -> tuple[dict[str, Parameter], list[tuple[Steps, str]]]:
    """The parameters, and all that is wrong with them."""
    found: dict[str, Parameter] = {}
    wrong: list[tuple[Steps, str]] = []
    if not isinstance(documents, list):
        return found, [(("Parameters",), "a list is needed")]
    for index, document in enumerate(documents):
        place: Steps = ("Parameters", index)
        if not isinstance(document, dict):
            wrong.append((place, "an object is needed"))
            continue
        document = present(document)
        name, kind = document.get("Name"), document.get("Type", "String")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            wrong.append(((*place, "Name"), f"{name!r} is no name of letters, digits, - and _"))
            continue
        if name in found:
            wrong.append(((*place, "Name"), f"{name!r} is there already"))
        if kind not in TYPES:
            wrong.append(((*place, "Type"), f"{kind!r} is none of {', '.join(TYPES)}"))
            kind = "String"
        unknown = document.keys() - _MEMBERS
        wrong += [((*place, member), "is unknown") for member in sorted(unknown)]
        values = document.get("EnumValues", [])
        if not isinstance(values, list):
            wrong.append(((*place, "EnumValues"), "a list is needed"))
            values = []
        default = document.get("DefaultValue")
        found[name] = Parameter(name, kind, default, tuple(values))
        if default is not None:
            problem = _problem(found[name], default)
            if problem:
                wrong.append(((*place, "DefaultValue"), problem))
    return found, wrong


def values(
    known: Mapping[str, Parameter], given: Sequence[Mapping[str, str]]
) -> tuple[dict[str, Any], list[str]]:
    """Every parameter's value, ``given`` as StartPipelineExecution has them, all as text; and all that is
    wrong."""
    wrong: list[str] = []
    found = {name: one.default for name, one in known.items() if one.default is not None}
    for entry in given:
        name, text = entry["Name"], entry["Value"]
        if name not in known:
            wrong.append(f"{name}: the pipeline has no such parameter; it has {', '.join(known) or 'none'}")
            continue
        value = _read(known[name].type, text)
        problem = _problem(known[name], text if value is None else value)
        if problem:
            wrong.append(f"{name}: {problem}")
        found[name] = value
    missing = [name for name in known if name not in found]
    wrong += [f"{name}: it has no default, so that a value is needed" for name in missing]
    return found, wrong


def _read(kind: str, text: str) -> Any:
    """None for text that is no value of the type."""
    if kind == "String":
        return text
    if kind == "Boolean":
        return {"true": True, "false": False}.get(text.strip().lower())
    try:
        return int(text) if kind == "Integer" else float(text)
    except ValueError:
        return None


def _problem(parameter: Parameter, value: Any) -> str | None:
    kind = parameter.type
    fits = {
        "String": isinstance(value, str),
        "Boolean": isinstance(value, bool),
        "Integer": isinstance(value, int) and not isinstance(value, bool),
        "Float": isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value),
    }[kind]
    if not fits:
        return f"{value!r} is no {kind}"
    if parameter.values and value not in parameter.values:
        return f"{value!r} is none of {json.dumps(list(parameter.values))}"
    return None
