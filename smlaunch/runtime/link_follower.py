"""A follower's end of the link (link.py): finding the leader, and hearing how it has ended."""

import _thread
import os
import select
import socket
import time
from typing import Any, Dict, List, Optional, Sequence, Set

from smlaunch.protocol.failure import format_failure
from smlaunch.runtime import secret
from smlaunch.runtime.link import GONE, GOODBYE_SECONDS, Link, News
from smlaunch.runtime.link_wire import PURPOSE, Broken, Wire, exactly, keep_alive

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0


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
        self._early: List[Dict[str, Any]] = []
        self._arrived, self._arrival = os.pipe()
        _thread.start_new_thread(self._connect, (time.monotonic() + patience, patience))

    def descriptors(self) -> List[int]:
        if self.over is not None:
            return []
        if not self.connected:
            return [self._arrived]  # before that, what the thread has made is its own
        return [] if self._wire is None else [self._wire.connection.fileno()]

    def act(self, ready: Set[int]) -> None:
        if self._arrived in ready and not self.connected and self.over is None:
            os.read(self._arrived, 1)
            if self._problem is not None:
                self._fail(self._problem)
                return
            self.connected = True
            self._heed(self._early)
            if self._ready and self.over is None:
                self._say({"ready": True})
        elif self.connected and self._wire is not None and self._wire.connection.fileno() in ready:
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
            messages = wire.take()
        except (Broken, ValueError):
            self._lose()
            return
        self._heed(messages)

    def _heed(self, messages: Sequence[Dict[str, Any]]) -> None:
        for message in messages:
            if "end" in message and self.over is None:
                self.over = News(**message["end"])
                self._hang_up()  # which tells the leader that it may go

    def _say(self, message: Dict[str, Any]) -> None:
        try:
            if self._wire is not None:
                self._wire.send(message)
        except Broken:
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
        pause = _FIRST_PAUSE
        try:
            while True:
                connection = None
                try:
                    connection = socket.create_connection((self._leader, self._port), patience)
                    self._prove(connection)
                    return
                except Broken as broken:
                    self._problem = str(broken)
                    return
                except (OSError, UnicodeError) as error:
                    if connection is not None:
                        connection.close()
                    if time.monotonic() + pause > give_up:
                        self._problem = "the leader, {}, did not answer at port {} within {:g} s ({})".format(
                            self._leader, self._port, patience, error
                        )
                        return
                # Nothing tells when somebody begins to listen.
                time.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
        finally:
            os.write(self._arrival, b".")

    def _prove(self, connection: socket.socket) -> None:
        """Waits as long as it takes: the leader may be installing requirements before it looks at us.

        Raises Broken, with the cause, or OSError when it is gone before it has said anything.
        """
        keep_alive(connection)
        connection.settimeout(None)
        ours = secret.nonce()
        connection.sendall(ours)
        answer = exactly(connection, secret.NONCE_BYTES + secret.PROOF_BYTES)
        nonces = ours + answer[: secret.NONCE_BYTES]
        expected = secret.proof(self._key, PURPOSE, "leader", nonces)
        if not secret.same(answer[secret.NONCE_BYTES :], expected):
            raise Broken(
                "what answers for the leader, {}, at port {} does not know this job's secret".format(
                    self._leader, self._port
                )
            )
        name = self._host.encode()
        proof = secret.proof(self._key, PURPOSE, "follower", nonces, name)
        connection.sendall(proof + bytes([len(name)]) + name)
        wire = Wire(connection, self._key, "follower", nonces)
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        try:
            while not self._early:
                poll.poll()
                self._early = wire.take()
        except (Broken, ValueError):
            raise Broken(self._gone()) from None
        self._wire = wire
