"""How far a transfer is, how fast it goes and when it will be over."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from threading import Lock

_WINDOW = 10.0
"""Seconds that the rate is an average of: short enough to follow the line, long enough not to jump."""

_BETWEEN = 0.1
"""Seconds between two looks of whoever watches, and between two samples of the rate."""

_TOO_EARLY = 1.0
"""Seconds before which nothing is said of the end."""


class Tally:
    """``add`` may be called from any thread; ``watch`` is called by one at a time, not for every file.

    ``files`` and ``size`` (bytes) are what is to come; ``done_files`` and ``done`` what has.
    """

    def __init__(
        self,
        files: int,
        size: int,
        watch: Callable[[Tally], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.files, self.size = files, size
        self.done_files = self.done = 0
        self._watch, self._clock = watch, clock
        self._lock = Lock()
        self._begun = self._looked = clock()
        self._samples = deque([(self._begun, 0)])

    def add(self, size: int, files: int) -> None:
        """``size`` may be negative, for what has to be sent again."""
        with self._lock:
            self.done += size
            self.done_files += files
            now = self._clock()
            over = self.done_files >= self.files and self.done >= self.size
            if now - self._looked < _BETWEEN and not over:
                return
            self._looked = now
            self._samples.append((now, self.done))
            while now - self._samples[0][0] > _WINDOW and len(self._samples) > 2:
                self._samples.popleft()
            if self._watch is not None:
                self._watch(self)

    @property
    def elapsed(self) -> float:
        """Seconds from the beginning until the last look."""
        return self._looked - self._begun

    @property
    def rate(self) -> float:
        """Bytes a second, lately."""
        (then, before), (now, after) = self._samples[0], self._samples[-1]
        return (after - before) / (now - then) if now > then else 0.0

    @property
    def left(self) -> float | None:
        """Seconds until the end at this rate; None where that cannot be said yet."""
        if self._samples[-1][0] - self._begun < _TOO_EARLY or self.rate <= 0:
            return None
        return max(0, self.size - self.done) / self.rate
