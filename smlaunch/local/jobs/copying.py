"""Copying files' contents as fast as the disk allows: a hundred thousand small ones, or one of gigabytes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_SMALL = 1 << 16
"""Bytes. Up to this one read and one write are five times faster than any call that copies in the kernel
(measured: ext4, 100-byte files)."""

_FICLONE = 0x40049409


def copy_file(source: str | Path, target: str | Path) -> None:
    """Contents only; an existing target is overwritten. Raises OSError."""
    reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        copy_open_file(reader, target, sys.maxsize)
    finally:
        os.close(reader)


def copy_open_file(reader: int, target: str | Path, limit: int) -> None:
    """The same of a descriptor, of which at most ``limit`` bytes are read: somebody may be making the file
    longer all the time. Shares a large file's blocks where the file system can (btrfs, xfs)."""
    writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        block = os.read(reader, min(limit, _SMALL))
        if len(block) < _SMALL:
            _write(writer, block)
        elif not _share_blocks(reader, writer):
            while block:
                _write(writer, block)
                limit -= len(block)
                block = os.read(reader, min(limit, 1 << 20))
    finally:
        os.close(writer)


def _write(writer: int, block: bytes) -> None:
    remaining = memoryview(block)
    while remaining:
        remaining = remaining[os.write(writer, remaining) :]


def _share_blocks(reader: int, writer: int) -> bool:
    """False on another disk, or a file system that cannot (ext4)."""
    if sys.platform != "linux":
        return False
    import fcntl

    try:
        fcntl.ioctl(writer, _FICLONE, reader)
    except OSError:
        return False
    return True
