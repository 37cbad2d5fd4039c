"""The checkpoint directory: S3 to every host before the start, then every change of a host back to S3.

As on SageMaker (developer guide, model-checkpoints) all hosts share one prefix, a file deleted on a host is
deleted in S3, and of two hosts that write the same name the last writer wins. A file is uploaded once two
scans saw it the same and nobody has it open for writing; after the hosts have ended, everything is. Interval,
order and loss are settings: a program must not depend on any of them.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from smlaunch.local.executors.base import Place, View
from smlaunch.local.host_files import Opener, Refused, shown, walk, why
from smlaunch.local.host_files import kind_of as kind
from smlaunch.local.jobs import uploads
from smlaunch.local.jobs.copying import copy_file
from smlaunch.local.jobs.leases import nobody_writes
from smlaunch.local.jobs.listing import DataError
from smlaunch.local.jobs.ports import Objects
from smlaunch.local.jobs.spec import CONTRACT_ROOT, S3Location
from smlaunch.local.jobs.uploads import HostFile, StillChanging
from smlaunch.local.settings import Settings

log = logging.getLogger(__name__)

_TOGETHER_BYTES = 64 << 20
"""At most so many bytes become visible in S3 at once."""
_KEY_LIMIT = 1024
_LAST_TRIES = 2
_AGAIN = " (every sync tries again)"


class _Stamp(NamedTuple):
    """Says whether a file is still the same."""

    modified_ns: int
    size: int
    inode: int


class _Change(NamedTuple):
    modified_ns: int
    label: str
    name: str


class _Look(NamedTuple):
    """What one look at a host's directory found. ``hidden``: files and directories that are there and could
    not be looked at."""

    files: dict[str, _Stamp]
    hidden: list[str]

    def hides(self, name: str) -> bool:
        return any(not other or name == other or name.startswith(f"{other}/") for other in self.hidden)


class CheckpointSync:
    """``local_path`` is the host's. ``note(label, text)`` tells a host's log what a person should know, and
    calls a file a ``what``. ``mirror``: whether a file deleted on a host is deleted in S3. After ``finish``,
    ``missing`` says, for a host and a name there, why it is not in S3."""

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
        self._scratch = places[0].tree.parent
        self._folders: Mapping[str, HostFile] = {place.label: _folder(place, local_path) for place in places}
        self._synced: dict[str, dict[str, _Stamp]] = {label: {} for label in self._folders}
        self._seen: dict[str, dict[str, _Stamp]] = {label: {} for label in self._folders}
        self._changes: Counter[tuple[str, str]] = Counter()
        self._noted: dict[tuple[str, str], set[str]] = {}
        self.missing: dict[tuple[str, str], str] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def views(self, place: Place) -> Iterator[View]:
        """What shows the directory to the host, where it is none of the contract's."""
        if _below_contract(self._local_path) is None:
            folder = self._folders[place.label]
            yield View(folder.root / folder.name, os.path.normpath(self._local_path), shared=True)

    def make_folders(self) -> None:
        """The directory on every host, empty."""
        for folder in self._folders.values():
            (folder.root / folder.name).mkdir(parents=True, exist_ok=True)

    def download(self, check: Callable[[], None]) -> None:
        """Everything below the prefix to every host; ``check`` raises to give up. Raises DataError."""
        prefix = self._where.below("")
        try:
            found = [entry.key for entry in self._objects.list(self._where.bucket, prefix)]
        except KeyError:
            raise DataError(
                f"the bucket of CheckpointConfig.S3Uri, {self._where.bucket}, does not exist"
            ) from None
        self.make_folders()
        for label, folder in self._folders.items():
            made: set[Path] = set()
            for key in found:
                check()
                relative = key[len(prefix) :]
                if not relative or relative.endswith("/"):
                    continue
                if not _is_plain(relative):
                    text = (
                        f"{self._what} {shown(relative)} of S3 is not here: its key cannot be a file's path"
                    )
                    self._tell(label, relative, text)
                    continue
                self._synced[label][relative] = self._fetch(key, folder.root / folder.name / relative, made)

    def _fetch(self, key: str, target: Path, made: set[Path]) -> _Stamp:
        """Before any program of the job has run: the directories are the endpoint's own. Raises DataError."""
        try:
            if target.parent not in made:
                target.parent.mkdir(parents=True, exist_ok=True)
                made.add(target.parent)
            copy_file(self._objects.path(self._where.bucket, key), target)
            return _stamp(target.stat())
        except (OSError, KeyError) as error:
            cause = "it was deleted meanwhile" if isinstance(error, KeyError) else why(error)
            raise DataError(
                f"Data download failed:s3://{self._where.bucket}/{shown(key)} of CheckpointConfig.S3Uri "
                f"cannot be written to {self._local_path}: {cause}"
            ) from None

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """The last sync: all that is there, whether it was seen twice or not. The hosts have ended before."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if not self._settings.checkpoint_last_sync:
            return
        for _ in range(_LAST_TRIES):
            self._scan_or_tell(final=True)
            if not self.missing:
                return
        for label, count in Counter(label for label, name in self.missing if name).items():
            left = f"{count} of the files in {self._local_path}, which this log names, did not reach S3"
            self._note(label, f"after the last sync {left}")

    def _run(self) -> None:
        # A clock and no event on purpose: SageMaker syncs by itself too, and inotify loses files.
        while not self._ended.wait(self._settings.checkpoint_sync_seconds):
            self._scan_or_tell(final=False)

    def _scan_or_tell(self, final: bool) -> None:
        """One sync that goes wrong must not be the last."""
        try:
            self._scan(final)
        except Exception as error:
            text = f"{self._local_path}: a sync failed, and the next one tries again: {why(error)}"
            for label in self._folders:
                self.missing[label, ""] = why(error)
                if self._tell(label, "", text, of=label):
                    log.exception(text)

    def _scan(self, final: bool) -> None:
        self.missing = {}
        looks = {label: self._look(label, folder, final) for label, folder in self._folders.items()}
        there = {label: look.files for label, look in looks.items()}
        written = set()
        for some in self._batches(self._ordered(self._ready(there, final)), there):
            for label, name in self._upload(some, final):
                self._synced[label][name] = there[label][name]
                written.add(name)
                self._noted.pop((label, name), None)
        for label, synced in self._synced.items():
            for name in synced.keys() - there[label].keys():
                # What cannot be looked at has not been deleted.
                if not looks[label].hides(name) and self._delete(label, name, name in written):
                    del synced[name]
        self._seen = there

    def _delete(self, label: str, name: str, is_written: bool) -> bool:
        """False when it has to be tried again. ``is_written``: another host has written it since, which is
        the later of the two."""
        if not self._mirror or is_written or self._is_lost(label, name):
            return True
        try:
            self._objects.delete(self._where.bucket, self._where.below(_key(name)))
        except Exception as error:
            self._fail(label, name, f"could not be deleted in S3: {why(error)}", _AGAIN)
            return False
        return True

    def _ready(self, there: Mapping[str, Mapping[str, _Stamp]], final: bool) -> Iterator[_Change]:
        """What can be uploaded now: of the same name on several hosts the last one written."""
        latest: dict[str, _Change] = {}
        with Opener() as opener:
            for label, files in there.items():
                synced, seen = self._synced[label], self._seen[label]
                for name, stamp in files.items():
                    if synced.get(name) == stamp:
                        continue
                    if not final and (
                        seen.get(name) != stamp or not self._is_left_alone(opener, label, name)
                    ):
                        continue
                    change = _Change(stamp.modified_ns, label, name)
                    other = latest.get(name)
                    if other is not None:
                        loser = min(change, other)
                        self._synced[loser.label][name] = there[loser.label][name]
                    latest[name] = change if other is None else max(change, other)
        yield from latest.values()

    def _is_left_alone(self, opener: Opener, label: str, name: str) -> bool:
        try:
            descriptor = opener.open(*self._file(label, name))
        except FileNotFoundError:
            return False
        except OSError:
            return True  # the upload tells it
        try:
            return nobody_writes(descriptor)
        finally:
            os.close(descriptor)

    def _file(self, label: str, name: str) -> HostFile:
        folder = self._folders[label]
        return HostFile(folder.root, f"{folder.name}/{name}")

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
        limit = uploads.TOGETHER if self._settings.checkpoint_sync_order == "oldest-first" else 1
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
        """The ones that need not be looked at again: uploaded, or lost as the settings say."""
        files = {
            self._where.below(_key(name)): (label, name)
            for label, name in changes
            if not self._is_lost(label, name)
        }
        failed: Mapping[str, Exception]
        try:
            sources = {key: self._file(label, name) for key, (label, name) in files.items()}
            failed = uploads.put(self._objects, self._where.bucket, sources, self._scratch, ended=final)
        except Exception as error:
            failed = dict.fromkeys(files, error)
        for key, reason in failed.items():
            label, name = files[key]
            # One that was deleted meanwhile, or goes on changing, is seen by the next scan.
            if not isinstance(reason, (FileNotFoundError, StillChanging)):
                self._fail(label, name, f"could not be uploaded: {why(reason)}", _AGAIN)
        yield from (change for change in changes if self._where.below(_key(change[1])) not in failed)

    def _look(self, label: str, folder: HostFile, final: bool) -> _Look:
        look = _Look({}, [])
        for name, status, error in walk(folder.root, folder.name, self._refused, grant=final):
            if isinstance(error, FileNotFoundError):
                continue  # a directory that vanished between two looks holds nothing
            if isinstance(error, Refused) and not name:
                # On SageMaker a volume is mounted there. What a link leads to is no business of S3, and what
                # has been uploaded has not been deleted either.
                look.hidden.append(name)
                self.missing[label, name] = text = f"{self._local_path} has become {error.kind}"
                self._tell(label, name, f"{text}: nothing of it is uploaded")
            elif error is not None:
                look.hidden.append(name)
                cannot = "cannot be read" if status is None else "cannot be uploaded"
                self._fail(label, name, f"{cannot}: {why(error)}")
            elif status is None or stat.S_ISDIR(status.st_mode):
                continue
            elif stat.S_ISREG(status.st_mode):
                look.files[name] = _stamp(status)
            else:
                if stat.S_ISLNK(status.st_mode):
                    look.hidden.append(name)
                self._tell(label, name, f"{self._what} {shown(name)} is {kind(status)}: it is not uploaded")
        return look

    def _refused(self, name: str) -> OSError | None:
        """Why there can be no object of that name."""
        try:
            key = self._where.below(_key(name))
        except UnicodeDecodeError:
            return OSError(errno.EILSEQ, "its name is not UTF-8, and S3 has no other keys")
        if len(key.encode()) > _KEY_LIMIT:
            return OSError(errno.ENAMETOOLONG, f"its key would have more than {_KEY_LIMIT} bytes")
        return None

    def _fail(self, label: str, name: str, text: str, outlook: str = "") -> None:
        about = f"{self._what} {shown(name)}" if name else self._local_path
        self.missing[label, name] = f"{about} {text}"
        self._tell(label, name, f"{about} {text}{outlook}", of=label)

    def _tell(self, label: str, name: str, text: str, of: str = "") -> bool:
        """Once, and not with every scan; about a file of every host unless it is ``of`` one. False when that
        was told before."""
        known = self._noted.setdefault((of, name), set())
        if text in known:
            return False
        known.add(text)
        self._note(label, text)
        return True


def _below_contract(path: str) -> str | None:
    """Relative to /opt/ml; None for a place elsewhere."""
    relative = os.path.relpath(path, CONTRACT_ROOT)
    return None if relative.split("/")[0] == ".." else relative


def _folder(place: Place, path: str) -> HostFile:
    """Where this process finds a host's directory. What comes after the root may be the job's making."""
    relative = _below_contract(path)
    if relative is not None:
        return HostFile(place.tree, relative)
    return HostFile(place.tree.parent, f"elsewhere/{os.path.normpath(path).lstrip('/')}")


def _key(name: str) -> str:
    """A file's name as a key's end, whatever character set this process takes names to be in. Raises
    UnicodeDecodeError for bytes that are no UTF-8."""
    return os.fsencode(name).decode()


def _stamp(status: os.stat_result) -> _Stamp:
    return _Stamp(status.st_mtime_ns, status.st_size, status.st_ino)


def _is_plain(relative: str) -> bool:
    """Whether it can be a path, and the same one when it is read again."""
    return not {"", ".", ".."} & set(relative.split("/")) and "\0" not in relative
