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

_MAX_SYMBOLIC_LINKS = 40
_ACL_XATTR = "system.posix_acl_access"
_ACL_HEADER = struct.Struct("<I")
_ACL_ENTRY = struct.Struct("<HHI")
"""Tag, permissions, and the user's or group's number (linux/posix_acl_xattr.h)."""
_ACL_USER_TAG, _ACL_OWNING_GROUP_TAG, _ACL_GROUP_TAG = 0x02, 0x04, 0x08
_ACL_WRITE_PERMISSION = 0x02


class UntrustedPath(Exception):
    """Another user may write to a path. The message names the folder, the problem and the next step."""


def resolve_trusted_path(path: Path, owner_uid: int, create: bool = False) -> Path:
    """Resolve ``path`` including symbolic links, check that only ``owner_uid`` and root can write to every
    component, and return the resolved path, which ``owner_uid`` owns. With ``create``, missing folders are
    created with mode 0700; without it, resolution stops before the first missing one. Raises UntrustedPath
    and OSError."""
    # Path.resolve would not check the folders that hold the links on the way.
    resolved_path = Path(path.anchor)
    require_only_owner_writes(resolved_path, resolved_path.stat(), owner_uid)
    remaining_components = list(reversed(path.parts[1:]))  # the next one is the last of the list
    link_count = 0
    while remaining_components:
        component = remaining_components.pop()
        if component == "..":
            resolved_path = resolved_path.parent
            continue
        component_path = resolved_path / component
        path_stat = _lstat_or_create_folder(component_path, create)
        if path_stat is None:  # it is missing, and is not to be created
            return resolved_path
        if not any(is_type(path_stat.st_mode) for is_type in (stat.S_ISDIR, stat.S_ISLNK, stat.S_ISREG)):
            # Before its mode: that of a device is right as it is.
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(component_path))
        require_only_owner_writes(component_path, path_stat, owner_uid)
        if not stat.S_ISLNK(path_stat.st_mode):
            resolved_path = component_path
            continue
        link_count += 1
        if link_count > _MAX_SYMBOLIC_LINKS:  # 40, as in Linux: links may form a circle
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        # The link's target takes the link's place, and its components are checked too.
        link_target = component_path.readlink()
        target_components = link_target.parts
        if link_target.is_absolute():
            resolved_path, target_components = Path(link_target.anchor), target_components[1:]
        remaining_components += reversed(target_components)
    path_stat = resolved_path.stat()
    if path_stat.st_uid != owner_uid:
        raise UntrustedPath(_wrong_owner_message(resolved_path, path_stat.st_uid, owner_uid))
    # In a sticky folder such as /tmp others may add files: fine on the way, not in the folder itself.
    require_only_owner_writes(resolved_path, path_stat, owner_uid, allow_sticky=False)
    return resolved_path


def _lstat_or_create_folder(path: Path, create: bool) -> os.stat_result | None:
    """Return the status of a path, without following a link. A missing one is created as a folder with
    ``create``; otherwise None is returned."""
    try:
        return path.lstat()
    except FileNotFoundError:
        if not create:
            return None
    path.mkdir(mode=0o700, exist_ok=True)  # two processes may create it
    return path.lstat()


def require_only_owner_writes(
    path: Path, path_stat: os.stat_result, owner_uid: int, allow_sticky: bool = True
) -> None:
    """Raise UntrustedPath for a folder, file or link that a user other than ``owner_uid`` and root owns or
    may write. ``allow_sticky``: accept a folder with the sticky bit, where others can add files but not
    replace them."""
    # In a rootless container, the host's folders seem to belong to a user that nobody in it can be.
    is_trusted_owner = path_stat.st_uid in (0, owner_uid) or _is_outside_user_namespace(path_stat.st_uid)
    if not is_trusted_owner:
        raise UntrustedPath(_wrong_owner_message(path, path_stat.st_uid, owner_uid))
    # The mode of a link has no meaning: the folder around it decides who can replace it.
    if stat.S_ISLNK(path_stat.st_mode) or (allow_sticky and path_stat.st_mode & stat.S_ISVTX):
        return
    if path_stat.st_mode & stat.S_IWOTH:
        # mode_change: the argument of the chmod command that the message gives.
        raise UntrustedPath(_writable_by_others_message(path, path_stat, "everybody", mode_change="o-w"))
    for other_writer in _describe_other_writers(path, path_stat, owner_uid):  # the first one is named
        raise UntrustedPath(_writable_by_others_message(path, path_stat, other_writer, mode_change="g-w"))


def _writable_by_others_message(
    path: Path, path_stat: os.stat_result, other_writer: str, mode_change: str
) -> str:
    """Return the error text for a path that ``other_writer`` can write until ``chmod mode_change``."""
    return (
        f"{path} can be written by {other_writer} (mode {stat.S_IMODE(path_stat.st_mode):04o}), so its "
        "content may be another user's; if you trust its content, "
        f"`chmod {mode_change} {path}`"
    )


def _describe_other_writers(path: Path, path_stat: os.stat_result, owner_uid: int) -> Iterator[str]:
    """Yield descriptions of the users and groups, other than ``owner_uid``, root and their private groups,
    that may write to ``path`` by the group digit of its mode. With an access control list (ACL), that digit
    is the ACL's mask, so `chmod g-w` removes the right from all of its entries. A private group has no
    members but ``owner_uid`` and root."""
    if not path_stat.st_mode & stat.S_IWGRP:
        return
    acl_entries = _writable_acl_entries(path)  # (tag: what the entry is for, its uid or gid)
    if not acl_entries:
        acl_entries = [(_ACL_OWNING_GROUP_TAG, 0)]  # without an ACL, the digit is the owning group's
    for acl_tag, uid_or_gid in acl_entries:
        if acl_tag == _ACL_USER_TAG and uid_or_gid not in (0, owner_uid):
            yield f"{_user_name(uid_or_gid)}, by an access control list (`getfacl {path}` shows it)"
        elif acl_tag == _ACL_OWNING_GROUP_TAG and not _is_private_group(path_stat.st_gid, owner_uid):
            yield f"group {_group_name(path_stat.st_gid)}"
        elif acl_tag == _ACL_GROUP_TAG and not _is_private_group(uid_or_gid, owner_uid):
            yield f"group {_group_name(uid_or_gid)}, by an access control list (`getfacl {path}` shows it)"


def _writable_acl_entries(path: Path) -> list[tuple[int, int]] | None:
    """Return the entries of a path's POSIX access control list (ACL) that grant the right to write, as (tag:
    whether it is for a user, a group or the owning group; uid or gid). None without an ACL."""
    if not hasattr(os, "getxattr"):
        return None  # not Linux
    try:
        acl_bytes = os.getxattr(path, _ACL_XATTR)  # a header, then entries of fixed length
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP):  # the path, or its file system, has no ACLs
            return None
        raise
    entries = _ACL_ENTRY.iter_unpack(acl_bytes[_ACL_HEADER.size :])
    return [
        (acl_tag, uid_or_gid)
        for acl_tag, permissions, uid_or_gid in entries
        if permissions & _ACL_WRITE_PERMISSION
    ]


def _wrong_owner_message(path: Path, owner_uid: int, uid: int) -> str:
    """Return the error text for a path that ``owner_uid`` owns, where ``uid`` should."""
    message = f"{path} belongs to {_user_name(owner_uid)}, and this process runs as {_user_name(uid)}"
    if uid == 0 and os.environ.get("SUDO_UID") == str(owner_uid):
        return f"{message}; run the command without sudo"
    return message


def _is_private_group(gid: int, uid: int) -> bool:
    """Return whether the group's only members are this user and root, as Debian's ssh decides it."""
    import grp
    import pwd

    try:
        user_name = pwd.getpwuid(uid).pw_name
        member_names = grp.getgrgid(gid).gr_mem
    except KeyError:
        return False
    uids_with_primary_group = [entry.pw_uid for entry in pwd.getpwall() if entry.pw_gid == gid]
    has_members = bool(member_names or uids_with_primary_group)
    has_other_members = not (
        {user_name, "root"}.issuperset(member_names) and {uid, 0}.issuperset(uids_with_primary_group)
    )
    return has_members and not has_other_members


def _is_outside_user_namespace(uid: int) -> bool:
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
