"""Which connections are open, and which have to go so that neither a job nor a new client goes without.

A connection costs a thread and descriptors, and anybody on this machine may open one. So there are only so
many. When one more wants in, an idle one ends: first of those whose client has never signed well, and of
these the one that has waited longest. A client that has begun a request has to show a good signature soon.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

_MOST = 512
_LEAST = 16
_SHARE = 6
"""A request at work has up to three descriptors open: together no more than half of what a process may."""
_SLOW = 2.0
"""Seconds without a good signature after which a request makes room for others, where they need it."""
_FRESH = 0.1
"""Seconds in which the first request of a client that has just come is still on its way."""
_SHORT = 1.0
"""Seconds for which nobody new is let in when the machine had no descriptor, or no thread, for the last."""

log = logging.getLogger(__name__)


def most_connections() -> int:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else max(_LEAST, min(_MOST, soft // _SHARE))


class Peer:
    """One connection. ``since``: when it became idle, or its request began. ``deadline``: when it is cut."""

    __slots__ = ("at_work", "deadline", "ending", "known", "since", "socket", "thread")

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.thread: threading.Thread | None = None
        self.since = time.monotonic()
        self.deadline: float | None = None
        self.at_work = False
        self.known = False
        self.ending = False

    def end(self) -> None:
        """Its thread sees the end of the line and leaves."""
        self.ending = True
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def is_silent(self) -> bool:
        """Of an idle one: no request is on its way in."""
        try:
            return not self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:
            return True


class Connections:
    """``room``: called when there may be room again, after ``has_room`` said no."""

    def __init__(self, most: int, patience: float, room: Callable[[], None]) -> None:
        self.most = most
        self.patience = patience
        self._room = room
        self._peers: set[Peer] = set()
        self._lock = threading.Lock()
        self._waiting = False
        self._short_until = 0.0
        self._said = False

    def add(self, peer: Peer) -> None:
        with self._lock:
            self._peers.add(peer)

    def remove(self, peer: Peer) -> None:
        with self._lock:
            self._peers.discard(peer)
            self._tell()

    def all(self) -> list[Peer]:
        with self._lock:
            return list(self._peers)

    def idle(self, peer: Peer) -> None:
        """Waits for its next request."""
        with self._lock:
            peer.at_work, peer.deadline, peer.since = False, None, time.monotonic()
            self._tell()

    def begin(self, peer: Peer) -> bool:
        """A request comes in. False when the connection has to make room."""
        with self._lock:
            peer.at_work, peer.since = True, time.monotonic()
            peer.deadline = peer.since + self.patience
            return not peer.ending

    def accept(self, peer: Peer) -> None:
        """The request's signature is good: from now on it may take its time."""
        peer.known, peer.deadline = True, None

    def hurry(self, peer: Peer, seconds: float) -> None:
        peer.deadline = time.monotonic() + seconds

    def cut_overdue(self) -> None:
        now = time.monotonic()
        for peer in self.all():
            if peer.deadline is not None and peer.deadline < now:
                peer.end()

    def went_short(self) -> None:
        """The machine refused a descriptor or a thread."""
        self._short_until = time.monotonic() + _SHORT

    def has_room(self) -> bool:
        """For one more. When not, one that is there is asked to leave, where one can be spared."""
        now = time.monotonic()
        with self._lock:
            self._waiting = len(self._peers) >= self.most or now < self._short_until
            if not self._waiting:
                return True
            if not any(peer.ending for peer in self._peers):
                peer = self._spare(now)
                if peer is not None:
                    peer.end()
        if not self._said:
            self._said = True
            log.warning(
                "%d connections are open, as many as this process can have beside its jobs (`ulimit -n` "
                "decides): idle ones are closed as new ones come",
                len(self._peers),
            )
        return False

    def _spare(self, now: float) -> Peer | None:
        by_age = sorted(self._peers, key=lambda peer: (peer.at_work, peer.known, peer.since))
        for peer in by_age:
            age = now - peer.since
            if peer.at_work:
                if peer.deadline is not None and age > _SLOW:
                    return peer
            elif peer.is_silent():
                # No older or better known one has to go for somebody who may turn out to be silent.
                return peer if age > _FRESH else None
        return None

    def _tell(self) -> None:
        if self._waiting:
            self._waiting = False
            self._room()
