"""The checkpoint directory: S3 to every host before the start, then every change of a host back to S3.

As on SageMaker (developer guide, model-checkpoints) all hosts share one prefix, a file deleted on a host is
deleted in S3, and two hosts that write the same name overwrite each other. A file is uploaded once two scans
saw it the same and nobody has it open for writing; after the hosts have ended, everything is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from smlaunch.local.executors.base import Place
from smlaunch.local.jobs.channels import DataError, copy_file
from smlaunch.local.jobs.ports import Objects
from smlaunch.local.jobs.spec import CONTRACT_ROOT, S3Location


class _Stamp(NamedTuple):
    """Says whether a file is still the same."""

    modified_ns: int
    size: int
    inode: int


class CheckpointSync:
    """``note(label, text)`` tells a host's log what a person should know. ``interval`` is in seconds."""

    def __init__(
        self,
        where: S3Location,
        local_path: str,
        places: Sequence[Place],
        objects: Objects,
        interval: float,
        note: Callable[[str, str], None],
    ) -> None:
        self._where = where
        self._objects = objects
        self._interval = interval
        self._note = note
        relative = os.path.relpath(local_path, CONTRACT_ROOT)
        self._folders: Mapping[str, Path] = {place.label: place.tree / relative for place in places}
        self._synced: dict[str, dict[str, _Stamp]] = {label: {} for label in self._folders}
        self._seen: dict[str, dict[str, _Stamp]] = {label: {} for label in self._folders}
        self._noted: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

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
            for key in found:
                check()
                relative = key[len(prefix) :]
                if not relative or relative.endswith("/") or not _stays_below(relative):
                    continue
                target = folder / relative
                target.parent.mkdir(parents=True, exist_ok=True)
                copy_file(self._objects.path(self._where.bucket, key), target)
                self._synced[label][relative] = _stamp(target.stat())

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """The last sync: all that is there, whether it was seen twice or not. The hosts have ended before."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._scan(final=True)

    def _run(self) -> None:
        # A clock and no event on purpose: SageMaker syncs by itself too, and inotify loses files.
        while not self._ended.wait(self._interval):
            self._scan(final=False)

    def _scan(self, final: bool) -> None:
        for label, folder in self._folders.items():
            there = dict(self._files(label, folder))
            synced, seen = self._synced[label], self._seen[label]
            changed = [name for name, stamp in there.items() if synced.get(name) != stamp]
            # Oldest first: a COMMIT that was written last is uploaded last.
            for name in sorted(changed, key=lambda name: there[name].modified_ns):
                path = folder / name
                if not final and (seen.get(name) != there[name] or not _nobody_writes(path)):
                    continue
                if self._upload(label, name, path):
                    synced[name] = there[name]
            for name in synced.keys() - there.keys():
                self._objects.delete(self._where.bucket, self._where.below(name))
                del synced[name]
            self._seen[label] = there

    def _upload(self, label: str, name: str, path: Path) -> bool:
        try:
            self._objects.put_file(self._where.bucket, self._where.below(name), path)
        except FileNotFoundError:
            return False  # deleted meanwhile: the next scan sees it
        except (OSError, KeyError) as error:
            self._tell(label, name, f"checkpoint {name} could not be uploaded, will be tried again: {error}")
            return False
        return True

    def _files(self, label: str, folder: Path) -> list[tuple[str, _Stamp]]:
        found = []
        waiting = [""]
        while waiting:
            below = waiting.pop()
            # A directory that vanished between two looks holds nothing.
            with contextlib.suppress(FileNotFoundError), os.scandir(folder / below) as entries:
                for entry in entries:
                    name = below + entry.name
                    if entry.is_symlink():
                        self._tell(label, name, f"checkpoint {name} is a symbolic link: it is not uploaded")
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


def _stamp(stat: os.stat_result) -> _Stamp:
    return _Stamp(stat.st_mtime_ns, stat.st_size, stat.st_ino)


def _stays_below(relative: str) -> bool:
    return not relative.startswith("/") and ".." not in relative.split("/")


def _nobody_writes(path: Path) -> bool:
    """A read lease is granted only while no process has the file open for writing (Linux; true elsewhere)."""
    if sys.platform != "linux":
        return True
    import fcntl

    try:
        with path.open("rb", buffering=0) as file:
            # If a writer comes in the moment we hold the lease, we are told by a signal. The default one,
            # SIGIO, would end this process; SIGURG is ignored.
            fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return False
    except OSError:
        return True  # not our file, or a file system without leases: the two scans must do
    return True
