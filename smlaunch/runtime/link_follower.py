"""A follower's end of the link (link.py): finding the leader, and hearing how it has ended."""

import _thread
import os
import select
import time
from typing import Any, Dict, List, Optional, Set

from smlaunch.protocol.failure import format_failure
from smlaunch.runtime import wire as wires
from smlaunch.runtime.link import GONE, GOODBYE_SECONDS, Link, News
from smlaunch.runtime.wire import TO_LEADER, Lost, Wire, WireError

_PAUSE = 0.5
"""Before a leader is called again that has hung up before it looked at us."""


class Follower(Link):
    leads = False

    def __init__(self, host: str, leader: str, key: bytes, port: int, patience: float) -> None:
        self._host = host
        self._leader = leader
        self._key = key
        self._port = port
        self._wire: Optional[Wire] = None
        self._problem: Optional[str] = None
        self._ready = self._closed = False
        self._arrived, self._arrival = os.pipe()
        _thread.start_new_thread(self._connect, (time.monotonic() + patience, patience))

    def descriptors(self) -> List[int]:
        if self.over is not None:
            return []
        if not self.connected:
            return [self._arrived]  # before that, what the thread has made is its own
        return [] if self._wire is None else [self._wire.fileno()]

    def act(self, ready: Set[int]) -> None:
        if self._arrived in ready and not self.connected and self.over is None:
            os.read(self._arrived, 1)
            if self._problem is not None:
                self._fail(self._problem)
                return
            self.connected = True
            if self._ready:
                self._say({"ready": True})
        elif self.connected and self._wire is not None and self._wire.fileno() in ready:
            self._listen(self._wire)

    def say_ready(self) -> None:
        if not self._ready:
            self._ready = True
            if self.connected:
                self._say({"ready": True})

    def tell(self, news: News) -> None:
        if self._closed:
            return
        self._closed = True
        if news.text and not self.connected and self.over is None:
            arrival = select.poll()
            arrival.register(self._arrived, select.POLLIN)
            if arrival.poll(int(GOODBYE_SECONDS * 1000)):
                self.act({self._arrived})
        if self.connected and self._wire is not None:
            if self.over is None:
                self._say({"failed": news._asdict()})
            self._hang_up()

    def _listen(self, wire: Wire) -> None:
        try:
            frame = wire.take()
            message = {} if frame is None else frame.document()
        except (WireError, ValueError):
            self._lose()
            return
        if "end" in message:
            self.over = News(**message["end"])
            self._hang_up()  # which tells the leader that it may go

    def _say(self, message: Dict[str, Any]) -> None:
        try:
            if self._wire is not None:
                self._wire.tell(message)
        except WireError:
            self._lose()

    def _lose(self) -> None:
        self._hang_up()
        self._fail(self._gone())

    def _gone(self) -> str:
        told = "the leader, {}, is gone: the connection to it ended without a word; see its log"
        return told.format(self._leader)

    def _hang_up(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def _fail(self, cause: str) -> None:
        if self.over is None:
            self.over = News(GONE, format_failure(self._host, None, None, cause), time.time())

    def _connect(self, give_up: float, patience: float) -> None:
        """In a thread of its own: look-ups, connecting and the proofs may each take their time."""
        try:
            while True:
                try:
                    self._wire = self._prove(give_up, patience)
                    return
                except (Lost, OSError, UnicodeError) as error:
                    if time.monotonic() + _PAUSE > give_up:
                        self._problem = "the leader, {}, did not answer at port {} within {:g} s ({})".format(
                            self._leader, self._port, patience, error
                        )
                        return
                except WireError as error:
                    self._problem = str(error)
                    return
                time.sleep(_PAUSE)
        finally:
            os.write(self._arrival, b".")

    def _prove(self, give_up: float, patience: float) -> Wire:
        """Waits as long as it takes: the leader may be installing requirements before it looks at us.

        Raises WireError, with the cause; Lost or OSError when it is gone before it has said anything.
        """
        connection = wires.dial(self._leader, self._port, give_up, patience)
        connection.settimeout(None)
        request = {"host": self._leader, "from": self._host}
        told = "what answers for the leader, {}, at port {}".format(self._leader, self._port)
        try:
            wire = wires.ask(connection, self._key, TO_LEADER, request, told)
        except WireError:
            connection.close()
            raise
        try:
            welcome = wire.receive()
        except WireError:
            welcome = None
        if welcome is None:
            wire.close()
            raise WireError(self._gone())
        wire.do_not_wait()
        return wire
