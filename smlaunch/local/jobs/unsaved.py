"""What could not be stored, for instance on a full disk: it outlives its host, and the next job stores it.

<state directory>/unsaved/<hash of the S3 prefix>/<host>-<n>/   files by their names below the prefix
"""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from smlaunch.local.executors.removal import remove_tree
from smlaunch.local.host_files import walk
from smlaunch.local.jobs import uploads
from smlaunch.local.jobs.spec import S3Location
from smlaunch.local.jobs.stores import Objects
from smlaunch.local.jobs.uploads import HostFile


def _home(objects: Objects, where: S3Location) -> Path:
    address = hashlib.sha256(f"{where.bucket}/{where.below('')}".encode()).hexdigest()[:32]
    return objects.root.parent / "unsaved" / address


def keep(objects: Objects, where: S3Location, folder: HostFile, label: str, names: Collection[str]) -> Path:
    """Moves a host's directory out of its tree, which is removed, and leaves only ``names`` in it. No program
    of the job runs any more. Raises OSError."""
    home = _home(objects, where)
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    for number in itertools.count(1):
        saved_path = home / f"{label}-{number}"
        try:
            # A rename and no copy: there may be no room for one.
            (folder.root / folder.name).rename(saved_path)
            break
        except OSError:
            if not saved_path.exists():
                raise
    for found in walk(home, saved_path.name, fix_permissions=True):
        if found.status is not None and not stat.S_ISDIR(found.status.st_mode) and found.name not in names:
            with suppress(OSError):
                os.unlink(saved_path / found.name)  # noqa: PTH108 - a name of any bytes
    return saved_path


def store(objects: Objects, where: S3Location, scratch: Path) -> list[Path]:
    """Stores what was saved of a prefix, unless S3 has a later object of the name. Returns the directories
    that must stay, as some of their files could not be stored now."""
    home = _home(objects, where)
    if not home.is_dir():
        return []
    modified = {entry.key: entry.modified for entry in objects.list_objects(where.bucket, where.below(""))}
    staying = []
    for saved_path in sorted(home.iterdir()):
        files, times = {}, {}
        for found in walk(home, saved_path.name, fix_permissions=True):
            if found.status is not None and stat.S_ISREG(found.status.st_mode):
                key = where.below(os.fsencode(found.name).decode())
                times[key] = found.status.st_mtime
                files[key] = HostFile(home, f"{saved_path.name}/{found.name}")
        later = {
            key: files[key]
            for key in sorted(files, key=times.__getitem__)
            if modified.get(key, 0.0) < times[key]
        }
        if uploads.put(objects, where.bucket, later, scratch, ended=True):
            staying.append(saved_path)
        else:
            remove_tree(saved_path)
    return staying
