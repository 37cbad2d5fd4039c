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
from typing import NamedTuple

from smlaunch.local.executors.tree_removal import remove_tree
from smlaunch.local.jobs import s3_uploads
from smlaunch.local.jobs.job_spec import S3Location
from smlaunch.local.jobs.s3_uploads import HostPath
from smlaunch.local.jobs.store_interfaces import S3ObjectStore
from smlaunch.local.untrusted_files import make_private_folder, walk_folder


def _folder_for_prefix(object_store: S3ObjectStore, location: S3Location) -> Path:
    """Return the directory on this machine with the saved files of an S3 prefix: one directory per host of an
    earlier job."""
    address_hash = hashlib.sha256(f"{location.bucket}/{location.folder_prefix}".encode()).hexdigest()[:32]
    return object_store.root.parent / "unsaved" / address_hash


def move_failed_uploads(
    object_store: S3ObjectStore,
    location: S3Location,
    host_folder: HostPath,
    host_name: str,
    failed_names: Collection[str],
) -> Path:
    """Save the files of ``host_folder`` that could not be uploaded to ``location``: their names in it are
    ``failed_names``. The host has ended and its files will be removed, so that the folder is moved elsewhere,
    and all its other files are deleted. Returns the new path. Raises OSError."""
    prefix_folder = _folder_for_prefix(object_store, location)
    make_private_folder(prefix_folder)
    saved_folder = _rename_to_free_number(host_folder.full_path, prefix_folder / host_name)
    for entry in walk_folder(prefix_folder, saved_folder.name, fix_permissions=True):
        is_file = entry.file_stat is not None and not stat.S_ISDIR(entry.file_stat.st_mode)
        if is_file and entry.relative_path not in failed_names:
            with suppress(OSError):  # a file too many is harmless
                os.unlink(saved_folder / entry.relative_path)  # noqa: PTH108 - a name of any bytes
    return saved_folder


def _rename_to_free_number(folder: Path, target: Path) -> Path:
    """Rename a directory to ``target`` with ``-1``, ``-2``, ... at its end, the first that does not exist.
    Return the new path."""
    for number in itertools.count(1):
        numbered_target = target.with_name(f"{target.name}-{number}")
        try:
            # Renamed, not copied: there may be no space for a copy.
            return folder.rename(numbered_target)
        except OSError:
            if not numbered_target.exists():
                raise
    raise AssertionError("the numbers do not end")


def retry_failed_uploads(
    object_store: S3ObjectStore, location: S3Location, scratch_folder: Path
) -> list[Path]:
    """Upload the files that ``move_failed_uploads`` has saved, since earlier jobs could not upload them to
    the S3 prefix ``location``, unless S3 has a later object of that name. Return the directories with files
    that still could not be uploaded; the others are removed. ``scratch_folder`` is a directory for temporary
    files."""
    prefix_folder = _folder_for_prefix(object_store, location)
    if not prefix_folder.is_dir():
        return []
    stored_time_by_key = {
        stored_object.key: stored_object.modified
        for stored_object in object_store.list_objects(location.bucket, location.folder_prefix)
    }
    remaining_folders: list[Path] = []
    for saved_folder in sorted(prefix_folder.iterdir()):  # one for each host of an earlier job
        newer_path_by_key = {
            saved_file.key: saved_file.host_path
            for saved_file in _list_saved_files(saved_folder, location)
            if stored_time_by_key.get(saved_file.key, 0.0) < saved_file.modified  # 0.0: S3 has no such object
        }
        error_by_key = s3_uploads.upload_files(
            object_store, location.bucket, newer_path_by_key, scratch_folder, hosts_have_ended=True
        )
        if error_by_key:
            remaining_folders.append(saved_folder)
        else:
            remove_tree(saved_folder)
    return remaining_folders


class _SavedFile(NamedTuple):
    """A file that an earlier job could not upload."""

    modified: float
    """Time of its last change, in seconds since the epoch."""
    key: str
    """Its key in S3."""
    host_path: HostPath


def _list_saved_files(saved_folder: Path, location: S3Location) -> list[_SavedFile]:
    """Return the files of a saved directory, the oldest first. ``location`` is the prefix of their keys."""
    saved_files = [
        _SavedFile(
            modified=entry.file_stat.st_mtime,
            key=location.join_key(os.fsencode(entry.relative_path).decode()),
            host_path=HostPath(saved_folder.parent, f"{saved_folder.name}/{entry.relative_path}"),
        )
        for entry in walk_folder(saved_folder.parent, saved_folder.name, fix_permissions=True)
        if entry.file_stat is not None and stat.S_ISREG(entry.file_stat.st_mode)
    ]
    return sorted(saved_files, key=lambda saved_file: saved_file.modified)
