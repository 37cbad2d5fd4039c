"""Chooses which changed files of a host can be uploaded now: complete files soon, and every file after a
limited time.

The directory is scanned again and again. A file that is the same in two scans, and that nobody has open for
writing, is complete and is uploaded at once. If the files of a host change all the time, after
``UPLOAD_CLOSED_AFTER`` scans a file is uploaded as soon as nobody has it open for writing, as a file that
was renamed when it was complete. A file that was never in that state for ``UPLOAD_TORN_AFTER`` scans (a
database, which is open for writing all the time) is uploaded although it may be torn: SageMaker guarantees
no more for any file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from typing import Literal

from smlaunch.local.jobs.uploads import Stamp

UPLOAD_CLOSED_AFTER = 3
"""Scans."""
UPLOAD_TORN_AFTER = 30
"""Scans. Not fewer: a large file that is rewritten in place is torn until it is closed, and replaces its
complete predecessor in S3."""

Completeness = Literal["whole", "torn"]
"""``whole``: the upload is complete. ``torn``: the file may be written to during the upload."""


class UploadSchedule:
    """The schedule of one host. For each scan, call ``begin_scan``, ``choose_file`` for each file whose
    current content is not in S3, ``mark_stored`` for each upload, and ``end_scan``."""

    def __init__(self) -> None:
        self._last_stamp_by_name: Mapping[str, Stamp] = {}
        """Stamps of the files in the previous scan."""
        self._previous_wait_count_by_name: dict[str, int] = {}
        self._wait_count_by_name: dict[str, int] = {}
        """For each file that waits, the number of scans so far in which it did."""
        self._torn_stamp_by_name: dict[str, Stamp] = {}
        """Stamps of files that were uploaded while they may have been written to."""
        self._scans_with_waiting_files = 0
        self._scan_start_ns = 0
        self._waiting_names_by_deleted_name: dict[str, set[str]] = {}
        """For each deleted file, the files that must be stored before its object may be deleted."""

    def begin_scan(self) -> None:
        """Begin a scan of the host's directory."""
        self._previous_wait_count_by_name, self._wait_count_by_name = self._wait_count_by_name, {}
        clock = getattr(time, "CLOCK_REALTIME_COARSE", time.CLOCK_REALTIME)  # the clock of file systems
        self._scan_start_ns = time.clock_gettime_ns(clock)

    def is_newer_than_scan(self, status: os.stat_result) -> bool:
        """Return whether the file was created, renamed or changed after the scan began: the scan may then
        have missed files that were written before it."""
        return status.st_ctime_ns >= self._scan_start_ns

    def choose_file(
        self, name: str, stamp: Stamp, newer_files: Collection[str], is_closed: Callable[[], bool | None]
    ) -> Completeness | None:
        """Return whether and how a file can be uploaded now; None means not in this scan. ``newer_files``
        are the files for which ``is_newer_than_scan`` is true. ``is_closed`` returns whether nobody has the
        file open for writing, or None if that is unknown."""
        is_file_closed = is_closed()
        if is_file_closed is not False and self._last_stamp_by_name.get(name) == stamp:
            return self._count_wait(name, "whole")
        if (
            is_file_closed
            and self._scans_with_waiting_files >= UPLOAD_CLOSED_AFTER
            and name not in newer_files
        ):
            return self._count_wait(name, "whole")
        if self._torn_stamp_by_name.get(name) == stamp:
            return None  # this content, perhaps torn, is in S3
        return self._count_wait(
            name, "torn" if self._previous_wait_count_by_name.get(name, 0) >= UPLOAD_TORN_AFTER else None
        )

    def _count_wait(self, name: str, completeness: Completeness | None) -> Completeness | None:
        """Count a scan for a file that is not stored yet, and return ``completeness``."""
        self._wait_count_by_name[name] = self._previous_wait_count_by_name.get(name, 0) + 1
        return completeness

    def mark_stored(self, name: str, stamp: Stamp, completeness: Completeness) -> None:
        """Record that a file was uploaded."""
        self._wait_count_by_name.pop(name, None)
        if completeness == "torn":
            self._torn_stamp_by_name[name] = stamp
        else:
            self._torn_stamp_by_name.pop(name, None)

    def may_delete(self, name: str, synced: Collection[str]) -> bool:
        """Return whether S3 may delete a file that the host has deleted: only when the files that the host
        had at that time, and S3 had not, are in S3 (``synced``).

        A program that keeps one checkpoint deletes it when the next one is complete; otherwise S3 would have
        neither. If one of these files is deleted before it is stored, the files that exist then take its
        place.
        """
        waiting_names = {
            name for name, count in self._wait_count_by_name.items() if count <= UPLOAD_TORN_AFTER
        }
        required_names = self._waiting_names_by_deleted_name.get(name, waiting_names)
        has_vanished = any(name not in waiting_names and name not in synced for name in required_names)
        self._waiting_names_by_deleted_name[name] = (
            waiting_names if has_vanished else required_names & waiting_names
        )
        if self._waiting_names_by_deleted_name[name]:
            return False
        del self._waiting_names_by_deleted_name[name]
        return True

    def end_scan(self, stamps: Mapping[str, Stamp]) -> None:
        """End a scan. ``stamps`` are the stamps of all files that it found."""
        self._last_stamp_by_name = stamps
        self._torn_stamp_by_name = {
            name: stamp for name, stamp in self._torn_stamp_by_name.items() if name in stamps
        }
        self._waiting_names_by_deleted_name = {
            name: required_names
            for name, required_names in self._waiting_names_by_deleted_name.items()
            if name not in stamps
        }
        self._scans_with_waiting_files = self._scans_with_waiting_files + 1 if self._wait_count_by_name else 0
