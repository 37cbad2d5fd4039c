"""What a channel's S3 address means: a prefix, a manifest, or an augmented manifest, as a list of objects or
of records. Reads the object store and nothing else.

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
    """A channel's data cannot be had: the job fails with a ClientError, in AWS's words where known."""


@dataclass(frozen=True)
class Item:
    """One object of a channel, where it goes below the channel's directory, and where the store has it."""

    key: str
    relative: str
    size: int
    body: str


@dataclass(frozen=True)
class Listing:
    """A channel's objects in one bucket. ``folder``: the prefix ending in ``/`` when all of them, and nothing
    else, lie below it by their own names."""

    bucket: str
    items: tuple[Item, ...]
    folder: str | None


@dataclass(frozen=True)
class ObjectRef:
    bucket: str
    key: str


Part = ObjectRef | bytes
"""Something to send: an object's body, or the bytes themselves."""


@dataclass(frozen=True)
class Record:
    """What is shuffled and given to a host as one: an object, or a line of an augmented manifest with its
    attributes in the order asked for. ``name`` is what a sharding rule goes by."""

    name: str
    parts: tuple[Part, ...]


def listing_of(channel: ChannelSpec, objects: Objects) -> Listing:
    """Raises DataError when there is nothing below the prefix, or a manifest names what is not there."""
    where = S3Location.parse(channel.uri)
    if channel.data_type == "ManifestFile":
        return _manifest(channel, where, objects)
    prefix = where.key
    if channel.mode == "FastFile" and prefix and not prefix.endswith("/"):
        # A file system is shown: only whole folders are there, no beginnings of names (developer guide,
        # model-access-training-data).
        prefix += "/"
    try:
        found = list(objects.list_bodies(where.bucket, prefix))
    except KeyError:
        found = []
    items = [
        Item(key, _plain(channel, key, _relative(key, prefix)), size, body)
        for key, size, body in found
        if not key.endswith("/")  # a folder marker
    ]
    if not found:
        raise DataError(
            f'Data download failed:No S3 objects found under S3 URL "{channel.uri}" given in input '
            f'data source "{channel.name}". Please ensure that the bucket exists and that objects exist '
            "under that prefix, in the endpoint's own S3"
        )
    base = prefix if not prefix or prefix.endswith("/") else prefix + "/"
    whole = all(item.key.startswith(base) for item in items)
    return Listing(where.bucket, tuple(items), base if whole else None)


def records_of(channel: ChannelSpec, objects: Objects) -> tuple[Record, ...]:
    """What Pipe mode sends, in the order of the listing or the manifest. Raises DataError."""
    if channel.data_type == "AugmentedManifestFile":
        return tuple(_augmented(channel, S3Location.parse(channel.uri), objects))
    listing = listing_of(channel, objects)
    return tuple(Record(item.key, (ObjectRef(listing.bucket, item.key),)) for item in listing.items)


def _relative(key: str, prefix: str) -> str:
    """Where an object goes: below the prefix's directory; a prefix that is an object's whole key, or ends
    within a name, keeps that name."""
    if key.startswith(prefix) and (not prefix or prefix.endswith("/")):
        return key[len(prefix) :]
    if key.startswith(prefix + "/"):
        return key[len(prefix) + 1 :]
    return key[prefix.rfind("/") + 1 :]


def _plain(channel: ChannelSpec, key: str, relative: str) -> str:
    """As a path that stays where it should: keys may hold ``//``, ``.`` and ``..``."""
    parts = [part for part in relative.split("/") if part not in ("", ".")]
    if ".." in parts or not parts:
        raise DataError(
            f"Data download failed:the key {key!r} of channel {channel.name} cannot be a file below the "
            "channel's directory"
        )
    return "/".join(parts)


def _read(channel: ChannelSpec, where: S3Location, objects: Objects) -> str:
    """The text of a manifest."""
    try:
        return objects.body_path(where.bucket, where.key).read_text("utf-8")
    except KeyError:
        raise DataError(
            f"Data download failed:NoSuchKey: the manifest {channel.uri} of channel {channel.name} does not "
            "exist"
        ) from None
    except UnicodeDecodeError as error:
        raise DataError(f"{_not_valid(channel)}it is not UTF-8 ({error})") from None


def _not_valid(channel: ChannelSpec) -> str:
    return f"Data download failed:the manifest {channel.uri} of channel {channel.name} is not valid: "


def _manifest(channel: ChannelSpec, where: S3Location, objects: Objects) -> Listing:
    text = _read(channel, where, objects)
    try:
        head, *names = json.loads(text)
        prefix = S3Location.parse(head["prefix"])
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            f'{_not_valid(channel)}a JSON array that begins with {{"prefix": "s3://..."}} is needed '
            f"({error!r})"
        ) from None
    if not names or not all(isinstance(name, str) for name in names):
        raise DataError(
            f"{_not_valid(channel)}after the prefix come the objects' names, as strings, at least one"
        )
    items = []
    for name in names:
        key = prefix.key + name
        try:
            body = objects.body_path(prefix.bucket, key)
        except KeyError:
            raise _missing(channel, prefix.bucket, key) from None
        items.append(Item(key, _plain(channel, key, name), body.stat().st_size, str(body)))
    return Listing(prefix.bucket, tuple(items), None)


def _augmented(channel: ChannelSpec, where: S3Location, objects: Objects) -> Iterator[Record]:
    lines = _read(channel, where, objects).split("\n")
    if not any(line.strip() for line in lines):
        raise DataError(f"{_not_valid(channel)}it has no line")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except ValueError as error:
            raise DataError(f"{_not_valid(channel)}line {number} is not JSON ({error})") from None
        if not isinstance(values, dict):
            raise DataError(f"{_not_valid(channel)}line {number} is not a JSON object")
        missing = [name for name in channel.attributes if name not in values]
        if missing:
            raise DataError(
                f"{_not_valid(channel)}line {number} has no {missing[0]!r}, which AttributeNames asks for"
            )
        parts = tuple(_part(channel, number, name, values[name], objects) for name in channel.attributes)
        yield Record(str(number), parts)


def _part(channel: ChannelSpec, number: int, name: str, value: Any, objects: Objects) -> Part:
    """``-ref`` attributes stand for the object they name; a string for itself, all else for its JSON."""
    if not name.endswith("-ref"):
        return (value if isinstance(value, str) else json.dumps(value)).encode("utf-8", "surrogateescape")
    if not isinstance(value, str) or not value.startswith("s3://"):
        raise DataError(f"{_not_valid(channel)}line {number}: {name} is no s3:// address: {value!r}")
    place = S3Location.parse(value)
    try:
        objects.body_path(place.bucket, place.key)
    except KeyError:
        raise _missing(channel, place.bucket, place.key) from None
    return ObjectRef(place.bucket, place.key)


def _missing(channel: ChannelSpec, bucket: str, key: str) -> DataError:
    return DataError(
        f"Data download failed:NoSuchKey: s3://{bucket}/{key}, named by the manifest of channel "
        f"{channel.name}, does not exist"
    )
