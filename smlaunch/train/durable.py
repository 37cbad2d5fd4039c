"""Files that are whole or not there: written beside their place, forced to the disk, renamed in."""

import contextlib
import hashlib
import os
import shutil
from typing import Iterable, Iterator, Tuple, Union

_SLICE = 4 << 20
"""Bytes hashed and written in one go: they are still in the processor's cache when they are written."""


def scratch_of(directory: str) -> str:
    """Where files are written until they are whole: beside the directory, so that no sync sees them.

    Where the directory is a mount of its own no file can be renamed into it from outside. Then it is the
    directory itself: names that begin with a dot may get uploaded there, but are no part to any reader.
    """
    beside = os.path.join(os.path.dirname(directory), "." + os.path.basename(directory) + "-writing")
    probe = ".probe-{}".format(os.getpid())
    try:
        os.makedirs(beside, exist_ok=True)
        with open(os.path.join(beside, probe), "wb"):
            pass
        # The same device number does not tell: between two mounts of one device a rename fails as well.
        os.rename(os.path.join(beside, probe), os.path.join(directory, probe))
        os.unlink(os.path.join(directory, probe))
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(beside, probe))
        return directory
    return beside


def write(path: str, chunks: Iterable[Union[bytes, memoryview]]) -> Tuple[str, int]:
    """The sha256 and size in bytes of what was written and forced to the disk."""
    digest = hashlib.sha256()
    size = 0
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        for piece in _slices(chunks):
            digest.update(piece)
            size += piece.nbytes
            while piece.nbytes:
                piece = piece[os.write(file, piece) :]
        os.fsync(file)
    finally:
        os.close(file)
    return digest.hexdigest(), size


def _slices(chunks: Iterable[Union[bytes, memoryview]]) -> Iterator[memoryview]:
    for chunk in chunks:
        view = memoryview(chunk)
        for start in range(0, view.nbytes, _SLICE):
            yield view[start : start + _SLICE]


def sync_names(path: str) -> None:
    """Makes names durable that were just made or changed in it."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def free(directory: str) -> int:
    """Bytes."""
    return shutil.disk_usage(directory).free
