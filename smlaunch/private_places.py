"""Folders of this machine that are never sent as they are: homes, what holds them, smlaunch's own state."""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

STATE_VARIABLE = "SMLAUNCH_HOME"

_STATE_MARKS = frozenset(("jobs.sqlite", "owners", "s3"))
"""What lies in every state folder of the local endpoint (local/state_dir.py), wherever it is."""


_FIRST_PERSON, _NOBODY = 1000, 65534


class Identity(NamedTuple):
    """The same for one folder by all its names."""

    device: int
    inode: int


def identity(status: os.stat_result) -> Identity:
    return Identity(status.st_dev, status.st_ino)


def private_place(folder: Path) -> str | None:
    """Why a folder is not sent, as the rest of a sentence about it; None where nothing speaks against it."""
    status = folder.stat()
    here = identity(status)
    real = os.path.realpath(folder)
    if real == os.path.sep:
        return "is the root of this machine's files"
    for home in _homes(status.st_uid):
        if home == here:
            return "is a home folder, with keys, tokens and everything else in it"
    for above in _above_home():
        if above == here:
            return "holds your home folder, with keys, tokens and everything else in it"
    if here in _above_others():
        return "holds the home folders of this machine's users"
    if here == state_folder():
        return f"is where the local endpoint keeps its state ({STATE_VARIABLE})"
    return None


def state_folder() -> Identity | None:
    """The one that is named; the default one has a name that is always left out."""
    named = os.environ.get(STATE_VARIABLE)
    if not named:
        return None
    try:
        return identity(Path(named).stat())
    except OSError:
        return None  # not there yet


def holds_state(names: Collection[str]) -> bool:
    """Whether a folder with these names in it is an endpoint's state, of whichever client."""
    return _STATE_MARKS.issubset(names)


def _own_homes() -> list[str]:
    found = [os.environ.get("HOME", "")]
    with suppress(KeyError):  # a container's user need not have an entry
        found.append(pwd.getpwuid(os.geteuid()).pw_dir)
    return [os.path.realpath(home) for home in found if home.startswith(os.path.sep)]


def _homes(owner: int) -> list[Identity]:
    """Ours, and that of the user whom the folder belongs to."""
    homes = _own_homes()
    with suppress(KeyError):
        homes.append(pwd.getpwuid(owner).pw_dir)
    return _identities(homes)


def _above_home() -> list[Identity]:
    return _identities([str(above) for home in _own_homes() for above in Path(home).parents])


def _above_others() -> list[Identity]:
    """Above homes of people; services have theirs anywhere."""
    people = [user.pw_dir for user in pwd.getpwall() if _FIRST_PERSON <= user.pw_uid < _NOBODY]
    return _identities([str(Path(home).parent) for home in people if home.startswith(os.path.sep)])


def _identities(folders: list[str]) -> list[Identity]:
    found = []
    for folder in folders:
        with suppress(OSError):
            found.append(identity(Path(folder).stat()))
    return found
