"""Addresses of file systems that hosts mount: ``fsx://ID/MOUNT/folder`` and ``efs://ID/folder``."""

from __future__ import annotations

import re

from smlaunch.api.file_system_folder import FileSystemFolder
from smlaunch.job.sections import FieldError

_PATTERN = r"((fsx|efs)://fs-[0-9a-f]{8,17})(/.*)?"
"""The id as CreateTrainingJob has it (FileSystemId: at most 21 characters)."""

FILE_SYSTEM_SCHEMA = {"pattern": f"^{_PATTERN}$", "not": {"pattern": "^fsx://[^/]*/*$"}}

_ADDRESS = re.compile(_PATTERN)
_SCHEME = re.compile("(fsx|efs)://", re.IGNORECASE)


def has_file_system_scheme(uri: str) -> bool:
    """Whether the text means a file system, well written or not."""
    return _SCHEME.match(uri) is not None


def find_file_system_folder(uri: str) -> FileSystemFolder | None:
    """Return the folder that an address names; None for an address of another kind, and for a wrong one."""
    match = _ADDRESS.fullmatch(uri)
    if match is None:
        return None
    address, scheme, directory = match.groups()
    file_system_id = address[len(f"{scheme}://") :]
    return FileSystemFolder("EFS" if scheme == "efs" else "FSxLustre", file_system_id, directory or "/")


def check_file_system_uri(uri: str) -> str:
    """Return the address of a file system unchanged. Raises FieldError for a wrong one."""
    folder = find_file_system_folder(uri)
    if folder is None:
        scheme = uri[:3].lower()
        example = "/MOUNT_NAME/folder" if scheme == "fsx" else "/folder"
        raise FieldError(
            f"{uri!r} is not the address of a file system; write {scheme}://fs-0123456789abcdef0{example}"
        )
    if folder.type == "FSxLustre" and not folder.directory.strip("/"):
        raise FieldError(
            f"{uri!r} lacks the mount name of the file system (`aws fsx describe-file-systems` prints it); "
            f"write fsx://{folder.id}/MOUNT_NAME/folder"
        )
    return uri
