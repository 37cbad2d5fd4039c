"""Scans the synced directory of a host: which files it has, and what cannot be read or uploaded."""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple

from smlaunch.local.jobs.job_spec import S3Location
from smlaunch.local.jobs.s3_uploads import FileFingerprint, HostPath, fingerprint_of
from smlaunch.local.jobs.sync_problems import SyncProblems
from smlaunch.local.jobs.upload_schedule import UploadSchedule
from smlaunch.local.untrusted_files import (
    UnexpectedFileType,
    error_text,
    file_type_name,
    printable_name,
    walk_folder,
)

_MAX_KEY_BYTES = 1024
"""Maximum length of an S3 key."""


class FolderScan(NamedTuple):
    """The content of a host's directory, as found by one scan."""

    fingerprint_by_file: dict[str, FileFingerprint]
    """The regular files, by their paths relative to the directory."""
    unreadable_paths: list[str]
    """Files and directories that exist but could not be read."""
    files_newer_than_scan: set[str]
    """Files that may be newer than the scan."""
    unreadable_folders: set[str]
    """Directories, or what may be directories, whose files are unknown."""

    def may_have_unread_file(self, file_name: str) -> bool:
        """Return whether a file may exist although the scan did not find it."""
        return any(
            not path or file_name == path or file_name.startswith(f"{path}/")
            for path in self.unreadable_paths  # empty: the directory itself
        )


class FolderScanner:
    """Scans ``local_path``, which is synced with the prefix ``location``. Notes call a file ``file_noun``."""

    def __init__(self, location: S3Location, local_path: str, file_noun: str, problems: SyncProblems) -> None:
        self._location = location
        self._local_path = local_path
        self._file_noun = file_noun
        self._problems = problems

    def scan(
        self, host_name: str, folder: HostPath, schedule: UploadSchedule, hosts_have_ended: bool
    ) -> FolderScan:
        """Scan the synced directory of a host, and record what cannot be read or uploaded. ``folder`` is
        where this process finds the directory. Permissions that programs have removed are added again after
        the hosts have ended."""
        scan = FolderScan(
            fingerprint_by_file={}, unreadable_paths=[], files_newer_than_scan=set(), unreadable_folders=set()
        )
        schedule.begin_scan()
        for file_name, file_stat, read_error in walk_folder(
            folder.trusted_root,
            folder.relative_path,
            self._find_key_problem,
            fix_permissions=hosts_have_ended,
        ):
            if isinstance(read_error, FileNotFoundError):
                continue  # a directory that vanished during the scan holds nothing
            if read_error is not None:
                self._record_unreadable_path(host_name, scan, file_name, file_stat, read_error)
            elif file_stat is None or stat.S_ISDIR(file_stat.st_mode):
                continue
            elif stat.S_ISREG(file_stat.st_mode):
                # By its fingerprint (times, size, inode) a changed file is recognized without reading it.
                scan.fingerprint_by_file[file_name] = fingerprint_of(file_stat)
                if schedule.is_newer_than_scan(file_stat):  # the scan may have missed older files
                    scan.files_newer_than_scan.add(file_name)
            else:
                if stat.S_ISLNK(file_stat.st_mode):
                    # It may hide files that were uploaded: they must not count as deleted.
                    scan.unreadable_paths.append(file_name)
                file_description = (
                    f"{self._file_noun} {printable_name(file_name)} is {file_type_name(file_stat)}"
                )
                self._problems.log_once(host_name, file_name, f"{file_description}: it is not uploaded")
        return scan

    def _record_unreadable_path(
        self,
        host_name: str,
        scan: FolderScan,
        file_name: str,
        file_stat: os.stat_result | None,
        read_error: OSError,
    ) -> None:
        """Record in ``scan``, as a problem and in the host's log that a file or directory cannot be read or
        uploaded. ``file_name`` is empty for the synced directory itself; ``file_stat`` is None if not even
        the type is known."""
        scan.unreadable_paths.append(file_name)
        if isinstance(read_error, UnexpectedFileType) and not file_name:
            # The directory itself was replaced, by a link for example. On SageMaker a volume is mounted
            # there. Links are not followed, and what was uploaded stays in S3.
            problem_text = f"{self._local_path} has become {read_error.file_type}"
            self._problems.problem_by_file[host_name, file_name] = problem_text
            self._problems.log_once(host_name, file_name, f"{problem_text}: nothing of it is uploaded")
            return
        if file_stat is None or stat.S_ISDIR(file_stat.st_mode):  # nobody knows which files are in it
            scan.unreadable_folders.add(file_name)
        failure_text = "cannot be read" if file_stat is None else "cannot be uploaded"
        self._problems.record(host_name, file_name, f"{failure_text}: {error_text(read_error)}")

    def _find_key_problem(self, file_name: str) -> OSError | None:
        """Return why there can be no object of that name; None if there can."""
        try:
            key = self._location.join_key(decode_as_utf8(file_name))
        except UnicodeDecodeError:
            return OSError(errno.EILSEQ, "its name is not UTF-8, and S3 has no other keys")
        if len(key.encode()) > _MAX_KEY_BYTES:
            return OSError(errno.ENAMETOOLONG, f"its key would have more than {_MAX_KEY_BYTES} bytes")
        return None


def decode_as_utf8(file_name: str) -> str:
    """Return the end of a file's key, independent of this process's character set. Raises UnicodeDecodeError
    for a name that is not UTF-8."""
    return os.fsencode(file_name).decode()
