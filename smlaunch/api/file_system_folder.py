"""A folder of a file system that hosts mount as an input."""

from __future__ import annotations

from typing import Literal, NamedTuple


class FileSystemFolder(NamedTuple):
    """A folder of a file system, as CreateTrainingJob has it."""

    type: Literal["EFS", "FSxLustre"]
    id: str
    """Such as fs-0123456789abcdef0."""

    directory: str
    """Its path; with FSx for Lustre the mount name is its first part."""
