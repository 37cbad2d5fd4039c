"""Whether the user's program may know of the planned end, by its source, arguments and environment."""

import os
import re
import stat
from typing import Iterable

_STOP_FILE_MENTION = re.compile(
    rb"SMLAUNCH_STOP|SMLAUNCH_[\"']|smlaunch/stop|\bsmlaunch\s*\.\s*train\b|\bfrom\s+smlaunch\b|\bimport\s+smlaunch\b|stop_file"
)
_STOP_FILE_IN_TEXT = re.compile(r"SMLAUNCH_STOP|smlaunch/stop")
_PLANNED_END_MENTION = re.compile(rb"SMLAUNCH_STOP_A(?:T|FTER)\b")
_MAX_SCANNED_FILES = 10_000
_MAX_SCANNED_BYTES = 256 << 20


def may_read_stop_file(folder: str, texts: Iterable[str] = ()) -> bool:
    """Return whether a program with the source ``folder`` may read the stop file. True also where it cannot
    be found out: there is no source, it is too large, or one of its files cannot
    be read. A library of the image that reads the stop file is not noticed. ``texts``: arguments of the
    program, and values of its environment.
    """
    return any(map(_STOP_FILE_IN_TEXT.search, texts)) or _any_file_matches(folder, _STOP_FILE_MENTION)


def may_read_planned_end(folder: str) -> bool:
    """Return the same for the variables that have the time of the planned end."""
    return _any_file_matches(folder, _PLANNED_END_MENTION)


def _any_file_matches(folder: str, pattern: "re.Pattern[bytes]") -> bool:
    """Return whether a file below ``folder`` contains a match of ``pattern``. True also where that cannot be
    found out: there is no file, there are more than 10 000 or 256 MiB, or one cannot be read.
    """
    file_count, remaining_bytes = 0, _MAX_SCANNED_BYTES
    for directory, _, file_names in os.walk(folder):
        for file_name in file_names:
            file_count += 1
            try:
                # Up to one byte more than remain, so that the rest becomes negative.
                content = _read_regular_file(os.path.join(directory, file_name), limit=remaining_bytes)
            except OSError:
                return True
            remaining_bytes -= len(content)
            if file_count > _MAX_SCANNED_FILES or remaining_bytes < 0 or pattern.search(content):
                return True
    return file_count == 0


def _read_regular_file(path: str, limit: int) -> bytes:
    """At most ``limit`` + 1 bytes; none of a file that is not regular."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    with open(descriptor, "rb") as file:
        return file.read(limit + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
