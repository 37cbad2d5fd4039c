"""Maps members of a request to fields of the job, so that messages name what the user wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from smlaunch.api.job_kinds import JobKind, job_kind_of, member_value

_FIELDS_WITH_OTHER_MEMBERS = ("image", "output")
"""Fields that also stand for the other members of the object that has theirs."""

_INPUT_FIELDS_IN_MESSAGES = ("uri", "mode", "split", "content_type")


def job_field_of_member(member_path: tuple[str | int, ...], request: Mapping[str, Any]) -> str:
    """Return the name of the job's field that a member of a request comes from, such as ``compute.hosts`` or
    ``inputs.train.uri``; the dotted path of the member if there is none.

    ``member_path``: keys and list indices from the top of the request to the member.
    """
    kind = job_kind_of(request)
    field_by_path = {kind.members[field][:-1]: field for field in _FIELDS_WITH_OTHER_MEMBERS}
    field_by_path |= {path: field for field, path in kind.members.items() if field not in kind.constants}
    for length in range(len(member_path), 0, -1):
        field = field_by_path.get(member_path[:length])
        if field is not None:
            # Key or index of the entry that the member belongs to, and what follows.
            entry_path = member_path[length:]
            entry = member_value(request, member_path[: length + 1])
            return field + (_entry_suffix(field, kind, entry_path, entry) if entry_path else "")
    return dotted_path(member_path)


def dotted_path(member_path: tuple[str | int, ...]) -> str:
    """Return the path's keys and indices joined by dots."""
    return ".".join(str(member) for member in member_path)


def _entry_suffix(field: str, kind: JobKind, entry_path: tuple[str | int, ...], entry: Any) -> str:
    """Return the end of the name of an entry's field, if the field is a mapping or a list of named entries,
    such as ``.lr`` of hyperparameters, ``.team`` of tags, ``[0]`` of args; otherwise nothing.

    ``entry_path``: key or index of ``entry``, and the path in it, such as ``(0, "Value")`` of a tag.
    """
    if field in ("hyperparameters", "environment"):
        return f".{entry_path[0]}"
    if field == "args":
        return f"[{entry_path[0]}]"
    if field == "tags":
        return f".{entry['Key']}"
    if field != "inputs":
        return ""
    # The job's inputs have fields of their own, such as inputs.train.uri for a member S3Uri.
    own_fields = (
        f".{name}" for name in _INPUT_FIELDS_IN_MESSAGES if kind.input_members.get(name) == entry_path[1:]
    )
    return f".{member_value(entry, kind.input_members['name'])}{next(own_fields, '')}"


def walk_request_members(
    value: Any, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield path and value of every member of a request, parents before children. ``path``: keys and list
    indices from the top of the request to ``value``. A member is a key of a mapping, or an entry of a list,
    with its value."""
    if path:
        yield path, value
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from walk_request_members(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from walk_request_members(item, (*path, index))
