"""A worker process for the files of a folder: it looks files up, and writes archives of them.

It needs nothing but Python and ``tar_writer``. ``folder_worker_pool`` starts it without importing smlaunch
and without the user's Python set-up: in 15 ms instead of 40. It serves requests until its input ends.

A message, in both directions, is a list of byte strings: how many, then their lengths (64-bit numbers), then
the bytes.

    STAT_REQUEST, names
        reply: three 64-bit numbers for each name: mode (0: the file is gone; a bare errno: it cannot be
        looked up), size in bytes, nanoseconds of the last change
    ARCHIVE_REQUEST, archive path, checksum kind, sizes, names
        reply: DONE_REPLY, the checksum with its kind, and name and problem of every file that is not as
        listed; or FAILED_REPLY and the reason, if the archive cannot be written (it must not exist yet)

Names are relative to the folder, separated by NUL; sizes are 64-bit numbers.
"""

from __future__ import annotations

import os
import stat
import sys
from array import array
from errno import EIO

TYPE_CHECKING = False  # as type checkers know it: `typing` and `collections` are most of a start
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from io import FileIO
    from typing import IO

FOLLOW_LINKS_OPTION = "--follow-links"
STAT_REQUEST, ARCHIVE_REQUEST = b"facts", b"archive"
DONE_REPLY, FAILED_REPLY = b"done", b"broken"


def send_message(stream: IO[bytes], *parts: bytes) -> None:
    stream.write(array("q", [len(parts), *map(len, parts)]).tobytes() + b"".join(parts))
    stream.flush()


def receive_message(stream: IO[bytes]) -> list[bytes]:
    """Raises EOFError at the end of the input."""
    (count,) = array("q", _read_exactly(stream, 8))
    lengths = array("q", _read_exactly(stream, 8 * count))
    return [_read_exactly(stream, length) for length in lengths]


def _read_exactly(stream: IO[bytes], length: int) -> bytes:
    content = stream.read(length)
    if len(content) < length:
        raise EOFError
    return content


def stat_names(root: int, names: Sequence[bytes], follow_links: bool) -> bytes:
    """Return the reply to STAT_REQUEST for names below the open folder ``root``."""
    lstat, numbers = os.lstat, array("q")
    append = numbers.append
    for name in names:
        try:
            file_stat = lstat(name, dir_fd=root)
            mode = file_stat.st_mode
        except OSError as error:
            is_missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
            numbers.extend((0 if is_missing else error.errno or EIO, 0, 0))
            continue
        if follow_links and stat.S_ISLNK(mode):
            try:
                target = os.stat(name, dir_fd=root)
            except OSError:
                pass  # A dangling, circular or unreadable link is reported as a link.
            else:
                if stat.S_ISREG(target.st_mode):
                    file_stat, mode = target, target.st_mode
        # One by one: extending by a tuple takes longer.
        append(mode)
        append(file_stat.st_size)
        append(file_stat.st_mtime_ns)
    return numbers.tobytes()


class _WriteError(Exception):
    """The archive cannot be written. Not an OSError: those belong to the files read."""


def _handle_archive(
    write_archive: Callable[..., str], root: int, follow_links: bool, parts: Sequence[bytes]
) -> list[bytes]:
    """Return the reply to ARCHIVE_REQUEST."""
    archive_path, checksum, sizes, names = parts
    problems: list[bytes] = []
    try:
        with open(archive_path, "xb", buffering=0) as archive:  # noqa: PTH123 (pathlib is a quarter of the start)
            digest = write_archive(
                root,
                zip(names.split(b"\0"), array("q", sizes), strict=True),
                lambda block: _write_all(archive, block),
                lambda name, problem: problems.extend((name, problem.encode())),
                follow_links,
                checksum.decode(),
            )
    except (OSError, _WriteError) as error:
        return [FAILED_REPLY, f"{os.fsdecode(archive_path)}: {error}".encode(errors="replace")]
    return [DONE_REPLY, digest.encode(), *problems]


def _write_all(archive: FileIO, block: memoryview) -> None:
    """Write all bytes: a single write may be cut short by a signal or a nearly full disk."""
    try:
        written_bytes = archive.write(block)
        while written_bytes < len(block):
            written_bytes += archive.write(block[written_bytes:])
    except OSError as error:
        raise _WriteError(error.strerror) from error


def main(write_archive: Callable[..., str], root: str, follow: str = "") -> None:
    """Serve requests. ``write_archive``: that of ``tar_writer``."""
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        while True:
            request_kind, *parts = receive_message(requests)
            if request_kind == STAT_REQUEST:
                send_message(
                    replies, stat_names(folder, parts[0].split(b"\0"), follow == FOLLOW_LINKS_OPTION)
                )
            else:
                send_message(
                    replies, *_handle_archive(write_archive, folder, follow == FOLLOW_LINKS_OPTION, parts)
                )
    except (EOFError, BrokenPipeError):
        os._exit(0)  # The parent process has ended.
