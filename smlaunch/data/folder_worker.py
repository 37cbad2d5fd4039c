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
        listed; or FAILED_REPLY, the reason and its errno, if the archive cannot be written (it must not exist
        yet)

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


def stat_names(root_fd: int, names: Sequence[bytes], follow_links: bool) -> bytes:
    """Return the worker's reply to a request to look files up, for names below the open folder ``root_fd``:
    for each of them mode (0: the file is gone; a bare errno: it cannot be looked up), size in bytes and
    nanoseconds of the last change, as 64-bit numbers. ``follow_links``: a link to a regular file counts as
    that file."""
    lstat, stat_numbers = os.lstat, array("q")  # of 64-bit numbers
    append_number = stat_numbers.append
    for name in names:
        try:
            file_stat = lstat(name, dir_fd=root_fd)
            mode = file_stat.st_mode
        except OSError as error:
            is_missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
            # A bare errno cannot be taken for a mode, which has bits of the file's type.
            stat_numbers.extend((0 if is_missing else error.errno or EIO, 0, 0))
            continue
        if follow_links and stat.S_ISLNK(mode):
            target_stat = _stat_linked_file(root_fd, name)
            if target_stat is not None:  # else it is reported as a link
                file_stat, mode = target_stat, target_stat.st_mode
        # One by one: extending by a tuple takes longer.
        append_number(mode)
        append_number(file_stat.st_size)
        append_number(file_stat.st_mtime_ns)
    return stat_numbers.tobytes()


def _stat_linked_file(root_fd: int, name: bytes) -> os.stat_result | None:
    """Return the stat result of the regular file that a link leads to; None for any other link, also a
    dangling, circular or unreadable one."""
    try:
        target_stat = os.stat(name, dir_fd=root_fd)
    except OSError:
        return None
    return target_stat if stat.S_ISREG(target_stat.st_mode) else None


class _WriteError(Exception):
    """The archive cannot be written. Not an OSError: those belong to the files read."""


def _reply_to_archive_request(
    write_archive: Callable[..., str], root_fd: int, follow_links: bool, parts: Sequence[bytes]
) -> list[bytes]:
    """Return the reply to ARCHIVE_REQUEST."""
    archive_path, checksum, sizes, names = parts
    problems: list[bytes] = []
    try:
        with open(archive_path, "xb", buffering=0) as archive:  # noqa: PTH123 (pathlib is a quarter of the start)
            digest = write_archive(
                root_fd,
                zip(names.split(b"\0"), array("q", sizes), strict=True),
                lambda block: _write_all(archive, block),
                lambda name, problem: problems.extend((name, problem.encode())),
                follow_links,
                checksum.decode(),
            )
    except (OSError, _WriteError) as error:
        number = getattr(error.__cause__ or error, "errno", None) or 0
        text = f"{os.fsdecode(archive_path)}: {error}"
        return [FAILED_REPLY, text.encode(errors="replace"), str(number).encode()]
    return [DONE_REPLY, digest.encode(), *problems]


def _write_all(archive: FileIO, block: memoryview) -> None:
    """Write all bytes: a single write may be cut short by a signal or a nearly full disk."""
    try:
        written_bytes = archive.write(block)
        while written_bytes < len(block):
            written_bytes += archive.write(block[written_bytes:])
    except OSError as error:
        raise _WriteError(error.strerror) from error


def serve_requests(write_archive: Callable[..., str], root: str, links_option: str = "") -> None:
    """In a worker process: serve the parent process's requests, to look up files below ``root`` or to write
    tar archives of them, until it ends. A request is a message of byte strings: its kind, and fields that
    depend on it. ``write_archive``: ``tar_writer``'s function, passed since a worker imports little.
    ``links_option``: the worker's command-line option, ``--follow-links`` or empty."""
    follow_links = links_option == FOLLOW_LINKS_OPTION
    request_stream, reply_stream = sys.stdin.buffer, sys.stdout.buffer
    root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        while True:
            request_kind, *fields = receive_message(request_stream)  # EOFError at the input's end
            if request_kind == STAT_REQUEST:
                names = fields[0].split(b"\0")  # relative to the root
                send_message(reply_stream, stat_names(root_fd, names, follow_links))
            else:  # a request to write an archive
                reply = _reply_to_archive_request(write_archive, root_fd, follow_links, fields)
                send_message(reply_stream, *reply)
    except (EOFError, BrokenPipeError):
        os._exit(0)  # The parent process has ended.
