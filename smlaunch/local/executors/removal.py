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

from smlaunch.local.host_files import OWN_FOLDER_FLAGS, error_text, open_folder_at, printable_name

_MAX_ATTEMPTS = 3
_MAX_CONCURRENT_ATTEMPTS = 50
_RETRY_SECONDS = 0.002
"""Waiting time, longer after each attempt: 2.5 s in all."""

log = logging.getLogger(__name__)


def remove_tree(folder: Path) -> None:
    """Remove a directory. Raises OSError if something cannot be removed (an immutable file, a mount), after
    removing everything else.

    Several attempts are made: another process may be removing the same directory and moving its
    subdirectories, or a killed program may have created a last file meanwhile.
    """
    for attempt in range(1, _MAX_CONCURRENT_ATTEMPTS + 1):
        try:
            folder_fd = os.open(folder.parent, OWN_FOLDER_FLAGS)
        except FileNotFoundError:
            return
        try:
            last_error = _remove_folder(folder_fd, folder.name)
        finally:
            os.close(folder_fd)
        if last_error is None:
            return
        if attempt >= (_MAX_CONCURRENT_ATTEMPTS if last_error.errno == errno.ENOTEMPTY else _MAX_ATTEMPTS):
            raise last_error
        if last_error.errno == errno.ENOTEMPTY:
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
    """Remove the directory ``name`` with its content, and return the last error. Its subdirectories are
    first moved to its top, so that no path and no stack becomes as deep as the tree."""
    try:
        top_fd = open_folder_at(parent_fd, name, fix_permissions=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    try:
        moved_folders: list[str] = []
        last_error = _clear_folder(top_fd, top_fd, moved_folders)
        while moved_folders:
            last_error = _remove_moved_folder(top_fd, moved_folders.pop(), moved_folders) or last_error
    finally:
        os.close(top_fd)
    rmdir_error = _remove_empty_folder(parent_fd, name)
    return rmdir_error and (last_error or rmdir_error)


def _remove_moved_folder(top_fd: int, name: str, moved_folders: list[str]) -> OSError | None:
    """Remove a directory that was moved to the top, and return the last error."""
    try:
        folder_fd = open_folder_at(top_fd, name, fix_permissions=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    try:
        last_error = _clear_folder(folder_fd, top_fd, moved_folders)
    finally:
        os.close(folder_fd)
    rmdir_error = _remove_empty_folder(top_fd, name)
    return rmdir_error and (last_error or rmdir_error)


def _clear_folder(folder_fd: int, top_fd: int, moved_folders: list[str]) -> OSError | None:
    """Remove the files of one directory, move its subdirectories to the top, and append their names to
    ``moved_folders``. Return the last error."""
    last_error: OSError | None = None
    for name in _list_names(folder_fd):
        try:
            if _remove_file(folder_fd, name):
                continue
            if folder_fd != top_fd:
                # The move changes the entry `..`, so the directory must be writable.
                os.close(open_folder_at(folder_fd, name, fix_permissions=True))
                new_name = f"removed-{secrets.token_hex(8)}"
                os.rename(name, new_name, src_dir_fd=folder_fd, dst_dir_fd=top_fd)
                name = new_name
            moved_folders.append(name)
        except FileNotFoundError:
            continue
        except OSError as error:
            last_error = error
    return last_error


def _remove_empty_folder(folder_fd: int, name: str) -> OSError | None:
    """Remove an empty directory, and return the error."""
    try:
        os.rmdir(name, dir_fd=folder_fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    return None


def _list_names(folder_fd: int) -> list[str]:
    """Return the names in a directory; empty if it cannot be read."""
    with suppress(OSError):
        return os.listdir(folder_fd)
    return []


def _remove_file(folder_fd: int, name: str) -> bool:
    """Remove a file. Return False for a directory, which is not removed. Raises OSError."""
    try:
        if stat.S_ISDIR(os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode):
            return False
        os.unlink(name, dir_fd=folder_fd)
    except FileNotFoundError:
        pass
    return True
