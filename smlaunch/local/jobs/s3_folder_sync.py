"""Syncs the checkpoint directory: downloads it from S3 to every host before the start, then uploads every
change of a host to S3.

As on SageMaker (developer guide, model-checkpoints), all hosts share one prefix, a file deleted on a host is
deleted in S3, and if two hosts write the same name, the last writer wins. While the hosts run,
``upload_schedule`` decides which files are uploaded; after they have ended, all files are. Interval, order
and loss are settings: a program must not depend on any of them.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from smlaunch.local.endpoint_settings import Settings
from smlaunch.local.executors.executor_interface import DirectoryMount, JobHost
from smlaunch.local.jobs import failed_uploads, s3_uploads
from smlaunch.local.jobs.channel_listing import InputDataError
from smlaunch.local.jobs.file_leases import is_closed_for_writing
from smlaunch.local.jobs.folder_download import FileDownloader, can_be_file_path, list_with_distinct_times
from smlaunch.local.jobs.folder_scan import FolderScan, FolderScanner, decode_as_utf8
from smlaunch.local.jobs.job_spec import OPT_ML_ROOT, S3Location
from smlaunch.local.jobs.s3_uploads import FileFingerprint, FileStillChanging, HostPath
from smlaunch.local.jobs.shared_names import warn_of_shared_names
from smlaunch.local.jobs.store_interfaces import S3ObjectStore
from smlaunch.local.jobs.sync_problems import SyncProblems
from smlaunch.local.jobs.upload_order import FileChange, UploadOrder
from smlaunch.local.jobs.upload_schedule import SCANS_BEFORE_TORN_UPLOAD, Completeness, UploadSchedule
from smlaunch.local.untrusted_files import (
    FileOpener,
    error_text,
    printable_name,
)

log = logging.getLogger(__name__)

_FINAL_SYNC_ATTEMPTS = 2
"""Syncs after the hosts have ended, if the first one leaves problems."""
_NEXT_SYNC_RETRIES_NOTE = " (every sync tries again)"


_TORN_FINGERPRINT = FileFingerprint(-1, -1, -1, -1)
"""Fingerprint of an upload that may be torn; no file has it."""


class S3FolderSync:
    """Syncs a directory of all hosts with an S3 prefix."""

    def __init__(
        self,
        location: S3Location,
        local_path: str,
        hosts: Sequence[JobHost],
        object_store: S3ObjectStore,
        settings: Settings,
        log_to_host: Callable[[str, str], None],
        *,
        file_noun: str = "checkpoint",
        deletes_in_s3: bool = True,
    ) -> None:
        """Sync the directory ``local_path`` of the hosts with the S3 prefix ``location``, in a thread that
        ``start`` starts. ``log_to_host(host_name, text)`` writes to a host's log. ``file_noun`` is what notes
        call a file. ``deletes_in_s3``: whether a file that was deleted on a host is deleted in S3."""
        self._file_noun = file_noun
        self._deletes_in_s3 = deletes_in_s3
        self._s3_location = location
        self._local_path = local_path
        self._object_store = object_store
        self._settings = settings
        self._log_to_host = log_to_host
        self._scratch_folder = hosts[0].opt_ml_folder.parent
        self._folder_by_host: Mapping[str, HostPath] = {
            host.name: _host_folder(host, local_path) for host in hosts
        }
        self._uploaded_fingerprints_by_host: dict[str, dict[str, FileFingerprint]] = {
            host_name: {} for host_name in self._folder_by_host
        }
        """Fingerprints of the files in S3, by host and name."""
        self._downloaded_fingerprints_by_host: dict[str, dict[str, FileFingerprint]] = {}
        """The same as they were downloaded; empty for a directory that is never downloaded."""
        self._schedule_by_host = {host_name: UploadSchedule() for host_name in self._folder_by_host}
        self._upload_order = UploadOrder(settings)
        self._problems = SyncProblems(file_noun, local_path, log_to_host)
        self._scanner = FolderScanner(location, local_path, file_noun, self._problems)
        self.failed_upload_folder_by_host: dict[str, Path] = {}
        """After ``save_failed_uploads``: directories with the files that could not be stored, by host."""
        self._failed_uploads: set[tuple[str, str]] = set()
        """Host and name of each file whose last upload has failed."""
        self._scan_by_host: Mapping[str, FolderScan] = {}
        self._lost_host_names: set[str] = set()
        self._hosts_have_ended = threading.Event()
        self._thread = threading.Thread(target=self._sync_until_hosts_end, name="checkpoints", daemon=True)

    @property
    def problem_by_file(self) -> dict[tuple[str, str], str]:
        """After ``finish``: why a file is not in S3, by host and name."""
        return self._problems.problem_by_file

    def mounts_for_host(self, host: JobHost) -> Iterator[DirectoryMount]:
        """Yield the mount that the host needs if the directory is outside /opt/ml."""
        if _path_below_opt_ml(self._local_path) is None:
            folder = self._folder_by_host[host.name]
            yield DirectoryMount(folder.full_path, os.path.normpath(self._local_path), shared=True)

    def make_folders(self) -> None:
        """Create the empty directory on every host."""
        for folder in self._folder_by_host.values():
            folder.full_path.mkdir(parents=True, exist_ok=True)

    def download(self, raise_if_stopping: Callable[[], None]) -> None:
        """Download everything below the S3 prefix to the synced directory of every host, such as
        /opt/ml/checkpoints. First upload what earlier jobs could not upload to the prefix.
        ``raise_if_stopping`` raises if the job was asked to stop. Raises InputDataError."""
        location = self._s3_location
        try:
            self._upload_files_saved_by_earlier_jobs()
            stored_objects = list_with_distinct_times(self._object_store, location)
        except KeyError:  # raised by the object store for an unknown bucket
            raise InputDataError(
                f"the bucket of CheckpointConfig.S3Uri, {location.bucket}, does not exist"
            ) from None
        self.make_folders()  # also where S3 has nothing
        for host_name, folder in self._folder_by_host.items():
            downloader = FileDownloader(self._object_store, location.bucket, self._local_path)
            for key, modified_ns in stored_objects:
                raise_if_stopping()
                relative_path = key[len(location.folder_prefix) :]
                if not relative_path or relative_path.endswith("/"):
                    continue  # the S3 console's empty object for a folder
                if not can_be_file_path(relative_path):
                    note_text = (
                        f"{self._file_noun} {printable_name(relative_path)} of S3 is not here: its key "
                        f"cannot be a file's path"
                    )
                    self._problems.log_once(host_name, relative_path, note_text)
                    continue
                fingerprint = downloader.download(key, folder.full_path / relative_path, modified_ns)
                # A file that keeps this fingerprint is not uploaded: S3 has it.
                self._uploaded_fingerprints_by_host[host_name][relative_path] = fingerprint
            downloaded_fingerprints = dict(self._uploaded_fingerprints_by_host[host_name])
            self._downloaded_fingerprints_by_host[host_name] = downloaded_fingerprints

    def _upload_files_saved_by_earlier_jobs(self) -> None:
        """Store the files that an earlier job could not store. The first host's log names those that still
        cannot be stored."""
        self._scratch_folder.mkdir(parents=True, exist_ok=True)
        for folder in failed_uploads.retry_failed_uploads(
            self._object_store, self._s3_location, self._scratch_folder
        ):
            host_name = next(iter(self._folder_by_host))
            self._log_to_host(
                host_name, f"files of an earlier job still cannot be stored, and stay in {folder}"
            )

    def start(self) -> None:
        """Start syncing in a thread."""
        self._thread.start()

    def mark_host_lost(self, host_name: str) -> None:
        """Record that a host was lost with its disk: nothing more is uploaded from it."""
        self._lost_host_names.add(host_name)

    def finish(self) -> None:
        """End the sync of a directory with S3 when the hosts have ended: stop its thread and upload all files
        that differ from S3, unless the setting ``checkpoint_last_sync`` is off. ``problem_by_file`` then has
        the files that are not in S3; each host's log says how many of its own are missing."""
        self._hosts_have_ended.set()  # ends the loop of the thread
        if self._thread.is_alive():
            self._thread.join()
        if not self._settings.checkpoint_last_sync:
            return
        self._upload_last_changes()
        self._warn_of_shared_names()

    def _upload_last_changes(self) -> None:
        for _ in range(_FINAL_SYNC_ATTEMPTS):
            self._sync_and_log_errors(hosts_have_ended=True)
            if not self.problem_by_file:
                return  # all files are in S3
        for host_name, scan in self._scan_by_host.items():
            self._log_missing_files(host_name, scan)

    def _warn_of_shared_names(self) -> None:
        """Write to the first host's log which files several hosts have written with different contents."""
        written_files_by_host = {
            host_name: {
                file_name: fingerprint
                for file_name, fingerprint in self._scan_by_host[host_name].fingerprint_by_file.items()
                if not _is_same_content(downloaded.get(file_name), fingerprint)
            }
            for host_name, downloaded in self._downloaded_fingerprints_by_host.items()
            if host_name in self._scan_by_host
        }
        warning = warn_of_shared_names(self._file_noun, written_files_by_host, self._path_on_host)
        if warning:
            self._log_to_host(next(iter(self._folder_by_host)), warning)

    def _log_missing_files(self, host_name: str, scan: FolderScan) -> None:
        """Write to a host's log, after the last sync, how many of its files are not in S3. ``scan`` is what
        the host's directory has. Files that could be read will be saved on this machine for the next job
        (``_failed_uploads`` has their hosts and names); others are lost."""
        # The problems are also about files that are not on the host and could not be deleted in S3.
        existing_names = {*scan.fingerprint_by_file, *scan.unreadable_paths} - {""}  # empty: the directory
        problem_names = {
            file_name for problem_host, file_name in self.problem_by_file if problem_host == host_name
        }
        missing_names = problem_names & existing_names
        if not missing_names:
            return
        missing_count_text = f"{len(missing_names)}"
        if missing_names & scan.unreadable_folders:  # these have files that nobody has counted
            missing_count_text = f"at least {missing_count_text}"
        note_text = (
            f"after the last sync {missing_count_text} of the files in {self._local_path} did not reach S3"
        )
        saved_count = sum((host_name, file_name) in self._failed_uploads for file_name in missing_names)
        if saved_count < len(missing_names):
            lost_files_text = f"all of them but {saved_count} are" if saved_count else "they are"
            note_text += f" and {lost_files_text} lost with this host"
        self._log_to_host(host_name, f"{note_text}; this log names each, or its directory")

    def save_failed_uploads(self) -> None:
        """Save the files that could not be uploaded on this machine, for the next job with the same S3
        prefix. Call it after ``finish``, before the hosts' files are removed."""
        # The hosts that remain are those that the fault plan (fault injection) has not removed.
        for host_name, folder in self._folders_of_remaining_hosts():
            file_names = {
                file_name for failed_host, file_name in self._failed_uploads if failed_host == host_name
            }
            if not file_names:
                continue
            try:
                saved_folder = failed_uploads.move_failed_uploads(
                    self._object_store, self._s3_location, folder, host_name, file_names
                )
            except OSError as error:  # for example on another disk
                self._log_to_host(
                    host_name, f"what did not reach S3 cannot be kept and is lost: {error_text(error)}"
                )
                continue
            self.failed_upload_folder_by_host[host_name] = saved_folder
            self._log_to_host(
                host_name,
                f"{len(file_names)} files that could not be stored are kept in {saved_folder}; the next job "
                f"with s3://{self._s3_location.bucket}/{self._s3_location.folder_prefix} stores them when it "
                "starts",
            )

    def _sync_until_hosts_end(self) -> None:
        # By time and not by events: SageMaker does so too, and inotify loses files.
        while not self._hosts_have_ended.wait(self._settings.checkpoint_sync_seconds):
            self._sync_and_log_errors(hosts_have_ended=False)

    def _sync_and_log_errors(self, hosts_have_ended: bool) -> None:
        """Sync the directory of all hosts with S3 once. An error is logged, not raised, since the next sync
        may succeed; it also becomes a problem in ``problem_by_file``, whose keys are (host name, path in the
        directory)."""
        try:
            self._sync_once(hosts_have_ended)
        except Exception as error:
            failure_text = (
                f"{self._local_path}: a sync failed, and the next one tries again: {error_text(error)}"
            )
            whole_directory = ""
            for host_name in self._folder_by_host:
                self.problem_by_file[host_name, whole_directory] = error_text(error)
                was_logged = self._problems.log_once(
                    host_name, whole_directory, failure_text, only_for_host=host_name
                )
                if was_logged:  # not the same error in every sync
                    log.exception(failure_text)

    def _sync_once(self, hosts_have_ended: bool) -> None:
        """Scan the synced directory on all hosts, upload changed files and delete removed ones in S3. While
        hosts run (not ``hosts_have_ended``), files that seem incomplete wait for a later sync. The schedule
        of a host compares its scans to tell which files are complete."""
        self._problems.problem_by_file, self._failed_uploads = {}, set()
        self._scan_by_host = {
            host_name: self._scanner.scan(
                host_name, folder, self._schedule_by_host[host_name], hosts_have_ended
            )
            for host_name, folder in self._folders_of_remaining_hosts()
        }
        changes = self._upload_order.sort(self._select_uploads(hosts_have_ended))
        uploaded_names: set[str] = set()
        for batch in self._upload_order.split_into_batches(changes):
            for change in self._upload_changes(batch, hosts_have_ended):
                self._mark_uploaded(change)
                uploaded_names.add(change.file_name)
        for host_name, scan in self._scan_by_host.items():
            self._delete_removed_files(host_name, scan, uploaded_names, hosts_have_ended)
            self._schedule_by_host[host_name].end_scan(scan.fingerprint_by_file)

    def _delete_removed_files(
        self, host_name: str, scan: FolderScan, uploaded_names: Collection[str], hosts_have_ended: bool
    ) -> None:
        """Delete the S3 objects of files that a host has deleted since their upload. ``scan`` has the files
        that it has now; ``uploaded_names`` are the files that any host has uploaded in this sync."""
        uploaded_fingerprints = self._uploaded_fingerprints_by_host[host_name]  # by name, of files in S3
        deleted_names = uploaded_fingerprints.keys() - scan.fingerprint_by_file.keys()
        existing_names_in_s3 = uploaded_fingerprints.keys() - deleted_names
        schedule = self._schedule_by_host[host_name]
        for file_name in deleted_names:
            if scan.may_have_unread_file(file_name):
                continue  # the scan could not read it: perhaps it was not deleted
            # While the next checkpoint is incomplete, S3 keeps the one that it replaces.
            if not hosts_have_ended and not schedule.may_delete_in_s3(file_name, existing_names_in_s3):
                continue
            # An object that another host has just uploaded stays.
            if file_name in uploaded_names or self._delete_in_s3(host_name, file_name):
                del uploaded_fingerprints[file_name]

    def _folders_of_remaining_hosts(self) -> list[tuple[str, HostPath]]:
        """Return the name and folder of each host that is not lost."""
        return [
            (host_name, folder)
            for host_name, folder in self._folder_by_host.items()
            if host_name not in self._lost_host_names
        ]

    def _mark_uploaded(self, change: FileChange) -> None:
        """Record that a file was uploaded as the scan has found it."""
        _, host_name, file_name, completeness, fingerprint = change
        self._schedule_by_host[host_name].mark_uploaded(file_name, fingerprint, completeness)
        self._problems.forget_notes(host_name, file_name)
        self._uploaded_fingerprints_by_host[host_name][file_name] = (
            _TORN_FINGERPRINT if completeness == "torn" else fingerprint
        )
        if completeness == "torn":
            note_text = (
                f"{self._file_noun} {printable_name(file_name)} was open for writing, or had changed, "
                f"at each of {SCANS_BEFORE_TORN_UPLOAD} syncs"
            )
            self._problems.log_once(
                host_name,
                file_name,
                f"{note_text}: what S3 has of it may be torn; it is stored again when its host has ended",
            )

    def _delete_in_s3(self, host_name: str, file_name: str) -> bool:
        """Delete an object whose file a host has deleted, if this sync deletes in S3. Return False after an
        error: the next sync has to try again."""
        if not self._deletes_in_s3 or self._upload_order.drops_change(host_name, file_name):
            return True
        try:
            self._object_store.delete_object(
                self._s3_location.bucket, self._s3_location.join_key(decode_as_utf8(file_name))
            )
        except Exception as error:
            self._problems.record(
                host_name,
                file_name,
                f"could not be deleted in S3: {error_text(error)}",
                _NEXT_SYNC_RETRIES_NOTE,
            )
            return False
        return True

    def _select_uploads(self, hosts_have_ended: bool) -> list[FileChange]:
        """Return the changed files that are to be uploaded now. All hosts share one S3 prefix: if several
        have a file of the same name, the one that was written last is uploaded, and the others count as
        uploaded, since they would be overwritten at once."""
        latest_change_by_name: dict[str, FileChange] = {}
        for change in self._iterate_uploadable_changes(hosts_have_ended):
            other_change = latest_change_by_name.get(change.file_name)
            if other_change is None:
                latest_change_by_name[change.file_name] = change
                continue
            earlier_change, later_change = sorted((change, other_change))  # by the time of the change
            latest_change_by_name[change.file_name] = later_change
            _, earlier_host, file_name, _, fingerprint = earlier_change
            self._uploaded_fingerprints_by_host[earlier_host][file_name] = fingerprint
            self._schedule_by_host[earlier_host].mark_uploaded(file_name, fingerprint, "whole")
        return list(latest_change_by_name.values())

    def _iterate_uploadable_changes(self, hosts_have_ended: bool) -> Iterator[FileChange]:
        """Yield each file of each host whose content is not in S3, if it can be uploaded now: after the end
        of the hosts all can; while they run, those that seem complete ("whole") or have waited for long
        ("torn": a program may write to the file meanwhile). A fingerprint identifies a file's content."""
        with FileOpener() as opener:
            for host_name, scan in self._scan_by_host.items():
                uploaded_fingerprints = self._uploaded_fingerprints_by_host[host_name]
                schedule = self._schedule_by_host[host_name]
                for file_name, fingerprint in scan.fingerprint_by_file.items():
                    if _is_same_content(uploaded_fingerprints.get(file_name), fingerprint):
                        uploaded_fingerprints[file_name] = fingerprint  # now with the inode's change time
                        continue
                    completeness: Completeness | None = "whole"
                    if not hosts_have_ended:
                        check_closed = partial(self._is_closed_for_writing, opener, host_name, file_name)
                        completeness = schedule.decide_upload(
                            file_name, fingerprint, scan.files_newer_than_scan, check_closed
                        )
                    if completeness is not None:  # None: the file has to wait
                        yield FileChange(
                            fingerprint.modified_ns, host_name, file_name, completeness, fingerprint
                        )

    def _is_closed_for_writing(self, opener: FileOpener, host_name: str, file_name: str) -> bool | None:
        """Return whether nobody has the file open for writing; None if that is unknown."""
        try:
            descriptor = opener.open(*self._path_on_host(host_name, file_name)[:2])
        except FileNotFoundError:
            return False
        except OSError:
            return True  # the upload will report the error
        try:
            return is_closed_for_writing(descriptor)
        finally:
            os.close(descriptor)

    def _path_on_host(self, host_name: str, file_name: str) -> HostPath:
        """Return where this process finds a file of the synced directory."""
        folder = self._folder_by_host[host_name]
        return HostPath(folder.trusted_root, f"{folder.relative_path}/{file_name}")

    def _upload_changes(self, changes: Sequence[FileChange], hosts_have_ended: bool) -> list[FileChange]:
        """Upload changed files in one transaction. Return those that count as uploaded: all without an error,
        also those that the setting checkpoint_sync_loss drops, for tests of lost changes. A file that cannot
        be uploaded becomes a problem, which the host's log names; the next sync tries it again."""
        key_by_file_name = {
            change.file_name: self._s3_location.join_key(decode_as_utf8(change.file_name))
            for change in changes
        }
        change_by_key = {
            key_by_file_name[change.file_name]: change
            for change in changes
            if not self._upload_order.drops_change(change.host_name, change.file_name)
        }
        error_by_key: Mapping[str, Exception]
        try:
            error_by_key = s3_uploads.upload_files(
                self._object_store,
                self._s3_location.bucket,
                {
                    key: self._path_for_upload(change, hosts_have_ended)
                    for key, change in change_by_key.items()
                },
                self._scratch_folder,
                hosts_have_ended=hosts_have_ended,
            )
        except Exception as error:
            error_by_key = dict.fromkeys(change_by_key, error)
        for key, upload_error in error_by_key.items():
            if isinstance(upload_error, (FileNotFoundError, FileStillChanging)):
                continue  # deleted meanwhile, or still changing: no problem, the next scan handles it
            change = change_by_key[key]
            self._failed_uploads.add((change.host_name, change.file_name))
            self._problems.record(
                change.host_name,
                change.file_name,
                f"could not be uploaded: {error_text(upload_error)}",
                _NEXT_SYNC_RETRIES_NOTE,
            )
        return [change for change in changes if key_by_file_name[change.file_name] not in error_by_key]

    def _path_for_upload(self, change: FileChange, hosts_have_ended: bool) -> HostPath:
        """Return where a changed file is. The upload of a complete file is to fail if a program changes the
        file while it is copied."""
        host_path = self._path_on_host(change.host_name, change.file_name)
        if hosts_have_ended or change.completeness == "torn":
            return host_path
        return host_path._replace(required_fingerprint=change.fingerprint)


def _is_same_content(uploaded: FileFingerprint | None, scanned: FileFingerprint) -> bool:
    """Return whether a scanned file has the content that S3 has. ``uploaded`` is None for a file that S3 does
    not have; a downloaded file's change time (changed_ns) is unknown, 0."""
    return uploaded is not None and uploaded in (scanned, scanned._replace(changed_ns=0))


def _path_below_opt_ml(path: str) -> str | None:
    """Return the path relative to /opt/ml; None for a path outside."""
    relative_path = os.path.relpath(path, OPT_ML_ROOT)
    return None if relative_path.split("/")[0] == ".." else relative_path


def _host_folder(host: JobHost, path: str) -> HostPath:
    """Return where this process finds a host's directory. The job may have replaced any part of the path
    below the root."""
    relative_path = _path_below_opt_ml(path)
    if relative_path is not None:
        return HostPath(host.opt_ml_folder, relative_path)
    return HostPath(host.opt_ml_folder.parent, f"elsewhere/{os.path.normpath(path).lstrip('/')}")
