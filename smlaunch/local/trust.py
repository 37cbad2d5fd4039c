"""Whether only this user, and root, can put something where it will be read, or run.

The rules are those of ssh's StrictModes: every folder on the way belongs to this user or to root, and nobody
else may write into it. In a folder with the sticky bit, such as /tmp, each may only replace what is his own,
so what lies there is looked at instead. A group that has no other member than this user is no one else.
What a POSIX access control list (an ACL) grants counts as what the mode grants.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

_MOST_LINKS = 40
_ACL = "system.posix_acl_access"
_ACL_HEAD = struct.Struct("<I")
_ACL_ENTRY = struct.Struct("<HHI")
"""Tag, rights, and the user's or group's number (linux/posix_acl_xattr.h)."""
_USER, _OWNING_GROUP, _GROUP = 0x02, 0x04, 0x08
_WRITE = 0x02


class Untrusted(Exception):
    """The text names the folder, what is wrong with it, and the next step."""


def walk(path: Path, user: int, make: bool = False) -> Path:
    """Follows ``path`` step by step, through links too, and returns where it leads: a file or folder that is
    the user's own. With ``make``, missing folders are made, for this user alone; else the way ends before the
    first of them. Raises Untrusted, and OSError.
    """
    current = Path(path.anchor)
    require(current, current.stat(), user)
    steps = list(reversed(path.parts[1:]))
    links = 0
    while steps:
        step = steps.pop()
        if step == "..":
            current = current.parent
            continue
        found = current / step
        try:
            status = found.lstat()
        except FileNotFoundError:
            if not make:
                return current
            found.mkdir(mode=0o700, exist_ok=True)  # two processes may make it
            status = found.lstat()
        require(found, status, user)
        if not stat.S_ISLNK(status.st_mode):
            current = found
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = found.readlink()
        if target.is_absolute():
            current = Path(target.anchor)
        steps += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    status = current.stat()
    if status.st_uid != user:
        raise Untrusted(_belongs_to_another(current, status.st_uid, user))
    require(current, status, user, sticky=False)
    return current


def require(path: Path, status: os.stat_result, user: int, sticky: bool = True) -> None:
    """Raises Untrusted for a folder, file or link that another user owns or may write. ``sticky``: whether
    others may add to it as long as they cannot replace."""
    if status.st_uid not in (0, user) and not _is_unmapped(status.st_uid):
        raise Untrusted(_belongs_to_another(path, status.st_uid, user))
    if stat.S_ISLNK(status.st_mode) or (sticky and status.st_mode & stat.S_ISVTX):
        return
    others = status.st_mode & stat.S_IWOTH
    who = "everybody" if others else next(_writers(path, status, user), None)
    if who is not None:
        raise Untrusted(
            f"{path} can be written by {who} (mode {stat.S_IMODE(status.st_mode):04o}), so what is there may "
            f"be another user's; if you trust its content, `chmod {'o' if others else 'g'}-w {path}`"
        )


def _writers(path: Path, status: os.stat_result, user: int) -> Iterator[str]:
    """Other users and groups that may write it by the mode's middle digit. In a file with an ACL that is the
    mask: what the entries grant at most, so that `chmod g-w` takes it from all of them."""
    if not status.st_mode & stat.S_IWGRP:
        return
    for tag, number in _granted(path) or [(_OWNING_GROUP, 0)]:
        if tag == _USER and number not in (0, user):
            yield f"{_user_name(number)}, by an access control list (`getfacl {path}` shows it)"
        elif tag == _OWNING_GROUP and not _is_alone(status.st_gid, user):
            yield f"group {_group_name(status.st_gid)}"
        elif tag == _GROUP and not _is_alone(number, user):
            yield f"group {_group_name(number)}, by an access control list (`getfacl {path}` shows it)"


def _granted(path: Path) -> list[tuple[int, int]] | None:
    """Which entries of its ACL grant the right to write, as (tag, number); None where it has no ACL."""
    if not hasattr(os, "getxattr"):
        return None  # only Linux tells it in this way
    try:
        text = os.getxattr(path, _ACL)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP):
            return None
        raise
    entries = _ACL_ENTRY.iter_unpack(text[_ACL_HEAD.size :])
    return [(tag, number) for tag, rights, number in entries if rights & _WRITE]


def _belongs_to_another(path: Path, owner: int, user: int) -> str:
    text = f"{path} belongs to {_user_name(owner)}, and this process runs as {_user_name(user)}"
    if user == 0 and os.environ.get("SUDO_UID") == str(owner):
        return f"{text}; run the command without sudo"
    return text


def _is_alone(group: int, user: int) -> bool:
    """As Debian's ssh decides it: the group has this user, or root, as a member, and nobody else."""
    import grp
    import pwd

    try:
        names = {pwd.getpwuid(user).pw_name, "root"}
        members = grp.getgrgid(group).gr_mem
    except KeyError:
        return False
    primary = [entry.pw_uid for entry in pwd.getpwall() if entry.pw_gid == group]
    return names.issuperset(members) and {0, user}.issuperset(primary) and bool(members or primary)


def _is_unmapped(owner: int) -> bool:
    """In a user namespace (a rootless container) owners of the machine outside all look the same. None of
    them is a user in here."""
    try:
        unmapped = int(Path("/proc/sys/kernel/overflowuid").read_text())
        mapped = sum(int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines())
    except (OSError, ValueError, IndexError):
        return False
    return owner == unmapped and mapped < 2**32 - 1


def _user_name(user: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(user).pw_name} (uid {user})"
    except KeyError:
        return f"uid {user}"


def _group_name(group: int) -> str:
    import grp

    try:
        return grp.getgrgid(group).gr_name
    except KeyError:
        return f"id {group}"
