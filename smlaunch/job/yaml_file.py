"""Reads and writes jobs as YAML files. Errors have line and column; written files read back the same.

The reader follows YAML 1.2's core schema, not the 1.1 that PyYAML follows by default: ``no`` and ``on`` are
text, ``1:30`` and ``2026-01-01`` are text, ``010`` is text, ``1e-3`` is a number. A key that occurs twice is
an error; the last one does not silently win.
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
    # The core schema has more spellings (+7, 007, 0x1F, 0o17); as text they arrive as they were written.
    ("int", re.compile(r"0|-?[1-9][0-9]*"), list("-0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
    ("null", re.compile(r"~|null|Null|NULL|"), ["~", "n", "N", ""]),
    ("merge", re.compile(r"<<"), ["<"]),
)

_UNICODE_LINE_BREAKS = re.compile("[\x85\u2028\u2029]")


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  PyYAML's own way to state them

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the node's mapping. Raises ConstructorError for a key that is given twice."""
        first_nodes: dict[tuple[str, str], yaml.Node] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _TAG + "merge":
                if (key.tag, key.value) in first_nodes:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key.value!r} is given twice; keep one of them", key.start_mark
                    )
                first_nodes[key.tag, key.value] = key
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes all texts that YAML 1.1 or this module's reader would not take for text."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: list(rules) for first, rules in yaml.SafeDumper.yaml_implicit_resolvers.items()
    }

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # PyYAML writes these line breaks as they are, and reads them back as a space or a newline.
    style = '"' if _UNICODE_LINE_BREAKS.search(text) else None
    return dumper.represent_scalar(_TAG + "str", text, style=style)


_Dumper.add_representer(str, _represent_text)
for _name, _pattern, _first in _RESOLVERS:
    _whole = re.compile(rf"(?:{_pattern.pattern})\Z")
    _Loader.add_implicit_resolver(_TAG + _name, _whole, _first)
_Dumper.add_implicit_resolver(_TAG + "float", re.compile(rf"(?:{_FLOAT.pattern})\Z"), list("-+.0123456789"))


def read_job_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the file's keys and values, unchecked. Its relative paths become relative to the working
    directory.

    Raises JobError for a file that is unreadable, not YAML (with line and column), or not a mapping.
    """
    file = Path(path)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise JobError([Problem(str(path), f"the job file cannot be read: {error.strerror}")]) from None
    return resolve_relative_paths(parse_job_yaml(content, str(path)), file.parent)


def parse_job_yaml(content: bytes | str, name: str = "job file") -> dict[str, Any]:
    """Return the keys and values of a YAML document. ``name`` stands before line and column in errors."""
    try:
        document = yaml.load(content, Loader=_Loader)  # noqa: S506  a SafeLoader with fewer implicit types
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        location = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        message = ", ".join(text for text in (error.context, error.problem) if text)
        raise JobError([Problem(location, message)]) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise JobError([Problem(name, f"not YAML text: {' '.join(str(error).split())}")]) from None
    except (RecursionError, ValueError) as error:
        # ValueError: Python does not convert more than 4,300 digits to a number.
        raise JobError([Problem(name, f"cannot be read: {error}")]) from None
    if document is None:
        raise JobError([Problem(name, "the file is empty; at least 'entry: train.py' is needed")])
    if not isinstance(document, dict):
        kind = "a list" if isinstance(document, list) else f"{document!r}"
        raise JobError([Problem(name, f"a mapping such as 'entry: train.py' is needed, not {kind}")])
    return document


def dump_job_yaml(mapping: Mapping[str, Any]) -> str:
    text: str = yaml.dump(dict(mapping), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return text


def merge_mappings(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` overridden by ``changes``: mappings key by key, other values as a whole."""
    result = dict(base)
    for key, value in changes.items():
        existing = result.get(key)
        if isinstance(existing, Mapping) and isinstance(value, Mapping):
            value = merge_mappings(existing, value)
        result[key] = value
    return result


def resolve_relative_paths(mapping: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the job with paths that are relative to ``folder`` made relative to the working directory."""
    result = dict(mapping)
    for key in ("entry", "source"):
        if key in result:
            result[key] = _resolve_path(result[key], folder)
    inputs = result.get("inputs")
    if isinstance(inputs, dict):
        result["inputs"] = {
            name: {**channel, "uri": _resolve_path(channel["uri"], folder)}
            if isinstance(channel, dict) and "uri" in channel
            else _resolve_path(channel, folder)
            for name, channel in inputs.items()
        }
    return result


def _resolve_path(value: Any, folder: Path) -> Any:
    """Return the path below ``folder``. Addresses, and values that the job rejects anyway, stay unchanged."""
    if not isinstance(value, str) or not value or "://" in value:
        return value
    return str(folder / Path(value).expanduser())
