"""What a request says of the job's channels, and of the groups of hosts that get them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from smlaunch.api.job_kinds import FieldPath, get_at_path

_FILE_SYSTEM_FIELDS = ("file_system", "file_system_type", "directory")
_SCHEME_BY_TYPE = {"EFS": "efs", "FSxLustre": "fsx"}


class ChannelMember(NamedTuple):
    """A member of the entry, and the field of the channel that it is."""

    path: FieldPath
    """In the entry."""

    field: str
    """Empty for a member that states only what is so without it."""

    value: Any = None


def channel_members(entry: Mapping[str, Any], paths: Mapping[str, FieldPath]) -> Iterator[ChannelMember]:
    """Yield the members of an entry that have a field of a channel, or need none. ``paths``: where an entry
    has the fields of an input (``JobKind.input_path_by_field``)."""
    value_by_field = {field: get_at_path(entry, path) for field, path in paths.items()}
    scheme = _SCHEME_BY_TYPE.get(value_by_field.get("file_system_type") or "")
    if scheme is not None and value_by_field["file_system"] and value_by_field["directory"]:
        directory = str(value_by_field["directory"]).lstrip("/")
        uri = f"{scheme}://{value_by_field['file_system']}/{directory}"
        yield ChannelMember(paths["file_system"], "uri", uri)
        yield from (ChannelMember(paths[field], "") for field in _FILE_SYSTEM_FIELDS[1:])
    data_type = value_by_field["data_type"]
    if data_type == "AugmentedManifestFile" and not value_by_field.get("attributes"):
        yield ChannelMember(paths["data_type"], "attributes", [])
    for field, value in value_by_field.items():
        if value is None or field in ("name", "local_path", *_FILE_SYSTEM_FIELDS):
            continue
        path = paths[field]
        if field == "data_type":
            if value == "ManifestFile":
                yield ChannelMember(path, "manifest", True)
            elif value != "Converse":
                yield ChannelMember(path, "")  # a prefix, or what attributes say
        elif field == "split":
            yield ChannelMember(path, *(("split", "key") if value == "ShardedByS3Key" else ("",)))
        elif field in ("compression", "record_wrapper"):
            is_stated = value != "None"
            text = value.lower() if field == "compression" else value
            yield ChannelMember(path, *((field, text) if is_stated else ("",)))
        else:
            yield ChannelMember(path, field, value)


def as_instance_groups(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the job's ``compute.instance_groups`` for the request's."""
    name_by_member = {"InstanceGroupName": "name", "InstanceType": "type", "InstanceCount": "hosts"}
    return [
        {name_by_member.get(member, member): value for member, value in group.items()} for group in groups
    ]
