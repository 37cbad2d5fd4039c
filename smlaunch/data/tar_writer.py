"""A USTAR writer that needs nothing but Python, byte for byte what GNU tar makes of the same list of files.

Also a program of its own, one process per core without an import of smlaunch:

    python -I -S tar_writer.py ROOT OUT crc32|sha256 [--follow-links] < list

The list is what ``list_of`` makes, names relative to ROOT. The archive's checksum goes to stdout. What has
changed or gone since the list was made is told on stderr, as ``name NUL what NUL`` each, and the exit code is
then 1; 3 is a disk that is full, and the like.

Fixed in every header: mode 0644, user and group 0 without names, time 0, so that an archive depends on names
and contents only. Contents are read in one call per file and summed in passing: three system calls per small
file, where ``tarfile`` takes about 23 and GNU tar 7.
"""

from __future__ import annotations

import os
import sys
from array import array
from errno import ENOENT

TYPE_CHECKING = False  # as type checkers know it: `typing` and `collections` are most of a start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from io import FileIO
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
        from zlib import crc32

        self._add, self._sum = crc32, crc32(content)

    def update(self, content: bytes | memoryview, /) -> None:
        self._sum = self._add(content, self._sum)

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
    return b"%b%b%b\0%b%06o%b" % (name.ljust(100, b"\0"), _BEFORE_SIZE, octal, _BETWEEN, checksum, end)


def split_name(name: bytes) -> int:
    """Where the slash is that parts a long name into prefix and name: the last one that the prefix can reach,
    as GNU tar does it (``tarfile`` takes the first one that fits). NameTooLong when there is none."""
    cut = name.rfind(b"/", 1, PREFIX_LIMIT + 1)
    if cut < 0 or not 0 < len(name) - cut - 1 <= NAME_LIMIT:
        raise NameTooLong
    return cut


def member_size(size: int) -> int:
    """Bytes that a file of ``size`` bytes takes up in an archive."""
    return BLOCK + size + -size % BLOCK


def archive_size(members: int) -> int:
    """Bytes of an archive whose members take up ``members`` bytes: with its end, in whole records."""
    return members + 2 * BLOCK + -(members + 2 * BLOCK) % RECORD


def end_of(members: int) -> bytes:
    """What comes after the last member."""
    return bytes(archive_size(members) - members)


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
    room, total, at = out.room, 0, 0
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
        total += member_size(size)
    out.flush(at)
    out.put(end_of(total))
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
        self._write = write

    @property
    def checksum(self) -> str:
        """Of what has been put, after its kind."""
        return f"{self._kind}:{self._sum.hexdigest()}"

    def put(self, content: bytes | memoryview) -> None:
        self._sum.update(content)
        self._write(memoryview(content))

    def flush(self, end: int) -> None:
        if end:
            self.put(self.room[:end])

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


FOLLOW = "--follow-links"
CHANGED = 1
BROKEN = 3


class _WriteError(Exception):
    """Not an OSError: those are a file's own."""


def list_of(names: Sequence[bytes], sizes: Sequence[int]) -> bytes:
    """How many files, then their sizes, each a 64-bit number, then names with a NUL between."""
    return array("q", [len(names), *sizes]).tobytes() + b"\0".join(names)


def main(root: str, out: str, checksum: Checksum, follow: str = "") -> int:
    """The program. ``out`` must not exist yet."""
    content = sys.stdin.buffer.read()
    (count,) = array("q", content[:8])
    names = content[8 + 8 * count :].split(b"\0")
    files = zip(names, array("q", content[8 : 8 + 8 * count]), strict=True)
    told: list[bytes] = []
    try:
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        with open(out, "xb", buffering=0) as archive:  # noqa: PTH123 (pathlib is a quarter of the start)
            digest = write_archive(
                folder,
                files,
                lambda block: _write_all(archive, block),
                lambda name, what: told.append(b"%b\0%b\0" % (name, what.encode())),
                follow == FOLLOW,
                checksum,
            )
    except (OSError, _WriteError) as error:
        sys.stderr.write(f"{out}: {error}\n")
        return BROKEN
    sys.stderr.buffer.writelines(told)
    sys.stdout.write(digest + "\n")
    return CHANGED if told else 0


def _write_all(archive: FileIO, block: memoryview) -> None:
    """A write of many bytes may be cut short: by a signal, or by a disk that is nearly full."""
    try:
        done = archive.write(block)
        while done < len(block):
            done += archive.write(block[done:])
    except OSError as error:
        raise _WriteError(error.strerror) from error


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))  # type: ignore[arg-type]
