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
_SLOW_REQUEST_SECONDS = 2.0
"""Age after which a request that is not verified may be closed to make room."""
_NEW_CLIENT_SECONDS = 0.1
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
    """One connection. ``state_since``: when it became idle, or its request began. ``deadline``: when it will
    be closed. ``is_verified``: whether the client has sent a request with a valid signature."""

    __slots__ = ("deadline", "has_request", "is_closing", "is_verified", "socket", "state_since", "thread")

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.thread: threading.Thread | None = None
        self.state_since = time.monotonic()
        self.deadline: float | None = None
        self.has_request = False
        self.is_verified = False
        self.is_closing = False

    def close(self) -> None:
        """Shut the socket down; the connection's thread then ends."""
        self.is_closing = True
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def is_silent(self) -> bool:
        """Return whether no byte of a next request has arrived at this idle connection."""
        try:
            return not self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:
            return True


class ConnectionLimiter:
    """The open connections, at most ``max_connections``. ``on_room``: called when there may be room again,
    after ``make_room`` returned False."""

    def __init__(self, max_connections: int, verify_timeout: float, on_room: Callable[[], None]) -> None:
        self.max_connections = max_connections
        self.verify_timeout = verify_timeout
        self._on_room = on_room
        self._peers: set[ClientConnection] = set()
        self._lock = threading.Lock()
        self._has_waiting_client = False
        self._paused_until = 0.0
        self._has_warned = False

    def add(self, peer: ClientConnection) -> None:
        with self._lock:
            self._peers.add(peer)

    def remove(self, peer: ClientConnection) -> None:
        with self._lock:
            self._peers.discard(peer)
            self._notify_room()

    def peers(self) -> list[ClientConnection]:
        with self._lock:
            return list(self._peers)

    def mark_idle(self, peer: ClientConnection) -> None:
        """Record that a connection waits for its next request."""
        with self._lock:
            peer.has_request, peer.deadline, peer.state_since = False, None, time.monotonic()
            self._notify_room()

    def begin_request(self, peer: ClientConnection) -> bool:
        """Record the start of a request. Returns False when the connection is being closed."""
        with self._lock:
            peer.has_request, peer.state_since = True, time.monotonic()
            peer.deadline = peer.state_since + self.verify_timeout
            return not peer.is_closing

    def mark_verified(self, peer: ClientConnection) -> None:
        """Record that a request's signature is verified, and remove the time limit."""
        peer.is_verified, peer.deadline = True, None

    def set_deadline(self, peer: ClientConnection, seconds: float) -> None:
        peer.deadline = time.monotonic() + seconds

    def close_overdue(self) -> None:
        now = time.monotonic()
        for peer in self.peers():
            if peer.deadline is not None and peer.deadline < now:
                peer.close()

    def pause_accepting(self) -> None:
        """Accept no connection for a moment, because the system had no descriptor or thread for one."""
        self._paused_until = time.monotonic() + _ACCEPT_PAUSE_SECONDS

    def make_room(self) -> bool:
        """Return whether one more connection may be accepted. If not, close one that can be spared."""
        now = time.monotonic()
        with self._lock:
            self._has_waiting_client = len(self._peers) >= self.max_connections or now < self._paused_until
            if not self._has_waiting_client:
                return True
            if not any(peer.is_closing for peer in self._peers):
                peer = self._choose_victim(now)
                if peer is not None:
                    peer.close()
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "%d connections are open, as many as this process can have beside its jobs (`ulimit -n`): "
                "idle ones are closed for new ones",
                len(self._peers),
            )
        return False

    def _choose_victim(self, now: float) -> ClientConnection | None:
        """Choose the connection to close for a new client; None when none can be spared."""
        by_age = sorted(self._peers, key=lambda peer: (peer.has_request, peer.is_verified, peer.state_since))
        for peer in by_age:
            age = now - peer.state_since
            if peer.has_request:
                if peer.deadline is not None and age > _SLOW_REQUEST_SECONDS:
                    return peer
            elif peer.is_silent():
                # If the first candidate is new, no older or verified one is closed for another new one.
                return peer if age > _NEW_CLIENT_SECONDS else None
        return None

    def _notify_room(self) -> None:
        if self._has_waiting_client:
            self._has_waiting_client = False
            self._on_room()
