"""The end of every rank's log, kept while following, to show a failure's whole traceback.

FailureReason holds 1,024 characters, which a real traceback seldom fits; the log has all of it.
"""

from __future__ import annotations

import re
from collections import deque

from smlaunch.protocol.failure import Failure

_KEPT = 400
"""Lines per rank: longer than any traceback a person reads."""

_RANK = re.compile(r"\[(\d+)\] ?")
_HEADER = "Traceback (most recent call last):"
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)


def split_rank(text: str) -> tuple[int | None, str]:
    """``[3] hello`` -> (3, ``hello``); a line without a rank's prefix is returned as it is."""
    match = _RANK.match(text)
    return (int(match.group(1)), text[match.end() :]) if match else (None, text)


class Evidence:
    def __init__(self) -> None:
        self._tails: dict[tuple[str, int | None], deque[str]] = {}

    def feed(self, host: str, text: str) -> None:
        rank, line = split_rank(text)
        self._tails.setdefault((host, rank), deque(maxlen=_KEPT)).append(line)

    def traceback(self, failure: Failure) -> str:
        """The failed rank's whole traceback from its log, else what the failure itself carries."""
        if failure.host is None:
            return failure.traceback
        for rank in (failure.rank, None):
            found = _last_traceback(list(self._tails.get((failure.host, rank), ())), failure.cause)
            if found:
                return found
        return failure.traceback


def _last_traceback(lines: list[str], cause: str) -> str:
    """From the header of the traceback that ends in ``cause`` to that line, with those it is chained to."""
    ends = [index for index, line in enumerate(lines) if cause and line.startswith(cause[:200])]
    for end in reversed(ends):
        start = _header_before(lines, end)
        if start is not None:
            return "\n".join(lines[start : end + 1])
    return ""


def _header_before(lines: list[str], end: int) -> int | None:
    start = next((index for index in range(end, -1, -1) if lines[index] == _HEADER), None)
    while start is not None and start >= 3 and lines[start - 2] in _CHAINED:
        earlier = next((index for index in range(start - 2, -1, -1) if lines[index] == _HEADER), None)
        if earlier is None:
            break
        start = earlier
    return start
