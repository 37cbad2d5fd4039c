"""Saves files that could not be stored in S3, for instance because the disk is full, so that the next job
with the same prefix stores them.

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


def _folder_of_prefix(objects: Objects, location: S3Location) -> Path:
    address_hash = hashlib.sha256(f"{location.bucket}/{location.key_below('')}".encode()).hexdigest()[:32]
    return objects.root.parent / "unsaved" / address_hash


def save_files(
    objects: Objects, location: S3Location, folder: HostFile, host_name: str, names: Collection[str]
) -> Path:
    """Move a host's directory out of its tree, which is removed, and delete all files but ``names``. No
    program of the job runs any more. Returns the new path. Raises OSError."""
    prefix_folder = _folder_of_prefix(objects, location)
    prefix_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for number in itertools.count(1):
        saved_path = prefix_folder / f"{host_name}-{number}"
        try:
            # Renamed, not copied: there may be no space for a copy.
            (folder.root / folder.name).rename(saved_path)
            break
        except OSError:
            if not saved_path.exists():
                raise
    for entry in walk(prefix_folder, saved_path.name, fix_permissions=True):
        if entry.status is not None and not stat.S_ISDIR(entry.status.st_mode) and entry.name not in names:
            with suppress(OSError):
                os.unlink(saved_path / entry.name)  # noqa: PTH108 - a name of any bytes
    return saved_path


def store_saved_files(objects: Objects, location: S3Location, scratch: Path) -> list[Path]:
    """Store the saved files of a prefix, unless S3 has a later object of that name. Return the directories
    with files that still could not be stored. ``scratch`` is a directory for temporary files."""
    prefix_folder = _folder_of_prefix(objects, location)
    if not prefix_folder.is_dir():
        return []
    modified = {
        entry.key: entry.modified for entry in objects.list_objects(location.bucket, location.key_below(""))
    }
    remaining_folders = []
    for saved_path in sorted(prefix_folder.iterdir()):
        files, modified_times = {}, {}
        for entry in walk(prefix_folder, saved_path.name, fix_permissions=True):
            if entry.status is not None and stat.S_ISREG(entry.status.st_mode):
                key = location.key_below(os.fsencode(entry.name).decode())
                modified_times[key] = entry.status.st_mtime
                files[key] = HostFile(prefix_folder, f"{saved_path.name}/{entry.name}")
        newer_files = {
            key: files[key]
            for key in sorted(files, key=modified_times.__getitem__)
            if modified.get(key, 0.0) < modified_times[key]
        }
        if uploads.upload_files(objects, location.bucket, newer_files, scratch, hosts_have_ended=True):
            remaining_folders.append(saved_path)
        else:
            remove_tree(saved_path)
    return remaining_folders
