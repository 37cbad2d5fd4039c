"""Find the cause of death at the end of a process's output."""

import re
from typing import List, NamedTuple, Optional

_HEADER = re.compile(r"^(?P<margin>[ |+]*)(?:Exception Group )?Traceback \(most recent call last\):\s*$")
_GROUP = "  + Exception Group Traceback"
_EXCEPTION = re.compile(r"^[^\W\d][\w.]*(: .*|:?)$")
_ANSI_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
"""Prefix of each line by torch's excepthook when there is a process group."""

_FATAL = re.compile(r"^(Fatal Python error: .*|terminate called .*)$")
_SYNTAX = re.compile(r"^(SyntaxError|IndentationError|TabError): .+$")
_CURRENT_THREAD = re.compile(r"^Current thread 0x[0-9a-f]+ .*\(most recent call first\):\s*$")
_MAX_LINES_AFTER = 30
"""Lines that may follow the traceback that ended a process: libraries print some at exit. The process
survived an exception that more lines follow.
"""


class FailureCause(NamedTuple):
    """The line that names the error, and the lines that explain it."""

    line: str
    traceback: str


def find_cause(output: str) -> Optional[FailureCause]:
    """Return the exception, syntax error or fatal error at the end of the output; None without one."""
    lines = _RANK_PREFIX.sub("", _ANSI_COLOR.sub("", output)).splitlines()
    header_index = _last_match(lines, _HEADER)
    if header_index is not None:
        exception_index = _exception_line(lines, header_index)
        if exception_index is not None and len(lines) - exception_index <= _MAX_LINES_AFTER:
            return FailureCause(
                lines[exception_index].strip(" |+"),
                "\n".join(lines[header_index : _message_end(lines, exception_index)]),
            )
    syntax_index = _last_match(lines, _SYNTAX)
    if syntax_index is not None and len(lines) - syntax_index <= _MAX_LINES_AFTER:
        # The compiler's report has no header; its first line is the file and line.
        first_index = next(
            (i for i in range(syntax_index, -1, -1) if lines[i].startswith('  File "')), syntax_index
        )
        return FailureCause(lines[syntax_index], "\n".join(lines[first_index : syntax_index + 1]))
    fatal_index = _last_match(lines, _FATAL)
    if fatal_index is not None:
        return FailureCause(lines[fatal_index], "\n".join(lines[fatal_index : fatal_index + 40]))
    return None


def last_line(output: str) -> str:
    """Return the last line that is not empty."""
    return next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "")


def _last_match(lines: List[str], pattern: "re.Pattern[str]") -> Optional[int]:
    return next((i for i in range(len(lines) - 1, -1, -1) if pattern.match(lines[i])), None)


def _exception_line(lines: List[str], header_index: int) -> Optional[int]:
    """Index of the first line below the frames that reads as an exception; frames are indented deeper than
    the header.

    The members of an exception group follow it, deeper, each with its own header; the group itself was
    raised, so for those the search starts at the group's header.
    """
    header_index = _group_header(lines, header_index)
    margin = _margin(lines[header_index])
    for index in range(header_index + 1, len(lines)):
        line = lines[index]
        if _margin(line) <= margin and _EXCEPTION.match(line.lstrip(" |")):
            return index
    return None


def _group_header(lines: List[str], header_index: int) -> int:
    if _margin(lines[header_index]) == 0:
        return header_index
    return next((i for i in range(header_index, -1, -1) if lines[i].startswith(_GROUP)), header_index)


def _margin(line: str) -> int:
    return len(line) - len(line.lstrip(" |+"))


def _message_end(lines: List[str], exception_index: int) -> int:
    """Index after the message, which may have several lines; an empty line ends it."""
    end_index = exception_index + 1
    while end_index < len(lines) and lines[end_index].strip() and end_index - exception_index < 40:
        end_index += 1
    return end_index


def find_stack(output: str) -> str:
    """Stack of a Python process that SIGABRT ended, innermost frame first; empty without one.

    faulthandler prints all threads; the current one received the signal, which is the main thread.
    """
    lines = _ANSI_COLOR.sub("", output).splitlines()
    thread_index = _last_match(lines, _CURRENT_THREAD)
    if thread_index is None:
        return ""
    end_index = thread_index + 1
    while end_index < len(lines) and lines[end_index].startswith("  File "):
        end_index += 1
    return "\n".join(lines[thread_index + 1 : end_index])
