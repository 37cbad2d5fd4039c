"""Input channels: places the objects of S3 prefixes and manifests below /opt/ml/input/data on each host.

Small channels are copied. Large ones whose objects are exactly a directory of the object store are
mounted, so that a hundred thousand files cost nothing. Hard links are never used: a script that writes
into its input must not change the store. Objects below a mounted prefix should not be replaced while the
job runs: SageMaker would not show the change, a mount may. pipe_mode.py has Pipe mode, channel_listing.py
resolves addresses.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from smlaunch.local.endpoint_settings import Settings
from smlaunch.local.executors.executor_interface import DirectoryMount, JobHost
from smlaunch.local.jobs.channel_listing import (
    ChannelListing,
    ChannelObject,
    InputDataError,
    PipeRecord,
    list_channel,
    list_records,
)
from smlaunch.local.jobs.file_copy import copy_file
from smlaunch.local.jobs.job_spec import ChannelSpec, JobSpec, S3Location
from smlaunch.local.jobs.object_sharding import ChannelSharding
from smlaunch.local.jobs.pipe_mode import PipeFeed
from smlaunch.local.jobs.store_interfaces import S3ObjectStore

_MAX_COPIED_FILES = 64
_MAX_COPIED_BYTES = 8 << 20
"""Channels up to this number of files and bytes are copied rather than mounted: a copy is a true snapshot
and takes no longer than a mount."""


@dataclass(frozen=True)
class PreparedChannels:
    """The channels of a job, ready for its hosts."""

    mounts_by_host: Mapping[str, list[DirectoryMount]]
    """What is to be mounted on each host, by the host's name."""
    pipe_feeds: Sequence[PipeFeed]
    """The channels in Pipe mode."""


def prepare_channels(
    spec: JobSpec,
    hosts: Sequence[JobHost],
    object_store: S3ObjectStore,
    settings: Settings,
    can_mount: bool,
    raise_if_stopping: Callable[[], None],
    can_mount_writable: bool = True,
) -> PreparedChannels:
    """Provide the input channels of a job on its hosts: copy them, or return the directories to mount, and
    for channels in Pipe mode the feeds that later write the records into FIFOs. ``can_mount``: whether the
    hosts can have mounts; ``can_mount_writable``: whether these can be writable. ``raise_if_stopping`` is
    called between files. Raises InputDataError."""
    mounts_by_host: dict[str, list[DirectoryMount]] = {host.name: [] for host in hosts}
    pipe_feeds: list[PipeFeed] = []
    for channel in spec.channels:
        receiving_host_names = spec.host_names_for_channel(channel)
        receiving_hosts = [host for host in hosts if host.name in receiving_host_names]
        sharding = ChannelSharding(
            host_count=len(receiving_hosts),
            is_sharded=channel.is_sharded,
            rule=settings.sharding,
            seed=channel.shuffle_seed,
            reshards_every_epoch=settings.reshard_between_epochs,
        )
        if channel.input_mode == "Pipe":
            pipe_feeds += _pipe_feeds_of_channel(channel, receiving_hosts, object_store, sharding, settings)
            continue
        listing = list_channel(channel, object_store)
        # SageMaker's FastFile mode is read-only; in File mode a script may change its copy of the data.
        is_read_only = channel.input_mode == "FastFile"
        store_folder: Path | None = None
        if can_mount and (is_read_only or can_mount_writable) and _can_use_mount(channel, listing, spec):
            store_folder = _find_equal_store_folder(listing, object_store)
        for host_number, host in enumerate(receiving_hosts):
            channel_folder = host.opt_ml_folder / channel.target_folder
            if store_folder is not None:
                channel_folder.mkdir(parents=True, exist_ok=True)
                mounts_by_host[host.name].append(
                    DirectoryMount(store_folder, channel.target_folder, read_only=is_read_only)
                )
                continue
            # All objects, or with ShardedByS3Key the host's part of them.
            shard = sharding.shard_for_host(
                listing.objects, lambda channel_object: channel_object.key, host_number
            )
            if not shard and settings.empty_shard == "absent":
                continue  # a host without objects gets no directory for the channel
            _copy_objects(shard, listing.bucket, channel_folder, channel, raise_if_stopping)
            if is_read_only:
                mounts_by_host[host.name] += _make_read_only(channel_folder, channel, can_mount)
    return PreparedChannels(mounts_by_host, pipe_feeds)


def _make_read_only(channel_folder: Path, channel: ChannelSpec, can_mount: bool) -> list[DirectoryMount]:
    """Remove the permissions to write to a channel's directory. These do not stop root: return a read-only
    mount of the directory over itself too, if the host can have mounts."""
    for current_folder, _, file_names in os.walk(channel_folder, topdown=False):
        for file_name in file_names:
            Path(current_folder, file_name).chmod(0o444)
        Path(current_folder).chmod(0o555)
    return [DirectoryMount(channel_folder, channel.target_folder, read_only=True)] if can_mount else []


def _can_use_mount(channel: ChannelSpec, listing: ChannelListing, spec: JobSpec) -> bool:
    """Return whether the hosts may see the directory of the object store itself instead of a copy."""
    if channel.is_sharded:
        return False  # each host gets only a part of the objects
    used_folders = [*spec.required_folders, *(other.target_folder for other in spec.channels)]
    # A mount would hide other directories below its target; the channel's own is one of them.
    overlapping_folders = [folder for folder in used_folders if _overlap_paths(channel.target_folder, folder)]
    if len(overlapping_folders) != 1:
        return False
    return not any(_is_written_by_job(listing, location) for location in spec.output_locations)


def _pipe_feeds_of_channel(
    channel: ChannelSpec,
    receiving_hosts: Sequence[JobHost],
    object_store: S3ObjectStore,
    sharding: ChannelSharding,
    settings: Settings,
) -> Iterator[PipeFeed]:
    """Yield the feeds of a channel in Pipe mode, one per host. A host whose shard is empty gets one only if
    the setting ``empty_shard`` says so."""
    records = list_records(channel, object_store)
    for host_number, host in enumerate(receiving_hosts):
        records_of_epoch = partial(_records_of_epoch, sharding, records, host_number)
        if records_of_epoch(0) or settings.empty_shard == "empty":
            yield PipeFeed(channel, host.opt_ml_folder / "input" / "data", records_of_epoch)


def _records_of_epoch(
    sharding: ChannelSharding, records: Sequence[PipeRecord], host_number: int, epoch: int
) -> Sequence[PipeRecord]:
    return sharding.shard_for_host(records, lambda record: record.sharding_key, host_number, epoch)


def _find_equal_store_folder(listing: ChannelListing, object_store: S3ObjectStore) -> Path | None:
    """Return the directory of the object store that has exactly the objects of the listing; None if there is
    none, or if the channel is so small that a copy is as fast."""
    total_bytes = sum(channel_object.size for channel_object in listing.objects)
    is_small = len(listing.objects) <= _MAX_COPIED_FILES and total_bytes <= _MAX_COPIED_BYTES
    if is_small or listing.folder_prefix is None:
        return None
    store_folder = object_store.root / listing.bucket / listing.folder_prefix
    listed_paths = {channel_object.relative_path for channel_object in listing.objects}
    stored_paths = set(_iterate_relative_paths(str(store_folder)))
    return store_folder if stored_paths == listed_paths else None


def _iterate_relative_paths(folder: str, parent_path: str = "") -> Iterator[str]:
    """Yield the relative paths of all files below ``folder``; nothing for a directory that does not exist.
    ``parent_path`` is the path of ``folder`` below the first caller's directory: empty, or ending in a
    slash."""
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _iterate_relative_paths(entry.path, f"{parent_path}{entry.name}/")
        else:
            yield parent_path + entry.name


def _overlap_paths(folder: str, other_folder: str) -> bool:
    """Return whether two directories are the same, or one is inside the other."""
    return f"{folder}/".startswith(f"{other_folder}/") or f"{other_folder}/".startswith(f"{folder}/")


def _is_written_by_job(listing: ChannelListing, output_location: S3Location) -> bool:
    """Return whether the job writes its output into the folder of the listed objects, or into one that
    contains it: a mount of the folder would change while it is read."""
    if listing.folder_prefix is None or listing.bucket != output_location.bucket:
        return False
    output_folder = output_location.key.rstrip("/") + "/"
    return output_folder.startswith(listing.folder_prefix) or listing.folder_prefix.startswith(output_folder)


def _copy_objects(
    objects: Sequence[ChannelObject],
    bucket: str,
    channel_folder: Path,
    channel: ChannelSpec,
    raise_if_stopping: Callable[[], None],
) -> None:
    """Copy the files of a channel's S3 objects, which are in ``bucket``, from the object store into
    ``channel_folder``. ``raise_if_stopping`` raises if the job was asked to stop. Raises InputDataError."""
    channel_folder.mkdir(parents=True, exist_ok=True)
    created_folders = {str(channel_folder)}
    for channel_object in objects:
        raise_if_stopping()
        # Strings, not Path objects: with 100,000 files, creating those takes as long as the copying.
        target_path = f"{channel_folder}/{channel_object.relative_path}"
        parent_folder = target_path.rpartition("/")[0]
        try:
            if parent_folder not in created_folders:
                Path(parent_folder).mkdir(parents=True, exist_ok=True)
                created_folders.add(parent_folder)
            copy_file(channel_object.object_file_path, target_path)
        except FileNotFoundError:
            raise InputDataError(
                f"Data download failed:NoSuchKey: s3://{bucket}/{channel_object.key} of channel "
                f"{channel.name} was deleted while it was being read"
            ) from None
        except OSError as error:
            raise InputDataError(
                f"Data download failed:s3://{bucket}/{channel_object.key} of channel {channel.name} "
                f"cannot be written as {channel_object.relative_path!r}: {error.strerror or error}"
            ) from None
