"""Signs that a rank should stop, seen on its own host before all ranks have agreed."""

import os
import signal
import threading
import time
from types import FrameType
from typing import Any, Callable, Optional

Clock = Callable[[], float]


class StopSignal:
    """Watches for SIGTERM, for the stop file, and for the planned end of the segment.

    ``stop_at``: seconds since the epoch. The signal handler only records the signal, and calls the script's
    previous handler.
    """

    def __init__(
        self, stop_file: Optional[str], stop_at: Optional[float], *, clock: Clock = time.time
    ) -> None:
        self._stop_file = stop_file
        self._stop_at = stop_at
        self._clock = clock
        self._has_received_sigterm = False
        self._previous_handler: Any = None
        self._is_installed = False

    def install_handler(self) -> None:
        # Only the main thread may set a handler. In other threads the stop file has to suffice: the host's
        # runtime writes it with every signal that it forwards.
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGTERM, self._on_sigterm)
            self._is_installed = True

    def restore_handler(self, is_stopping: bool) -> None:
        """Restore the previous handler of SIGTERM, unless the training was asked to stop (``is_stopping``):
        the signal may come only now, from a host that stopped earlier, and must not kill a rank that is
        already stopping."""
        if self._is_installed and not is_stopping:
            signal.signal(
                signal.SIGTERM, signal.SIG_DFL if self._previous_handler is None else self._previous_handler
            )
            self._is_installed = False

    def reason_to_stop(self, needed_seconds: float = 0.0) -> Optional[str]:
        """Return why this rank has to stop now, or None. ``needed_seconds``: how long stopping takes, with
        everything to be saved; a planned end is met so much earlier."""
        if self._has_received_sigterm:  # the signal handler only sets this
            return "SIGTERM"
        if self._stop_at is not None and self._clock() + needed_seconds >= self._stop_at:
            return "the planned end of the segment"
        # Created by the host's main process, for all ranks of the host.
        if self._stop_file is not None and os.path.exists(self._stop_file):
            return "the host's stop file"
        return None

    def seconds_left(self) -> Optional[float]:
        """Return the seconds to the planned end; None without one."""
        return None if self._stop_at is None else self._stop_at - self._clock()

    def _on_sigterm(self, signal_number: int, frame: Optional[FrameType]) -> None:
        self._has_received_sigterm = True
        if callable(self._previous_handler):
            self._previous_handler(signal_number, frame)
