"""Errors for files of the state directory that are damaged, lost or not accessible."""

from __future__ import annotations

import os
import shlex
import stat
import time
from pathlib import Path

from smlaunch.errors import EndpointError
from smlaunch.local.host_files import file_type_name

STATE_DAMAGED_CODE = "EndpointStateDamaged"
"""Error code in the response to a client whose request met a damaged file."""
DISK_FULL_CODE = "EndpointDiskFull"
"""Error code when the state directory's disk is full. Its HTTP status (507) is one that clients do not
retry."""


class StateDamaged(EndpointError):
    """A file is damaged. The message names the file, the lost data, and what to do."""


def unusable_file_error(path: Path, problem: str, lost_data: str, remedy: str = "") -> StateDamaged:
    """Return the error for a file that can be replaced. ``remedy``: what to do; by default, remove it."""
    instruction = remedy or f"`rm -r {shlex.quote(str(path))}`, and a new one is created"
    return StateDamaged(f"{path} {problem}. Lost with it: {lost_data}. To go on: {instruction}")


def require_kind(path: Path, status: os.stat_result, directory: bool) -> None:
    """Raise StateDamaged unless ``path`` is a directory, or a regular file if ``directory`` is false. Check
    before opening: to open a FIFO blocks for ever."""
    if stat.S_ISDIR(status.st_mode) if directory else stat.S_ISREG(status.st_mode):
        return
    expected_kind = "a directory" if directory else "a file"
    raise StateDamaged(
        f"{path} is {file_type_name(status)}, and {expected_kind} belongs there. Put a copy of it back if "
        f"you have one; to go on without it: {move_away(path.parent, shlex.quote(path.name))}"
    )


def move_away(folder: Path, names: str, first: str = "") -> str:
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
