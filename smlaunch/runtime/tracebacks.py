"""Find the cause of death at the end of a process's output."""

import re
from typing import List, NamedTuple, Optional

_TRACEBACK_HEADER = re.compile(
    r"^(?P<margin>[ |+]*)(?:Exception Group )?Traceback \(most recent call last\):\s*$"
)
_EXCEPTION_GROUP_HEADER = "  + Exception Group Traceback"
_EXCEPTION_LINE = re.compile(r"^[^\W\d][\w.]*(: .*|:?)$")
_ANSI_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
"""Prefix of each line by torch's excepthook when there is a process group."""

_FATAL_ERROR_LINE = re.compile(r"^(Fatal Python error: .*|terminate called .*)$")
_SYNTAX_ERROR_LINE = re.compile(r"^(SyntaxError|IndentationError|TabError): .+$")
_CURRENT_THREAD = re.compile(r"^Current thread 0x[0-9a-f]+ .*\(most recent call first\):\s*$")
_FILE_LINE = re.compile('  File "')
_MAX_FATAL_ERROR_LINES = 40
_MAX_LINES_AFTER_ERROR = 30
"""Lines that may follow the traceback that ended a process: libraries print some at exit. The process
survived an exception that more lines follow.
"""


class FailureCause(NamedTuple):
    """The line that names the error, and the lines that explain it."""

    error_line: str
    traceback: str


def find_cause(output: str) -> Optional[FailureCause]:
    """Return the Python exception, syntax error or fatal error that ended the process, by the end of its
    output; None without one.
    """
    lines = _RANK_PREFIX.sub("", _ANSI_COLOR.sub("", output)).splitlines()
    return _find_exception(lines) or _find_syntax_error(lines) or _find_fatal_error(lines)


def _find_exception(lines: List[str]) -> Optional[FailureCause]:
    """Return the exception of the last traceback; None where the process went on after it."""
    header_index = _find_last_match(lines, _TRACEBACK_HEADER)
    exception_index = None if header_index is None else _find_exception_line(lines, header_index)
    if exception_index is None or not _is_near_end(lines, exception_index):
        return None
    return FailureCause(
        error_line=lines[exception_index].strip(" |+"),  # drawn beside the members of an exception group
        traceback="\n".join(lines[header_index : _find_message_end(lines, exception_index)]),
    )


def _find_syntax_error(lines: List[str]) -> Optional[FailureCause]:
    """Return the last syntax error: the compiler's report has no header, and begins with file and line."""
    error_index = _find_last_match(lines, _SYNTAX_ERROR_LINE)
    if error_index is None or not _is_near_end(lines, error_index):
        return None
    file_index = _find_last_match(lines[: error_index + 1], _FILE_LINE)
    first_index = error_index if file_index is None else file_index
    return FailureCause(lines[error_index], "\n".join(lines[first_index : error_index + 1]))


def _find_fatal_error(lines: List[str]) -> Optional[FailureCause]:
    """Return the last error with which the interpreter or a C++ library has ended the process."""
    error_index = _find_last_match(lines, _FATAL_ERROR_LINE)
    if error_index is None:
        return None
    report = lines[error_index : error_index + _MAX_FATAL_ERROR_LINES]
    return FailureCause(lines[error_index], "\n".join(report))


def _is_near_end(lines: List[str], error_index: int) -> bool:
    """Return whether so few lines follow an error that it ended the process: libraries print some at exit."""
    return len(lines) - error_index <= _MAX_LINES_AFTER_ERROR


def last_line(output: str) -> str:
    """Return the last line that is not empty."""
    return next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "")


def _find_last_match(lines: List[str], pattern: "re.Pattern[str]") -> Optional[int]:
    return next((i for i in range(len(lines) - 1, -1, -1) if pattern.match(lines[i])), None)


def _find_exception_line(lines: List[str], header_index: int) -> Optional[int]:
    """Return the index of the first line below the frames that reads as an exception; None without one.
    Frames are indented deeper than the traceback's header.

    The members of an exception group follow it, deeper, each with its own header; the group itself was
    raised, so for those the search starts at the group's header.
    """
    header_index = _find_exception_group_header(lines, header_index)
    header_indentation = _indentation(lines[header_index])
    for index in range(header_index + 1, len(lines)):
        line = lines[index]
        if _indentation(line) <= header_indentation and _EXCEPTION_LINE.match(line.lstrip(" |")):
            return index
    return None


def _find_exception_group_header(lines: List[str], header_index: int) -> int:
    """Return the index of the header of the exception group that a traceback is in; for a traceback that is
    not indented, or without such a header, its own ``header_index``."""
    if _indentation(lines[header_index]) > 0:
        for index in range(header_index, -1, -1):
            if lines[index].startswith(_EXCEPTION_GROUP_HEADER):
                return index
    return header_index


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip(" |+"))  # with the lines drawn beside an exception group


def _find_message_end(lines: List[str], exception_index: int) -> int:
    """Return the index after an exception's message, which may have several lines; an empty line ends it."""
    end_index = exception_index + 1
    while end_index < len(lines) and lines[end_index].strip() and end_index - exception_index < 40:
        end_index += 1
    return end_index


def find_stack(output: str) -> str:
    """Return the stack of a Python process that SIGABRT ended, innermost frame first; empty without one.

    faulthandler prints all threads; the current one received the signal, which is the main thread.
    """
    lines = _ANSI_COLOR.sub("", output).splitlines()
    thread_index = _find_last_match(lines, _CURRENT_THREAD)
    if thread_index is None:
        return ""
    end_index = thread_index + 1
    while end_index < len(lines) and lines[end_index].startswith("  File "):
        end_index += 1
    return "\n".join(lines[thread_index + 1 : end_index])
