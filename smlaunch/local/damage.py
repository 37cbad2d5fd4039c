"""What is said of a file in the state directory that is not what was written there."""

from __future__ import annotations

import shlex
from pathlib import Path

from smlaunch.errors import EndpointError

DAMAGED = "EndpointStateDamaged"
"""The code of the error that a client gets for it."""
DISK_IS_FULL = "EndpointDiskFull"
"""The same where the state directory's disk has no room. Its status is none that clients try again."""


class StateDamaged(EndpointError):
    """Names the file, what is lost with it, and what to do."""


def unusable(path: Path, what: str, lost: str, remedy: str = "") -> StateDamaged:
    """``remedy``: what to do first; by default the file can go."""
    first = remedy or f"`rm -r {shlex.quote(str(path))}`, and a new one is made"
    return StateDamaged(f"{path} {what}. Lost with it: {lost}. To go on: {first}")


def forbidden(path: Path) -> StateDamaged:
    return StateDamaged(
        f"{path} may not be read and written by you; nothing of it is lost: `ls -ld` says whose it is, and "
        f"`chmod u+rwX {shlex.quote(str(path))}` gives its owner the right to it"
    )
