"""The leader's end of the link (link.py): who follows, who has failed, and telling all of the end."""

import select
import socket
import time
from typing import Any, Dict, List, Optional, Sequence, Set

from smlaunch.protocol.failure import format_failure
from smlaunch.runtime import wire as wires
from smlaunch.runtime.link import GONE, GOODBYE_SECONDS, Link, News
from smlaunch.runtime.problems import Unusable
from smlaunch.runtime.wire import TO_LEADER, Stranger, Wire, WireError

_PROOF_SECONDS = 30.0

_SILENT_SECONDS = 60.0
"""How long the others may take to get ready before it is told who is waited for. There is no limit: each has
its own, and whoever reaches it says so, or is ended by the platform.
"""


class _Guest:
    """A connection to the leader. ``name``: None until it has proved itself."""

    def __init__(self, connection: socket.socket, key: bytes, host: str) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.stranger = Stranger(connection, key, TO_LEADER, host)
        self.until = time.monotonic() + _PROOF_SECONDS
        self.name: Optional[str] = None
        self.wire: Optional[Wire] = None
        self.ready = False


class Leader(Link):
    """Listens from the start, at every address: a look-up of our own could take long, and signals must be
    heard. Raises Unusable when it cannot.
    """

    leads = True

    def __init__(self, host: str, others: Sequence[str], key: bytes, port: int) -> None:
        self._host = host
        self._others = set(others)
        self._key = key
        self._guests: Dict[int, _Guest] = {}
        self._ended = False
        self.connected = True
        self.everyone_ready = not others
        self.due = time.monotonic() + _SILENT_SECONDS
        try:
            self._listener = socket.create_server(("", port), backlog=max(128, len(others)))
        except OSError as error:
            raise Unusable(
                "port {}, at which the other hosts follow this one, cannot be had: {}".format(
                    port, error.strerror
                )
            ) from None
        self._listener.setblocking(False)

    def descriptors(self) -> List[int]:
        return [self._listener.fileno(), *self._guests]

    def act(self, ready: Set[int]) -> None:
        for number in ready & set(self._guests):
            self._hear(self._guests[number])
        if self._listener.fileno() in ready:
            self._welcome()
        self.remark = ""
        if self.due is not None and (self.everyone_ready or time.monotonic() >= self.due):
            self.due = None
            if not self.everyone_ready:
                self.remark = "waits for {} to be ready".format(", ".join(self.missing()))

    def missing(self) -> List[str]:
        """Hosts whose services are not known to be up."""
        return sorted(self._others - {guest.name for guest in self._guests.values() if guest.ready})

    def tell(self, news: News) -> None:
        if self._ended:
            return
        self._ended = True
        self._listener.close()
        poll = select.poll()
        waiting = {}
        for number, guest in self._guests.items():
            try:
                if guest.wire is not None:
                    guest.wire.tell({"end": news._asdict()})
                    waiting[number] = guest.wire
                    poll.register(number, select.POLLIN)
            except WireError:
                continue
        give_up = time.monotonic() + GOODBYE_SECONDS
        while waiting and time.monotonic() < give_up:
            for number, _ in poll.poll(int((give_up - time.monotonic()) * 1000) + 1):
                if _hung_up(waiting[number]):
                    poll.unregister(number)
                    del waiting[number]
        for guest in self._guests.values():
            guest.connection.close()
        self._guests = {}

    def _welcome(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it has gone already
            return
        now = time.monotonic()
        strangers = [guest for guest in self._guests.values() if guest.name is None]
        for guest in strangers:
            if now > guest.until:
                self._drop(guest)
        if len(strangers) >= wires.STRANGERS:
            connection.close()
            return
        wires.tune(connection)
        self._guests[connection.fileno()] = _Guest(connection, self._key, self._host)

    def _hear(self, guest: _Guest) -> None:
        try:
            if guest.wire is None:
                self._check(guest)
                return
            frame = guest.wire.take()
            if frame is not None:
                self._answer(guest, frame.document())
        except (WireError, ValueError):
            self._drop(guest)

    def _check(self, guest: _Guest) -> None:
        try:
            wire, request = guest.stranger.admit()
        except BlockingIOError:
            return
        name = str(request.get("from"))
        known = {other.name for other in self._guests.values()}
        if name not in self._others or name in known:
            raise WireError("no host of this job, or one that is here already")
        guest.name, guest.wire = name, wire
        # So that it knows that it has been believed.
        wire.tell({"welcome": True})

    def _answer(self, guest: _Guest, message: Dict[str, Any]) -> None:
        if message.get("ready"):
            guest.ready = True
            self.everyone_ready = self.everyone_ready or not self.missing()
        if "failed" in message and self.over is None:
            self.over = News(**message["failed"])

    def _drop(self, guest: _Guest) -> None:
        del self._guests[guest.connection.fileno()]
        guest.connection.close()
        if guest.name is not None and self.over is None:
            told = "its runtime is gone: the connection to it ended without a word; see its log"
            self.over = News(GONE, format_failure(guest.name, None, None, told), time.time())


def _hung_up(wire: Wire) -> bool:
    try:
        wire.take()
    except WireError:
        return True
    return False
