"""Check that only this user and root can write to a path that will be read or executed.

The rules are those of ssh's StrictModes: every folder of the path belongs to this user or to root, and nobody
else may write into it. In a folder with the sticky bit, such as /tmp, users can only replace their own files,
so the check is made on the entry instead. A group whose only member is this user is accepted. Rights from a
POSIX access control list (ACL) count like rights from the mode.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

_MAX_LINKS = 40
_ACL = "system.posix_acl_access"
_ACL_HEAD = struct.Struct("<I")
_ACL_ENTRY = struct.Struct("<HHI")
"""Tag, rights, and the user's or group's number (linux/posix_acl_xattr.h)."""
_USER, _OWNING_GROUP, _GROUP = 0x02, 0x04, 0x08
_WRITE = 0x02


class UntrustedPath(Exception):
    """Another user may write to a path. The message names the folder, the problem and the next step."""


def resolve_trusted(path: Path, uid: int, create: bool = False) -> Path:
    """Resolve ``path`` including symbolic links, check every component, and return the resolved path, which
    the user owns. With ``create``, missing folders are created with mode 0700; without it, resolution stops
    before the first missing one. Raises UntrustedPath and OSError.
    """
    current = Path(path.anchor)
    require_trusted(current, current.stat(), uid)
    remaining_steps = list(reversed(path.parts[1:]))
    link_count = 0
    while remaining_steps:
        step = remaining_steps.pop()
        if step == "..":
            current = current.parent
            continue
        next_path = current / step
        try:
            status = next_path.lstat()
        except FileNotFoundError:
            if not create:
                return current
            next_path.mkdir(mode=0o700, exist_ok=True)  # two processes may create it
            status = next_path.lstat()
        require_trusted(next_path, status, uid)
        if not stat.S_ISLNK(status.st_mode):
            current = next_path
            continue
        link_count += 1
        if link_count > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = next_path.readlink()
        if target.is_absolute():
            current = Path(target.anchor)
        remaining_steps += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    status = current.stat()
    if status.st_uid != uid:
        raise UntrustedPath(_wrong_owner_message(current, status.st_uid, uid))
    require_trusted(current, status, uid, allow_sticky=False)
    return current


def require_trusted(path: Path, status: os.stat_result, uid: int, allow_sticky: bool = True) -> None:
    """Raise UntrustedPath for a folder, file or link that another user owns or may write. ``allow_sticky``:
    accept a folder with the sticky bit, where others can add files but not replace them."""
    if status.st_uid not in (0, uid) and not _is_unmapped(status.st_uid):
        raise UntrustedPath(_wrong_owner_message(path, status.st_uid, uid))
    if stat.S_ISLNK(status.st_mode) or (allow_sticky and status.st_mode & stat.S_ISVTX):
        return
    is_world_writable = status.st_mode & stat.S_IWOTH
    writer = "everybody" if is_world_writable else next(_writers(path, status, uid), None)
    if writer is not None:
        raise UntrustedPath(
            f"{path} can be written by {writer} (mode {stat.S_IMODE(status.st_mode):04o}), so its content "
            "may be another user's; if you trust its content, "
            f"`chmod {'o' if is_world_writable else 'g'}-w {path}`"
        )


def _writers(path: Path, status: os.stat_result, uid: int) -> Iterator[str]:
    """Yield other users and groups with the right to write by the mode's group digit. With an ACL, that digit
    is the ACL's mask, so `chmod g-w` removes the right from all of its entries."""
    if not status.st_mode & stat.S_IWGRP:
        return
    for tag, identifier in _writable_acl_entries(path) or [(_OWNING_GROUP, 0)]:
        if tag == _USER and identifier not in (0, uid):
            yield f"{_user_name(identifier)}, by an access control list (`getfacl {path}` shows it)"
        elif tag == _OWNING_GROUP and not _is_private_group(status.st_gid, uid):
            yield f"group {_group_name(status.st_gid)}"
        elif tag == _GROUP and not _is_private_group(identifier, uid):
            yield f"group {_group_name(identifier)}, by an access control list (`getfacl {path}` shows it)"


def _writable_acl_entries(path: Path) -> list[tuple[int, int]] | None:
    """Return the ACL's entries that grant the right to write, as (tag, uid or gid); None without an ACL."""
    if not hasattr(os, "getxattr"):
        return None  # not Linux
    try:
        acl = os.getxattr(path, _ACL)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP):
            return None
        raise
    entries = _ACL_ENTRY.iter_unpack(acl[_ACL_HEAD.size :])
    return [(tag, identifier) for tag, rights, identifier in entries if rights & _WRITE]


def _wrong_owner_message(path: Path, owner_uid: int, uid: int) -> str:
    message = f"{path} belongs to {_user_name(owner_uid)}, and this process runs as {_user_name(uid)}"
    if uid == 0 and os.environ.get("SUDO_UID") == str(owner_uid):
        return f"{message}; run the command without sudo"
    return message


def _is_private_group(gid: int, uid: int) -> bool:
    """Return whether the group's only members are this user and root, as Debian's ssh decides it."""
    import grp
    import pwd

    try:
        names = {pwd.getpwuid(uid).pw_name, "root"}
        members = grp.getgrgid(gid).gr_mem
    except KeyError:
        return False
    primary_users = [entry.pw_uid for entry in pwd.getpwall() if entry.pw_gid == gid]
    return names.issuperset(members) and {0, uid}.issuperset(primary_users) and bool(members or primary_users)


def _is_unmapped(uid: int) -> bool:
    """Return whether ``uid`` stands for all users outside this user namespace (a rootless container). None of
    them is a user inside it."""
    try:
        overflow_uid = int(Path("/proc/sys/kernel/overflowuid").read_text())
        mapped_count = sum(
            int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines()
        )
    except (OSError, ValueError, IndexError):
        return False
    return uid == overflow_uid and mapped_count < 2**32 - 1


def _user_name(uid: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _group_name(gid: int) -> str:
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return f"id {gid}"
