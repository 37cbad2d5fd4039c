"""Removes the directory of a host, whatever modes, links, depth and names its programs have created."""
# Works with descriptors and single names, not with paths, so pathlib is not used.

from __future__ import annotations

import errno
import logging
import os
import secrets
import shlex
import stat
import time
from contextlib import suppress
from pathlib import Path

from smlaunch.local.untrusted_files import OWN_FOLDER_FLAGS, error_text, open_folder_at, printable_name

_MAX_ATTEMPTS = 3
_MAX_ATTEMPTS_WHILE_CHANGING = 50
_RETRY_SECONDS = 0.002
"""Waiting time, longer after each attempt: 2.5 s in all."""

log = logging.getLogger(__name__)


def remove_tree(folder: Path) -> None:
    """Remove a directory. Raises OSError if something cannot be removed (an immutable file, a mount), after
    removing everything else.

    Several attempts are made: another process may be removing the same directory and moving its
    subdirectories, or a killed program may have created a last file meanwhile.
    """
    # Two limits: more attempts are made while another process adds to the directory.
    for attempt in range(1, _MAX_ATTEMPTS_WHILE_CHANGING + 1):
        try:
            parent_fd = os.open(folder.parent, OWN_FOLDER_FLAGS)
        except FileNotFoundError:
            return
        try:
            # Removes what it can, and returns the last error instead of raising it.
            last_error = _remove_folder(parent_fd, folder.name)
        finally:
            os.close(parent_fd)
        if last_error is None:
            return
        # ENOTEMPTY: another process added something to the directory meanwhile, and will end at some time.
        is_changing = last_error.errno == errno.ENOTEMPTY
        max_attempts = _MAX_ATTEMPTS_WHILE_CHANGING if is_changing else _MAX_ATTEMPTS
        if attempt >= max_attempts:
            raise last_error
        if is_changing:
            time.sleep(_RETRY_SECONDS * attempt)  # gives the other process time to run


def remove_or_warn(folder: Path) -> None:
    """Remove a directory that the next endpoint removes too: if something cannot be removed, log a warning
    instead of raising."""
    try:
        remove_tree(folder)
    except OSError as error:
        remaining_path = _first_remaining(folder)
        log.warning(
            "%s cannot be removed (%s); where an attribute forbids it, `chattr -i -a %s` takes that away, "
            "and the next endpoint removes it",
            *(printable_name(remaining_path), error_text(error), printable_name(shlex.quote(remaining_path))),
        )


def _first_remaining(folder: Path) -> str:
    """Return the path of a file that was not removed, or of a directory if there is no file. What
    remove_tree leaves is not deep."""
    for parent, _, files in os.walk(folder):
        if files:
            return os.path.join(parent, files[0])  # noqa: PTH118
    return str(folder)


def _remove_folder(parent_fd: int, name: str) -> OSError | None:
    """Remove the directory ``name`` in the directory ``parent_fd`` with its content, and return the last
    error; None if nothing remains. Subdirectories are first moved to the top of this directory, so that no
    path and no stack becomes as deep as the tree. Permissions that forbid the removal are changed."""
    try:
        folder_fd = open_folder_at(parent_fd, name, fix_permissions=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    try:
        folders_at_top, last_error = _remove_files_and_lift_folders(folder_fd, top_fd=folder_fd)
        # Each removal lifts the directory's own subdirectories to the top, where their turn comes later.
        while folders_at_top:
            more_folders, error_of_folder = _remove_folder_at_top(folder_fd, folders_at_top.pop())
            folders_at_top += more_folders
            last_error = error_of_folder or last_error
    finally:
        os.close(folder_fd)
    rmdir_error = _remove_empty_folder(parent_fd, name)
    # If the directory could be removed, nothing remains, whatever failed meanwhile.
    return None if rmdir_error is None else last_error or rmdir_error


def _remove_folder_at_top(top_fd: int, name: str) -> tuple[list[str], OSError | None]:
    """Remove the directory ``name``, which is in the directory ``top_fd``. Its subdirectories are moved
    there; return their new names, and the last error; None if nothing else remains."""
    try:
        folder_fd = open_folder_at(top_fd, name, fix_permissions=True)
    except FileNotFoundError:
        return [], None
    except OSError as error:
        return [], error
    try:
        # To lift a directory is to move it to the top.
        lifted_folders, last_error = _remove_files_and_lift_folders(folder_fd, top_fd)
    finally:
        os.close(folder_fd)
    rmdir_error = _remove_empty_folder(top_fd, name)
    # If the directory could be removed, nothing remains in it, whatever failed meanwhile.
    return lifted_folders, None if rmdir_error is None else last_error or rmdir_error


def _remove_files_and_lift_folders(folder_fd: int, top_fd: int) -> tuple[list[str], OSError | None]:
    """Remove the files of one directory, and move its subdirectories to the directory ``top_fd`` under new
    names, unless they are there already. Return their names there, and the last error (None without one)."""
    folders_at_top: list[str] = []
    last_error: OSError | None = None
    for name in _list_entry_names(folder_fd):
        try:
            if _remove_unless_folder(folder_fd, name):
                continue  # it was a file, and is removed
            if folder_fd == top_fd:
                folders_at_top.append(name)
                continue
            # The move changes the directory's entry `..`, so the directory must be writable.
            os.close(open_folder_at(folder_fd, name, fix_permissions=True))
            new_name = f"removed-{secrets.token_hex(8)}"
            os.rename(name, new_name, src_dir_fd=folder_fd, dst_dir_fd=top_fd)
            folders_at_top.append(new_name)
        except FileNotFoundError:  # another process has removed it
            continue
        except OSError as error:
            last_error = error
    return folders_at_top, last_error


def _remove_empty_folder(folder_fd: int, name: str) -> OSError | None:
    """Remove an empty directory, and return the error."""
    try:
        os.rmdir(name, dir_fd=folder_fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    return None


def _list_entry_names(folder_fd: int) -> list[str]:
    """Return the names in a directory; empty if it cannot be read."""
    with suppress(OSError):
        return os.listdir(folder_fd)
    return []


def _remove_unless_folder(folder_fd: int, name: str) -> bool:
    """Remove a file. Return False for a directory, which is not removed. Raises OSError."""
    try:
        if stat.S_ISDIR(os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode):
            return False
        os.unlink(name, dir_fd=folder_fd)
    except FileNotFoundError:
        pass
    return True
