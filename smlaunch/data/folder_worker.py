"""One of the processes that work on the files of a folder: it looks them up, and writes archives of them.

It needs nothing but Python and ``tar_writer``, and is started by ``folder_workers`` without an import of
smlaunch and without what Python loads for its user: in 15 ms instead of 40. It answers until its input ends.

A message, there and back, is some bytes each: how many, then their lengths (64-bit numbers), then the bytes.

    FACTS, names                          three 64-bit numbers for each name: mode (0: it is gone; an errno
                                          alone: it cannot be looked at), size in bytes,
                                          nanoseconds of the last change
    ARCHIVE, out, checksum, sizes, names  DONE, the checksum after its kind, and of every file that is not as
                                          listed its name and what is the matter; or BROKEN and why, where
                                          nothing can be written to ``out``, which must not exist yet

Names are relative to the folder, with a NUL between; sizes are 64-bit numbers.
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

FOLLOW = "--follow-links"
FACTS, ARCHIVE = b"facts", b"archive"
DONE, BROKEN = b"done", b"broken"


def send(stream: IO[bytes], *parts: bytes) -> None:
    stream.write(array("q", [len(parts), *map(len, parts)]).tobytes() + b"".join(parts))
    stream.flush()


def receive(stream: IO[bytes]) -> list[bytes]:
    """Raises EOFError at the end."""
    (count,) = array("q", _read(stream, 8))
    lengths = array("q", _read(stream, 8 * count))
    return [_read(stream, length) for length in lengths]


def _read(stream: IO[bytes], length: int) -> bytes:
    content = stream.read(length)
    if len(content) < length:
        raise EOFError
    return content


def facts_of(root: int, names: Sequence[bytes], follow_links: bool) -> bytes:
    """The answer to FACTS for names below the open folder ``root``."""
    look, facts = os.lstat, array("q")
    add = facts.append
    for name in names:
        try:
            found = look(name, dir_fd=root)
            mode = found.st_mode
        except OSError as error:
            gone = isinstance(error, (FileNotFoundError, NotADirectoryError))
            facts.extend((0 if gone else error.errno or EIO, 0, 0))
            continue
        if follow_links and stat.S_ISLNK(mode):
            try:
                target = os.stat(name, dir_fd=root)
            except OSError:
                pass  # It leads nowhere, in a circle, or where nobody may look: a link it is.
            else:
                if stat.S_ISREG(target.st_mode):
                    found, mode = target, target.st_mode
        # One by one: to extend by a tuple takes longer.
        add(mode)
        add(found.st_size)
        add(found.st_mtime_ns)
    return facts.tobytes()


class _WriteError(Exception):
    """Not an OSError: those are a file's own."""


def _archive(
    write_archive: Callable[..., str], root: int, follow_links: bool, parts: Sequence[bytes]
) -> list[bytes]:
    """The answer to ARCHIVE."""
    out, checksum, sizes, names = parts
    told: list[bytes] = []
    try:
        with open(out, "xb", buffering=0) as archive:  # noqa: PTH123 (pathlib is a quarter of the start)
            digest = write_archive(
                root,
                zip(names.split(b"\0"), array("q", sizes), strict=True),
                lambda block: _write_all(archive, block),
                lambda name, what: told.extend((name, what.encode())),
                follow_links,
                checksum.decode(),
            )
    except (OSError, _WriteError) as error:
        return [BROKEN, f"{os.fsdecode(out)}: {error}".encode(errors="replace")]
    return [DONE, digest.encode(), *told]


def _write_all(archive: FileIO, block: memoryview) -> None:
    """A write of many bytes may be cut short: by a signal, or by a disk that is nearly full."""
    try:
        done = archive.write(block)
        while done < len(block):
            done += archive.write(block[done:])
    except OSError as error:
        raise _WriteError(error.strerror) from error


def main(write_archive: Callable[..., str], root: str, follow: str = "") -> None:
    """The program. ``write_archive`` is that of ``tar_writer``."""
    asked, answers = sys.stdin.buffer, sys.stdout.buffer
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        while True:
            kind, *parts = receive(asked)
            if kind == FACTS:
                send(answers, facts_of(folder, parts[0].split(b"\0"), follow == FOLLOW))
            else:
                send(answers, *_archive(write_archive, folder, follow == FOLLOW, parts))
    except (EOFError, BrokenPipeError):
        os._exit(0)  # Who asked has ended; there is nobody to tell.
