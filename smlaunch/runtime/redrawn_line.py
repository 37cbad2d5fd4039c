"""A line that a program draws again and again with carriage returns, such as tqdm's bar, in a log of lines.

The log gets the line's last state, as the terminal would show it, and now and then a state in between
(``smlaunch: live TEXT``), which a terminal that follows the log draws in one place.
"""

import time
from typing import Callable

from smlaunch.contract.progress_line import LIVE_PREFIX

_MIN_LIVE_SECONDS, _MAX_LIVE_SECONDS = 1.0, 10.0
"""Between two states in the log. The interval grows with the line's age, so that a bar of a day adds some
thousand lines and a short one is seen to move."""

_AGE_SHARE = 1 / 60
_MAX_LIVE_BYTES = 2048


def last_state(line: bytes) -> bytes:
    """Return what a terminal shows of a line in the end: the text after the last carriage return that text
    follows."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def drop_earlier_states(line: bytes) -> bytes:
    """Return an incomplete line with only what a terminal shows of it now. A line that has been drawn again
    still begins with a carriage return.
    """
    if b"\r" not in line.rstrip(b"\r"):
        return line
    return b"\r" + last_state(line) + (b"\r" if line.endswith(b"\r") else b"")


class RedrawnLine:
    """The incomplete line at the end of a process's output."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_at = 0.0
        self._next_live_at = 0.0
        self._is_drawn_again = False

    def drop_earlier_states(self, line: bytes) -> bytes:
        """Return an incomplete line, such as a progress bar, with only what a terminal shows of it now: the
        text after the last carriage return. The line still begins with a carriage return."""
        if b"\r" not in line.rstrip(b"\r"):
            self._is_drawn_again = False
            return line
        if not self._is_drawn_again:
            self._is_drawn_again = True
            self._began_at = self._next_live_at = self._clock()
        return drop_earlier_states(line)

    def take_live_line_if_due(self, line: bytes) -> bytes:
        """Return a line for the log that shows the present state of an incomplete line; empty while none is
        due."""
        now, state = self._clock(), last_state(line)
        if not self._is_drawn_again or now < self._next_live_at or not state.strip():
            return b""
        interval = (now - self._began_at) * _AGE_SHARE
        self._next_live_at = now + min(_MAX_LIVE_SECONDS, max(_MIN_LIVE_SECONDS, interval))
        return LIVE_PREFIX.encode() + state[:_MAX_LIVE_BYTES].strip()
