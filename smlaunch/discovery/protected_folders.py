"""Finds folders of this machine that are never uploaded: home folders, their parents, smlaunch's own
state."""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

STATE_VARIABLE = "SMLAUNCH_HOME"

_STATE_FOLDER_ENTRIES = frozenset(("jobs.sqlite", "owners", "s3"))
"""Entries of every state folder of the local endpoint (local/state_dir.py)."""


_FIRST_USER_UID, _NOBODY_UID = 1000, 65534


class FolderId(NamedTuple):
    """Identifies a folder under all its names."""

    device: int
    inode: int


def folder_id(status: os.stat_result) -> FolderId:
    return FolderId(status.st_dev, status.st_ino)


def protected_folder_reason(folder: Path) -> str | None:
    """Return why a folder of this machine is never uploaded, as the rest of a sentence about it; None for an
    ordinary folder. Folders are compared by device and inode, because a folder may have several paths."""
    status = folder.stat()
    this_folder = folder_id(status)
    real_path = os.path.realpath(folder)
    if real_path == os.path.sep:
        return "is the root of this machine's files"
    if this_folder in _home_folders(status.st_uid):
        return "is a home folder, with keys, tokens and everything else in it"
    if this_folder in _parents_of_home():
        return "holds your home folder, with keys, tokens and everything else in it"
    if this_folder in _parents_of_user_homes():
        return "holds the home folders of this machine's users"
    if this_folder == state_folder_id():
        return f"is the local endpoint's state folder ({STATE_VARIABLE})"
    return None


def state_folder_id() -> FolderId | None:
    """Return the state folder that SMLAUNCH_HOME names. The default one has a name that is always
    excluded."""
    named = os.environ.get(STATE_VARIABLE)
    if not named:
        return None
    try:
        return folder_id(Path(named).stat())
    except OSError:
        return None  # it does not exist yet


def is_state_folder(names: Collection[str]) -> bool:
    """Return whether a folder with these entries is the state folder of any endpoint."""
    return _STATE_FOLDER_ENTRIES.issubset(names)


def _home_paths() -> list[str]:
    homes = [os.environ.get("HOME", "")]
    with suppress(KeyError):  # a container's user may have no entry
        homes.append(pwd.getpwuid(os.geteuid()).pw_dir)
    return [os.path.realpath(home) for home in homes if home.startswith(os.path.sep)]


def _home_folders(owner: int) -> list[FolderId]:
    """Return the caller's home folders and that of the folder's owner."""
    homes = _home_paths()
    with suppress(KeyError):
        homes.append(pwd.getpwuid(owner).pw_dir)
    return _existing_folder_ids(homes)


def _parents_of_home() -> list[FolderId]:
    return _existing_folder_ids([str(parent) for home in _home_paths() for parent in Path(home).parents])


def _parents_of_user_homes() -> list[FolderId]:
    """Return the parents of people's home folders. Homes of services may be anywhere."""
    home_dirs = [user.pw_dir for user in pwd.getpwall() if _FIRST_USER_UID <= user.pw_uid < _NOBODY_UID]
    return _existing_folder_ids(
        [str(Path(home).parent) for home in home_dirs if home.startswith(os.path.sep)]
    )


def _existing_folder_ids(folders: list[str]) -> list[FolderId]:
    ids = []
    for folder in folders:
        with suppress(OSError):
            ids.append(folder_id(Path(folder).stat()))
    return ids
