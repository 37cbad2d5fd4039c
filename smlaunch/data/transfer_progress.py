"""Progress of a transfer: how much is done, how fast it goes, and when it ends."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from threading import Lock

_RATE_WINDOW_SECONDS = 10.0
"""Seconds that the rate is averaged over: short enough to follow the line's speed, long enough not to
jump."""

_SAMPLE_SECONDS = 0.1
"""Seconds between two calls of ``on_progress``, and between two samples of the rate."""

_MIN_ESTIMATE_SECONDS = 1.0
"""Seconds before the remaining time is estimated."""


class TransferProgress:
    """Counts the files and bytes of a transfer. ``add`` may be called from any thread; ``on_progress`` is
    called by one thread at a time, and not for every file.

    ``total_files`` and ``total_bytes``: what is to be transferred; ``done_files`` and ``done_bytes``: what
    has been.
    """

    def __init__(
        self,
        total_files: int,
        total_bytes: int,
        on_progress: Callable[[TransferProgress], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total_files, self.total_bytes = total_files, total_bytes
        self.done_files = self.done_bytes = 0
        self._on_progress, self._clock = on_progress, clock
        self._lock = Lock()
        self._started_at = self._sampled_at = clock()
        self._samples = deque([(self._started_at, 0)])

    def add(self, byte_count: int, file_count: int) -> None:
        """Add bytes and files to what a transfer has done, from any thread; ``byte_count`` is negative for
        bytes that have to be sent again. From time to time a sample is kept, from which the rate is computed,
        and the callback for progress is called."""
        with self._lock:
            self.done_bytes += byte_count
            self.done_files += file_count
            now = self._clock()
            is_complete = self.done_files >= self.total_files and self.done_bytes >= self.total_bytes
            if now - self._sampled_at < _SAMPLE_SECONDS and not is_complete:  # at most ten samples a second
                return
            self._sampled_at = now
            self._samples.append((now, self.done_bytes))
            # The rate is that of the last ten seconds, and needs two samples.
            while now - self._samples[0][0] > _RATE_WINDOW_SECONDS and len(self._samples) > 2:
                self._samples.popleft()
            if self._on_progress is not None:
                self._on_progress(self)

    @property
    def elapsed_seconds(self) -> float:
        """Seconds from the start to the latest sample."""
        return self._sampled_at - self._started_at

    @property
    def bytes_per_second(self) -> float:
        """The recent rate."""
        (start_time, start_bytes), (end_time, end_bytes) = self._samples[0], self._samples[-1]
        return (end_bytes - start_bytes) / (end_time - start_time) if end_time > start_time else 0.0

    @property
    def remaining_seconds(self) -> float | None:
        """Seconds until the end at the recent rate; None while it cannot be estimated."""
        if self._samples[-1][0] - self._started_at < _MIN_ESTIMATE_SECONDS or self.bytes_per_second <= 0:
            return None
        return max(0, self.total_bytes - self.done_bytes) / self.bytes_per_second
