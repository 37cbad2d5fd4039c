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

_YAML_TAG_PREFIX = "tag:yaml.org,2002:"
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

_MAX_VALUES = 1_000_000

_UNICODE_LINE_BREAKS = re.compile("[\x85\u2028\u2029]")


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  PyYAML's own way to state them

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of a YAML node. Overrides a method of PyYAML, which accepts a key that is given
        twice; raises ConstructorError for it."""
        seen_keys: set[tuple[str, str]] = set()  # type (a YAML tag) and text
        for key_node, _ in node.value:
            # "<<" merges another mapping, and may be given twice.
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == _YAML_TAG_PREFIX + "merge":
                continue
            key = key_node.tag, key_node.value
            if key in seen_keys:
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    f"key {key_node.value!r} is given twice; keep one of them",
                    key_node.start_mark,
                )
            seen_keys.add(key)
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
    return dumper.represent_scalar(_YAML_TAG_PREFIX + "str", text, style=style)


_Dumper.add_representer(str, _represent_text)
for _name, _pattern, _first in _RESOLVERS:
    _whole = re.compile(rf"(?:{_pattern.pattern})\Z")
    _Loader.add_implicit_resolver(_YAML_TAG_PREFIX + _name, _whole, _first)
_Dumper.add_implicit_resolver(
    _YAML_TAG_PREFIX + "float", re.compile(rf"(?:{_FLOAT.pattern})\Z"), list("-+.0123456789")
)


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


def parse_job_yaml(content: bytes | str, document_name: str = "job file") -> dict[str, Any]:
    """Return the mapping in a YAML document. ``document_name``: stands before line and column in errors.
    Raises JobError for a text that is no YAML mapping."""
    try:
        document = yaml.load(content, Loader=_Loader)  # noqa: S506  a SafeLoader with fewer implicit types
    except yaml.MarkedYAMLError as error:
        error_position = error.problem_mark or error.context_mark  # lines and columns from 0
        location = (
            f"{document_name}:{error_position.line + 1}:{error_position.column + 1}"
            if error_position
            else document_name
        )
        message = ", ".join(text for text in (error.context, error.problem) if text)
        raise JobError([Problem(location, message)]) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise JobError([Problem(document_name, f"not YAML text: {' '.join(str(error).split())}")]) from None
    except (RecursionError, ValueError) as error:
        # ValueError: Python does not convert more than 4,300 digits to a number.
        raise JobError([Problem(document_name, f"cannot be read: {error}")]) from None
    if _expanded_size(document, {}) > _MAX_VALUES:
        raise JobError(
            [
                Problem(
                    document_name, f"its aliases make more than {_MAX_VALUES} values, or one contains itself"
                )
            ]
        )
    if document is None:
        raise JobError([Problem(document_name, "the file is empty; at least 'entry: train.py' is needed")])
    if not isinstance(document, dict):
        found_text = "a list" if isinstance(document, list) else f"{document!r}"
        raise JobError(
            [Problem(document_name, f"a mapping such as 'entry: train.py' is needed, not {found_text}")]
        )
    return document


def _expanded_size(value: Any, size_by_id: dict[int, int]) -> int:
    """Return the number of values in a document, one that several aliases name counted each time. A value
    that contains itself counts as more than any limit. ``size_by_id``: of lists and mappings seen before."""
    if not isinstance(value, (list, dict)):
        return 1
    if id(value) not in size_by_id:
        size_by_id[id(value)] = _MAX_VALUES + 1  # while its items are counted: one of them may be itself
        items = value.values() if isinstance(value, dict) else value
        size_by_id[id(value)] = 1 + sum(_expanded_size(item, size_by_id) for item in items)
    return size_by_id[id(value)]


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


def resolve_relative_paths(job_mapping: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a job's mapping with the paths that are relative to ``folder`` (that of its file) made relative
    to the working directory: of the script (``entry``), its source folder, and inputs. Addresses and absolute
    paths stay. The source folder of a module or a command is by default that of the file."""
    resolved_job = dict(job_mapping)
    entry = resolved_job.get("entry")
    if isinstance(entry, dict):
        if "script" in entry:
            resolved_job["entry"] = {**entry, "script": _resolve_path(entry["script"], folder)}
        elif resolved_job.get("source") is None:
            resolved_job["source"] = "."
    elif entry is not None:
        resolved_job["entry"] = _resolve_path(entry, folder)
    if "source" in resolved_job:
        resolved_job["source"] = _resolve_path(resolved_job["source"], folder)
    inputs = resolved_job.get("inputs")
    if isinstance(inputs, dict):
        # A channel is an address, or a mapping with one.
        resolved_job["inputs"] = {
            name: {**channel, "uri": _resolve_path(channel["uri"], folder)}
            if isinstance(channel, dict) and "uri" in channel
            else _resolve_path(channel, folder)
            for name, channel in inputs.items()
        }
    return resolved_job


def _resolve_path(value: Any, folder: Path) -> Any:
    """Return the path below ``folder``. Addresses, and values that the job rejects anyway, stay unchanged."""
    if not isinstance(value, str) or not value or "://" in value:
        return value
    return str(folder / Path(value).expanduser())
