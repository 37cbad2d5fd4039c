"""Signals of PID 1, turned into events a loop can wait for.

The kernel drops a signal that PID 1 has no handler for, so the handlers are installed before anything else is
even imported. (Whoever starts us can close the last gap by starting us with SIGTERM blocked: a blocked signal
is kept, and ``install`` unblocks it.)

While the host gets ready, a stop signal raises ``Stopped`` wherever the program happens to be, which ends
an unpacking or a wait at once. As soon as there are processes to look after, signals are only noted
(``hold``), and the supervisor answers them.
"""

import os
import signal
from types import FrameType
from typing import List, Optional

from smlaunch.runtime.problems import Stopped

STOP = (signal.SIGTERM, signal.SIGINT)
"""Ask everything to end: passed on to every rank, then SIGKILL when the grace is over."""

PASSED_ON = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Mean nothing to the runtime itself; a rank may have a use for them."""


class Signals:
    """Install once, in the main thread. ``wakeup`` is a descriptor that gets readable with every signal."""

    def __init__(self) -> None:
        self.wakeup, self._write_end = os.pipe()
        os.set_blocking(self.wakeup, False)
        os.set_blocking(self._write_end, False)
        self._noted: List[int] = []
        self._holding = False

    def install(self) -> None:
        # A full pipe loses nothing: it is readable, and what came is noted by the handler as well.
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        handled = (*STOP, *PASSED_ON, signal.SIGCHLD)
        for number in handled:
            signal.signal(number, self._handle)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)

    def hold(self) -> None:
        """From now on signals are noted, not raised; what meant processes not yet there is dropped."""
        self._holding = True
        self._noted = [number for number in self._noted if number in STOP]

    def release(self) -> None:
        """Back to raising ``Stopped``; raises at once for a stop that nobody took in the meantime."""
        self._holding = False
        for number in self.take():
            if number in STOP:
                raise Stopped(number)

    def take(self) -> List[int]:
        """The signals since the last call, SIGCHLD left out, and an empty wakeup pipe."""
        try:
            while os.read(self.wakeup, 4096):
                pass
        except BlockingIOError:
            pass
        noted, self._noted = self._noted, []
        return noted

    def _handle(self, number: int, frame: Optional[FrameType]) -> None:
        if number == signal.SIGCHLD:
            return
        # Noted even where it raises: Python drops what is raised into a callback of its own, such as that
        # of an import's lock, and the stop would be lost. Then the supervisor answers it.
        self._noted.append(number)
        if self._holding or number not in STOP:
            return
        # Only once: a second SIGTERM must not raise again out of the clean-up of the first.
        self._holding = True
        raise Stopped(number)
