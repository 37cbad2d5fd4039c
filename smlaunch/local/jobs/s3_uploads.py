"""Uploads files from the hosts' trees to the object store. A file that fails does not stop the others, and
no file is removed before it is stored.

A file is first copied or linked into a private directory, where no program of the job can replace it, and
moved from there into the store. The tree keeps the original.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from smlaunch.local.jobs.file_copy import copy_open_file
from smlaunch.local.jobs.file_leases import has_no_writer
from smlaunch.local.jobs.store_interfaces import S3ObjectStore
from smlaunch.local.untrusted_files import FileOpener, hard_link

FILES_PER_TRANSACTION = 256
"""Maximum number of files that become visible in S3 at once."""

_BODY_MODE = 0o644


class FileFingerprint(NamedTuple):
    """Identifies a file's content: if it is equal, the file has not changed."""

    modified_ns: int
    size: int
    inode: int
    changed_ns: int
    """Time of the inode's last change, which programs cannot set; 0 if it is not known yet."""


class HostPath(NamedTuple):
    """A file or directory of a host."""

    trusted_root: Path
    """A directory that only the endpoint can replace."""
    relative_path: str
    """Path relative to ``trusted_root``; the job's programs can replace each part of it."""
    required_fingerprint: FileFingerprint | None = None
    """If given, the upload fails unless the file still has this fingerprint and nobody writes to it."""

    @property
    def full_path(self) -> Path:
        """The whole path. Do not follow it while the job's programs run, which may replace its parts."""
        return self.trusted_root / self.relative_path


class FileStillChanging(OSError):
    """The file was replaced, or a process writes to it."""

    def __init__(self) -> None:
        super().__init__(errno.EAGAIN, "it changes all the time")


def upload_files(
    object_store: S3ObjectStore,
    bucket: str,
    file_by_key: Mapping[str, HostPath],
    scratch_folder: Path,
    *,
    hosts_have_ended: bool,
) -> dict[str, Exception]:
    """Store files, given by their keys, and return the errors by key.

    ``scratch_folder`` is an existing directory of the local endpoint, best on the disk of the hosts' files.
    ``hosts_have_ended``: no program of the job runs any more, so that large files need not be copied and
    missing permissions may be added.
    """
    error_by_key: dict[str, Exception] = {}
    remaining_files = iter(file_by_key.items())
    while batch := dict(islice(remaining_files, FILES_PER_TRANSACTION)):
        error_by_key |= _upload_batch(object_store, bucket, batch, scratch_folder, hosts_have_ended)
    return error_by_key


def _upload_batch(
    object_store: S3ObjectStore,
    bucket: str,
    file_by_key: Mapping[str, HostPath],
    scratch_folder: Path,
    hosts_have_ended: bool,
) -> dict[str, Exception]:
    """Store files of hosts as S3 objects in one transaction; if that fails, each in its own. Return the
    errors by key. ``scratch_folder`` is for temporary files."""
    try:
        return _upload_in_one_transaction(object_store, bucket, file_by_key, scratch_folder, hosts_have_ended)
    except Exception as error:
        # The object store takes all files or none: none is stored.
        is_database_locked = "locked" in str(error)  # SQLite's message: further tries would fail too
        if len(file_by_key) == 1 or is_database_locked:
            return dict.fromkeys(file_by_key, error)
    error_by_key: dict[str, Exception] = {}
    for key, host_path in file_by_key.items():  # perhaps only one of them fails
        error_by_key |= _upload_batch(
            object_store, bucket, {key: host_path}, scratch_folder, hosts_have_ended
        )
    return error_by_key


def _upload_in_one_transaction(
    object_store: S3ObjectStore,
    bucket: str,
    file_by_key: Mapping[str, HostPath],
    scratch_folder: Path,
    hosts_have_ended: bool,
) -> dict[str, Exception]:
    """Copy files of hosts to a private directory, where the job's programs cannot change them, and move the
    copies into the object store in one transaction. Return the errors of single files by key: of those that
    cannot be read, and of those that the store rejects. The others are stored."""
    read_error_by_key: dict[str, Exception] = {}
    copy_folder = Path(tempfile.mkdtemp(prefix="upload-", dir=scratch_folder))
    try:
        keyed_copies: list[tuple[str, Path]] = []
        # The opener holds the hosts' directories open, and follows no symbolic link.
        with FileOpener(fix_permissions=hosts_have_ended) as opener:
            for file_number, (key, host_path) in enumerate(file_by_key.items()):
                # A string, as Path objects for ten thousand files take long.
                copy_path = f"{copy_folder}/{file_number}"
                try:
                    # After the hosts' end nobody changes the file: a link of it serves as its copy.
                    is_linked = hosts_have_ended and _try_hard_link(host_path, Path(copy_path))
                    if not is_linked:
                        _copy_file(opener, host_path, copy_path)
                except OSError as error:
                    read_error_by_key[key] = error
                    continue
                keyed_copies.append((key, Path(copy_path)))
        store_error_by_key = object_store.put_object_files(bucket, keyed_copies, move=True)
        return read_error_by_key | dict(store_error_by_key)
    finally:
        shutil.rmtree(copy_folder, ignore_errors=True)


def _try_hard_link(host_path: HostPath, link_path: Path) -> bool:
    """Make ``link_path`` a hard link to the file, which saves a copy, if nobody else can write to the file.
    Return False if it must be copied. Raises FileNotFoundError."""
    try:
        hard_link(host_path.trusted_root, host_path.relative_path, str(link_path))
    except FileNotFoundError:
        raise
    except OSError:
        return False  # another disk, a file system without links, another user's file
    try:
        if _has_no_other_link_or_writer(link_path):  # apart from the host's own name of the file
            return True
    except OSError:
        pass  # not readable under this name: the copy opens it under its own name, with more permissions
    link_path.unlink(missing_ok=True)
    return False


def _has_no_other_link_or_writer(link_path: Path) -> bool:
    """Return whether the file has no link besides its own name and ``link_path``, and no process writes to
    it."""
    link_stat = link_path.lstat()
    # A third name would be a file elsewhere that can still be written to.
    if not stat.S_ISREG(link_stat.st_mode) or link_stat.st_nlink != 2:
        return False
    link_path.chmod(_BODY_MODE)  # the store's modes, whatever the job has set
    descriptor = os.open(link_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return has_no_writer(descriptor)
    finally:
        os.close(descriptor)


def _copy_file(opener: FileOpener, host_path: HostPath, copy_path: str) -> None:
    descriptor = opener.open(host_path.trusted_root, host_path.relative_path)
    try:
        _require_unchanged(descriptor, host_path.required_fingerprint)
        copy_open_file(descriptor, copy_path, os.fstat(descriptor).st_size)
        _require_unchanged(descriptor, host_path.required_fingerprint)
    finally:
        os.close(descriptor)


def _require_unchanged(descriptor: int, required_fingerprint: FileFingerprint | None) -> None:
    """Raise FileStillChanging unless the open file has this fingerprint (None: any) and no writer."""
    if required_fingerprint is None:
        return
    if fingerprint_of(os.fstat(descriptor)) != required_fingerprint or not has_no_writer(descriptor):
        raise FileStillChanging


def fingerprint_of(file_stat: os.stat_result) -> FileFingerprint:
    return FileFingerprint(file_stat.st_mtime_ns, file_stat.st_size, file_stat.st_ino, file_stat.st_ctime_ns)
