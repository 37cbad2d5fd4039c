"""The end of each rank's log, stored while a job is followed, to show a failure's complete traceback.

FailureReason holds 1,024 characters, which are too few for most tracebacks; the log has all of it.
"""

from __future__ import annotations

import re
from collections import deque

from smlaunch.contract.failure import Failure

_LINES_PER_RANK = 400
"""Longer than any traceback that a person reads."""

_RANK_PREFIX = re.compile(r"\[(\d+)\] ?")
_TRACEBACK_HEADER = "Traceback (most recent call last):"
_CHAINED_TRACEBACK_TEXTS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)


def split_rank_prefix(text: str) -> tuple[int | None, str]:
    """Split ``[3] hello`` into (3, ``hello``). A line without a rank's prefix is returned unchanged."""
    match = _RANK_PREFIX.match(text)
    return (int(match.group(1)), text[match.end() :]) if match else (None, text)


class LogTail:
    def __init__(self) -> None:
        self._lines_by_process: dict[tuple[str, int | None], deque[str]] = {}

    def add_line(self, host: str, text: str) -> None:
        rank, line = split_rank_prefix(text)
        self._lines_by_process.setdefault((host, rank), deque(maxlen=_LINES_PER_RANK)).append(line)

    def find_traceback(self, failure: Failure) -> str:
        """Return the failed rank's complete traceback from its log, else the one that the failure itself
        has."""
        if failure.host is None:
            return failure.traceback
        for rank in (failure.rank, None):
            traceback = _last_traceback(
                list(self._lines_by_process.get((failure.host, rank), ())), failure.cause
            )
            if traceback:
                return traceback
        return failure.traceback


def _last_traceback(lines: list[str], cause: str) -> str:
    """Return the last traceback that ends in ``cause``, with those that it is chained to."""
    cause_indexes = [index for index, line in enumerate(lines) if cause and line.startswith(cause[:200])]
    for end in reversed(cause_indexes):
        start = _find_traceback_start(lines, end)
        if start is not None:
            return "\n".join(lines[start : end + 1])
    return ""


def _find_traceback_start(lines: list[str], end: int) -> int | None:
    start = next((index for index in range(end, -1, -1) if lines[index] == _TRACEBACK_HEADER), None)
    while start is not None and start >= 3 and lines[start - 2] in _CHAINED_TRACEBACK_TEXTS:
        earlier = next(
            (index for index in range(start - 2, -1, -1) if lines[index] == _TRACEBACK_HEADER), None
        )
        if earlier is None:
            break
        start = earlier
    return start
