"""Merges members of the API that a job states by its ``request`` into the request that was compiled for it.
Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAME_BY_LIST: Mapping[str, str] = {
    "InputDataConfig": "ChannelName",
    "ProcessingInputs": "InputName",
    "Outputs": "OutputName",
    "MetricDefinitions": "Name",
    "Tags": "Key",
}
"""Lists of named entries: the member of an entry that names it."""


def merge_members(request: Mapping[str, Any], members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request with other members: mappings are merged, and lists whose entries have names, entry
    by entry (``NAME_BY_LIST``). Other lists and plain values replace those of the request."""
    merged = dict(request)
    for name, value in members.items():
        merged[name] = _merge_value(name, merged.get(name), value)
    return merged


def plain_copy(value: Any) -> Any:
    """Return a copy of a JSON value in which everything may be changed."""
    if isinstance(value, Mapping):
        return {key: plain_copy(item) for key, item in value.items()}
    return [plain_copy(item) for item in value] if isinstance(value, (list, tuple)) else value


def _merge_value(member: str, before: Any, value: Any) -> Any:
    if isinstance(before, Mapping) and isinstance(value, Mapping):
        return merge_members(before, value)
    name_member = NAME_BY_LIST.get(member)
    if name_member is None or not isinstance(before, list) or not isinstance(value, list):
        return plain_copy(value)
    entry_by_name = {entry[name_member]: entry for entry in before}
    for entry in value:
        name = entry[name_member]
        entry_by_name[name] = merge_members(entry_by_name.get(name, {}), entry)
    return list(entry_by_name.values())
