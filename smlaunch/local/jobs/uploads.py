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
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from smlaunch.local.host_files import FileOpener, hard_link
from smlaunch.local.jobs.copying import copy_open_file
from smlaunch.local.jobs.leases import nobody_writes
from smlaunch.local.jobs.stores import Objects

FILES_PER_TRANSACTION = 256
"""Maximum number of files that become visible in S3 at once."""

_BODY_MODE = 0o644


class Stamp(NamedTuple):
    """Identifies a file's content: if it is equal, the file has not changed."""

    modified_ns: int
    size: int
    inode: int
    changed_ns: int
    """Time of the inode's last change, which programs cannot set; 0 if it is not known yet."""


class HostFile(NamedTuple):
    """A file or directory in a host's tree."""

    root: Path
    """A directory that only the endpoint can replace."""
    name: str
    """Path relative to the root; the job's programs can replace each part of it."""
    stamp: Stamp | None = None
    """If given, the upload fails unless the file still has this stamp and nobody writes to it."""


class StillChanging(OSError):
    """The file was replaced, or a process writes to it."""

    def __init__(self) -> None:
        super().__init__(errno.EAGAIN, "it changes all the time")


def upload_files(
    objects: Objects, bucket: str, files: Mapping[str, HostFile], scratch: Path, *, hosts_have_ended: bool
) -> dict[str, Exception]:
    """Store files, given by their keys, and return the errors by key. ``scratch`` is an existing directory
    of the endpoint, best on the disk of the trees. ``hosts_have_ended``: no program of the job runs any
    more, so that large files need not be copied and missing permissions may be added."""
    errors: dict[str, Exception] = {}
    remaining = iter(files.items())
    while batch := dict(islice(remaining, FILES_PER_TRANSACTION)):
        errors |= _upload_batch(objects, bucket, batch, scratch, hosts_have_ended)
    return errors


def _upload_batch(
    objects: Objects, bucket: str, files: Mapping[str, HostFile], scratch: Path, hosts_have_ended: bool
) -> dict[str, Exception]:
    """Store files in one transaction; if that fails, each in its own."""
    try:
        return _upload_once(objects, bucket, files.items(), scratch, hosts_have_ended)
    except Exception as error:
        # The store takes all files or none: none is stored.
        if len(files) == 1 or "locked" in str(error):
            return dict.fromkeys(files, error)
    errors: dict[str, Exception] = {}
    for key, file in files.items():  # perhaps only one of them fails
        errors |= _upload_batch(objects, bucket, {key: file}, scratch, hosts_have_ended)
    return errors


def _upload_once(
    objects: Objects,
    bucket: str,
    files: Iterable[tuple[str, HostFile]],
    scratch: Path,
    hosts_have_ended: bool,
) -> dict[str, Exception]:
    """Store files in one transaction and return the errors of files that could not be read."""
    errors: dict[str, Exception] = {}
    folder = Path(tempfile.mkdtemp(prefix="upload-", dir=scratch))
    try:
        copies = []
        with FileOpener(fix_permissions=hosts_have_ended) as opener:
            for number, (key, file) in enumerate(files):
                copy_path = f"{folder}/{number}"  # a string, as Path objects for ten thousand files take long
                try:
                    if not (hosts_have_ended and _link_file(file, Path(copy_path))):
                        _copy_file(opener, file, copy_path)
                except OSError as error:
                    errors[key] = error
                    continue
                copies.append((key, Path(copy_path)))
        return errors | dict(objects.put_files(bucket, copies, move=True))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _link_file(file: HostFile, copy_path: Path) -> bool:
    """Link the file instead of copying it, if nobody else can write to it. Return False if it must be
    copied."""
    try:
        hard_link(file.root, file.name, str(copy_path))
    except FileNotFoundError:
        raise
    except OSError:
        return False  # another disk, a file system without links, another user's file
    try:
        if _has_no_other_link(copy_path):
            return True
    except OSError:
        pass  # perhaps it can be opened under its own name
    copy_path.unlink(missing_ok=True)
    return False


def _has_no_other_link(copy_path: Path) -> bool:
    """Return whether the file has no link besides the two known ones, and no process writes to it."""
    status = copy_path.lstat()
    # A third name would be a file elsewhere that can still be written to.
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 2:
        return False
    copy_path.chmod(_BODY_MODE)  # the store's modes, whatever the job has set
    descriptor = os.open(copy_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return nobody_writes(descriptor)
    finally:
        os.close(descriptor)


def _copy_file(opener: FileOpener, file: HostFile, copy_path: str) -> None:
    descriptor = opener.open(file.root, file.name)
    try:
        _require_unchanged(descriptor, file.stamp)
        copy_open_file(descriptor, copy_path, os.fstat(descriptor).st_size)
        _require_unchanged(descriptor, file.stamp)
    finally:
        os.close(descriptor)


def _require_unchanged(descriptor: int, stamp: Stamp | None) -> None:
    if stamp is not None and not (stamp_of(os.fstat(descriptor)) == stamp and nobody_writes(descriptor)):
        raise StillChanging


def stamp_of(status: os.stat_result) -> Stamp:
    return Stamp(status.st_mtime_ns, status.st_size, status.st_ino, status.st_ctime_ns)
