"""Reads and writes jobs as YAML files. Errors have line and column; written files read back the same.

The reader follows YAML 1.2's core schema, not the 1.1 that PyYAML follows by default: ``no`` and ``on`` are
text, ``1:30`` and ``2026-01-01`` are text, ``010`` is text, ``1e-3`` is a number. A key that occurs twice is
an error; the last one does not silently win.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from smlaunch.errors import JobError, Problem
from smlaunch.job.written_float import WrittenFloat
from smlaunch.secrets.shown_values import kind_of_value
from smlaunch.text.home_folder import expand_home

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

_CORE_TAGS = ("null", "bool", "int", "float", "str", "seq", "map")

_MAX_VALUES = 1_000_000
_MAX_BYTES = 1_000_000
_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")

_UNICODE_LINE_BREAKS = re.compile("[\x85\u2028\u2029]")


class _Loader(yaml.SafeLoader):
    # PyYAML's own way to state both; other tags than the core schema's are unknown.
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012
    yaml_constructors = {  # noqa: RUF012
        tag: constructor
        for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.removeprefix(_YAML_TAG_PREFIX) in _CORE_TAGS
    }

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of a YAML node. Raises ConstructorError for a stated tag (``!!bool maybe``) that
        the node's text does not have."""
        pattern = _PATTERN_BY_TAG.get(node.tag)
        if pattern is None:
            return super().construct_object(node, deep)
        if not isinstance(node, yaml.ScalarNode) or not pattern.fullmatch(node.value):
            name = node.tag.removeprefix(_YAML_TAG_PREFIX)
            raise yaml.constructor.ConstructorError(
                None,
                None,
                f"this is no {name} of YAML 1.2's core schema; leave out !!{name}",
                node.start_mark,
            )
        value = super().construct_object(node, deep)
        return WrittenFloat(value, node.value) if isinstance(value, float) else value

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> str:
        """Return a scalar's text. JSON writes a character beyond U+FFFF as two halves, which are joined."""
        text = str(super().construct_scalar(node))
        return _SURROGATE_PAIR.sub(
            lambda pair: pair.group().encode("utf-16", "surrogatepass").decode("utf-16"), text
        )

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of a YAML node. Overrides a method of PyYAML, which accepts a key that is given
        twice; raises ConstructorError for it."""
        seen_keys: set[tuple[str, str]] = set()  # type (a YAML tag) and text
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
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


_PATTERN_BY_TAG = {_YAML_TAG_PREFIX + name: pattern for name, pattern, _ in _RESOLVERS if name in _CORE_TAGS}


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


def _represent_written_float(dumper: yaml.SafeDumper, number: WrittenFloat) -> yaml.ScalarNode:
    return dumper.represent_scalar(_YAML_TAG_PREFIX + "float", number.text)


def _represent_float(dumper: yaml.SafeDumper, number: float) -> yaml.ScalarNode:
    """Write a number as it is sent, where a reader takes that for a number: 1e+300."""
    if _FLOAT.fullmatch(repr(number)) is None:
        return dumper.represent_float(number)
    return dumper.represent_scalar(_YAML_TAG_PREFIX + "float", repr(number))


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(float, _represent_float)
_Dumper.add_representer(WrittenFloat, _represent_written_float)
for _name, _pattern, _first in _RESOLVERS:
    _whole = re.compile(rf"(?:{_pattern.pattern})\Z")
    _Loader.add_implicit_resolver(_YAML_TAG_PREFIX + _name, _whole, _first)
_Dumper.add_implicit_resolver(
    _YAML_TAG_PREFIX + "float", re.compile(rf"(?:{_FLOAT.pattern})\Z"), list("-+.0123456789")
)


def read_job_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the file's keys and values, unchecked. Its relative paths become relative to the working
    directory.

    Raises JobError for a file that is unreadable, too large, not YAML (with line and column), or not a
    mapping.
    """
    file = Path(path)
    try:
        with file.open("rb") as stream:  # a pipe too; /dev/zero has no end
            content = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise JobError([Problem(str(path), f"the job file cannot be read: {error.strerror}")]) from None
    except ValueError as error:  # a NUL character in the path
        raise JobError([Problem(repr(path), f"the job file cannot be read: {error}")]) from None
    if len(content) > _MAX_BYTES:
        raise JobError([Problem(str(path), f"the job file is larger than {_MAX_BYTES // 10**6} MB")])
    return resolve_relative_paths(parse_job_yaml(content, str(path)), file.parent)


def parse_job_yaml(content: bytes | str, document_name: str = "job file") -> dict[str, Any]:
    """Return the mapping in a YAML document. ``document_name``: stands before line and column in errors.
    Raises JobError for a text that is no YAML mapping."""
    mapping = parse_yaml_mapping(content, document_name, "entry: train.py")
    if mapping is None:
        raise JobError([Problem(document_name, "the file is empty; at least 'entry: train.py' is needed")])
    return mapping


def parse_yaml_mapping(content: bytes | str, document_name: str, example: str) -> dict[str, Any] | None:
    """As ``parse_job_yaml``, but None for a text without any value. ``example``: a line of such a document,
    for messages."""
    try:
        document = yaml.load(content, Loader=_Loader)  # noqa: S506  a SafeLoader with fewer implicit types
    except yaml.MarkedYAMLError as error:
        error_position = error.problem_mark or error.context_mark  # lines and columns from 0
        location = document_name
        if error_position:
            location += f":{error_position.line + 1}:{error_position.column + 1}"
        message = ", ".join(text for text in (error.context, error.problem) if text)
        # The name may be a password that begins with * or !.
        message, count = re.subn(r"\b(alias|tag|anchor) '.*'", r"\1", message, flags=re.DOTALL)
        if count:
            message += "; write a text that begins with *, ! or & in quotes"
        if "'\\t'" in message:
            message = "a tab; YAML is indented by spaces: replace it by as many as the lines beside it have"
        raise JobError([Problem(location, message)]) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise JobError([Problem(document_name, f"not YAML text: {' '.join(str(error).split())}")]) from None
    except (RecursionError, ValueError) as error:
        # ValueError: Python does not convert more than 4,300 digits to a number.
        raise JobError([Problem(document_name, f"cannot be read: {error}")]) from None
    if _count_values(document, count_by_id={}) > _MAX_VALUES:
        message = f"its aliases make more than {_MAX_VALUES} values, or one contains itself"
        raise JobError([Problem(document_name, message)])
    if document is not None and not isinstance(document, dict):
        found_text = kind_of_value(document)
        raise JobError([Problem(document_name, f"a mapping such as {example!r} is needed, not {found_text}")])
    return document


def _count_values(value: Any, count_by_id: dict[int, int]) -> int:
    """Return how many values a YAML value consists of, itself included. A value that several aliases name is
    counted each time; one that contains itself counts as more than any limit. ``count_by_id``: of the lists
    and mappings that have been counted, by ``id()``."""
    if not isinstance(value, (list, dict)):
        return 1
    if id(value) not in count_by_id:
        count_by_id[id(value)] = _MAX_VALUES + 1  # while its items are counted: one of them may be itself
        items = value.values() if isinstance(value, dict) else value
        count_by_id[id(value)] = 1 + sum(_count_values(item, count_by_id) for item in items)
    return count_by_id[id(value)]


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
    to the working directory. Addresses and absolute paths stay. The source folder of a module or a command is
    by default that of the file."""
    entry = job_mapping.get("entry")
    if isinstance(entry, dict) and "script" not in entry and job_mapping.get("source") is None:
        job_mapping = {**job_mapping, "source": "."}
    return _change_paths(job_mapping, partial(_resolve_path, folder=folder))


def relative_paths_to(folder: Path, job_mapping: dict[str, Any]) -> dict[str, Any]:
    """Return a job's mapping with its paths made relative to ``folder``, for a job file there: the reverse of
    ``resolve_relative_paths``."""
    return _change_paths(job_mapping, partial(_relative_path_to, folder=folder))


def _change_paths(job_mapping: dict[str, Any], change_path: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a job's mapping with each of its paths replaced by what ``change_path`` returns for it: of the
    script (``entry``), its source folder, and inputs."""
    changed_job = dict(job_mapping)
    entry = changed_job.get("entry")
    if isinstance(entry, dict):
        if "script" in entry:
            changed_job["entry"] = {**entry, "script": change_path(entry["script"])}
    elif entry is not None:
        changed_job["entry"] = change_path(entry)
    if "source" in changed_job:
        changed_job["source"] = change_path(changed_job["source"])
    inputs = changed_job.get("inputs")
    if isinstance(inputs, dict):
        # A channel is an address, or a mapping with one.
        changed_job["inputs"] = {
            name: {**channel, "uri": change_path(channel["uri"])}
            if isinstance(channel, dict) and "uri" in channel
            else change_path(channel)
            for name, channel in inputs.items()
        }
    return changed_job


def _resolve_path(value: Any, folder: Path) -> Any:
    """Return the path below ``folder``. Addresses, and values that the job rejects anyway, stay unchanged."""
    if not isinstance(value, str) or not value or "://" in value:
        return value
    return str(folder / expand_home(value))


def _relative_path_to(value: Any, folder: Path) -> Any:
    """Return a path, which is relative to the working directory, relative to ``folder``; absolute if it is
    outside. Absolute paths, addresses, and values that the job rejects anyway stay unchanged."""
    is_path = isinstance(value, str) and "://" not in value
    is_folder_working_directory = folder == Path()
    if not is_path or is_folder_working_directory or Path(value).is_absolute():
        return value
    path = Path(value)
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path.absolute())
