"""A USTAR writer that needs nothing but Python, byte for byte what GNU tar makes of the same list of files.

Loaded in processes that have nothing of smlaunch else (``folder_worker``), so it imports little.

Fixed in every header: mode 0644, user and group 0 without names, time 0, so that an archive depends on names
and contents only. Contents are read in one call per file and summed in passing: three system calls per small
file, where ``tarfile`` takes about 23 and GNU tar 7.
"""

from __future__ import annotations

import os
from errno import ENOENT

try:
    from isal.isal_zlib import crc32  # by the processor's own instructions: 95 GB/s, and zlib's 3 to 5
except ImportError:
    from zlib import crc32

TYPE_CHECKING = False  # as type checkers know it: `typing` and `collections` are most of a start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Literal, Protocol

BLOCK = 512
RECORD = 20 * BLOCK
"""GNU tar pads an archive to whole records."""

NAME_LIMIT = 100
PREFIX_LIMIT = 155
SIZE_LIMIT = 8 << 30
"""Bytes: eleven octal digits (POSIX ustar). A file has to be smaller."""

_BATCH = 1 << 18
"""Bytes gathered before they are summed and written: they are still in the processor's cache then."""

_BEFORE_SIZE = b"0000644\0" + b"0000000\0" * 2
_AFTER_NAME = tuple(bytes(NAME_LIMIT - length) + _BEFORE_SIZE for length in range(NAME_LIMIT + 1))
_BETWEEN = b"%011o\0" % 0  # mtime
_MAGIC = b"ustar\x0000"
_DEVICES = b"0000000\0" * 2
_FIXED = sum(_BEFORE_SIZE) + sum(_BETWEEN) + sum(_MAGIC) + sum(_DEVICES) + 8 * 0x20 + 0x30
_AFTER_SUM = b"\0 0" + bytes(100) + _MAGIC + bytes(64) + _DEVICES
_NO_PREFIX = _AFTER_SUM + bytes(167)
_PAD = tuple(bytes(-size % BLOCK) for size in range(BLOCK))


if TYPE_CHECKING:
    Checksum = Literal["crc32", "sha256"]

    class Sum(Protocol):
        def update(self, content: bytes | memoryview) -> object: ...

        def hexdigest(self) -> str: ...


class Crc32:
    """CRC-32 in the shape of ``hashlib``'s."""

    def __init__(self, content: bytes = b"") -> None:
        self._sum: int = crc32(content)

    def update(self, content: bytes | memoryview, /) -> None:
        self._sum = crc32(content, self._sum)

    def digest(self) -> bytes:
        return self._sum.to_bytes(4, "big")

    def hexdigest(self) -> str:
        return f"{self._sum:08x}"


def new_sum(kind: Checksum) -> Sum:
    """CRC-32 (as in zip, gzip and S3) for damage by accident, at two to five times the speed of SHA-256."""
    if kind == "crc32":
        return Crc32()
    from hashlib import sha256  # loading OpenSSL is a fifth of this program's start

    return sha256()


class NameTooLong(ValueError):
    """USTAR has no room for this name."""


def header(name: bytes, size: int) -> bytes:
    """The 512 bytes before a regular file's content. NameTooLong when the name does not fit."""
    end = _NO_PREFIX
    prefix_sum = 0
    if len(name) > NAME_LIMIT:
        cut = split_name(name)
        prefix, name = name[:cut], name[cut + 1 :]
        end = _AFTER_SUM + prefix.ljust(167, b"\0")
        prefix_sum = sum(prefix)
    octal = b"%011o" % size
    checksum = _FIXED + prefix_sum + sum(name) + sum(octal)
    return b"%b%b%b\0%b%06o%b" % (name, _AFTER_NAME[len(name)], octal, _BETWEEN, checksum, end)


def split_name(name: bytes) -> int:
    """Where the slash is that parts a long name into prefix and name: the last one that the prefix can reach,
    as GNU tar does it (``tarfile`` takes the first one that fits). NameTooLong when there is none."""
    cut = name.rfind(b"/", 1, PREFIX_LIMIT + 1)
    if cut < 0 or not 0 < len(name) - cut - 1 <= NAME_LIMIT:
        raise NameTooLong
    return cut


def archive_size(members: int) -> int:
    """Bytes of an archive whose members take up ``members`` bytes: with its end, in whole records."""
    return members + 2 * BLOCK + -(members + 2 * BLOCK) % RECORD


def write_archive(
    root: int,
    files: Iterable[tuple[bytes, int]],
    write: Callable[[memoryview], object],
    tell: Callable[[bytes, str], object],
    follow_links: bool = False,
    checksum: Checksum = "crc32",
) -> str:
    """The archive of ``files`` (name, size) below the open directory ``root``; returns its checksum, after
    its kind: ``crc32:0a1b2c3d``.

    ``tell`` hears (name, what is the matter) of every file that is not as listed; the archive is then no
    archive, and to be thrown away.
    """
    # Never waits for a pipe's writer, and never follows a link that has taken a file's place.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    open_, readv, close, pad, head = os.open, os.readv, os.close, _PAD, header
    out = Output(write, checksum)
    room, at = out.room, 0
    for name, size in files:
        try:
            handle = open_(name, flags, dir_fd=root)
        except OSError as error:
            tell(name, why(error))
            continue
        start = at + BLOCK
        end = start + size
        if end + BLOCK > _BATCH:
            out.flush(at)
            at, start, end = 0, BLOCK, BLOCK + size
        try:
            room[at:start] = head(name, size)
            # One byte more than there should be: a file that has grown is seen by the same call.
            if end + BLOCK <= _BATCH and readv(handle, (room[start : end + 1],)) == size:
                at = end + -size % BLOCK
                room[end:at] = pad[size % BLOCK]
            else:
                os.lseek(handle, 0, os.SEEK_SET)
                at = out.copy(handle, start, size)
        except OSError as error:
            tell(name, why(error))
        except ChangedError:
            tell(name, "has another size than when it was listed")
        finally:
            close(handle)
    out.flush(at)
    out.end()
    return out.checksum


def why(error: OSError) -> str:
    """What is the matter with a file, in words that follow its name."""
    return "is gone" if error.errno == ENOENT else f"cannot be read: {error.strerror}"


class ChangedError(Exception):
    """A file has not the size it was listed with."""


class Output:
    """Where an archive goes: ``room`` is filled from its beginning, then flushed: summed and written."""

    def __init__(self, write: Callable[[memoryview], object], checksum: Checksum) -> None:
        self.room = memoryview(bytearray(_BATCH))
        self._kind, self._sum = checksum, new_sum(checksum)
        self._write, self._size = write, 0

    @property
    def checksum(self) -> str:
        """Of what has been put, after its kind."""
        return f"{self._kind}:{self._sum.hexdigest()}"

    def put(self, content: bytes | memoryview) -> None:
        self._sum.update(content)
        self._write(memoryview(content))
        self._size += len(content)

    def flush(self, end: int) -> None:
        if end:
            self.put(self.room[:end])

    def end(self) -> None:
        """What comes after the last member."""
        self.put(bytes(archive_size(self._size) - self._size))

    def copy(self, handle: int, start: int, size: int) -> int:
        """The slow way: piece by piece. Returns where in ``room`` to go on. Raises ChangedError."""
        left = size
        while read := os.readv(handle, (self.room[start : start + left + 1],)):
            left -= read
            start += read
            if left < 0:
                raise ChangedError
            if start == _BATCH:
                self.flush(start)
                start = 0
        if left:
            raise ChangedError
        if start + BLOCK > _BATCH:
            self.flush(start)
            start = 0
        end = start + -size % BLOCK
        self.room[start:end] = _PAD[size % BLOCK]
        return end
