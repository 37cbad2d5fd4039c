"""When a rank is to leave: what it has seen of the host's wish, before all ranks have agreed."""

import os
import signal
import threading
import time
from types import FrameType
from typing import Any, Callable, Optional

Clock = Callable[[], float]


class StopWish:
    """Watches for SIGTERM, for the stop file, and for the planned end.

    ``stop_at``: seconds since the epoch. The signal's handler only notes it; a handler that the script has
    set before is called as well.
    """

    def __init__(
        self, stop_file: Optional[str], stop_at: Optional[float], *, clock: Clock = time.time
    ) -> None:
        self._file = stop_file
        self._at = stop_at
        self._clock = clock
        self._signalled = False
        self._former: Any = None
        self._installed = False

    def watch(self) -> None:
        # Only the main thread may set a handler; elsewhere the stop file, which comes with every signal
        # that the host's runtime passes on, has to do.
        if threading.current_thread() is threading.main_thread():
            self._former = signal.signal(signal.SIGTERM, self._note)
            self._installed = True

    def release(self, leaving: bool) -> None:
        """Puts the former handler back. Not when the script is ``leaving``: on another host its ranks may
        have been told earlier, and a SIGTERM that comes now must not kill one that does what it says."""
        if self._installed and not leaving:
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self._former is None else self._former)
            self._installed = False

    def reason(self, needed: float = 0.0) -> Optional[str]:
        """Why to leave now, or None. ``needed``: seconds that leaving takes, with all that is to be saved."""
        if self._signalled:
            return "SIGTERM"
        if self._at is not None and self._clock() + needed >= self._at:
            return "the planned end of the segment"
        if self._file is not None and os.path.exists(self._file):
            return "the host's stop file"
        return None

    def time_left(self) -> Optional[float]:
        """Seconds to the planned end; None without one."""
        return None if self._at is None else self._at - self._clock()

    def _note(self, number: int, frame: Optional[FrameType]) -> None:
        self._signalled = True
        if callable(self._former):
            self._former(number, frame)
