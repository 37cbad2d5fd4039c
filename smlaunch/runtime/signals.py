"""Signals of PID 1, turned into events that a loop can wait for.

The kernel drops a signal that PID 1 has no handler for, so the handlers are installed before anything else is
imported. (A parent process can close the last gap by starting this one with SIGTERM blocked: a blocked signal
stays pending, and ``install`` unblocks it.)

While the host prepares, a stop signal raises ``StoppedDuringSetup`` wherever the program is, which ends an
unpacking or a wait at once. When processes are running, signals are queued (``defer``), and the supervisor
handles them.
"""

import os
import signal
from types import FrameType
from typing import List, Optional

from smlaunch.runtime.errors import StoppedDuringSetup

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""End everything: sent on to every rank, SIGKILL when the grace period is over."""

FORWARDED_SIGNALS = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Sent on to the ranks; the runtime itself does not use them."""


class SignalQueue:
    """Install once, in the main thread. ``wakeup_fd`` becomes readable with every signal."""

    def __init__(self) -> None:
        self.wakeup_fd, self._wakeup_write_fd = os.pipe()
        os.set_blocking(self.wakeup_fd, False)
        os.set_blocking(self._wakeup_write_fd, False)
        self._pending: List[int] = []
        self._is_deferring = False

    def install(self) -> None:
        # A full pipe loses nothing: it is readable, and the handler queues the signal too.
        """Install the handlers and unblock the signals."""
        signal.set_wakeup_fd(self._wakeup_write_fd, warn_on_full_buffer=False)
        handled = (*STOP_SIGNALS, *FORWARDED_SIGNALS, signal.SIGCHLD)
        for signal_number in handled:
            signal.signal(signal_number, self._handle)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)

    def defer(self) -> None:
        """Queue signals from now on instead of raising; forget queued signals that were
        meant for processes.
        """
        self._is_deferring = True
        self._pending = [number for number in self._pending if number in STOP_SIGNALS]

    def release(self) -> None:
        """Raise ``StoppedDuringSetup`` again from now on; at once for a stop signal in the queue."""
        self._is_deferring = False
        for signal_number in self.take_pending():
            if signal_number in STOP_SIGNALS:
                raise StoppedDuringSetup(signal_number)

    def take_pending(self) -> List[int]:
        """Return and clear the queue (without SIGCHLD), and empty the wakeup pipe."""
        try:
            while os.read(self.wakeup_fd, 4096):
                pass
        except BlockingIOError:
            pass
        pending, self._pending = self._pending, []
        return pending

    def _handle(self, signal_number: int, frame: Optional[FrameType]) -> None:
        """Handle a signal of this process: queue it, and raise StoppedDuringSetup for a stop signal unless
        signals are only queued now (``defer``).
        """
        if signal_number == signal.SIGCHLD:
            return
        # Queued even where it raises: Python drops exceptions that are raised into its own callbacks, such
        # as that of an import lock. The supervisor then handles the queued stop.
        self._pending.append(signal_number)
        if self._is_deferring or signal_number not in STOP_SIGNALS:
            return
        # Raise once: a second SIGTERM must not interrupt the clean-up after the first.
        self._is_deferring = True
        raise StoppedDuringSetup(signal_number)
