"""Resolves a channel's S3 address (a prefix, a manifest, or an augmented manifest) to a list of objects or
of records. Only reads the object store.

Source of the formats: API reference, S3DataSource; developer guide, augmented-manifest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from smlaunch.local.jobs.spec import ChannelSpec, S3Location
from smlaunch.local.jobs.stores import Objects


class DataError(Exception):
    """A channel's data is missing or invalid: the job fails with a ClientError, in AWS's words where they
    are known."""


@dataclass(frozen=True)
class ChannelObject:
    """One object of a channel."""

    key: str
    relative: str
    """Its path below the channel's directory."""
    size: int
    body_path: str
    """Path of its file in the object store."""


@dataclass(frozen=True)
class ChannelListing:
    """The objects of a channel, which are in one bucket."""

    bucket: str
    items: tuple[ChannelObject, ...]
    folder: str | None
    """The prefix, ending in ``/``, if every object is below it under its own name and nothing else is
    there."""


@dataclass(frozen=True)
class ObjectRef:
    """The address of an object."""

    bucket: str
    key: str


RecordPart = ObjectRef | bytes
"""What Pipe mode sends: the body of an object, or these bytes."""


@dataclass(frozen=True)
class Record:
    """The unit of shuffling and sharding in Pipe mode: an object, or a line of an augmented manifest."""

    name: str
    """The key for the sharding rule."""
    parts: tuple[RecordPart, ...]
    """The object, or the attributes of the line in the requested order."""


def list_channel(channel: ChannelSpec, objects: Objects) -> ChannelListing:
    """Return the objects of a channel. Raises DataError if there is nothing below the prefix, or if an
    object of a manifest does not exist."""
    location = S3Location.parse(channel.uri)
    if channel.data_type == "ManifestFile":
        return _list_manifest(channel, location, objects)
    prefix = location.key
    if channel.mode == "FastFile" and prefix and not prefix.endswith("/"):
        # FastFile mounts a folder, so that the prefix cannot be the beginning of a name (developer guide,
        # model-access-training-data).
        prefix += "/"
    try:
        stored_objects = list(objects.list_bodies(location.bucket, prefix))
    except KeyError:
        stored_objects = []
    items = [
        ChannelObject(key, _safe_path(channel, key, _relative(key, prefix)), size, body_path)
        for key, size, body_path in stored_objects
        if not key.endswith("/")  # a folder marker
    ]
    if not stored_objects:
        raise DataError(
            f'Data download failed:No S3 objects found under S3 URL "{channel.uri}" given in input '
            f'data source "{channel.name}". Please ensure that the bucket exists and that objects exist '
            "under that prefix, in the endpoint's own S3"
        )
    folder_prefix = prefix if not prefix or prefix.endswith("/") else prefix + "/"
    are_all_below = all(item.key.startswith(folder_prefix) for item in items)
    return ChannelListing(location.bucket, tuple(items), folder_prefix if are_all_below else None)


def list_records(channel: ChannelSpec, objects: Objects) -> tuple[Record, ...]:
    """Return the records that Pipe mode sends, in the order of the listing or the manifest. Raises
    DataError."""
    if channel.data_type == "AugmentedManifestFile":
        return tuple(_list_augmented_manifest(channel, S3Location.parse(channel.uri), objects))
    listing = list_channel(channel, objects)
    return tuple(Record(item.key, (ObjectRef(listing.bucket, item.key),)) for item in listing.items)


def _relative(key: str, prefix: str) -> str:
    """Return an object's path below the channel's directory. If the prefix is an object's whole key, or ends
    within a name, the path keeps that name."""
    if key.startswith(prefix) and (not prefix or prefix.endswith("/")):
        return key[len(prefix) :]
    if key.startswith(prefix + "/"):
        return key[len(prefix) + 1 :]
    return key[prefix.rfind("/") + 1 :]


def _safe_path(channel: ChannelSpec, key: str, relative: str) -> str:
    """Return ``relative`` as a path that stays in its directory: keys may contain ``//``, ``.`` and ``..``.
    Raises DataError."""
    parts = [part for part in relative.split("/") if part not in ("", ".")]
    if ".." in parts or not parts:
        raise DataError(
            f"Data download failed:the key {key!r} of channel {channel.name} cannot be a file below the "
            "channel's directory"
        )
    return "/".join(parts)


def _read_manifest(channel: ChannelSpec, location: S3Location, objects: Objects) -> str:
    """Return the text of a manifest. Raises DataError."""
    try:
        return objects.body_path(location.bucket, location.key).read_text("utf-8")
    except KeyError:
        raise DataError(
            f"Data download failed:NoSuchKey: the manifest {channel.uri} of channel {channel.name} does not "
            "exist"
        ) from None
    except UnicodeDecodeError as error:
        raise DataError(f"{_invalid_manifest(channel)}it is not UTF-8 ({error})") from None


def _invalid_manifest(channel: ChannelSpec) -> str:
    """Return the beginning of an error message."""
    return f"Data download failed:the manifest {channel.uri} of channel {channel.name} is not valid: "


def _list_manifest(channel: ChannelSpec, location: S3Location, objects: Objects) -> ChannelListing:
    """Return the objects of a manifest. Raises DataError."""
    text = _read_manifest(channel, location, objects)
    try:
        header, *names = json.loads(text)
        prefix = S3Location.parse(header["prefix"])
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            f'{_invalid_manifest(channel)}a JSON array that begins with {{"prefix": "s3://..."}} is needed '
            f"({error!r})"
        ) from None
    if not names or not all(isinstance(name, str) for name in names):
        raise DataError(
            f"{_invalid_manifest(channel)}after the prefix come the objects' names, as strings, at least one"
        )
    items = []
    for name in names:
        key = prefix.key + name
        try:
            body_path = objects.body_path(prefix.bucket, key)
        except KeyError:
            raise _missing_object_error(channel, prefix.bucket, key) from None
        items.append(
            ChannelObject(key, _safe_path(channel, key, name), body_path.stat().st_size, str(body_path))
        )
    return ChannelListing(prefix.bucket, tuple(items), None)


def _list_augmented_manifest(
    channel: ChannelSpec, location: S3Location, objects: Objects
) -> Iterator[Record]:
    """Yield the records of an augmented manifest. Raises DataError."""
    lines = _read_manifest(channel, location, objects).split("\n")
    if not any(line.strip() for line in lines):
        raise DataError(f"{_invalid_manifest(channel)}it has no line")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except ValueError as error:
            raise DataError(f"{_invalid_manifest(channel)}line {number} is not JSON ({error})") from None
        if not isinstance(values, dict):
            raise DataError(f"{_invalid_manifest(channel)}line {number} is not a JSON object")
        missing = [name for name in channel.attribute_names if name not in values]
        if missing:
            raise DataError(
                f"{_invalid_manifest(channel)}line {number} has no {missing[0]!r}, which AttributeNames "
                "asks for"
            )
        parts = tuple(
            _record_part(channel, number, name, values[name], objects) for name in channel.attribute_names
        )
        yield Record(str(number), parts)


def _record_part(channel: ChannelSpec, number: int, name: str, value: Any, objects: Objects) -> RecordPart:
    """Return what is sent for an attribute: the object for a ``-ref`` attribute, a string as it is, anything
    else as JSON. Raises DataError."""
    if not name.endswith("-ref"):
        return (value if isinstance(value, str) else json.dumps(value)).encode("utf-8", "surrogateescape")
    if not isinstance(value, str) or not value.startswith("s3://"):
        raise DataError(f"{_invalid_manifest(channel)}line {number}: {name} is no s3:// address: {value!r}")
    location = S3Location.parse(value)
    try:
        objects.body_path(location.bucket, location.key)
    except KeyError:
        raise _missing_object_error(channel, location.bucket, location.key) from None
    return ObjectRef(location.bucket, location.key)


def _missing_object_error(channel: ChannelSpec, bucket: str, key: str) -> DataError:
    return DataError(
        f"Data download failed:NoSuchKey: s3://{bucket}/{key}, named by the manifest of channel "
        f"{channel.name}, does not exist"
    )
