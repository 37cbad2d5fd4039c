"""Finding, at the end of what a process has printed, what it died of."""

import re
from typing import List, NamedTuple, Optional

_HEADER = re.compile(r"^(?P<margin>[ |+]*)(?:Exception Group )?Traceback \(most recent call last\):\s*$")
_GROUP = "  + Exception Group Traceback"
_EXCEPTION = re.compile(r"^[^\W\d][\w.]*(: .*|:?)$")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_BY_RANK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
"""What torch's excepthook puts before every line once there is a process group."""

_FATAL = re.compile(r"^(Fatal Python error: .*|terminate called .*)$")
_SYNTAX = re.compile(r"^(SyntaxError|IndentationError|TabError): .+$")
_CURRENT_THREAD = re.compile(r"^Current thread 0x[0-9a-f]+ .*\(most recent call first\):\s*$")
_AFTERWORDS = 30
"""Lines that may follow a traceback that was the end: libraries say goodbye too. One that more output follows
was survived."""


class Cause(NamedTuple):
    """One line, and the lines that explain it."""

    line: str
    traceback: str


def find(tail: str) -> Optional[Cause]:
    """The exception, syntax error or fatal error that the output ends in; None when it ends in none."""
    lines = _BY_RANK.sub("", _COLOUR.sub("", tail)).splitlines()
    start = _last(lines, _HEADER)
    if start is not None:
        end = _exception_line(lines, start)
        if end is not None and len(lines) - end <= _AFTERWORDS:
            return Cause(lines[end].strip(" |+"), "\n".join(lines[start : _message_end(lines, end)]))
    syntax = _last(lines, _SYNTAX)
    if syntax is not None and len(lines) - syntax <= _AFTERWORDS:
        # The compiler's own report has no header: its first line is the place.
        first = next((i for i in range(syntax, -1, -1) if lines[i].startswith('  File "')), syntax)
        return Cause(lines[syntax], "\n".join(lines[first : syntax + 1]))
    fatal = _last(lines, _FATAL)
    if fatal is not None:
        return Cause(lines[fatal], "\n".join(lines[fatal : fatal + 40]))
    return None


def last_line(tail: str) -> str:
    """The last line with anything in it."""
    return next((line.strip() for line in reversed(tail.splitlines()) if line.strip()), "")


def _last(lines: List[str], pattern: "re.Pattern[str]") -> Optional[int]:
    return next((i for i in range(len(lines) - 1, -1, -1) if pattern.match(lines[i])), None)


def _exception_line(lines: List[str], header: int) -> Optional[int]:
    """The first line below the frames that reads as an exception; frames are indented deeper than the header.

    The parts of an exception group come after it and deeper, each with a header of its own; the group
    itself is what was raised, so for those the search starts at the group's header.
    """
    header = _group_header(lines, header)
    margin = _margin(lines[header])
    for index in range(header + 1, len(lines)):
        line = lines[index]
        if _margin(line) <= margin and _EXCEPTION.match(line.lstrip(" |")):
            return index
    return None


def _group_header(lines: List[str], header: int) -> int:
    if _margin(lines[header]) == 0:
        return header
    return next((i for i in range(header, -1, -1) if lines[i].startswith(_GROUP)), header)


def _margin(line: str) -> int:
    return len(line) - len(line.lstrip(" |+"))


def _message_end(lines: List[str], exception: int) -> int:
    """A message may have several lines; an empty line or the end of the output closes it."""
    end = exception + 1
    while end < len(lines) and lines[end].strip() and end - exception < 40:
        end += 1
    return end


def stack(tail: str) -> str:
    """Where a Python process was when SIGABRT ended it, innermost frame first; empty when it has not told.

    faulthandler writes all threads; it is the current one that was signalled, which is the main thread.
    """
    lines = _COLOUR.sub("", tail).splitlines()
    start = _last(lines, _CURRENT_THREAD)
    if start is None:
        return ""
    end = start + 1
    while end < len(lines) and lines[end].startswith("  File "):
        end += 1
    return "\n".join(lines[start + 1 : end])
