"""Chooses which changed files of a host can be uploaded now: complete files soon, and every file after a
limited time.

The directory is scanned again and again. A file that is the same in two scans, and that nobody has open
for writing, is complete and is uploaded at once. If the files of a host change all the time, after
``SCANS_BEFORE_CLOSED_UPLOAD`` scans a file is uploaded as soon as nobody has it open for writing, as a
file that was renamed when it was complete. A file that was never in that state for
``SCANS_BEFORE_TORN_UPLOAD`` scans (a database, which is open for writing all the time) is uploaded
although it may be torn: SageMaker guarantees no more for any file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from typing import Literal

from smlaunch.local.jobs.s3_uploads import FileFingerprint

SCANS_BEFORE_CLOSED_UPLOAD = 3
"""Scans."""
SCANS_BEFORE_TORN_UPLOAD = 30
"""Scans. Not fewer: a large file that is rewritten in place is torn until it is closed, and replaces its
complete predecessor in S3."""

Completeness = Literal["whole", "torn"]
"""``whole``: the upload is complete. ``torn``: the file may be written to during the upload."""


class UploadSchedule:
    """The schedule of one host. For each scan, call ``begin_scan``, ``decide_upload`` for each file whose
    current content is not in S3, ``mark_uploaded`` for each upload, and ``end_scan``."""

    def __init__(self) -> None:
        self._last_fingerprint_by_name: Mapping[str, FileFingerprint] = {}
        """Fingerprints of the files in the previous scan."""
        self._waiting_scans_before_by_name: dict[str, int] = {}
        self._waiting_scans_by_name: dict[str, int] = {}
        """For each file that waits, the number of scans so far in which it did."""
        self._torn_fingerprint_by_name: dict[str, FileFingerprint] = {}
        """Fingerprints of files that were uploaded while they may have been written to."""
        self._successive_scans_with_waiting_files = 0
        self._scan_start_ns = 0
        self._awaited_names_by_deleted_name: dict[str, set[str]] = {}
        """For each deleted file, the files that must be in S3 before its object may be deleted."""

    def begin_scan(self) -> None:
        """Begin a scan of the host's directory."""
        self._waiting_scans_before_by_name, self._waiting_scans_by_name = self._waiting_scans_by_name, {}
        clock = getattr(time, "CLOCK_REALTIME_COARSE", time.CLOCK_REALTIME)  # the clock of file systems
        self._scan_start_ns = time.clock_gettime_ns(clock)

    def is_newer_than_scan(self, file_stat: os.stat_result) -> bool:
        """Return whether the file was created, renamed or changed after the scan began: the scan may then
        have missed files that were written before it."""
        return file_stat.st_ctime_ns >= self._scan_start_ns

    def decide_upload(
        self,
        file_name: str,
        fingerprint: FileFingerprint,
        files_newer_than_scan: Collection[str],
        check_closed: Callable[[], bool | None],
    ) -> Completeness | None:
        """Return whether a changed file can be uploaded now: "whole" if it is complete, "torn" if it may be
        written to during the upload but has waited for many scans, None if it must wait. ``fingerprint``
        identifies the content that the current scan has found. ``files_newer_than_scan`` are the files that
        changed after the scan began. ``check_closed`` returns whether no process has the file open for
        writing, None if that is unknown."""
        # In how many scans before this one the file had to wait.
        waiting_scans = self._waiting_scans_before_by_name.get(file_name, 0)
        completeness: Completeness | None = None
        if self._is_complete(file_name, fingerprint, files_newer_than_scan, is_closed=check_closed()):
            completeness = "whole"
        elif self._torn_fingerprint_by_name.get(file_name) == fingerprint:
            return None  # this content, perhaps torn, is in S3 already: the file does not wait
        elif waiting_scans >= SCANS_BEFORE_TORN_UPLOAD:  # S3 gets it, though it may be torn
            completeness = "torn"
        # Also for a file that will be uploaded: until that is done, it counts as waiting.
        self._waiting_scans_by_name[file_name] = waiting_scans + 1
        return completeness

    def _is_complete(
        self,
        file_name: str,
        fingerprint: FileFingerprint,
        files_newer_than_scan: Collection[str],
        is_closed: bool | None,
    ) -> bool:
        """Return whether a file seems complete: the same in two successive scans and not open for writing. If
        the host's files change all the time, it is enough that it is closed, as after a rename.
        ``is_closed``: None if unknown; other arguments as in ``decide_upload``."""
        is_unchanged = self._last_fingerprint_by_name.get(file_name) == fingerprint
        if is_unchanged and is_closed is not False:
            return True
        files_change_all_the_time = self._successive_scans_with_waiting_files >= SCANS_BEFORE_CLOSED_UPLOAD
        return is_closed is True and files_change_all_the_time and file_name not in files_newer_than_scan

    def mark_uploaded(self, file_name: str, fingerprint: FileFingerprint, completeness: Completeness) -> None:
        """Record that a file was uploaded."""
        self._waiting_scans_by_name.pop(file_name, None)
        if completeness == "torn":
            self._torn_fingerprint_by_name[file_name] = fingerprint
        else:
            self._torn_fingerprint_by_name.pop(file_name, None)

    def may_delete_in_s3(self, deleted_name: str, names_in_s3: Collection[str]) -> bool:
        """Return whether the S3 object of a file that the host has deleted may be deleted now.
        ``names_in_s3`` are the host's existing files that are in S3.

        A program that keeps one checkpoint deletes it when the next one is complete. S3 must not lose the old
        one before it has the new one: the object waits for the uploads that were pending when the deletion
        was noticed. If one of those files is itself deleted before its upload, the object waits for the
        uploads that are pending now.
        """
        pending_names = {
            file_name
            for file_name, waiting_scans in self._waiting_scans_by_name.items()
            if waiting_scans <= SCANS_BEFORE_TORN_UPLOAD
        }
        awaited_names = self._awaited_names_by_deleted_name.get(deleted_name, pending_names)
        was_awaited_file_deleted = any(
            file_name not in pending_names and file_name not in names_in_s3 for file_name in awaited_names
        )
        awaited_names = pending_names if was_awaited_file_deleted else awaited_names & pending_names
        if awaited_names:
            self._awaited_names_by_deleted_name[deleted_name] = awaited_names
            return False
        self._awaited_names_by_deleted_name.pop(deleted_name, None)
        return True

    def end_scan(self, fingerprint_by_name: Mapping[str, FileFingerprint]) -> None:
        """End a scan. ``fingerprint_by_name`` are the fingerprints of all files that it found."""
        self._last_fingerprint_by_name = fingerprint_by_name
        self._torn_fingerprint_by_name = {
            file_name: fingerprint
            for file_name, fingerprint in self._torn_fingerprint_by_name.items()
            if file_name in fingerprint_by_name
        }
        # A file that exists again is not deleted.
        self._awaited_names_by_deleted_name = {
            deleted_name: awaited_names
            for deleted_name, awaited_names in self._awaited_names_by_deleted_name.items()
            if deleted_name not in fingerprint_by_name
        }
        self._successive_scans_with_waiting_files = (
            self._successive_scans_with_waiting_files + 1 if self._waiting_scans_by_name else 0
        )
