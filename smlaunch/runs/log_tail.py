"""The end of each rank's log, stored while a job is followed, to show a failure's complete traceback.

FailureReason holds 1,024 characters, which are too few for most tracebacks; the log has all of it.
"""

from __future__ import annotations

import re
from collections import deque

from smlaunch.contract.failure_reason import Failure, parse_unwritten_failure
from smlaunch.contract.progress_line import LINE_PREFIX, LIVE_PREFIX

ENDPOINT_MARK = "[smlaunch] "
"""Prefix of the lines that the local endpoint writes into the log of a host."""

_WARNING_PREFIXES = tuple(f"{mark}warning: " for mark in (ENDPOINT_MARK, LINE_PREFIX, "smlaunch.train: "))
_LINES_PER_RANK = 400
"""Longer than any traceback that a person reads."""

_RANK_PREFIX = re.compile(r"\[(\d+)\] ?")
_TORCH_PREFIX = re.compile(r"^\[rank\d+\]: ?")
_TRACEBACK_HEADER = "Traceback (most recent call last):"
_CHAINED_TRACEBACK_TEXTS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)


def split_rank_prefix(text: str) -> tuple[int | None, str]:
    """Split ``[3] hello`` into (3, ``hello``). A line without a rank's prefix is returned unchanged."""
    match = _RANK_PREFIX.match(text)
    return (int(match.group(1)), text[match.end() :]) if match else (None, text)


def split_writer(text: str) -> tuple[int | None, str]:
    """Split a log line into its rank and what the rank's Python wrote: without the prefix ``[rank0]:`` that
    torch puts in front of each line of a traceback once there is a process group."""
    rank, line = split_rank_prefix(text)
    return rank, _TORCH_PREFIX.sub("", line, count=1)


def live_text(text: str) -> str | None:
    """Return the state of an incomplete line, such as tqdm's bar, that a log line reports; None for any other
    line."""
    line = split_rank_prefix(text)[1]
    return line[len(LIVE_PREFIX) :] if line.startswith(LIVE_PREFIX) else None


def warning_of_host(text: str) -> str | None:
    """Return what a log line of smlaunch's on a host, or of the local endpoint, warns of; None for any other
    line."""
    line = split_rank_prefix(text)[1]
    return next((line[len(prefix) :] for prefix in _WARNING_PREFIXES if line.startswith(prefix)), None)


def visible_text(text: str) -> str:
    """Return a log line as a terminal shows it in the end: without what carriage returns have drawn over.
    Only programs that the runtime has not started write such lines."""
    return text.rstrip("\r").rpartition("\r")[2]


class LogTail:
    """The last log lines of each rank of a job."""

    def __init__(self) -> None:
        self._lines_by_process: dict[tuple[str, int | None], deque[str]] = {}
        """By host and rank; None for lines without a rank's prefix."""

        self.unwritten_failure: Failure | None = None
        """The first failure that a host could only report in its log, as its disk is full."""

    def add_line(self, host: str, text: str) -> None:
        if live_text(text) is not None:
            return
        rank, line = split_writer(text)
        if rank is None and self.unwritten_failure is None and line.startswith(LINE_PREFIX):
            self.unwritten_failure = parse_unwritten_failure(line[len(LINE_PREFIX) :])
        self._lines_by_process.setdefault((host, rank), deque(maxlen=_LINES_PER_RANK)).append(line)

    def find_traceback(self, failure: Failure) -> str:
        """Return the failed rank's complete Python traceback from these log lines; if they have none, that of
        ``failure``, which comes from the job's FailureReason and may be cut."""
        if failure.host is None:
            return failure.traceback
        # The rank's own lines first, then those without a rank's prefix and of others: a launcher prints some
        # for a rank.
        other_ranks = [rank for host, rank in self._lines_by_process if host == failure.host]
        for rank in dict.fromkeys((failure.rank, None, *other_ranks)):  # None: lines without a prefix
            lines = list(self._lines_by_process.get((failure.host, rank), ()))
            # The cause is the last line of the traceback: the exception with its message.
            traceback = _last_traceback_ending_in(failure.cause, lines)
            if traceback:
                return traceback
        return failure.traceback


def _last_traceback_ending_in(cause: str, lines: list[str]) -> str:
    """Return the last traceback that ends in ``cause``, with those that it is chained to."""
    cause_indexes = [index for index, line in enumerate(lines) if cause and line.startswith(cause[:200])]
    for last_index in reversed(cause_indexes):
        start = _find_traceback_start(lines, last_index)
        if start is not None:
            return "\n".join(lines[start : last_index + 1])
    return ""


def _find_traceback_start(lines: list[str], last_index: int) -> int | None:
    """Return the index of the header of the traceback that ends at ``last_index``, or of the first one that
    it is chained to; None without a header."""
    start = _last_header_index(lines, last_index)
    while start is not None and start >= 3 and lines[start - 2] in _CHAINED_TRACEBACK_TEXTS:
        earlier_start = _last_header_index(lines, start - 2)
        if earlier_start is None:
            break
        start = earlier_start
    return start


def _last_header_index(lines: list[str], last_index: int) -> int | None:
    for index in range(last_index, -1, -1):
        if lines[index] == _TRACEBACK_HEADER:
            return index
    return None
