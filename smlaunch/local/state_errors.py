"""Errors for files of the state directory that are damaged, lost or not accessible."""

from __future__ import annotations

import os
import shlex
import stat
import time
from pathlib import Path

from smlaunch.errors import EndpointError
from smlaunch.local.untrusted_files import file_type_name

STATE_DAMAGED_CODE = "EndpointStateDamaged"
"""Error code in the response to a client whose request met a damaged file."""
DISK_FULL_CODE = "EndpointDiskFull"
"""Error code when the state directory's disk is full. Its HTTP status (507) is one that clients do not
retry."""


class StateDamaged(EndpointError):
    """A file is damaged. The message names the file, the lost data, and what to do."""


def unusable_file_error(path: Path, problem: str, lost_data: str, remedy: str = "") -> StateDamaged:
    """Return the error for a file that can be replaced. ``remedy``: what to do; by default, move it away."""
    move_command = quarantine_command(path.parent, shlex.quote(path.name))
    instruction = remedy or f"{move_command}, and a new one is created"
    return StateDamaged(f"{path} {problem}. Lost with it: {lost_data}. To go on: {instruction}")


def require_folder_or_file(path: Path, path_stat: os.stat_result, is_folder: bool) -> None:
    """Raise StateDamaged unless ``path``, in the state directory, is a directory, or a regular file if
    ``is_folder`` is false. Call this before opening: to open a FIFO blocks for ever."""
    has_expected_type = stat.S_ISDIR(path_stat.st_mode) if is_folder else stat.S_ISREG(path_stat.st_mode)
    if has_expected_type:
        return
    expected_type = "a directory" if is_folder else "a file"
    # A shell command for the user, which moves the path to a new folder beside it.
    move_command = quarantine_command(path.parent, shlex.quote(path.name))
    raise StateDamaged(
        f"{path} is {file_type_name(path_stat)}, and {expected_type} belongs there. Put a copy of it back if "
        f"you have one; to go on without it: {move_command}"
    )


def quarantine_command(folder: Path, names: str, first: str = "") -> str:
    """Return the shell command that moves damaged files to a new folder beside them. ``names``: quoted names
    or a pattern. ``first``: a command to run before."""
    backup = time.strftime("damaged-%Y%m%dT%H%M%S", time.gmtime())
    return f"`{first}cd {shlex.quote(str(folder))} && mkdir -p {backup} && mv {names} {backup}/`"


def permission_error(path: Path) -> StateDamaged:
    """Return the error for a file that this user may not read and write."""
    return StateDamaged(
        f"you may not read and write {path}; nothing is lost: `ls -ld` shows its owner, and "
        f"`chmod u+rwX {shlex.quote(str(path))}` gives the owner access to it"
    )
