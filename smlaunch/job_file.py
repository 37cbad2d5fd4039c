"""A job as a YAML file: reading with the exact places of mistakes, writing what reads back the same.

The reader follows YAML 1.2's core schema, not the 1.1 that PyYAML follows by default: ``no`` and ``on`` are
text, ``1:30`` and ``2026-01-01`` are text, ``010`` is text, ``1e-3`` is a number. A key given twice is an
error rather than silently the last one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from smlaunch.errors import JobError, Problem

_TAG = "tag:yaml.org,2002:"
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_RESOLVERS: tuple[tuple[str, re.Pattern[str], list[str]], ...] = (
    ("bool", re.compile(r"true|True|TRUE|false|False|FALSE"), list("tTfF")),
    # The core schema has more spellings (+7, 007, 0x1F, 0o17); left as text they arrive as they were written.
    ("int", re.compile(r"0|-?[1-9][0-9]*"), list("-0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
    ("null", re.compile(r"~|null|Null|NULL|"), ["~", "n", "N", ""]),
    ("merge", re.compile(r"<<"), ["<"]),
)

_ODD_BREAKS = re.compile("[\x85\u2028\u2029]")


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  PyYAML's own way to state them

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[tuple[str, str], yaml.Node] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _TAG + "merge":
                if (key.tag, key.value) in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key.value!r} is given twice; keep one of them", key.start_mark
                    )
                seen[key.tag, key.value] = key
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes whatever either YAML 1.1 or our reader would take for something other than text."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: list(rules) for first, rules in yaml.SafeDumper.yaml_implicit_resolvers.items()
    }

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # PyYAML writes these line breaks as they are, and reads them back as a space or a newline.
    style = '"' if _ODD_BREAKS.search(text) else None
    return dumper.represent_scalar(_TAG + "str", text, style=style)


_Dumper.add_representer(str, _text)
for _name, _pattern, _first in _RESOLVERS:
    _whole = re.compile(rf"(?:{_pattern.pattern})\Z")
    _Loader.add_implicit_resolver(_TAG + _name, _whole, _first)
_Dumper.add_implicit_resolver(_TAG + "float", re.compile(rf"(?:{_FLOAT.pattern})\Z"), list("-+.0123456789"))


def read_mapping(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The file's keys and values, unchecked, with its relative paths turned into ones that hold from here.

    Raises JobError: file not readable, not YAML (with line and column), or not a mapping.
    """
    file = Path(path)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise JobError([Problem(str(path), f"the job file cannot be read: {error.strerror}")]) from None
    return relocated(parse_mapping(content, str(path)), file.parent)


def parse_mapping(content: bytes | str, name: str = "job file") -> dict[str, Any]:
    """The keys and values of a YAML document; ``name`` stands in front of line and column in errors."""
    try:
        document = yaml.load(content, Loader=_Loader)  # noqa: S506  a SafeLoader with fewer implicit types
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        what = ", ".join(part for part in (error.context, error.problem) if part)
        raise JobError([Problem(where, what)]) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise JobError([Problem(name, f"not YAML text: {' '.join(str(error).split())}")]) from None
    except (RecursionError, ValueError) as error:
        # ValueError: Python refuses to turn more than 4,300 digits into a number.
        raise JobError([Problem(name, f"cannot be read: {error}")]) from None
    if document is None:
        raise JobError([Problem(name, "the file is empty; at least 'entry: train.py' is needed")])
    if not isinstance(document, dict):
        kind = "a list" if isinstance(document, list) else f"{document!r}"
        raise JobError([Problem(name, f"a mapping such as 'entry: train.py' is needed, not {kind}")])
    return document


def write_mapping(mapping: Mapping[str, Any]) -> str:
    text: str = yaml.dump(dict(mapping), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return text


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``changes`` laid over ``base``: mappings key by key, everything else as a whole."""
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = merged(old, value)
        result[key] = value
    return result


def relocated(mapping: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A job whose relative paths, which hold in ``folder``, hold from here."""
    result = dict(mapping)
    for key in ("entry", "source"):
        if key in result:
            result[key] = _from_here(result[key], folder)
    inputs = result.get("inputs")
    if isinstance(inputs, dict):
        result["inputs"] = {
            name: {**channel, "uri": _from_here(channel["uri"], folder)}
            if isinstance(channel, dict) and "uri" in channel
            else _from_here(channel, folder)
            for name, channel in inputs.items()
        }
    return result


def _from_here(value: Any, folder: Path) -> Any:
    """Leaves what is no path alone: addresses, and values the job will refuse anyway."""
    if not isinstance(value, str) or not value or "://" in value:
        return value
    return str(folder / Path(value).expanduser())
