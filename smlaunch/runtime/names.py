"""Waiting until the leader's name resolves.

A host may be up before the cluster's names are known, so AWS asks to retry (developer guide,
your-algorithms-training-algo-running-container). A look-up cannot be interrupted and may itself take many
seconds, so it has a thread of its own, and other preparations go on meanwhile.
"""

import _thread
import socket
import time

from smlaunch.runtime.problems import Unusable

PATIENCE = 300.0
"""Seconds."""

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0


class Resolution:
    """Starts at once. ``_thread`` and not ``threading``: nobody ever joins this thread, and it imports
    nothing.
    """

    def __init__(self, name: str, patience: float = PATIENCE) -> None:
        self.name = name
        self._patience = patience
        self._problem = ""
        self._done = _thread.allocate_lock()
        self._done.acquire()
        _thread.start_new_thread(self._look_up, ())

    def wait(self) -> None:
        """Returns when the name resolves. A signal may raise out of it; raises Unusable when time is up."""
        # Without a time-out a look-up that never returns would be waited for, for ever.
        if not self._done.acquire(timeout=self._patience + 60.0):
            self._problem = "the look-up itself does not return"
        if self._problem:
            raise Unusable(
                "{}: the leader's name did not resolve within {:.0f} s ({}); "
                "has that host started, and may the hosts reach each other?".format(
                    self.name, self._patience, self._problem
                )
            )

    def _look_up(self) -> None:
        give_up = time.monotonic() + self._patience
        pause = _FIRST_PAUSE
        try:
            while True:
                try:
                    socket.getaddrinfo(self.name, None, type=socket.SOCK_STREAM)
                    return
                except (OSError, UnicodeError) as error:
                    if time.monotonic() + pause > give_up:
                        self._problem = str(error)
                        return
                # Nothing tells when a name appears: this is the one thing here that has to be asked again.
                time.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
        finally:
            self._done.release()
