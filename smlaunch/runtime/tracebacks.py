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


_BOX_TOP = re.compile(r"^[╭┌┏╔+][─━═-]+(?: (?P<title>.+?) )?[─━═-]+[╮┐┓╗+]\s*$")
_BOX_BOTTOM = re.compile(r"^[╰└┗╚+][─━═-]+[╯┘┛╝+]\s*$")
_BOX_LINE = re.compile(r"^[│┃║|] ?(?P<text>.*?) *[│┃║|]\s*$")
"""What rich draws around tracebacks and errors, for Typer, Click and others."""

_TITLE_OF_TRACEBACK = "Traceback (most recent call last)"

_ROOT_CAUSE_REPORT = re.compile(
    r"Root Cause \(first observed failure\):.*?"
    r"\brank\s+: (?P<rank>\d+) \(local_rank: \d+\).*?\bexitcode\s+: (?P<status>-?\d+)",
    re.DOTALL,
)
"""torch.distributed.elastic.multiprocessing.errors.ChildFailedError, from torch 1.9 to 2.13."""

_TORCHRUN_ERROR = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"
_TORCHRUN_LOG_LINE = re.compile(r"^[A-Z]\d{4} \S+ \d+ torch/distributed/")
_FRAME_OF_LAUNCHER = re.compile(r'  File "[^"]*/(?:torch/distributed/run|accelerate/commands/launch)\.py"')
_PIP_ERROR = re.compile(r"(?:ERROR|error): ")
_REMARK = re.compile(r"(?:\[notice\]|note: |hint: |ERROR: ResolutionImpossible: for help visit)")
"""What pip prints after its error."""


class ReportedRank(NamedTuple):
    """The rank that failed first, as torchrun reports it at its end."""

    rank: int
    status: int
    """Its exit code, or minus the number of the signal."""


class FailureCause(NamedTuple):
    """The line that names the error, and the lines that explain it."""

    error_line: str
    traceback: str


def find_cause(output: str) -> Optional[FailureCause]:
    """Return the Python exception, syntax error or fatal error that ended the process, by the end of its
    output; None without one. Where a launcher such as torchrun has reported that its program failed, the
    error is the program's.
    """
    lines = _plain_lines(output)
    launcher_index = _find_traceback_of_launcher(lines)
    if launcher_index is not None:
        cause = _find_error(_lines_before_launcher(lines, launcher_index))
        if cause is not None or any(line.startswith(_TORCHRUN_ERROR) for line in lines[launcher_index:]):
            return cause
    return _find_error(lines)


def last_line(output: str) -> str:
    """Return the last line that says something: with letters or digits, not inside a drawn box or the report
    of a launcher, and none of pip's remarks after its error. Empty without one.
    """
    lines = _plain_lines(output)
    launcher_index = _find_traceback_of_launcher(lines)
    if launcher_index is not None:
        lines = _lines_before_launcher(lines, launcher_index)
    texts = [line.strip() for line in lines if any(map(str.isalnum, line))]
    messages = [text for text in texts if not _REMARK.match(text)]
    if texts and messages and texts[-1] != messages[-1]:  # pip explains its error before it remarks on it
        last_lines = reversed(messages[-_MAX_LINES_AFTER_ERROR:])
        return next((text for text in last_lines if _PIP_ERROR.match(text)), messages[-1])
    return messages[-1] if messages else ""


def find_reported_rank(output: str) -> Optional[ReportedRank]:
    """Return the rank that torchrun reports, at the end of ``output``, as the first to fail; None without
    such a report.
    """
    report = None
    for match in _ROOT_CAUSE_REPORT.finditer(output):
        report = match
    if report is None or output.count("\n", report.end()) > _MAX_LINES_AFTER_ERROR:
        return None
    return ReportedRank(int(report.group("rank")), int(report.group("status")))


def _plain_lines(output: str) -> List[str]:
    """Return the lines of a process's output without colours, torch's prefixes and drawn boxes: a box's text
    is there as it would have been printed without the box, in lines that are not wrapped.
    """
    lines = _RANK_PREFIX.sub("", _ANSI_COLOR.sub("", output)).splitlines()
    if not any(map(_BOX_BOTTOM.match, lines)):
        return lines
    plain_lines: List[str] = []
    index = 0
    while index < len(lines):
        top = _BOX_TOP.match(lines[index])
        bottom_index = None if top is None else _find_box_bottom(lines, index)
        if top is None or bottom_index is None:
            plain_lines.append(lines[index])
            index += 1
            continue
        width = len(lines[index].rstrip())
        texts = [line.group("text") for line in map(_BOX_LINE.match, lines[index + 1 : bottom_index]) if line]
        index = bottom_index + 1
        if top.group("title") and top.group("title").startswith(_TITLE_OF_TRACEBACK):
            plain_lines.append(_TITLE_OF_TRACEBACK + ":")
            plain_lines += ["  " + text for text in texts]
            # The exception follows its box, wrapped at the box's width.
            message_end = index
            while message_end < len(lines) and lines[message_end].strip():
                message_end += 1
            plain_lines += _join_wrapped_lines(lines[index:message_end], width)
            index = message_end
        else:
            plain_lines += _join_wrapped_lines(texts, width - len("│  │"))
    return plain_lines


def _find_box_bottom(lines: List[str], top_index: int) -> Optional[int]:
    """Return the index of the line that closes the box; None for a line that only looks like one's top."""
    for index in range(top_index + 1, len(lines)):
        if _BOX_BOTTOM.match(lines[index]):
            return index
        if not _BOX_LINE.match(lines[index]):
            return None
    return None


def _join_wrapped_lines(lines: List[str], width: int) -> List[str]:
    """Return lines as they were before they were wrapped at ``width`` characters: a line goes on in the next
    one where the next one's first word had no room in it.
    """
    joined_lines: List[str] = []
    length = 0
    """Of the last wrapped line in ``joined_lines``."""
    for line in map(str.rstrip, lines):
        first_word = line.partition(" ")[0]
        if not joined_lines or not first_word or length + 1 + len(first_word) <= width:
            joined_lines.append(line)
        else:  # only a word that is longer than a line is broken
            is_broken_word = length == width and len(joined_lines[-1].split()[-1] + first_word) > width
            joined_lines[-1] += line if is_broken_word else " " + line
        length = len(line)
    return joined_lines


def _find_traceback_of_launcher(lines: List[str]) -> Optional[int]:
    """Return the index of the header of the last traceback, if it is that of torchrun or accelerate, which
    report so that the program that they have started failed; otherwise None.
    """
    header_index = _find_last_match(lines, _TRACEBACK_HEADER)
    if header_index is None or not any(map(_FRAME_OF_LAUNCHER.match, lines[header_index:])):
        return None
    return header_index


def _lines_before_launcher(lines: List[str], launcher_index: int) -> List[str]:
    return [line for line in lines[:launcher_index] if not _TORCHRUN_LOG_LINE.match(line)]


def _find_error(lines: List[str]) -> Optional[FailureCause]:
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
