"""Syncs the checkpoint directory: downloads it from S3 to every host before the start, then uploads every
change of a host to S3.

As on SageMaker (developer guide, model-checkpoints), all hosts share one prefix, a file deleted on a host is
deleted in S3, and if two hosts write the same name, the last writer wins. While the hosts run, ``patience``
decides which files are uploaded; after they have ended, all files are. Interval, order and loss are
settings: a program must not depend on any of them.
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

from smlaunch.local.executors.base import DirectoryMount, JobHost
from smlaunch.local.host_files import FileOpener, UnexpectedFileType, error_text, printable_name, walk
from smlaunch.local.host_files import file_type_name as file_type_text
from smlaunch.local.jobs import unsaved, uploads
from smlaunch.local.jobs.copying import copy_file
from smlaunch.local.jobs.leases import is_closed
from smlaunch.local.jobs.listing import DataError
from smlaunch.local.jobs.patience import UPLOAD_TORN_AFTER, Completeness, UploadSchedule
from smlaunch.local.jobs.spec import CONTRACT_ROOT, S3Location
from smlaunch.local.jobs.stores import ListedObject, Objects
from smlaunch.local.jobs.uploads import HostFile, Stamp, StillChanging, stamp_of
from smlaunch.local.settings import Settings

log = logging.getLogger(__name__)

_BATCH_BYTES = 64 << 20
"""Maximum number of bytes that become visible in S3 at once."""
_MAX_KEY_BYTES = 1024
"""Bytes."""
_FINAL_ATTEMPTS = 2
_MIN_MTIME_DIFFERENCE_NS = 1000
"""A float of seconds since the epoch cannot distinguish times that are closer."""
_RETRY_SUFFIX = " (every sync tries again)"


_TORN_STAMP = Stamp(-1, -1, -1, -1)
"""Stamp of an upload that may be torn; no file has it."""


class _Change(NamedTuple):
    """A changed file that can be uploaded."""

    modified_ns: int
    host_name: str
    name: str
    completeness: Completeness


class _Scan(NamedTuple):
    """The content of a host's directory, as found by one scan."""

    files: dict[str, Stamp]
    hidden: list[str]
    """Files and directories that exist but could not be read."""
    newer_files: set[str]
    """Files that may be newer than the scan."""
    unread_folders: set[str]
    """Directories, or what may be directories, whose files are unknown."""

    def may_hide(self, name: str) -> bool:
        """Return whether a file may exist although the scan did not find it."""
        return any(
            not hidden_name or name == hidden_name or name.startswith(f"{hidden_name}/")
            for hidden_name in self.hidden
        )


class CheckpointSync:
    """Syncs a directory of all hosts with an S3 prefix."""

    def __init__(
        self,
        location: S3Location,
        local_path: str,
        hosts: Sequence[JobHost],
        objects: Objects,
        settings: Settings,
        write_note: Callable[[str, str], None],
        *,
        description: str = "checkpoint",
        deletes_in_s3: bool = True,
    ) -> None:
        """``local_path`` is the directory's path on the hosts. ``write_note(host_name, text)`` writes to a
        host's log. ``description`` is what notes call a file. ``deletes_in_s3``: whether a file that was
        deleted on a host is deleted in S3."""
        self._description = description
        self._deletes_in_s3 = deletes_in_s3
        self._location = location
        self._local_path = local_path
        self._objects = objects
        self._settings = settings
        self._write_note = write_note
        self._scratch_folder = hosts[0].tree.parent
        self._folder_by_host: Mapping[str, HostFile] = {
            host.name: _host_folder(host, local_path) for host in hosts
        }
        self._stored_stamps_by_host: dict[str, dict[str, Stamp]] = {
            host_name: {} for host_name in self._folder_by_host
        }
        """Stamps of the files in S3, by host and name."""
        self._schedule_by_host = {host_name: UploadSchedule() for host_name in self._folder_by_host}
        self._change_count_by_file: Counter[tuple[str, str]] = Counter()
        """Changes of a file so far, by host and name; for the fault setting checkpoint_sync_loss."""
        self._noted_texts_by_file: dict[tuple[str, str], set[str]] = {}
        """Notes that were written already, by host (empty: any) and name."""
        self.problems: dict[tuple[str, str], str] = {}
        """After ``finish``: why a file is not in S3, by host and name."""
        self.saved_folder_by_host: dict[str, Path] = {}
        """After ``save_unsaved_files``: directories with the files that could not be stored, by host."""
        self._unsaved_names: set[tuple[str, str]] = set()
        """Host and name of each file whose last upload has failed."""
        self._scan_by_host: Mapping[str, _Scan] = {}
        self._lost_host_names: set[str] = set()
        self._hosts_have_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def mounts(self, host: JobHost) -> Iterator[DirectoryMount]:
        """Yield the mount that the host needs if the directory is outside /opt/ml."""
        if _path_below_contract(self._local_path) is None:
            folder = self._folder_by_host[host.name]
            yield DirectoryMount(folder.root / folder.name, os.path.normpath(self._local_path), shared=True)

    def make_folders(self) -> None:
        """Create the empty directory on every host."""
        for folder in self._folder_by_host.values():
            (folder.root / folder.name).mkdir(parents=True, exist_ok=True)

    def download(self, raise_if_stopping: Callable[[], None]) -> None:
        """Download everything below the prefix to every host. ``raise_if_stopping`` is called between files.
        Raises DataError."""
        prefix = self._location.key_below("")
        try:
            self._store_unsaved()
            stored_objects = list(
                _with_distinct_times(self._objects.list_objects(self._location.bucket, prefix))
            )
        except KeyError:
            raise DataError(
                f"the bucket of CheckpointConfig.S3Uri, {self._location.bucket}, does not exist"
            ) from None
        self.make_folders()
        for host_name, folder in self._folder_by_host.items():
            created_folders: set[Path] = set()
            for key, modified_ns in stored_objects:
                raise_if_stopping()
                relative = key[len(prefix) :]
                if not relative or relative.endswith("/"):
                    continue
                if not _is_safe_path(relative):
                    text = (
                        f"{self._description} {printable_name(relative)} of S3 is not here: its key "
                        f"cannot be a file's path"
                    )
                    self._note_once(host_name, relative, text)
                    continue
                target = folder.root / folder.name / relative
                self._stored_stamps_by_host[host_name][relative] = self._download_file(
                    key, target, modified_ns, created_folders
                )

    def _store_unsaved(self) -> None:
        """Store the files that an earlier job could not store. The first host's log names those that still
        cannot be stored."""
        self._scratch_folder.mkdir(parents=True, exist_ok=True)
        for folder in unsaved.store_saved_files(self._objects, self._location, self._scratch_folder):
            host_name = next(iter(self._folder_by_host))
            self._write_note(
                host_name, f"files of an earlier job still cannot be stored, and stay in {folder}"
            )

    def _download_file(self, key: str, target: Path, modified_ns: int, created_folders: set[Path]) -> Stamp:
        """Download one file. No program of the job has run yet, so that only the endpoint can change the
        directories. Raises DataError."""
        try:
            if target.parent not in created_folders:
                target.parent.mkdir(parents=True, exist_ok=True)
                created_folders.add(target.parent)
            copy_file(self._objects.body_path(self._location.bucket, key), target)
            os.utime(target, ns=(modified_ns, modified_ns))
            # A change of the file's owner before the first scan does not change its content.
            return stamp_of(target.stat())._replace(changed_ns=0)
        except (OSError, KeyError) as error:
            cause = "it was deleted meanwhile" if isinstance(error, KeyError) else error_text(error)
            raise DataError(
                f"Data download failed:s3://{self._location.bucket}/{printable_name(key)} of "
                f"CheckpointConfig.S3Uri "
                f"cannot be written to {self._local_path}: {cause}"
            ) from None

    def start(self) -> None:
        """Start syncing in a thread."""
        self._thread.start()

    def mark_host_lost(self, host_name: str) -> None:
        """Record that a host was lost with its disk: nothing more is uploaded from it."""
        self._lost_host_names.add(host_name)

    def finish(self) -> None:
        """Stop the thread and do the last sync, which uploads all files. The hosts have ended."""
        self._hosts_have_ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if not self._settings.checkpoint_last_sync:
            return
        for _ in range(_FINAL_ATTEMPTS):
            self._sync_or_log(hosts_have_ended=True)
            if not self.problems:
                return
        for host_name, scan in self._scan_by_host.items():
            self._note_missing_files(host_name, scan)

    def _note_missing_files(self, host_name: str, scan: _Scan) -> None:
        """Write to a host's log how many of its files are not in S3, and whether they are lost."""
        # The problems are also about files that are not on the host and could not be deleted in S3.
        existing_names = {*scan.files, *scan.hidden} - {""}
        missing_names = {name for host, name in self.problems if host == host_name} & existing_names
        if not missing_names:
            return
        count_text = (
            f"at least {len(missing_names)}"
            if missing_names & scan.unread_folders
            else f"{len(missing_names)}"
        )
        text = f"after the last sync {count_text} of the files in {self._local_path} did not reach S3"
        unsaved_count = sum((host_name, name) in self._unsaved_names for name in missing_names)
        if unsaved_count < len(missing_names):
            lost_files_text = f"all of them but {unsaved_count} are" if unsaved_count else "they are"
            text += f" and {lost_files_text} lost with this host"
        self._write_note(host_name, f"{text}; this log names each, or its directory")

    def save_unsaved_files(self) -> None:
        """Save files that could not be stored, for the next job. Call it after ``finish``, before the hosts'
        trees are removed."""
        for host_name, folder in self._remaining_host_folders():
            names = {name for host, name in self._unsaved_names if host == host_name}
            if not names:
                continue
            try:
                saved_path = unsaved.save_files(self._objects, self._location, folder, host_name, names)
            except OSError as error:
                self._write_note(
                    host_name, f"what did not reach S3 cannot be kept and is lost: {error_text(error)}"
                )
                continue
            self.saved_folder_by_host[host_name] = saved_path
            self._write_note(
                host_name,
                f"{len(names)} files that could not be stored are kept in {saved_path}; the next job with "
                f"s3://{self._location.bucket}/{self._location.key_below('')} stores them when it starts",
            )

    def _run(self) -> None:
        # By time and not by events: SageMaker does so too, and inotify loses files.
        while not self._hosts_have_ended.wait(self._settings.checkpoint_sync_seconds):
            self._sync_or_log(hosts_have_ended=False)

    def _sync_or_log(self, hosts_have_ended: bool) -> None:
        """Sync once; log an exception, since the next sync may succeed."""
        try:
            self._sync(hosts_have_ended)
        except Exception as error:
            text = f"{self._local_path}: a sync failed, and the next one tries again: {error_text(error)}"
            for host_name in self._folder_by_host:
                self.problems[host_name, ""] = error_text(error)
                if self._note_once(host_name, "", text, host=host_name):
                    log.exception(text)

    def _sync(self, hosts_have_ended: bool) -> None:
        """Scan all hosts, upload changed files and delete removed ones in S3."""
        self.problems, self._unsaved_names = {}, set()
        self._scan_by_host = scan_by_host = {
            host_name: self._scan_host(host_name, folder, hosts_have_ended)
            for host_name, folder in self._remaining_host_folders()
        }
        files_by_host = {host_name: scan.files for host_name, scan in scan_by_host.items()}
        uploaded_names = set()
        for batch in self._split_into_batches(
            self._sort_changes(self._ready_changes(scan_by_host, hosts_have_ended)), files_by_host
        ):
            for _, host_name, name, completeness in self._upload(batch, files_by_host, hosts_have_ended):
                self._mark_stored(host_name, name, files_by_host[host_name][name], completeness)
                uploaded_names.add(name)
        for host_name in scan_by_host:
            stored_stamps = self._stored_stamps_by_host[host_name]
            deleted_names = stored_stamps.keys() - files_by_host[host_name].keys()
            for name in deleted_names:
                # A file that cannot be read was not deleted.
                if scan_by_host[host_name].may_hide(name) or not (
                    hosts_have_ended
                    or self._schedule_by_host[host_name].may_delete(
                        name, stored_stamps.keys() - deleted_names
                    )
                ):
                    continue
                if self._delete(host_name, name, name in uploaded_names):
                    del stored_stamps[name]
            self._schedule_by_host[host_name].end_scan(files_by_host[host_name])

    def _remaining_host_folders(self) -> list[tuple[str, HostFile]]:
        """Return the name and folder of each host that is not lost."""
        return [
            (host_name, folder)
            for host_name, folder in self._folder_by_host.items()
            if host_name not in self._lost_host_names
        ]

    def _mark_stored(self, host_name: str, name: str, stamp: Stamp, completeness: Completeness) -> None:
        """Record that a file was uploaded."""
        self._schedule_by_host[host_name].mark_stored(name, stamp, completeness)
        self._noted_texts_by_file.pop((host_name, name), None)
        self._stored_stamps_by_host[host_name][name] = _TORN_STAMP if completeness == "torn" else stamp
        if completeness == "torn":
            text = (
                f"{self._description} {printable_name(name)} was open for writing, or had changed, "
                f"at each of {UPLOAD_TORN_AFTER} syncs"
            )
            self._note_once(
                host_name,
                name,
                f"{text}: what S3 has of it may be torn; it is stored again when its host has ended",
            )

    def _delete(self, host_name: str, name: str, is_overwritten: bool) -> bool:
        """Delete an object whose file a host has deleted. Return False if that must be tried again.
        ``is_overwritten``: another host has uploaded the name in this sync, so that the object must stay."""
        if not self._deletes_in_s3 or is_overwritten or self._loses_change(host_name, name):
            return True
        try:
            self._objects.delete_object(self._location.bucket, self._location.key_below(_key(name)))
        except Exception as error:
            self._record_problem(
                host_name, name, f"could not be deleted in S3: {error_text(error)}", _RETRY_SUFFIX
            )
            return False
        return True

    def _ready_changes(self, scan_by_host: Mapping[str, _Scan], hosts_have_ended: bool) -> Iterator[_Change]:
        """Yield the files that can be uploaded now; if several hosts have the same name, the file that was
        written last."""
        latest_change_by_name: dict[str, _Change] = {}
        with FileOpener() as opener:
            for host_name, scan in scan_by_host.items():
                stored_stamps, schedule = (
                    self._stored_stamps_by_host[host_name],
                    self._schedule_by_host[host_name],
                )
                for name, stamp in scan.files.items():
                    stored_stamp = stored_stamps.get(name)
                    if stored_stamp is not None and stored_stamp in (stamp, stamp._replace(changed_ns=0)):
                        stored_stamps[name] = stamp
                        continue
                    is_file_closed = partial(self._is_closed, opener, host_name, name)
                    completeness = (
                        "whole"
                        if hosts_have_ended
                        else schedule.choose_file(name, stamp, scan.newer_files, is_file_closed)
                    )
                    if completeness is None:
                        continue
                    change = _Change(stamp.modified_ns, host_name, name, completeness)
                    other_change = latest_change_by_name.get(name)
                    if other_change is not None:
                        overwritten_change = min(change, other_change)
                        stamp = scan_by_host[overwritten_change.host_name].files[name]
                        self._stored_stamps_by_host[overwritten_change.host_name][name] = stamp
                        self._schedule_by_host[overwritten_change.host_name].mark_stored(name, stamp, "whole")
                    latest_change_by_name[name] = (
                        change if other_change is None else max(change, other_change)
                    )
        yield from latest_change_by_name.values()

    def _is_closed(self, opener: FileOpener, host_name: str, name: str) -> bool | None:
        """Return whether nobody has the file open for writing; None if that is unknown."""
        try:
            descriptor = opener.open(*self._host_file(host_name, name)[:2])
        except FileNotFoundError:
            return False
        except OSError:
            return True  # the upload will report the error
        try:
            return is_closed(descriptor)
        finally:
            os.close(descriptor)

    def _host_file(self, host_name: str, name: str) -> HostFile:
        folder = self._folder_by_host[host_name]
        return HostFile(folder.root, f"{folder.name}/{name}")

    def _sort_changes(self, changes: Iterator[_Change]) -> list[_Change]:
        """Return the changes in the order of the setting checkpoint_sync_order."""
        order = self._settings.checkpoint_sync_order
        if order == "shuffled":
            return sorted(
                changes, key=lambda change: self._random_number("order", change.host_name, change.name)
            )
        # Oldest first: a COMMIT file, which is written last, is uploaded last.
        return sorted(changes, reverse=order == "newest-first")

    def _loses_change(self, host_name: str, name: str) -> bool:
        """Return whether the fault setting checkpoint_sync_loss drops this change."""
        loss_share = self._settings.checkpoint_sync_loss
        if not loss_share:
            return False
        self._change_count_by_file[host_name, name] += 1
        return (
            self._random_number("loss", host_name, name, str(self._change_count_by_file[host_name, name]))
            < loss_share
        )

    def _random_number(self, *words: str) -> float:
        """Return a number from 0 to 1 that depends on the seed and on ``words`` only, not on the order of
        calls."""
        seed = "\0".join((str(self._settings.checkpoint_sync_seed), *words))
        return random.Random(seed).random()  # noqa: S311 - a fault plan, not a secret

    def _split_into_batches(
        self, changes: Sequence[_Change], files_by_host: Mapping[str, Mapping[str, Stamp]]
    ) -> Iterator[list[_Change]]:
        """Yield the changes that become visible in S3 together: hundreds of small files, or single files if
        the order is a setting."""
        limit = uploads.FILES_PER_TRANSACTION if self._settings.checkpoint_sync_order == "oldest-first" else 1
        batch: list[_Change] = []
        size = 0
        for change in changes:
            if batch and (len(batch) == limit or size > _BATCH_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(change)
            size += files_by_host[change.host_name][change.name].size
        if batch:
            yield batch

    def _upload(
        self,
        changes: Sequence[_Change],
        files_by_host: Mapping[str, Mapping[str, Stamp]],
        hosts_have_ended: bool,
    ) -> Iterator[_Change]:
        """Upload changes and yield those that are done: uploaded, or dropped by the fault setting."""
        files = {
            self._location.key_below(_key(change.name)): change
            for change in changes
            if not self._loses_change(change.host_name, change.name)
        }
        errors: Mapping[str, Exception]
        try:
            sources = {
                key: self._host_file(host_name, name)._replace(
                    stamp=None
                    if hosts_have_ended or completeness == "torn"
                    else files_by_host[host_name][name]
                )
                for key, (_, host_name, name, completeness) in files.items()
            }
            errors = uploads.upload_files(
                self._objects,
                self._location.bucket,
                sources,
                self._scratch_folder,
                hosts_have_ended=hosts_have_ended,
            )
        except Exception as error:
            errors = dict.fromkeys(files, error)
        for key, reason in errors.items():
            # The next scan handles a file that was deleted meanwhile or is still changing.
            if not isinstance(reason, (FileNotFoundError, StillChanging)):
                change = files[key]
                self._unsaved_names.add((change.host_name, change.name))
                self._record_problem(
                    change.host_name,
                    change.name,
                    f"could not be uploaded: {error_text(reason)}",
                    _RETRY_SUFFIX,
                )
        yield from (change for change in changes if self._location.key_below(_key(change.name)) not in errors)

    def _scan_host(self, host_name: str, folder: HostFile, hosts_have_ended: bool) -> _Scan:
        """Scan a host's directory."""
        scan = _Scan({}, [], set(), set())
        schedule = self._schedule_by_host[host_name]
        schedule.begin_scan()
        for name, status, error in walk(
            folder.root, folder.name, self._key_problem, fix_permissions=hosts_have_ended
        ):
            if isinstance(error, FileNotFoundError):
                continue  # a directory that vanished between two looks holds nothing
            if isinstance(error, UnexpectedFileType) and not name:
                # The directory itself was replaced, by a link for example. On SageMaker a volume is mounted
                # there. Links are not followed, and what was uploaded stays in S3.
                scan.hidden.append(name)
                self.problems[host_name, name] = text = f"{self._local_path} has become {error.file_type}"
                self._note_once(host_name, name, f"{text}: nothing of it is uploaded")
            elif error is not None:
                scan.hidden.append(name)
                if status is None or stat.S_ISDIR(status.st_mode):
                    scan.unread_folders.add(name)
                cannot = "cannot be read" if status is None else "cannot be uploaded"
                self._record_problem(host_name, name, f"{cannot}: {error_text(error)}")
            elif status is None or stat.S_ISDIR(status.st_mode):
                continue
            elif stat.S_ISREG(status.st_mode):
                scan.files[name] = stamp_of(status)
                if schedule.is_newer_than_scan(status):
                    scan.newer_files.add(name)
            else:
                if stat.S_ISLNK(status.st_mode):
                    scan.hidden.append(name)
                file_text = f"{self._description} {printable_name(name)} is {file_type_text(status)}"
                self._note_once(host_name, name, f"{file_text}: it is not uploaded")
        return scan

    def _key_problem(self, name: str) -> OSError | None:
        """Return why there can be no object of that name; None if there can."""
        try:
            key = self._location.key_below(_key(name))
        except UnicodeDecodeError:
            return OSError(errno.EILSEQ, "its name is not UTF-8, and S3 has no other keys")
        if len(key.encode()) > _MAX_KEY_BYTES:
            return OSError(errno.ENAMETOOLONG, f"its key would have more than {_MAX_KEY_BYTES} bytes")
        return None

    def _record_problem(self, host_name: str, name: str, text: str, suffix: str = "") -> None:
        """Record that a file is not in S3, or not deleted there, and write a note."""
        subject = f"{self._description} {printable_name(name)}" if name else self._local_path
        self.problems[host_name, name] = f"{subject} {text}"
        self._note_once(host_name, name, f"{subject} {text}{suffix}", host=host_name)

    def _note_once(self, host_name: str, name: str, text: str, host: str = "") -> bool:
        """Write a note about a file to a host's log, unless it was written before. Return whether it was
        written. The note is about the files of all hosts, unless ``host`` is given."""
        noted_texts = self._noted_texts_by_file.setdefault((host, name), set())
        if text in noted_texts:
            return False
        noted_texts.add(text)
        self._write_note(host_name, text)
        return True


def _path_below_contract(path: str) -> str | None:
    """Return the path relative to /opt/ml; None for a path outside."""
    relative = os.path.relpath(path, CONTRACT_ROOT)
    return None if relative.split("/")[0] == ".." else relative


def _host_folder(host: JobHost, path: str) -> HostFile:
    """Return where this process finds a host's directory. The job may have replaced any part of the path
    below the root."""
    relative = _path_below_contract(path)
    if relative is not None:
        return HostFile(host.tree, relative)
    return HostFile(host.tree.parent, f"elsewhere/{os.path.normpath(path).lstrip('/')}")


def _key(name: str) -> str:
    """Return the end of a file's key, independent of this process's character set. Raises UnicodeDecodeError
    for a name that is not UTF-8."""
    return os.fsencode(name).decode()


def _with_distinct_times(stored_objects: Iterator[ListedObject]) -> Iterator[tuple[str, int]]:
    """Yield keys with modification times in nanoseconds, oldest first and no two equal: a script may choose
    the newest file by its time. SageMaker does not document which times files get."""
    latest_ns = 0
    for entry in sorted(stored_objects, key=lambda entry: (entry.modified, entry.key)):
        latest_ns = max(int(entry.modified * 1e9), latest_ns + _MIN_MTIME_DIFFERENCE_NS)
        yield entry.key, latest_ns


def _is_safe_path(relative: str) -> bool:
    """Return whether a key can be a path, and is the same key when the path is uploaded."""
    return not {"", ".", ".."} & set(relative.split("/")) and "\0" not in relative
