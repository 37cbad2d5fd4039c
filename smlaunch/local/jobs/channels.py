"""Input channels: places the objects of S3 prefixes and manifests below /opt/ml/input/data on each host.

Small channels are copied. Large ones whose objects are exactly a directory of the object store are mounted,
so that a hundred thousand files cost nothing. Hard links are never used: a script that writes into its input
must not change the store. Objects below a mounted prefix should not be replaced while the job runs:
SageMaker would not show the change, a mount may. pipes.py has Pipe mode, listing.py resolves addresses.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from smlaunch.local.executors.base import DirectoryMount, JobHost
from smlaunch.local.jobs.copying import copy_file
from smlaunch.local.jobs.listing import (
    ChannelListing,
    ChannelObject,
    DataError,
    Record,
    list_channel,
    list_records,
)
from smlaunch.local.jobs.pipes import Feed
from smlaunch.local.jobs.sharding import ShardOrder
from smlaunch.local.jobs.spec import ChannelSpec, JobSpec, S3Location
from smlaunch.local.jobs.stores import Objects
from smlaunch.local.settings import Settings

_COPY_FILES = 64
_COPY_BYTES = 8 << 20
"""Channels up to this number of files and bytes are copied: a copy is a true snapshot and takes no longer
than a mount."""


@dataclass(frozen=True)
class PreparedChannels:
    """The channels of a job, ready for its hosts."""

    mounts: Mapping[str, list[DirectoryMount]]
    """What is to be mounted on each host, by the host's name."""
    feeds: Sequence[Feed]
    """The channels in Pipe mode."""


def prepare_channels(
    spec: JobSpec,
    hosts: Sequence[JobHost],
    objects: Objects,
    settings: Settings,
    mounts: bool,
    raise_if_stopping: Callable[[], None],
    writable_mounts: bool = True,
) -> PreparedChannels:
    """Copy all channels into the hosts' trees, or return what is to be mounted instead. ``mounts``: whether
    hosts can have mounts; ``writable_mounts``: whether these can be writable.

    ``raise_if_stopping`` is called between files. Raises DataError.
    """
    mounts_by_host: dict[str, list[DirectoryMount]] = {host.name: [] for host in hosts}
    feeds: list[Feed] = []
    used_targets = [*spec.required_folders, *(channel.target for channel in spec.channels)]
    for channel in spec.channels:
        receiver_names = spec.hosts_of(channel)
        receivers = [host for host in hosts if host.name in receiver_names]
        order = ShardOrder(
            hosts=len(receivers),
            sharded=channel.is_sharded,
            rule=settings.sharding,
            seed=channel.shuffle_seed,
            reshard=settings.reshard_between_epochs,
        )
        if channel.mode == "Pipe":
            feeds += _feeds(channel, receivers, objects, order, settings)
            continue
        listing = list_channel(channel, objects)
        read_only = channel.mode == "FastFile"
        target = channel.target
        source = None
        # A mount would hide other directories below its target.
        has_own_directory = sum(_overlap_paths(target, other) for other in used_targets) == 1
        is_output = any(_is_written_by_job(listing, location) for location in spec.output_locations)
        can_mount = mounts and (read_only or writable_mounts)
        if can_mount and has_own_directory and not channel.is_sharded and not is_output:
            source = _mountable_folder(listing, objects)
        for host_number, host in enumerate(receivers):
            folder = host.tree / target
            if source is not None:
                folder.mkdir(parents=True, exist_ok=True)
                mounts_by_host[host.name].append(DirectoryMount(source, target, read_only=read_only))
                continue
            channel_objects = order.shard_for_host(
                listing.items, lambda channel_object: channel_object.key, host_number
            )
            if not channel_objects and settings.empty_shard == "absent":
                continue
            _copy(channel_objects, listing.bucket, folder, channel, raise_if_stopping)
            if read_only:
                _make_read_only(folder)
                if mounts:
                    # File modes do not stop root: mount the directory over itself, read-only.
                    mounts_by_host[host.name].append(DirectoryMount(folder, target, read_only=True))
    return PreparedChannels(mounts_by_host, feeds)


def _feeds(
    channel: ChannelSpec,
    receivers: Sequence[JobHost],
    objects: Objects,
    order: ShardOrder,
    settings: Settings,
) -> Iterator[Feed]:
    """Yield the feeds of a channel in Pipe mode, one per host."""
    records = list_records(channel, objects)
    for host_number, host in enumerate(receivers):
        epoch = partial(_records_of_epoch, order, records, host_number)
        if epoch(0) or settings.empty_shard == "empty":
            yield Feed(channel, host.tree / "input" / "data", epoch)


def _records_of_epoch(
    order: ShardOrder, records: Sequence[Record], host: int, epoch: int
) -> Sequence[Record]:
    return order.shard_for_host(records, lambda record: record.name, host, epoch)


def _mountable_folder(listing: ChannelListing, objects: Objects) -> Path | None:
    """Return the directory of the store that has exactly the objects of the listing; None if the channel
    should be copied."""
    is_small = (
        len(listing.items) <= _COPY_FILES
        and sum(channel_object.size for channel_object in listing.items) <= _COPY_BYTES
    )
    if is_small or listing.folder is None:
        return None
    source = objects.root / listing.bucket / listing.folder
    names = {channel_object.relative for channel_object in listing.items}
    return source if names == set(_files(str(source), "")) else None


def _files(folder: str, prefix: str) -> Iterator[str]:
    """Yield the paths of all files in ``folder``, each after ``prefix``."""
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _files(entry.path, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name


def _overlap_paths(one: str, other: str) -> bool:
    """Return whether two directories are the same, or one is in the other."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _is_written_by_job(listing: ChannelListing, output_location: S3Location) -> bool:
    """Return whether the job writes its output below the listed folder: a mount would change while it is
    read."""
    if listing.folder is None or listing.bucket != output_location.bucket:
        return False
    output_folder = output_location.key.rstrip("/") + "/"
    return output_folder.startswith(listing.folder) or listing.folder.startswith(output_folder)


def _copy(
    items: Sequence[ChannelObject],
    bucket: str,
    folder: Path,
    channel: ChannelSpec,
    raise_if_stopping: Callable[[], None],
) -> None:
    """Copy objects into ``folder``. Paths are strings, not Path objects: with 100,000 files, creating those
    would take as long as the copying. Raises DataError."""
    folder.mkdir(parents=True, exist_ok=True)
    created_folders = {str(folder)}
    for item in items:
        raise_if_stopping()
        target = f"{folder}/{item.relative}"
        parent = target.rpartition("/")[0]
        try:
            if parent not in created_folders:
                Path(parent).mkdir(parents=True, exist_ok=True)
                created_folders.add(parent)
            copy_file(item.body_path, target)
        except FileNotFoundError:
            raise DataError(
                f"Data download failed:NoSuchKey: s3://{bucket}/{item.key} of channel {channel.name} was "
                "deleted while it was being read"
            ) from None
        except OSError as error:
            raise DataError(
                f"Data download failed:s3://{bucket}/{item.key} of channel {channel.name} cannot be written "
                f"as {item.relative!r}: {error.strerror or error}"
            ) from None


def _make_read_only(folder: Path) -> None:
    for current, _, names in os.walk(folder, topdown=False):
        for name in names:
            Path(current, name).chmod(0o444)
        Path(current).chmod(0o555)
