"""From the hosts' trees into the object store: no file stops the others, none is gone before it is stored.

A file comes first into a private directory beside the trees, where no program of the job can replace it, and
from there into the store. The tree keeps its own, whatever becomes of that.
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

TOGETHER = 256
"""At most so many files become visible in S3 at once."""

_BODY_MODE = 0o644


class Stamp(NamedTuple):
    """Says whether a file is still the same. ``changed_ns``: a program may set the time of modification, but
    not this one; 0 where it is not known yet."""

    modified_ns: int
    size: int
    inode: int
    changed_ns: int


class HostFile(NamedTuple):
    """``root``: a path of the endpoint's own; ``name``: relative to it, the job's. ``stamp``: the file is to
    be this one still, and nobody may write to it while it is copied; None: as it is."""

    root: Path
    name: str
    stamp: Stamp | None = None


class StillChanging(OSError):
    """Another file has come to its name, or somebody writes to it."""

    def __init__(self) -> None:
        super().__init__(errno.EAGAIN, "it changes all the time")


def put(
    objects: Objects, bucket: str, files: Mapping[str, HostFile], scratch: Path, *, ended: bool
) -> dict[str, Exception]:
    """Stores files by their keys; returns what failed, by key. ``scratch``: an existing directory of the
    endpoint's own, best on the disk of the trees. ``ended``: no program of the job runs any more: large files
    need not be copied, and what is shut may be opened."""
    failed: dict[str, Exception] = {}
    waiting = iter(files.items())
    while some := dict(islice(waiting, TOGETHER)):
        failed |= _put_together(objects, bucket, some, scratch, ended)
    return failed


def _put_together(
    objects: Objects, bucket: str, files: Mapping[str, HostFile], scratch: Path, ended: bool
) -> dict[str, Exception]:
    try:
        return _try(objects, bucket, files.items(), scratch, ended)
    except Exception as error:
        # None of them is stored: the store takes all or nothing.
        if len(files) == 1 or "locked" in str(error):
            return dict.fromkeys(files, error)
    failed: dict[str, Exception] = {}
    for key, file in files.items():  # it may have been the fault of one
        failed |= _put_together(objects, bucket, {key: file}, scratch, ended)
    return failed


def _try(
    objects: Objects, bucket: str, files: Iterable[tuple[str, HostFile]], scratch: Path, ended: bool
) -> dict[str, Exception]:
    failed: dict[str, Exception] = {}
    folder = Path(tempfile.mkdtemp(prefix="upload-", dir=scratch))
    try:
        bodies = []
        with FileOpener(fix_permissions=ended) as opener:
            for number, (key, file) in enumerate(files):
                body = f"{folder}/{number}"  # a word and no path yet: there may be ten thousand
                try:
                    if not (ended and _link(file, Path(body))):
                        _copy(opener, file, body)
                except OSError as error:
                    failed[key] = error
                    continue
                bodies.append((key, Path(body)))
        return failed | dict(objects.put_files(bucket, bodies, move=True))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _link(file: HostFile, body: Path) -> bool:
    """Spares the copy of what nobody else can write to. False when it has to be copied all the same."""
    try:
        hard_link(file.root, file.name, str(body))
    except FileNotFoundError:
        raise
    except OSError:
        return False  # another disk, a file system without links, another user's file
    try:
        if _is_ours_alone(body):
            return True
    except OSError:
        pass  # it cannot be read like this; opened at its own place it may be
    body.unlink(missing_ok=True)
    return False


def _is_ours_alone(body: Path) -> bool:
    status = body.lstat()
    # A third name would be a file elsewhere that can still be written to.
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 2:
        return False
    body.chmod(_BODY_MODE)  # what the store has is the store's, whatever the job made of its own
    descriptor = os.open(body, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return nobody_writes(descriptor)
    finally:
        os.close(descriptor)


def _copy(opener: FileOpener, file: HostFile, body: str) -> None:
    reader = opener.open(file.root, file.name)
    try:
        _check(reader, file.stamp)
        copy_open_file(reader, body, os.fstat(reader).st_size)
        _check(reader, file.stamp)
    finally:
        os.close(reader)


def _check(reader: int, stamp: Stamp | None) -> None:
    if stamp is not None and not (stamp_of(os.fstat(reader)) == stamp and nobody_writes(reader)):
        raise StillChanging


def stamp_of(status: os.stat_result) -> Stamp:
    return Stamp(status.st_mtime_ns, status.st_size, status.st_ino, status.st_ctime_ns)
