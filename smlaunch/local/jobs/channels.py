"""Input channels: from S3 prefixes and manifests to what lies below /opt/ml/input/data on each host.

Small channels are copied, large ones that are exactly a directory of the object store are shown through a
view, so that a hundred thousand files cost nothing. Never a hard link: a script that writes into its input
must not touch the store. Objects below a shown prefix should not be replaced while the job runs: on SageMaker
they would not be seen, here they may be. Pipe mode is in pipes.py, what an address means in listing.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from smlaunch.local.executors.base import Place, View
from smlaunch.local.jobs.copying import copy_file
from smlaunch.local.jobs.listing import DataError, Item, Listing, Record, listing_of, records_of
from smlaunch.local.jobs.pipes import Feed
from smlaunch.local.jobs.sharding import Order
from smlaunch.local.jobs.spec import ChannelSpec, JobSpec, S3Location
from smlaunch.local.jobs.stores import Objects
from smlaunch.local.settings import Settings

_COPY_FILES = 64
_COPY_BYTES = 8 << 20
"""Up to this a copy is made at once: a true snapshot, and no dearer than a mount."""


@dataclass(frozen=True)
class Prepared:
    """``views``: what each host, by its label, is to be given. ``feeds``: the channels in Pipe mode."""

    views: Mapping[str, list[View]]
    feeds: Sequence[Feed]


def prepare(
    spec: JobSpec,
    places: Sequence[Place],
    objects: Objects,
    settings: Settings,
    views: bool,
    check: Callable[[], None],
    writable_views: bool = True,
) -> Prepared:
    """Lays out all channels. ``views``: whether hosts can be given any; ``writable_views``: also such that
    may be written to.

    ``check`` is called between files and raises to give up. Raises DataError.
    """
    views_by_host: dict[str, list[View]] = {place.label: [] for place in places}
    feeds: list[Feed] = []
    taken = [*spec.folders, *(channel.target for channel in spec.channels)]
    for channel in spec.channels:
        labels = spec.hosts_of(channel)
        receivers = [place for place in places if place.label in labels]
        order = Order(
            hosts=len(receivers),
            sharded=channel.sharded,
            rule=settings.sharding,
            seed=channel.shuffle_seed,
            reshard=settings.reshard_between_epochs,
        )
        if channel.mode == "Pipe":
            feeds += _feeds(channel, receivers, objects, order, settings)
            continue
        listing = listing_of(channel, objects)
        read_only = channel.mode == "FastFile"
        target = channel.target
        source = None
        # What is laid out below a view would be hidden by it.
        alone = sum(_meet(target, other) for other in taken) == 1
        changes = any(_overlap(listing, place) for place in spec.written)
        shows = views and (read_only or writable_views)
        if shows and alone and not channel.sharded and not changes:
            source = _viewable(listing, objects)
        for number, place in enumerate(receivers):
            folder = place.tree / target
            if source is not None:
                folder.mkdir(parents=True, exist_ok=True)
                views_by_host[place.label].append(View(source, target, read_only=read_only))
                continue
            items = order.share(listing.items, lambda item: item.key, number)
            if not items and settings.empty_shard == "absent":
                continue
            _copy(items, listing.bucket, folder, channel, check)
            if read_only:
                _forbid_writing(folder)
                if views:
                    # Modes alone do not hold root back: the directory over itself, read-only.
                    views_by_host[place.label].append(View(folder, target, read_only=True))
    return Prepared(views_by_host, feeds)


def _feeds(
    channel: ChannelSpec, receivers: Sequence[Place], objects: Objects, order: Order, settings: Settings
) -> Iterator[Feed]:
    records = records_of(channel, objects)
    for number, place in enumerate(receivers):
        epoch = partial(_epoch, order, records, number)
        if epoch(0) or settings.empty_shard == "empty":
            yield Feed(channel, place.tree / "input" / "data", epoch)


def _epoch(order: Order, records: Sequence[Record], host: int, epoch: int) -> Sequence[Record]:
    return order.share(records, lambda record: record.name, host, epoch)


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


def _meet(one: str, other: str) -> bool:
    """Whether two directories are the same, or one lies in the other."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _overlap(listing: Listing, written: S3Location) -> bool:
    """Whether the job writes there: a view of that would change under the reader."""
    if listing.folder is None or listing.bucket != written.bucket:
        return False
    mine = written.key.rstrip("/") + "/"
    return mine.startswith(listing.folder) or listing.folder.startswith(mine)


def _copy(
    items: Sequence[Item],
    bucket: str,
    folder: Path,
    channel: ChannelSpec,
    check: Callable[[], None],
) -> None:
    """Words instead of paths: with 100,000 files, building those would take as long as the copying."""
    folder.mkdir(parents=True, exist_ok=True)
    created_folders = {str(folder)}
    for item in items:
        check()
        target = f"{folder}/{item.relative}"
        parent = target.rpartition("/")[0]
        try:
            if parent not in created_folders:
                Path(parent).mkdir(parents=True, exist_ok=True)
                created_folders.add(parent)
            copy_file(item.body, target)
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


def _forbid_writing(folder: Path) -> None:
    for current, _, names in os.walk(folder, topdown=False):
        for name in names:
            Path(current, name).chmod(0o444)
        Path(current).chmod(0o555)
