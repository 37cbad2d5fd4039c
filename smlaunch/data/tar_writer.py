"""A USTAR writer in plain Python, byte for byte what GNU tar writes for the same list of files.

It is loaded in processes that load nothing else of smlaunch (``folder_worker``), so it imports little.

Fixed in every header: mode 0644, user and group 0 without names, time 0, so that an archive depends on names
and contents only. Each file is read by one call and checksummed on the way: three system calls per small
file, where ``tarfile`` needs about 23 and GNU tar 7.
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

BLOCK_BYTES = 512
RECORD_BYTES = 20 * BLOCK_BYTES
"""GNU tar pads an archive to whole records."""

MAX_NAME_BYTES = 100
MAX_PREFIX_BYTES = 155
SIZE_LIMIT_BYTES = 8 << 30
"""Eleven octal digits (POSIX ustar). A file has to be smaller."""

_BUFFER_BYTES = 1 << 18
"""Bytes gathered before they are checksummed and written: they are still in the processor's cache then."""

_BEFORE_SIZE = b"0000644\0" + b"0000000\0" * 2
_AFTER_NAME = tuple(bytes(MAX_NAME_BYTES - length) + _BEFORE_SIZE for length in range(MAX_NAME_BYTES + 1))
_BETWEEN = b"%011o\0" % 0  # mtime
_MAGIC = b"ustar\x0000"
_DEVICES = b"0000000\0" * 2
_FIXED = sum(_BEFORE_SIZE) + sum(_BETWEEN) + sum(_MAGIC) + sum(_DEVICES) + 8 * 0x20 + 0x30
_AFTER_SUM = b"\0 0" + bytes(100) + _MAGIC + bytes(64) + _DEVICES
_NO_PREFIX = _AFTER_SUM + bytes(167)
_PADDING_BY_REMAINDER = tuple(bytes(-size % BLOCK_BYTES) for size in range(BLOCK_BYTES))


if TYPE_CHECKING:
    ChecksumKind = Literal["crc32", "sha256"]

    class RunningChecksum(Protocol):
        def update(self, content: bytes | memoryview) -> object: ...

        def hexdigest(self) -> str: ...


class Crc32:
    """CRC-32 with the interface of ``hashlib``."""

    def __init__(self, content: bytes = b"") -> None:
        self._value: int = crc32(content)

    def update(self, content: bytes | memoryview, /) -> None:
        self._value = crc32(content, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def new_checksum(kind: ChecksumKind) -> RunningChecksum:
    """Return a running checksum. CRC-32 (as in zip, gzip and S3) detects accidental damage, two to five times
    as fast as SHA-256."""
    if kind == "crc32":
        return Crc32()
    from hashlib import sha256  # loading OpenSSL is a fifth of this program's start

    return sha256()


class NameTooLong(ValueError):
    """The name does not fit into a USTAR header."""


def tar_header(name: bytes, size: int) -> bytes:
    """Return the 512 bytes before a regular file's content. Raises NameTooLong."""
    header_end = _NO_PREFIX
    prefix_sum = 0
    if len(name) > MAX_NAME_BYTES:
        prefix_bytes = prefix_length(name)
        prefix, name = name[:prefix_bytes], name[prefix_bytes + 1 :]
        header_end = _AFTER_SUM + prefix.ljust(167, b"\0")
        prefix_sum = sum(prefix)
    octal_size = b"%011o" % size
    checksum = _FIXED + prefix_sum + sum(name) + sum(octal_size)
    return b"%b%b%b\0%b%06o%b" % (name, _AFTER_NAME[len(name)], octal_size, _BETWEEN, checksum, header_end)


def prefix_length(name: bytes) -> int:
    """Return the position of the slash that divides a long name into prefix and name: the last one that the
    prefix can reach, as GNU tar does it (``tarfile`` takes the first one that fits). Raises NameTooLong if
    there is none."""
    slash = name.rfind(b"/", 1, MAX_PREFIX_BYTES + 1)
    if slash < 0 or not 0 < len(name) - slash - 1 <= MAX_NAME_BYTES:
        raise NameTooLong
    return slash


def archive_size_bytes(member_bytes: int) -> int:
    """Return the size of an archive whose members take up ``member_bytes``: with its end, in whole
    records."""
    return member_bytes + 2 * BLOCK_BYTES + -(member_bytes + 2 * BLOCK_BYTES) % RECORD_BYTES


def write_archive(
    root_fd: int,
    files: Iterable[tuple[bytes, int]],
    write_block: Callable[[memoryview], object],
    on_file_problem: Callable[[bytes, str], object],
    follow_links: bool = False,
    checksum: ChecksumKind = "crc32",
) -> str:
    """Write the tar archive of ``files`` (name, size) below the open directory ``root_fd``. Return its
    checksum with its kind, ``crc32:0a1b2c3d``.

    Headers and contents are collected in a buffer, which ``write_block`` gets when it is full.
    ``on_file_problem`` is called with name and problem for every file that is not as listed; the archive is
    then invalid and has to be deleted."""
    # Do not wait for a pipe's writer, and do not follow a link that has replaced a file.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    # Local names are looked up faster, which counts with millions of files.
    open_file, readv, close_file = os.open, os.readv, os.close
    # By the bytes of a file in its last block: the zeros that fill it up.
    padding_by_remainder, make_header = _PADDING_BY_REMAINDER, tar_header
    output = ArchiveOutput(write_block, checksum)  # has the buffer; checksums and writes what is flushed
    buffer, position = output.buffer, 0
    for name, size in files:
        try:
            descriptor = open_file(name, flags, dir_fd=root_fd)
        except OSError as error:
            on_file_problem(name, describe_file_error(error))
            continue
        # In the buffer: header, content from start to end, padding up to a whole block (512 bytes).
        start = position + BLOCK_BYTES
        end = start + size
        if end + BLOCK_BYTES > _BUFFER_BYTES:  # write what is there, and begin again with an empty buffer
            output.flush(position)
            position, start, end = 0, BLOCK_BYTES, BLOCK_BYTES + size
        try:
            buffer[position:start] = make_header(name, size)
            # One byte more than expected shows whether the file has grown, in the same call.
            if end + BLOCK_BYTES <= _BUFFER_BYTES and readv(descriptor, (buffer[start : end + 1],)) == size:
                position = end + -size % BLOCK_BYTES
                buffer[end:position] = padding_by_remainder[size % BLOCK_BYTES]
            else:  # too large for the buffer, or changed
                os.lseek(descriptor, 0, os.SEEK_SET)
                position = output.copy_file_content(descriptor, start, size)
        except OSError as error:
            on_file_problem(name, describe_file_error(error))
        except SizeChangedError:
            on_file_problem(name, "has another size than when it was listed")
        finally:
            close_file(descriptor)
    output.flush(position)
    output.write_end_of_archive()
    return output.checksum


def describe_file_error(error: OSError) -> str:
    """Return what is wrong with a file, in words that follow its name."""
    return "is gone" if error.errno == ENOENT else f"cannot be read: {error.strerror}"


class SizeChangedError(Exception):
    """A file does not have the size it was listed with."""


class ArchiveOutput:
    """Where an archive is written. ``buffer`` is filled from its beginning, then flushed: checksummed and
    written."""

    def __init__(self, write: Callable[[memoryview], object], checksum: ChecksumKind) -> None:
        self.buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._checksum_kind, self._checksum = checksum, new_checksum(checksum)
        self._write_block, self._written_bytes = write, 0

    @property
    def checksum(self) -> str:
        """The checksum of all bytes written so far, with its kind."""
        return f"{self._checksum_kind}:{self._checksum.hexdigest()}"

    def write(self, content: bytes | memoryview) -> None:
        self._checksum.update(content)
        self._write_block(memoryview(content))
        self._written_bytes += len(content)

    def flush(self, end: int) -> None:
        if end:
            self.write(self.buffer[:end])

    def write_end_of_archive(self) -> None:
        """Write the end of the archive, after the last member."""
        self.write(bytes(archive_size_bytes(self._written_bytes) - self._written_bytes))

    def copy_file_content(self, descriptor: int, start: int, size: int) -> int:
        """Copy a file of any size into the archive, through its buffer from the position ``start`` on, which
        is flushed when it is full. Return the position in the buffer after the file and its padding. Raises
        SizeChangedError unless the file has ``size`` bytes."""
        remaining_bytes = size
        position = start  # in the buffer of _BUFFER_BYTES
        while True:
            # One byte more than expected shows whether the file has grown.
            read_bytes = os.readv(descriptor, (self.buffer[position : position + remaining_bytes + 1],))
            if read_bytes == 0:  # the end of the file
                break
            remaining_bytes -= read_bytes
            position += read_bytes
            if remaining_bytes < 0:
                raise SizeChangedError
            if position == _BUFFER_BYTES:
                self.flush(position)
                position = 0
        if remaining_bytes:
            raise SizeChangedError
        if position + BLOCK_BYTES > _BUFFER_BYTES:
            self.flush(position)
            position = 0
        end = position + -size % BLOCK_BYTES
        self.buffer[position:end] = _PADDING_BY_REMAINDER[size % BLOCK_BYTES]
        return end
