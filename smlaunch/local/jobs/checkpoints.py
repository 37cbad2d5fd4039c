"""The checkpoint directory: S3 to every host before the start, then every change of a host back to S3.

As on SageMaker (developer guide, model-checkpoints) all hosts share one prefix, a file deleted on a host is
deleted in S3, and of two hosts that write the same name the last writer wins. A file is uploaded once two
scans saw it the same and nobody has it open for writing; after the hosts have ended, everything is. Interval,
order and loss are settings: a program must not depend on any of them.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from smlaunch.local.executors.base import Place, View
from smlaunch.local.jobs.copying import copy_file
from smlaunch.local.jobs.leases import nobody_writes
from smlaunch.local.jobs.listing import DataError
from smlaunch.local.jobs.ports import Objects
from smlaunch.local.jobs.spec import CONTRACT_ROOT, S3Location
from smlaunch.local.settings import Settings

_TOGETHER = 256
_TOGETHER_BYTES = 64 << 20
"""At most so many files, of so many bytes, become visible in S3 at once."""


class _Stamp(NamedTuple):
    """Says whether a file is still the same."""

    modified_ns: int
    size: int
    inode: int


class _Change(NamedTuple):
    modified_ns: int
    label: str
    name: str


class CheckpointSync:
    """``local_path`` is the host's. ``note(label, text)`` tells a host's log what a person should know, and
    calls a file a ``what``. ``mirror``: whether a file deleted on a host is deleted in S3."""

    def __init__(
        self,
        where: S3Location,
        local_path: str,
        places: Sequence[Place],
        objects: Objects,
        settings: Settings,
        note: Callable[[str, str], None],
        *,
        what: str = "checkpoint",
        mirror: bool = True,
    ) -> None:
        self._what = what
        self._mirror = mirror
        self._where = where
        self._local_path = local_path
        self._objects = objects
        self._settings = settings
        self._note = note
        self._folders: Mapping[str, Path] = {place.label: _folder(place, local_path) for place in places}
        self._synced: dict[str, dict[str, _Stamp]] = {label: {} for label in self._folders}
        self._seen: dict[str, dict[str, _Stamp]] = {label: {} for label in self._folders}
        self._changes: Counter[tuple[str, str]] = Counter()
        self._noted: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def views(self, place: Place) -> Iterator[View]:
        """What shows the directory to the host, where it is none of the contract's."""
        if _below_contract(self._local_path) is None:
            yield View(self._folders[place.label], os.path.normpath(self._local_path), shared=True)

    def make_folders(self) -> None:
        """The directory on every host, empty."""
        for folder in self._folders.values():
            folder.mkdir(parents=True, exist_ok=True)

    def download(self, check: Callable[[], None]) -> None:
        """Everything below the prefix to every host; ``check`` raises to give up. Raises DataError."""
        prefix = self._where.below("")
        try:
            found = [entry.key for entry in self._objects.list(self._where.bucket, prefix)]
        except KeyError:
            raise DataError(
                f"the bucket of CheckpointConfig.S3Uri, {self._where.bucket}, does not exist"
            ) from None
        for label, folder in self._folders.items():
            folder.mkdir(parents=True, exist_ok=True)
            made = {folder}
            for key in found:
                check()
                relative = key[len(prefix) :]
                if not relative or relative.endswith("/") or not _stays_below(relative):
                    continue
                target = folder / relative
                if target.parent not in made:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    made.add(target.parent)
                copy_file(self._objects.path(self._where.bucket, key), target)
                self._synced[label][relative] = _stamp(target.stat())

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """The last sync: all that is there, whether it was seen twice or not. The hosts have ended before."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._settings.checkpoint_last_sync:
            self._scan(final=True)

    def _run(self) -> None:
        # A clock and no event on purpose: SageMaker syncs by itself too, and inotify loses files.
        while not self._ended.wait(self._settings.checkpoint_sync_seconds):
            self._scan(final=False)

    def _scan(self, final: bool) -> None:
        there = {label: dict(self._files(label, folder)) for label, folder in self._folders.items()}
        written = set()
        for some in self._batches(self._ordered(self._ready(there, final)), there):
            for label, name in self._upload(some, final):
                self._synced[label][name] = there[label][name]
                written.add(name)
        for label, synced in self._synced.items():
            for name in synced.keys() - there[label].keys():
                # Another host has written it since: that is the later of the two.
                if self._mirror and name not in written and not self._is_lost(label, name):
                    self._objects.delete(self._where.bucket, self._where.below(name))
                del synced[name]
        self._seen = there

    def _ready(self, there: Mapping[str, Mapping[str, _Stamp]], final: bool) -> Iterator[_Change]:
        """What can be uploaded now: of the same name on several hosts the last one written."""
        latest: dict[str, _Change] = {}
        for label, files in there.items():
            synced, seen = self._synced[label], self._seen[label]
            for name, stamp in files.items():
                if synced.get(name) == stamp:
                    continue
                settled = final or (seen.get(name) == stamp and nobody_writes(self._folders[label] / name))
                if not settled:
                    continue
                change = _Change(stamp.modified_ns, label, name)
                other = latest.get(name)
                if other is not None:
                    loser = min(change, other)
                    self._synced[loser.label][name] = there[loser.label][name]
                latest[name] = change if other is None else max(change, other)
        yield from latest.values()

    def _ordered(self, changes: Iterator[_Change]) -> list[tuple[str, str]]:
        order = self._settings.checkpoint_sync_order
        if order == "shuffled":
            ready = sorted(changes, key=lambda change: self._draw("order", change.label, change.name))
        else:
            # Oldest first: a COMMIT that was written last is uploaded last.
            ready = sorted(changes, reverse=order == "newest-first")
        return [(change.label, change.name) for change in ready]

    def _is_lost(self, label: str, name: str) -> bool:
        loss = self._settings.checkpoint_sync_loss
        if not loss:
            return False
        self._changes[label, name] += 1
        return self._draw("loss", label, name, str(self._changes[label, name])) < loss

    def _draw(self, *words: str) -> float:
        """From 0 to 1, by the seed and what it is for, whenever it happens to be drawn."""
        seed = "\0".join((str(self._settings.checkpoint_sync_seed), *words))
        return random.Random(seed).random()  # noqa: S311 - a fault plan, not a secret

    def _batches(
        self, changes: Sequence[tuple[str, str]], there: Mapping[str, Mapping[str, _Stamp]]
    ) -> Iterator[list[tuple[str, str]]]:
        """What becomes visible in S3 together: small files by the hundred. One by one where the order is to
        be seen."""
        limit = _TOGETHER if self._settings.checkpoint_sync_order == "oldest-first" else 1
        batch: list[tuple[str, str]] = []
        size = 0
        for label, name in changes:
            if batch and (len(batch) == limit or size > _TOGETHER_BYTES):
                yield batch
                batch, size = [], 0
            batch.append((label, name))
            size += there[label][name].size
        if batch:
            yield batch

    def _upload(self, changes: Sequence[tuple[str, str]], final: bool) -> Iterator[tuple[str, str]]:
        """The ones that need not be looked at again: uploaded, or lost as the settings say. In the end nobody
        has a use for the files any more: they are moved."""
        files = {
            self._where.below(name): (label, name)
            for label, name in changes
            if not self._is_lost(label, name)
        }
        failed: Mapping[str, Exception]
        try:
            named = [(key, self._folders[label] / name) for key, (label, name) in files.items()]
            failed = self._objects.put_files(self._where.bucket, named, move=final)
        except (OSError, KeyError) as error:
            failed = dict.fromkeys(files, error)
        for key, reason in failed.items():
            label, name = files[key]
            if not isinstance(reason, FileNotFoundError):  # deleted meanwhile: the next scan sees it
                text = f"{self._what} {name} could not be uploaded, will be tried again: {reason}"
                self._tell(label, name, text)
        yield from (change for change in changes if self._where.below(change[1]) not in failed)

    def _files(self, label: str, folder: Path) -> list[tuple[str, _Stamp]]:
        if folder.is_symlink():
            # On SageMaker a volume is mounted there. What a link leads to is no business of S3, and what
            # has been uploaded has not been deleted either.
            self._tell(label, "", f"{self._local_path} has become a symbolic link: nothing of it is uploaded")
            return list(self._synced[label].items())
        found = []
        top = str(folder)
        waiting = [""]
        while waiting:
            below = waiting.pop()
            # A directory that vanished between two looks holds nothing.
            with contextlib.suppress(FileNotFoundError), os.scandir(f"{top}/{below}") as entries:
                for entry in entries:
                    name = below + entry.name
                    if entry.is_symlink():
                        self._tell(label, name, f"{self._what} {name} is a symbolic link: it is not uploaded")
                    elif entry.is_dir():
                        waiting.append(name + "/")
                    elif entry.is_file():
                        with contextlib.suppress(FileNotFoundError):
                            found.append((name, _stamp(entry.stat())))
        return found

    def _tell(self, label: str, name: str, text: str) -> None:
        if name not in self._noted:
            self._noted.add(name)
            self._note(label, text)


def _below_contract(path: str) -> str | None:
    """Relative to /opt/ml; None for a place elsewhere."""
    relative = os.path.relpath(path, CONTRACT_ROOT)
    return None if relative.split("/")[0] == ".." else relative


def _folder(place: Place, path: str) -> Path:
    """Where this process finds a host's directory."""
    relative = _below_contract(path)
    if relative is not None:
        return place.tree / relative
    return place.tree.parent / "elsewhere" / os.path.normpath(path).lstrip("/")


def _stamp(stat: os.stat_result) -> _Stamp:
    return _Stamp(stat.st_mtime_ns, stat.st_size, stat.st_ino)


def _stays_below(relative: str) -> bool:
    return not relative.startswith("/") and ".." not in relative.split("/")
