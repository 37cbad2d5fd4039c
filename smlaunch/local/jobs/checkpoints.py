"""The checkpoint directory: S3 to every host before the start, then every change of a host back to S3.

As on SageMaker (developer guide, model-checkpoints) all hosts share one prefix, a file deleted on a host is
deleted in S3, and of two hosts that write the same name the last writer wins. While the hosts run a file is
uploaded as ``patience`` says; after they have ended, everything is. Interval, order and loss are settings: a
program must not depend on any of them.
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
from functools import partial
from pathlib import Path
from typing import NamedTuple

from smlaunch.local.executors.base import Place, View
from smlaunch.local.host_files import FileOpener, UnexpectedFileType, error_text, printable_name, walk
from smlaunch.local.host_files import file_type_name as kind
from smlaunch.local.jobs import unsaved, uploads
from smlaunch.local.jobs.copying import copy_file
from smlaunch.local.jobs.leases import is_closed
from smlaunch.local.jobs.listing import DataError
from smlaunch.local.jobs.patience import LATE, Patience, Way
from smlaunch.local.jobs.spec import CONTRACT_ROOT, S3Location
from smlaunch.local.jobs.stores import StoredObject, Objects
from smlaunch.local.jobs.uploads import HostFile, Stamp, StillChanging, stamp_of
from smlaunch.local.settings import Settings

log = logging.getLogger(__name__)

_TOGETHER_BYTES = 64 << 20
"""At most so many bytes become visible in S3 at once."""
_KEY_LIMIT = 1024
_LAST_TRIES = 2
_MIN_MTIME_DIFFERENCE_NS = 1000
"""A float of seconds since the epoch tells no nearer times apart."""
_AGAIN = " (every sync tries again)"


_TORN = Stamp(-1, -1, -1, -1)
"""Of what S3 has of a file that was written to while it was copied: the same as no other."""


class _Change(NamedTuple):
    modified_ns: int
    label: str
    name: str
    way: Way


class _Look(NamedTuple):
    """What one look at a host's directory found. ``hidden``: files and directories that are there and could
    not be looked at. ``fresh``: files that are newer than the look. ``unopened``: directories,
    or what may be one, whose files nobody has counted."""

    files: dict[str, Stamp]
    hidden: list[str]
    fresh: set[str]
    unopened: set[str]

    def hides(self, name: str) -> bool:
        return any(not other or name == other or name.startswith(f"{other}/") for other in self.hidden)


class CheckpointSync:
    """``local_path`` is the host's. ``note(label, text)`` tells a host's log what a person should know, and
    calls a file a ``what``. ``mirror``: whether a file deleted on a host is deleted in S3. After ``finish``,
    ``missing`` says, for a host and a name there, why it is not in S3, and after ``keep`` ``kept`` says where
    a host's files lie that could not be stored."""

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
        self._synced: dict[str, dict[str, Stamp]] = {label: {} for label in self._folders}
        self._patience = {label: Patience() for label in self._folders}
        self._changes: Counter[tuple[str, str]] = Counter()
        self._noted: dict[tuple[str, str], set[str]] = {}
        self.missing: dict[tuple[str, str], str] = {}
        self.unsaved_files: dict[str, Path] = {}
        self._unsaved: set[tuple[str, str]] = set()
        self._looks: Mapping[str, _Look] = {}
        self._lost: set[str] = set()
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
            self._store_unsaved()
            found = list(_with_times(self._objects.list_objects(self._where.bucket, prefix)))
        except KeyError:
            raise DataError(
                f"the bucket of CheckpointConfig.S3Uri, {self._where.bucket}, does not exist"
            ) from None
        self.make_folders()
        for label, folder in self._folders.items():
            created_folders: set[Path] = set()
            for key, modified_ns in found:
                check()
                relative = key[len(prefix) :]
                if not relative or relative.endswith("/"):
                    continue
                if not _is_plain(relative):
                    text = (
                        f"{self._what} {printable_name(relative)} of S3 is not here: its key "
                        f"cannot be a file's path"
                    )
                    self._tell(label, relative, text)
                    continue
                target = folder.root / folder.name / relative
                self._synced[label][relative] = self._fetch(key, target, modified_ns, created_folders)

    def _store_unsaved(self) -> None:
        """What an earlier job could not store. Where that is still so, a first host's log says it."""
        self._scratch.mkdir(parents=True, exist_ok=True)
        for folder in unsaved.store(self._objects, self._where, self._scratch):
            label = next(iter(self._folders))
            self._note(label, f"files of an earlier job still cannot be stored, and stay in {folder}")

    def _fetch(self, key: str, target: Path, modified_ns: int, created_folders: set[Path]) -> Stamp:
        """Before any program of the job has run: the directories are the endpoint's own. Raises DataError."""
        try:
            if target.parent not in created_folders:
                target.parent.mkdir(parents=True, exist_ok=True)
                created_folders.add(target.parent)
            copy_file(self._objects.body_path(self._where.bucket, key), target)
            os.utime(target, ns=(modified_ns, modified_ns))
            # Its host may get another owner before the first look, which is no other content.
            return stamp_of(target.stat())._replace(changed_ns=0)
        except (OSError, KeyError) as error:
            cause = "it was deleted meanwhile" if isinstance(error, KeyError) else error_text(error)
            raise DataError(
                f"Data download failed:s3://{self._where.bucket}/{printable_name(key)} of "
                f"CheckpointConfig.S3Uri "
                f"cannot be written to {self._local_path}: {cause}"
            ) from None

    def start(self) -> None:
        self._thread.start()

    def lose(self, label: str) -> None:
        """The host is gone with its disk: nothing that S3 does not have now comes there any more."""
        self._lost.add(label)

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
        for label, look in self._looks.items():
            self._tell_missing(label, look)

    def _tell_missing(self, label: str, look: _Look) -> None:
        """How many files of the host are not in S3, and what becomes of them."""
        on_host = {*look.files, *look.hidden} - {""}  # others could only not be deleted in S3
        names = {name for of, name in self.missing if of == label} & on_host
        if not names:
            return
        count = f"at least {len(names)}" if names & look.unopened else f"{len(names)}"
        text = f"after the last sync {count} of the files in {self._local_path} did not reach S3"
        unsaved_count = sum((label, name) in self._unsaved for name in names)
        if unsaved_count < len(names):
            which = f"all of them but {unsaved_count} are" if unsaved_count else "they are"
            text += f" and {which} lost with this host"
        self._note(label, f"{text}; this log names each, or its directory")

    def keep(self) -> None:
        """After ``finish``, and before the hosts' trees are removed."""
        for label, folder in self._hosts():
            names = {name for of, name in self._unsaved if of == label}
            if not names:
                continue
            try:
                saved_path = unsaved.keep(self._objects, self._where, folder, label, names)
            except OSError as error:
                self._note(label, f"what did not reach S3 cannot be kept and is lost: {error_text(error)}")
                continue
            self.unsaved_files[label] = saved_path
            self._note(
                label,
                f"{len(names)} files that could not be stored are kept in {saved_path}; the next job with "
                f"s3://{self._where.bucket}/{self._where.below('')} stores them when it starts",
            )

    def _run(self) -> None:
        # A clock and no event on purpose: SageMaker syncs by itself too, and inotify loses files.
        while not self._ended.wait(self._settings.checkpoint_sync_seconds):
            self._scan_or_tell(final=False)

    def _scan_or_tell(self, final: bool) -> None:
        """One sync that goes wrong must not be the last."""
        try:
            self._scan(final)
        except Exception as error:
            text = f"{self._local_path}: a sync failed, and the next one tries again: {error_text(error)}"
            for label in self._folders:
                self.missing[label, ""] = error_text(error)
                if self._tell(label, "", text, of=label):
                    log.exception(text)

    def _scan(self, final: bool) -> None:
        self.missing, self._unsaved = {}, set()
        self._looks = looks = {label: self._look(label, folder, final) for label, folder in self._hosts()}
        files_by_host = {label: look.files for label, look in looks.items()}
        written = set()
        for some in self._batches(self._ordered(self._ready(looks, final)), files_by_host):
            for _, label, name, way in self._upload(some, files_by_host, final):
                self._stored(label, name, files_by_host[label][name], way)
                written.add(name)
        for label in looks:
            synced = self._synced[label]
            deleted_names = synced.keys() - files_by_host[label].keys()
            for name in deleted_names:
                # What cannot be looked at has not been deleted.
                if looks[label].hides(name) or not (
                    final or self._patience[label].may_delete(name, synced.keys() - deleted_names)
                ):
                    continue
                if self._delete(label, name, name in written):
                    del synced[name]
            self._patience[label].end(files_by_host[label])

    def _hosts(self) -> list[tuple[str, HostFile]]:
        return [(label, folder) for label, folder in self._folders.items() if label not in self._lost]

    def _stored(self, label: str, name: str, stamp: Stamp, way: Way) -> None:
        self._patience[label].stored(name, stamp, way)
        self._noted.pop((label, name), None)
        self._synced[label][name] = _TORN if way == "torn" else stamp
        if way == "torn":
            text = (
                f"{self._what} {printable_name(name)} was open for writing, or had changed, "
                f"at each of {LATE} syncs"
            )
            self._tell(
                label,
                name,
                f"{text}: what S3 has of it may be torn; it is stored again when its host has ended",
            )

    def _delete(self, label: str, name: str, is_written: bool) -> bool:
        """False when it has to be tried again. ``is_written``: another host has written it since, which is
        the later of the two."""
        if not self._mirror or is_written or self._is_lost(label, name):
            return True
        try:
            self._objects.delete_object(self._where.bucket, self._where.below(_key(name)))
        except Exception as error:
            self._fail(label, name, f"could not be deleted in S3: {error_text(error)}", _AGAIN)
            return False
        return True

    def _ready(self, looks: Mapping[str, _Look], final: bool) -> Iterator[_Change]:
        """What can be uploaded now: of the same name on several hosts the last one written."""
        latest: dict[str, _Change] = {}
        with FileOpener() as opener:
            for label, look in looks.items():
                synced, patience = self._synced[label], self._patience[label]
                for name, stamp in look.files.items():
                    known = synced.get(name)
                    if known is not None and known in (stamp, stamp._replace(changed_ns=0)):
                        synced[name] = stamp
                        continue
                    closed = partial(self._is_closed, opener, label, name)
                    way = "whole" if final else patience.choose(name, stamp, look.fresh, closed)
                    if way is None:
                        continue
                    change = _Change(stamp.modified_ns, label, name, way)
                    other = latest.get(name)
                    if other is not None:
                        loser = min(change, other)
                        stamp = looks[loser.label].files[name]
                        self._synced[loser.label][name] = stamp
                        self._patience[loser.label].stored(name, stamp, "whole")
                    latest[name] = change if other is None else max(change, other)
        yield from latest.values()

    def _is_closed(self, opener: FileOpener, label: str, name: str) -> bool | None:
        try:
            descriptor = opener.open(*self._file(label, name)[:2])
        except FileNotFoundError:
            return False
        except OSError:
            return True  # the upload tells it
        try:
            return is_closed(descriptor)
        finally:
            os.close(descriptor)

    def _file(self, label: str, name: str) -> HostFile:
        folder = self._folders[label]
        return HostFile(folder.root, f"{folder.name}/{name}")

    def _ordered(self, changes: Iterator[_Change]) -> list[_Change]:
        order = self._settings.checkpoint_sync_order
        if order == "shuffled":
            return sorted(changes, key=lambda change: self._draw("order", change.label, change.name))
        # Oldest first: a COMMIT that was written last is uploaded last.
        return sorted(changes, reverse=order == "newest-first")

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
        self, changes: Sequence[_Change], files_by_host: Mapping[str, Mapping[str, Stamp]]
    ) -> Iterator[list[_Change]]:
        """What becomes visible in S3 together: small files by the hundred. One by one where the order is to
        be seen."""
        limit = uploads.TOGETHER if self._settings.checkpoint_sync_order == "oldest-first" else 1
        batch: list[_Change] = []
        size = 0
        for change in changes:
            if batch and (len(batch) == limit or size > _TOGETHER_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(change)
            size += files_by_host[change.label][change.name].size
        if batch:
            yield batch

    def _upload(
        self, changes: Sequence[_Change], files_by_host: Mapping[str, Mapping[str, Stamp]], final: bool
    ) -> Iterator[_Change]:
        """The ones that need not be looked at again: uploaded, or lost as the settings say."""
        files = {
            self._where.below(_key(change.name)): change
            for change in changes
            if not self._is_lost(change.label, change.name)
        }
        failed: Mapping[str, Exception]
        try:
            sources = {
                key: self._file(label, name)._replace(
                    stamp=None if final or way == "torn" else files_by_host[label][name]
                )
                for key, (_, label, name, way) in files.items()
            }
            failed = uploads.put(self._objects, self._where.bucket, sources, self._scratch, ended=final)
        except Exception as error:
            failed = dict.fromkeys(files, error)
        for key, reason in failed.items():
            # One that was deleted meanwhile, or goes on changing, is seen by the next scan.
            if not isinstance(reason, (FileNotFoundError, StillChanging)):
                change = files[key]
                self._unsaved.add((change.label, change.name))
                self._fail(change.label, change.name, f"could not be uploaded: {error_text(reason)}", _AGAIN)
        yield from (change for change in changes if self._where.below(_key(change.name)) not in failed)

    def _look(self, label: str, folder: HostFile, final: bool) -> _Look:
        look = _Look({}, [], set(), set())
        patience = self._patience[label]
        patience.begin()
        for name, status, error in walk(folder.root, folder.name, self._refused, fix_permissions=final):
            if isinstance(error, FileNotFoundError):
                continue  # a directory that vanished between two looks holds nothing
            if isinstance(error, UnexpectedFileType) and not name:
                # On SageMaker a volume is mounted there. What a link leads to is no business of S3, and what
                # has been uploaded has not been deleted either.
                look.hidden.append(name)
                self.missing[label, name] = text = f"{self._local_path} has become {error.file_type}"
                self._tell(label, name, f"{text}: nothing of it is uploaded")
            elif error is not None:
                look.hidden.append(name)
                if status is None or stat.S_ISDIR(status.st_mode):
                    look.unopened.add(name)
                cannot = "cannot be read" if status is None else "cannot be uploaded"
                self._fail(label, name, f"{cannot}: {error_text(error)}")
            elif status is None or stat.S_ISDIR(status.st_mode):
                continue
            elif stat.S_ISREG(status.st_mode):
                look.files[name] = stamp_of(status)
                if patience.is_fresh(status):
                    look.fresh.add(name)
            else:
                if stat.S_ISLNK(status.st_mode):
                    look.hidden.append(name)
                self._tell(
                    label, name, f"{self._what} {printable_name(name)} is {kind(status)}: it is not uploaded"
                )
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
        about = f"{self._what} {printable_name(name)}" if name else self._local_path
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


def _with_times(found: Iterator[StoredObject]) -> Iterator[tuple[str, int]]:
    """Keys with times of modification in nanoseconds, oldest first and no two the same: a script may take the
    newest file by its time. What SageMaker gives a file is not documented."""
    latest = 0
    for entry in sorted(found, key=lambda entry: (entry.modified, entry.key)):
        latest = max(int(entry.modified * 1e9), latest + _MIN_MTIME_DIFFERENCE_NS)
        yield entry.key, latest


def _is_plain(relative: str) -> bool:
    """Whether it can be a path, and the same one when it is read again."""
    return not {"", ".", ".."} & set(relative.split("/")) and "\0" not in relative
