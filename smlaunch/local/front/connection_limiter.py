"""Limit of open connections, so that jobs and new clients do not run out of threads and descriptors.

A connection costs a thread and descriptors, and anybody on this machine may open one. When the limit is
reached and a client connects, an idle connection is closed: clients without a verified request first, and
among them the one that has been idle longest. A request has to be verified within a time limit.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

_MAX_CONNECTIONS = 512
_MIN_CONNECTIONS = 16
_DESCRIPTORS_PER_CONNECTION = 6
"""A request has up to three descriptors open; all together may use half of the process's limit."""
_MIN_SLOW_REQUEST_SECONDS = 2.0
"""Age after which a request that is not verified may be closed to make room."""
_MIN_IDLE_SECONDS = 0.1
"""Age before which an idle connection stays open, because its first request may be on its way."""
_ACCEPT_PAUSE_SECONDS = 1.0
"""Pause after the system had no descriptor or thread for a new connection."""

log = logging.getLogger(__name__)


def connection_limit() -> int:
    """Return how many connections this process can have beside its jobs."""
    import resource

    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft_limit == resource.RLIM_INFINITY:
        return _MAX_CONNECTIONS
    return max(_MIN_CONNECTIONS, min(_MAX_CONNECTIONS, soft_limit // _DESCRIPTORS_PER_CONNECTION))


class ClientConnection:
    """One connection. ``state_changed_at``: when it became idle, or its request began. ``deadline``: when it
    will be closed. ``is_verified``: whether the client has sent a request with a valid signature."""

    __slots__ = (
        "deadline",
        "has_request",
        "is_closing",
        "is_verified",
        "socket",
        "state_changed_at",
        "thread",
    )

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.thread: threading.Thread | None = None
        self.state_changed_at = time.monotonic()
        self.deadline: float | None = None
        self.has_request = False
        self.is_verified = False
        self.is_closing = False

    def close(self) -> None:
        """Shut the socket down; the connection's thread then ends."""
        self.is_closing = True
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def has_no_pending_input(self) -> bool:
        """Return whether no byte of a next request has arrived at this idle connection."""
        try:
            return not self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:
            return True


class ConnectionLimiter:
    """The open connections, at most ``max_connections``. ``on_connection_available``: called when there may
    be room again, after ``ensure_room_for_connection`` returned False."""

    def __init__(
        self, max_connections: int, verify_timeout: float, on_connection_available: Callable[[], None]
    ) -> None:
        self.max_connections = max_connections
        self.verify_timeout = verify_timeout
        self._on_connection_available = on_connection_available
        self._open_connections: set[ClientConnection] = set()
        self._lock = threading.Lock()
        self._has_waiting_client = False
        self._paused_until = 0.0
        self._has_logged_limit = False

    def add(self, connection: ClientConnection) -> None:
        with self._lock:
            self._open_connections.add(connection)

    def remove(self, connection: ClientConnection) -> None:
        with self._lock:
            self._open_connections.discard(connection)
            self._notify_waiting_client()

    def open_connections(self) -> list[ClientConnection]:
        with self._lock:
            return list(self._open_connections)

    def mark_idle(self, connection: ClientConnection) -> None:
        """Record that a connection waits for its next request."""
        with self._lock:
            connection.has_request, connection.deadline, connection.state_changed_at = (
                False,
                None,
                time.monotonic(),
            )
            self._notify_waiting_client()

    def begin_request(self, connection: ClientConnection) -> bool:
        """Record the start of a request. Returns False when the connection is being closed."""
        with self._lock:
            connection.has_request, connection.state_changed_at = True, time.monotonic()
            connection.deadline = connection.state_changed_at + self.verify_timeout
            return not connection.is_closing

    def mark_verified(self, connection: ClientConnection) -> None:
        """Record that a request's signature is verified, and remove the time limit."""
        connection.is_verified, connection.deadline = True, None

    def set_deadline(self, connection: ClientConnection, seconds: float) -> None:
        connection.deadline = time.monotonic() + seconds

    def close_overdue_connections(self) -> None:
        """Close the connections whose deadline, by which the client had to do something, is over."""
        now = time.monotonic()
        for connection in self.open_connections():
            if connection.deadline is not None and connection.deadline < now:
                connection.close()

    def pause_accepting(self) -> None:
        """Accept no connection for a moment, because the system had no descriptor or thread for one."""
        self._paused_until = time.monotonic() + _ACCEPT_PAUSE_SECONDS

    def ensure_room_for_connection(self) -> bool:
        """Return whether the server may accept one more connection now. If not, close one that can be spared,
        unless one is closing already; ``on_connection_available`` is called when it has ended."""
        now = time.monotonic()
        with self._lock:
            is_full = len(self._open_connections) >= self.max_connections
            is_paused = now < self._paused_until  # the system had no descriptor or thread for the last one
            self._has_waiting_client = is_full or is_paused  # the end of a connection is then reported
            if not self._has_waiting_client:
                return True
            if not any(connection.is_closing for connection in self._open_connections):
                connection = self._choose_connection_to_close(now)
                if connection is not None:
                    connection.close()
        if not self._has_logged_limit:
            self._has_logged_limit = True
            log.warning(
                "%d connections are open, as many as this process can have beside its jobs (`ulimit -n`): "
                "idle ones are closed for new ones",
                len(self._open_connections),
            )
        return False

    def _choose_connection_to_close(self, now: float) -> ClientConnection | None:
        """Choose the connection to close for a new client; None when none can be spared. Idle connections go
        first, among them those whose client has not yet shown a valid signature, and among these the one that
        is idle longest. Then come requests that have been waiting for the check of their signature for more
        than 2 seconds. ``now``: of time.monotonic()."""
        # state_changed_at: when the connection became idle or its request began, of time.monotonic().
        candidates = sorted(
            self._open_connections,
            key=lambda connection: (
                connection.has_request,
                connection.is_verified,
                connection.state_changed_at,
            ),
        )
        for connection in candidates:
            seconds_in_state = now - connection.state_changed_at
            if connection.has_request:
                # A request has a deadline until it is verified, and while its unread rest is discarded. In
                # between it is being served, and is not closed.
                if connection.deadline is not None and seconds_in_state > _MIN_SLOW_REQUEST_SECONDS:
                    return connection
            elif connection.has_no_pending_input():
                # If the first idle one is new (idle for less than 0.1 seconds), no older or verified one is
                # closed for another new one.
                return connection if seconds_in_state > _MIN_IDLE_SECONDS else None
        return None

    def _notify_waiting_client(self) -> None:
        if self._has_waiting_client:
            self._has_waiting_client = False
            self._on_connection_available()
