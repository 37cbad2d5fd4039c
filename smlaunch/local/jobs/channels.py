"""Input channels: from S3 prefixes and manifests to what lies below /opt/ml/input/data on each host.

Small channels are copied, large ones that are exactly a directory of the object store are shown through a
view, so that a hundred thousand files cost nothing. Never a hard link: a script that writes into its input
must not touch the store. Objects below a shown prefix should not be replaced while the job runs: on SageMaker
they would not be seen, here they may be.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from smlaunch.local.executors.base import Place, View
from smlaunch.local.jobs.ports import Objects
from smlaunch.local.jobs.sharding import shard, shuffled
from smlaunch.local.jobs.spec import ChannelSpec, S3Location, TrainingSpec
from smlaunch.local.settings import ShardingRule

_COPY_FILES = 64
_COPY_BYTES = 8 << 20
"""Up to this a copy is made at once: a true snapshot, and no dearer than a mount."""


class DataError(Exception):
    """A channel's data cannot be had: the job fails with a ClientError, in AWS's words where known."""


@dataclass(frozen=True)
class Item:
    """One object of a channel and where it goes below the channel's directory."""

    key: str
    relative: str
    size: int


@dataclass(frozen=True)
class Listing:
    """A channel's objects in one bucket. ``folder``: the prefix ending in ``/`` when all of them, and nothing
    else, lie below it by their own names."""

    bucket: str
    items: tuple[Item, ...]
    folder: str | None


def prepare(
    spec: TrainingSpec,
    places: Sequence[Place],
    objects: Objects,
    rule: ShardingRule,
    views: bool,
    check: Callable[[], None],
) -> dict[str, list[View]]:
    """Lays out all channels; returns the views each host (by label) is to be given.

    ``check`` is called between files and raises to give up. Raises DataError.
    """
    shown: dict[str, list[View]] = {place.label: [] for place in places}
    own = _written_by(spec)
    for channel in spec.channels:
        listing = listing_of(channel, objects)
        labels = spec.hosts_of(channel)
        receivers = [place for place in places if place.label in labels]
        for place in receivers:
            _folder(place, channel).mkdir(parents=True, exist_ok=True)
        source = None
        if views and not channel.sharded and not any(_overlap(listing, place) for place in own):
            source = _viewable(listing, objects)
        if source is not None:
            target = f"input/data/{channel.name}"
            for label in labels:
                shown[label].append(View(source, target, read_only=channel.mode == "FastFile"))
            continue
        for place, items in zip(receivers, _shares(listing, channel, len(receivers), rule), strict=True):
            _copy(items, listing.bucket, objects, _folder(place, channel), channel, check)
    return shown


def listing_of(channel: ChannelSpec, objects: Objects) -> Listing:
    """Raises DataError when there is nothing below the prefix, or a manifest names what is not there."""
    where = S3Location.parse(channel.uri)
    try:
        if channel.data_type == "ManifestFile":
            return _manifest(channel, where, objects)
        found = [(entry.key, entry.size) for entry in objects.list(where.bucket, where.key)]
    except KeyError:
        found = []
    items = [
        Item(key, _plain(channel, key, _relative(key, where.key)), size)
        for key, size in found
        if not key.endswith("/")  # a folder marker
    ]
    if not found:
        raise DataError(
            f'Data download failed:No S3 objects found under S3 URL "{channel.uri}" given in input '
            f'data source "{channel.name}". Please ensure that the bucket exists and that objects exist '
            "under that prefix, in the endpoint's own S3"
        )
    base = where.key if not where.key or where.key.endswith("/") else where.key + "/"
    whole = all(item.key.startswith(base) for item in items)
    return Listing(where.bucket, tuple(items), base if whole else None)


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


def _manifest(channel: ChannelSpec, where: S3Location, objects: Objects) -> Listing:
    try:
        text = objects.path(where.bucket, where.key).read_text("utf-8")
    except KeyError:
        raise DataError(
            f"Data download failed:NoSuchKey: the manifest {channel.uri} of channel {channel.name} does not "
            "exist"
        ) from None
    problem = f"Data download failed:the manifest {channel.uri} of channel {channel.name} is not valid: "
    try:
        head, *names = json.loads(text)
        prefix = S3Location.parse(head["prefix"])
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            problem + f'a JSON array that begins with {{"prefix": "s3://..."}} is needed ({error!r})'
        ) from None
    if not names or not all(isinstance(name, str) for name in names):
        raise DataError(problem + "after the prefix come the objects' names, as strings, at least one")
    items = []
    for name in names:
        key = prefix.key + name
        try:
            size = objects.path(prefix.bucket, key).stat().st_size
        except KeyError:
            raise DataError(
                f"Data download failed:NoSuchKey: s3://{prefix.bucket}/{key}, named by the manifest of "
                f"channel {channel.name}, does not exist"
            ) from None
        items.append(Item(key, _plain(channel, key, name), size))
    return Listing(prefix.bucket, tuple(items), None)


def _shares(
    listing: Listing, channel: ChannelSpec, hosts: int, rule: ShardingRule
) -> Iterator[Sequence[Item]]:
    if not channel.sharded:
        return iter([listing.items] * hosts)
    by_key: Mapping[str, Item] = {item.key: item for item in listing.items}
    keys = list(by_key)
    if channel.shuffle_seed is not None:
        keys = shuffled(keys, channel.shuffle_seed)
    return ([by_key[key] for key in share] for share in shard(keys, hosts, rule))


def _viewable(listing: Listing, objects: Objects) -> Path | None:
    """The directory of the store that is this listing and nothing else; None when it had better be copied."""
    small = len(listing.items) <= _COPY_FILES and sum(item.size for item in listing.items) <= _COPY_BYTES
    if small or listing.folder is None:
        return None
    source = objects.root / listing.bucket / listing.folder
    names = {item.relative for item in listing.items}
    return source if names == set(_files(str(source), "")) else None


def _files(folder: str, below: str) -> Iterator[str]:
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _files(entry.path, f"{below}{entry.name}/")
        else:
            yield below + entry.name


def _written_by(spec: TrainingSpec) -> list[S3Location]:
    """Where the job itself writes: a view of that would change under the reader."""
    places = [S3Location(spec.output.bucket, spec.output.below(spec.name))]
    return [*places, spec.checkpoints] if spec.checkpoints else places


def _overlap(listing: Listing, written: S3Location) -> bool:
    if listing.folder is None or listing.bucket != written.bucket:
        return False
    mine = written.key.rstrip("/") + "/"
    return mine.startswith(listing.folder) or listing.folder.startswith(mine)


def _folder(place: Place, channel: ChannelSpec) -> Path:
    return place.tree / "input" / "data" / channel.name


def _copy(
    items: Sequence[Item],
    bucket: str,
    objects: Objects,
    folder: Path,
    channel: ChannelSpec,
    check: Callable[[], None],
) -> None:
    made = {folder}
    for item in items:
        check()
        target = folder / item.relative
        try:
            if target.parent not in made:
                target.parent.mkdir(parents=True, exist_ok=True)
                made.add(target.parent)
            copy_file(objects.path(bucket, item.key), target)
        except KeyError:
            raise DataError(
                f"Data download failed:NoSuchKey: s3://{bucket}/{item.key} of channel {channel.name} was "
                "deleted while it was being read"
            ) from None
        except OSError as error:
            raise DataError(
                f"Data download failed:s3://{bucket}/{item.key} of channel {channel.name} cannot be written "
                f"as {item.relative!r}: {error.strerror or error}"
            ) from None


_FICLONE = 0x40049409
_LINUX = sys.platform == "linux"


def copy_file(source: Path, target: Path) -> None:
    """Contents only. Shares the blocks where the file system can (btrfs, xfs), else copies in the kernel."""
    if _LINUX:
        import fcntl

        with source.open("rb", buffering=0) as reader, target.open("wb", buffering=0) as writer:
            try:
                fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
            except OSError:  # another disk, or a file system that cannot (ext4)
                copied = 0
                while sent := os.sendfile(writer.fileno(), reader.fileno(), copied, 1 << 30):
                    copied += sent
        return
    shutil.copyfile(source, target)
