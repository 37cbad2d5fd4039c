"""Write files atomically and durably: to a temporary path, forced to the disk, then renamed."""

import contextlib
import hashlib
import os
import shutil
from typing import Iterable, Iterator, Tuple, Union

_SLICE_BYTES = 4 << 20
"""Bytes hashed and written at a time: they are still in the processor's cache when they are written."""


def scratch_folder(directory: str) -> str:
    """Return a folder for files that are being written: beside the directory, so that no sync uploads them.

    A directory that is a mount of its own accepts no renames from outside. Then it is the directory itself:
    names that begin with a dot may get uploaded, but no reader takes them for shards.
    """
    sibling = os.path.join(os.path.dirname(directory), "." + os.path.basename(directory) + "-writing")
    probe = ".probe-{}".format(os.getpid())
    try:
        os.makedirs(sibling, exist_ok=True)
        with open(os.path.join(sibling, probe), "wb"):
            pass
        # Comparing device numbers is not enough: between two mounts of one device a rename fails as well.
        os.rename(os.path.join(sibling, probe), os.path.join(directory, probe))
        os.unlink(os.path.join(directory, probe))
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(sibling, probe))
        return directory
    return sibling


def write_durably(path: str, chunks: Iterable[Union[bytes, memoryview]]) -> Tuple[str, int]:
    """Write and fsync a file. Return the sha256 and the size in bytes."""
    digest = hashlib.sha256()
    size = 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        for piece in _slices(chunks):
            digest.update(piece)
            size += piece.nbytes
            while piece.nbytes:
                piece = piece[os.write(descriptor, piece) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return digest.hexdigest(), size


def _slices(chunks: Iterable[Union[bytes, memoryview]]) -> Iterator[memoryview]:
    for chunk in chunks:
        view = memoryview(chunk)
        for start in range(0, view.nbytes, _SLICE_BYTES):
            yield view[start : start + _SLICE_BYTES]


def fsync_folder(path: str) -> None:
    """Make names durable that were created or changed in a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def free_bytes(directory: str) -> int:
    """Return the free bytes of the file system."""
    return shutil.disk_usage(directory).free
