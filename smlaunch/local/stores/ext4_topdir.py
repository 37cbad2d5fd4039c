"""Set ext4's attribute T (chattr(1)) on a directory, so that creating many files below it is fast.

ext4 puts a new file's inode into the block group of its directory, and a new directory into its parent's. On
a disk with many files that group is full, and the kernel searches the next groups again for each file.
Measured: to create 5,000 files took 1 to 3 s below an ordinary directory, and 0.13 s below a subdirectory of
one with attribute T, which makes the kernel pick an empty group for each subdirectory.
"""

from __future__ import annotations

import os
import struct
import sys
from contextlib import suppress
from pathlib import Path

_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602
"""FS_IOC_GETFLAGS and FS_IOC_SETFLAGS of 64-bit Linux (linux/fs.h)."""

_TOP_OF_HIERARCHY = 0x00020000
"""FS_TOPDIR_FL."""


def mark_as_topdir(folder: Path) -> None:
    """Set the attribute on ``folder``: each new subdirectory gets its own block group. Does nothing on other
    file systems."""
    if not sys.platform.startswith("linux"):
        return
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # another file system, or somebody else's directory
            (flags,) = struct.unpack_from("i", fcntl.ioctl(descriptor, _GET_FLAGS, bytes(8)))
            if not flags & _TOP_OF_HIERARCHY:
                fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("q", flags | _TOP_OF_HIERARCHY))
    finally:
        os.close(descriptor)
