"""Resolves a channel's S3 address (a prefix, a manifest, or an augmented manifest) to a list of objects or
of records. Only reads the object store.

Source of the formats: API reference, S3DataSource; developer guide, augmented-manifest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from smlaunch.local.jobs.job_spec import ChannelSpec, S3Location
from smlaunch.local.jobs.store_interfaces import S3ObjectStore
from smlaunch.local.json_types import JsonObject


class InputDataError(Exception):
    """A channel's data is missing or invalid: the job fails with a ClientError, in AWS's words where they
    are known."""


@dataclass(frozen=True)
class ChannelObject:
    """One object of a channel."""

    key: str
    relative_path: str
    """Its path below the channel's directory."""
    size: int
    object_file_path: str
    """Path of its file in the object store."""


@dataclass(frozen=True)
class ChannelListing:
    """The objects of a channel, which are in one bucket."""

    bucket: str
    objects: tuple[ChannelObject, ...]
    folder_prefix: str | None
    """The prefix, ending in ``/``, if every object is below it under its own name and nothing else is
    there."""


@dataclass(frozen=True)
class ObjectAddress:
    """The address of an object."""

    bucket: str
    key: str


RecordPayload = ObjectAddress | bytes
"""What Pipe mode sends: the body of an object, or these bytes."""


@dataclass(frozen=True)
class PipeRecord:
    """The unit of shuffling and sharding in Pipe mode: an object, or a line of an augmented manifest."""

    sharding_key: str
    """The key for the sharding rule."""
    payloads: tuple[RecordPayload, ...]
    """The object, or the attributes of the line in the requested order."""


def list_channel(channel: ChannelSpec, object_store: S3ObjectStore) -> ChannelListing:
    """Return the S3 objects of an input channel, with their paths below the channel's directory. If they are
    all objects of one S3 folder, ``folder_prefix`` of the result is that folder, which can be mounted in
    place of a copy; otherwise None. Raises InputDataError if there is nothing below the channel's prefix, or
    if an object of its manifest does not exist."""
    location = S3Location.parse(channel.s3_uri)
    if channel.data_type == "ManifestFile":
        return _list_manifest(channel, location, object_store)
    key_prefix = location.key
    if channel.input_mode == "FastFile" and key_prefix:
        # FastFile mounts a folder, so that the prefix cannot be the beginning of a name (developer guide,
        # model-access-training-data).
        key_prefix = _with_final_slash(key_prefix)
    try:
        stored_objects = list(object_store.list_object_bodies(location.bucket, key_prefix))
    except KeyError:
        stored_objects = []  # an unknown bucket is reported as an empty prefix
    if not stored_objects:
        raise InputDataError(
            f'Data download failed:No S3 objects found under S3 URL "{channel.s3_uri}" given in input '
            f'data source "{channel.name}". Please ensure that the bucket exists and that objects exist '
            "under that prefix, in the endpoint's own S3"
        )
    channel_objects = [
        ChannelObject(
            key=key,
            relative_path=_normalize_relative_path(channel, key, _path_below_prefix(key, key_prefix)),
            size=size,
            object_file_path=object_file_path,
        )
        for key, size, object_file_path in stored_objects
        if not key.endswith("/")  # the S3 console's empty object for a folder
    ]
    # S3 prefixes may end within a name: "data" also matches "database/x", which is not in the folder "data/".
    folder_prefix = _with_final_slash(key_prefix) if key_prefix else ""
    are_all_in_folder = all(
        channel_object.key.startswith(folder_prefix) for channel_object in channel_objects
    )
    return ChannelListing(
        location.bucket, tuple(channel_objects), folder_prefix=folder_prefix if are_all_in_folder else None
    )


def _with_final_slash(prefix: str) -> str:
    return prefix if prefix.endswith("/") else prefix + "/"


def list_records(channel: ChannelSpec, object_store: S3ObjectStore) -> tuple[PipeRecord, ...]:
    """Return the records that Pipe mode sends, in the order of the listing or the manifest. Raises
    InputDataError."""
    if channel.data_type == "AugmentedManifestFile":
        return tuple(_read_augmented_manifest(channel, S3Location.parse(channel.s3_uri), object_store))
    listing = list_channel(channel, object_store)
    return tuple(
        PipeRecord(channel_object.key, (ObjectAddress(listing.bucket, channel_object.key),))
        for channel_object in listing.objects
    )


def _path_below_prefix(key: str, key_prefix: str) -> str:
    """Return an object's path below the channel's directory: what follows the S3 prefix in its key. A prefix
    that ends within a name, or is the whole key, leaves that name whole: the prefix ``a/b`` and the key
    ``a/bc`` give ``bc``."""
    if key.startswith(key_prefix) and (not key_prefix or key_prefix.endswith("/")):
        return key[len(key_prefix) :]
    if key.startswith(key_prefix + "/"):
        return key[len(key_prefix) + 1 :]
    return key[key_prefix.rfind("/") + 1 :]


def _normalize_relative_path(channel: ChannelSpec, key: str, relative_path: str) -> str:
    """Return ``relative_path`` as a path that stays in its directory: keys may contain ``//``, ``.`` and
    ``..``. Raises InputDataError."""
    path_parts = [path_part for path_part in relative_path.split("/") if path_part not in ("", ".")]
    if ".." in path_parts or not path_parts:
        raise InputDataError(
            f"Data download failed:the key {key!r} of channel {channel.name} cannot be a file below the "
            "channel's directory"
        )
    return "/".join(path_parts)


def _read_manifest(channel: ChannelSpec, location: S3Location, object_store: S3ObjectStore) -> str:
    """Return the text of a manifest. Raises InputDataError."""
    try:
        return object_store.object_body_path(location.bucket, location.key).read_text("utf-8")
    except KeyError:
        raise InputDataError(
            f"Data download failed:NoSuchKey: the manifest {channel.s3_uri} of channel {channel.name} does "
            "not exist"
        ) from None
    except UnicodeDecodeError as error:
        raise InputDataError(f"{_manifest_error_start(channel)}it is not UTF-8 ({error})") from None


def _manifest_error_start(channel: ChannelSpec) -> str:
    """Return the beginning of an error message about a channel's manifest."""
    return f"Data download failed:the manifest {channel.s3_uri} of channel {channel.name} is not valid: "


def _list_manifest(channel: ChannelSpec, location: S3Location, object_store: S3ObjectStore) -> ChannelListing:
    """Return the S3 objects that the manifest at ``location`` names. A manifest is a JSON array such as
    ``[{"prefix": "s3://bucket/data/"}, "a.csv", "b.csv"]``. Raises InputDataError if it has another form or
    an object does not exist."""
    manifest_text = _read_manifest(channel, location, object_store)
    try:
        header, *object_names = json.loads(manifest_text)
        manifest_prefix = S3Location.parse(header["prefix"])
    except (ValueError, TypeError, KeyError) as error:
        raise InputDataError(
            f'{_manifest_error_start(channel)}a JSON array that begins with {{"prefix": "s3://..."}} is '
            f"needed ({error!r})"
        ) from None
    if not object_names or not all(isinstance(object_name, str) for object_name in object_names):
        raise InputDataError(
            f"{_manifest_error_start(channel)}after the prefix come the objects' names, as strings, at "
            "least one"
        )
    channel_objects: list[ChannelObject] = []
    for object_name in object_names:
        key = manifest_prefix.key + object_name
        try:
            object_file = object_store.object_body_path(manifest_prefix.bucket, key)
        except KeyError:
            raise _missing_object_error(channel, manifest_prefix.bucket, key) from None
        channel_objects.append(
            ChannelObject(
                key=key,
                relative_path=_normalize_relative_path(channel, key, object_name),
                size=object_file.stat().st_size,
                object_file_path=str(object_file),
            )
        )
    # No folder_prefix: the folder may have other objects too, so that it cannot stand for the list.
    return ChannelListing(manifest_prefix.bucket, tuple(channel_objects), folder_prefix=None)


def _read_augmented_manifest(
    channel: ChannelSpec, location: S3Location, object_store: S3ObjectStore
) -> Iterator[PipeRecord]:
    """Yield one record per line of the augmented manifest at ``location``, except empty lines. A line is a
    JSON object such as ``{"image-ref": "s3://bucket/1.jpg", "class": 3}``; the record has a payload for each
    attribute that the channel's AttributeNames lists, in that order. Raises InputDataError."""
    lines = _read_manifest(channel, location, object_store).split("\n")
    if not any(line.strip() for line in lines):
        raise InputDataError(f"{_manifest_error_start(channel)}it has no line")
    for line_number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        value_by_attribute = _parse_augmented_manifest_line(channel, line_number, line)
        payloads = tuple(
            _build_payload(
                channel, line_number, attribute_name, value_by_attribute[attribute_name], object_store
            )
            for attribute_name in channel.attribute_names
        )
        yield PipeRecord(sharding_key=str(line_number), payloads=payloads)


def _parse_augmented_manifest_line(channel: ChannelSpec, line_number: int, line: str) -> JsonObject:
    """Return the attributes of a line. Raises InputDataError if it has not all that AttributeNames lists."""
    error_start = f"{_manifest_error_start(channel)}line {line_number}"
    try:
        value_by_attribute = json.loads(line)
    except ValueError as error:
        raise InputDataError(f"{error_start} is not JSON ({error})") from None
    if not isinstance(value_by_attribute, dict):
        raise InputDataError(f"{error_start} is not a JSON object")
    for attribute_name in channel.attribute_names:
        if attribute_name not in value_by_attribute:
            raise InputDataError(f"{error_start} has no {attribute_name!r}, which AttributeNames asks for")
    return value_by_attribute


def _build_payload(
    channel: ChannelSpec,
    line_number: int,
    attribute_name: str,
    attribute_value: Any,
    object_store: S3ObjectStore,
) -> RecordPayload:
    """Return what Pipe mode sends for an attribute of an augmented manifest's line. An attribute whose name
    ends in ``-ref`` has an S3 address as its value: the object at that address is sent. Otherwise the value
    itself is sent, a string as it is, anything else as JSON. Raises InputDataError."""
    if not attribute_name.endswith("-ref"):
        payload_text = attribute_value if isinstance(attribute_value, str) else json.dumps(attribute_value)
        return payload_text.encode("utf-8", "surrogateescape")
    if not isinstance(attribute_value, str) or not attribute_value.startswith("s3://"):
        raise InputDataError(
            f"{_manifest_error_start(channel)}line {line_number}: {attribute_name} is no s3:// address: "
            f"{attribute_value!r}"
        )
    location = S3Location.parse(attribute_value)
    try:
        object_store.object_body_path(location.bucket, location.key)  # only to see whether it exists
    except KeyError:
        raise _missing_object_error(channel, location.bucket, location.key) from None
    return ObjectAddress(location.bucket, location.key)


def _missing_object_error(channel: ChannelSpec, bucket: str, key: str) -> InputDataError:
    return InputDataError(
        f"Data download failed:NoSuchKey: s3://{bucket}/{key}, named by the manifest of channel "
        f"{channel.name}, does not exist"
    )
