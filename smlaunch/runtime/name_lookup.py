"""Wait until the leader's name resolves.

A host may start before the names of the cluster are known, so AWS asks for retries (developer guide,
your-algorithms-training-algo-running-container). A look-up cannot be interrupted and may take many seconds,
so it runs in a thread while other preparations go on.
"""

import _thread
import socket
import time

from smlaunch.runtime.errors import SetupError

PEER_TIMEOUT_SECONDS = 300.0
"""Seconds."""

_FIRST_PAUSE_SECONDS = 0.05
_MAX_PAUSE_SECONDS = 2.0


class NameLookup:
    """Starts looking up at once. Uses ``_thread``, not ``threading``: the thread is never joined, and
    ``_thread`` imports nothing.
    """

    def __init__(self, name: str, timeout_seconds: float = PEER_TIMEOUT_SECONDS) -> None:
        self.host_name = name
        self._timeout_seconds = timeout_seconds
        self._error_text = ""
        self._done_lock = _thread.allocate_lock()
        self._done_lock.acquire()
        _thread.start_new_thread(self._look_up_until_resolved, ())

    def wait(self) -> None:
        """Return when the name resolves. Raises SetupError when the time is over; a signal handler may raise
        too.
        """
        # The extra time is for a look-up that does not return.
        if not self._done_lock.acquire(timeout=self._timeout_seconds + 60.0):
            self._error_text = "the look-up itself does not return"
        if self._error_text:
            raise SetupError(
                "{}: the leader's name did not resolve within {:.0f} s ({}); "
                "has that host started, and may the hosts reach each other?".format(
                    self.host_name, self._timeout_seconds, self._error_text
                )
            )

    def _look_up_until_resolved(self) -> None:
        """Look up the host name until it resolves, or set ``_error_text`` when the time is over; then release
        ``_done_lock``, for which ``wait`` waits. Runs in a thread.
        """
        deadline = time.monotonic() + self._timeout_seconds
        pause_seconds = _FIRST_PAUSE_SECONDS
        try:
            while True:
                try:
                    socket.getaddrinfo(self.host_name, None, type=socket.SOCK_STREAM)
                    return
                except (OSError, UnicodeError) as error:
                    if time.monotonic() + pause_seconds > deadline:
                        self._error_text = str(error)
                        return
                # There is no event for a name that appears, so it is looked up again.
                time.sleep(pause_seconds)
                pause_seconds = min(pause_seconds * 2, _MAX_PAUSE_SECONDS)
        finally:
            self._done_lock.release()
