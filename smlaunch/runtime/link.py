"""How hosts without ranks follow the leader, and how it hears of their failures.

Each of them keeps one connection to the leader for as long as the job lasts. Both sides prove that they know
the job's secret (secret.py); every message is signed and counted.

    follower -> leader   {"ready": true}                        its services are up
                         {"failed": {code, text, began}}        it has failed, and why
    leader -> follower   {"end": {code, text, began}}           how the leader ended: all shall end so

A connection that ends without a last word means that the host is gone: the kernel closes it when the runtime
is killed, and finds out in half a minute when the machine itself is (keep-alive).

Nothing here blocks the supervisor: its loop waits for the ``descriptors`` too, and then calls ``act``.
"""

import _thread
import json
import os
import select
import socket
import struct
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set

from smlaunch.protocol.ports import LINK
from smlaunch.runtime import secret
from smlaunch.runtime.cluster import Cluster
from smlaunch.runtime.names import PATIENCE
from smlaunch.runtime.problems import Stopped, Unusable

_PURPOSE = "link 1"
_HEADER = struct.Struct(">I")
_LARGEST = 1 << 16
_STRANGERS = 64
"""Connections that may be about to prove themselves at one time."""

_PROOF_SECONDS = 30.0
_GOODBYE_SECONDS = 5.0
"""For followers to hang up when they have been told of the end: when we are gone first, so may be what we
said, together with our network.
"""

_GONE = 1
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0


class News(NamedTuple):
    """How another host ended. ``text``: for a failure file, empty when nothing failed. ``began``: seconds
    since the epoch when the failure began.
    """

    code: int
    text: str = ""
    began: Optional[float] = None


class _Broken(Exception):
    """The other side is gone, or says what nobody who knows the secret would say."""


class _Wire:
    """Messages over a connection whose sides have proved themselves: length, signature, JSON."""

    def __init__(self, connection: socket.socket, key: bytes, side: str, nonces: bytes) -> None:
        connection.setblocking(False)
        self.connection = connection
        self._key = key
        self._side = side
        self._nonces = nonces
        self._sent = self._taken = 0
        self._rest = b""

    def send(self, message: Dict[str, Any]) -> None:
        """A few messages of a few hundred bytes: a connection that has no room for them is broken."""
        body = json.dumps(message).encode()
        signed = self._sign(self._side, self._sent, body)
        self._sent += 1
        try:
            self.connection.sendall(_HEADER.pack(len(body)) + signed + body)
        except OSError:  # BlockingIOError too
            raise _Broken from None

    def take(self) -> List[Dict[str, Any]]:
        """What has arrived whole. Raises _Broken, though not before all that came has been taken."""
        try:
            block = self.connection.recv(_LARGEST)
        except BlockingIOError:
            return []
        except OSError:
            block = b""
        if not block:
            raise _Broken
        self._rest += block
        messages = []
        start = _HEADER.size + secret.PROOF_BYTES
        while len(self._rest) >= start:
            (size,) = _HEADER.unpack_from(self._rest)
            if size > _LARGEST:
                raise _Broken
            if len(self._rest) < start + size:
                break
            signed, body = self._rest[_HEADER.size : start], self._rest[start : start + size]
            other = "leader" if self._side == "follower" else "follower"
            if not secret.same(signed, self._sign(other, self._taken, body)):
                raise _Broken
            self._taken += 1
            self._rest = self._rest[start + size :]
            messages.append(json.loads(body.decode()))
        return messages

    def close(self) -> None:
        self.connection.close()

    def _sign(self, side: str, number: int, body: bytes) -> bytes:
        return secret.proof(self._key, _PURPOSE, side + " says", self._nonces, _HEADER.pack(number), body)


class Link:
    """What the supervisor waits for beside its processes."""

    leads: bool
    everyone_ready: bool = False
    """On the leader: all others have their services up."""

    over: Optional[News] = None
    """Why everything here is to end: on a follower, the leader's end; on the leader, a follower's failure."""

    connected: bool = False

    def descriptors(self) -> List[int]:
        raise NotImplementedError

    def act(self, ready: Set[int]) -> None:
        raise NotImplementedError

    def say_ready(self) -> None:
        """This host's services are up."""

    def tell(self, news: News) -> None:
        """The last word: how this host ended. Only the first call counts."""
        raise NotImplementedError


def join(cluster: Cluster, key: bytes, port: int, patience: float = PATIENCE) -> Link:
    """``port``: the job's first. Raises Unusable when the leader cannot listen."""
    port += LINK
    if cluster.current == cluster.leader:
        return Leader(cluster.hosts[1:], key, port)
    return Follower(cluster.current, cluster.leader, key, port, patience)


def last_word(host: str, error: BaseException) -> News:
    """Of a host that ends before its ranks or services have."""
    code = int(getattr(error, "exit_code", 70))
    if isinstance(error, Stopped):
        return News(code)
    from smlaunch.protocol.failure import format_failure

    return News(code, format_failure(host, None, None, str(error)), time.time())


# ---- the leader ------------------------------------------------------------------------------------------


class _Guest:
    """A connection to the leader. ``name``: None until it has proved itself."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.until = time.monotonic() + _PROOF_SECONDS
        self.rest = b""
        self.nonce = b""
        self.name: Optional[str] = None
        self.wire: Optional[_Wire] = None
        self.ready = False


class Leader(Link):
    leads = True

    def __init__(self, others: Sequence[str], key: bytes, port: int) -> None:
        self._others = set(others)
        self._key = key
        self._guests: Dict[int, _Guest] = {}
        self._ended = False
        self.connected = True
        self.everyone_ready = not others
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
                    guest.wire.send({"end": news._asdict()})
                    waiting[number] = guest.wire
                    poll.register(number, select.POLLIN)
            except _Broken:
                continue
        give_up = time.monotonic() + _GOODBYE_SECONDS
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
        if len(strangers) >= _STRANGERS:
            connection.close()
            return
        _keep_alive(connection)
        self._guests[connection.fileno()] = _Guest(connection)

    def _hear(self, guest: _Guest) -> None:
        try:
            if guest.wire is None:
                self._check(guest)
            else:
                for message in guest.wire.take():
                    self._answer(guest, message)
        except (_Broken, OSError, ValueError):
            self._drop(guest)

    def _check(self, guest: _Guest) -> None:
        """nonce_f -> nonce_l, proof -> proof, name."""
        block = guest.connection.recv(1024)
        if not block:
            raise _Broken
        guest.rest += block
        if not guest.nonce:
            if len(guest.rest) < secret.NONCE_BYTES:
                return
            theirs, guest.rest = guest.rest[: secret.NONCE_BYTES], guest.rest[secret.NONCE_BYTES :]
            ours = secret.nonce()
            guest.nonce = theirs + ours
            guest.connection.sendall(ours + secret.proof(self._key, _PURPOSE, "leader", guest.nonce))
        start = secret.PROOF_BYTES + 1
        if len(guest.rest) < start or len(guest.rest) < start + guest.rest[start - 1]:
            return
        end = start + guest.rest[start - 1]
        proof, name, left = guest.rest[: start - 1], guest.rest[start:end], guest.rest[end:]
        if not secret.same(proof, secret.proof(self._key, _PURPOSE, "follower", guest.nonce, name)):
            raise _Broken
        known = {other.name for other in self._guests.values()}
        guest.name = name.decode()
        if left or guest.name not in self._others or guest.name in known:
            guest.name = None
            raise _Broken
        guest.wire = _Wire(guest.connection, self._key, "leader", guest.nonce)
        # So that it knows that it has been believed.
        guest.wire.send({"welcome": True})

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
            from smlaunch.protocol.failure import format_failure

            told = "its runtime is gone: the connection to it ended without a word; see its log"
            self.over = News(_GONE, format_failure(guest.name, None, None, told), time.time())


def _hung_up(wire: _Wire) -> bool:
    try:
        wire.take()
    except _Broken:
        return True
    return False


# ---- the others ------------------------------------------------------------------------------------------


class Follower(Link):
    leads = False

    def __init__(self, host: str, leader: str, key: bytes, port: int, patience: float) -> None:
        self._host = host
        self._leader = leader
        self._key = key
        self._port = port
        self._wire: Optional[_Wire] = None
        self._problem: Optional[str] = None
        self._ready = self._closed = False
        self._early: List[Dict[str, Any]] = []
        self._arrived, self._arrival = os.pipe()
        _thread.start_new_thread(self._connect, (time.monotonic() + patience, patience))

    def descriptors(self) -> List[int]:
        if self._wire is not None:
            return [self._wire.connection.fileno()]
        return [] if self.connected or self.over is not None else [self._arrived]

    def act(self, ready: Set[int]) -> None:
        if self._arrived in ready and not self.connected and self.over is None:
            os.read(self._arrived, 1)
            if self._problem is not None:
                self._fail(self._problem)
                return
            self.connected = True
            if self._ready:
                self._say({"ready": True})
            self._heed(self._early)
        elif self._wire is not None and self._wire.connection.fileno() in ready:
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
        if not self.connected and self.over is None:
            arrival = select.poll()
            arrival.register(self._arrived, select.POLLIN)
            if arrival.poll(int(_GOODBYE_SECONDS * 1000)):
                self.act({self._arrived})
        if self.connected and self._wire is not None:
            if self.over is None:
                self._say({"failed": news._asdict()})
            self._hang_up()

    def _listen(self, wire: _Wire) -> None:
        try:
            messages = wire.take()
        except (_Broken, ValueError):
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
        except _Broken:
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
            from smlaunch.protocol.failure import format_failure

            self.over = News(_GONE, format_failure(self._host, None, None, cause), time.time())

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
                except _Broken as broken:
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

        Raises _Broken, with the cause, or OSError when it is gone before it has said anything.
        """
        _keep_alive(connection)
        connection.settimeout(None)
        ours = secret.nonce()
        connection.sendall(ours)
        answer = _exactly(connection, secret.NONCE_BYTES + secret.PROOF_BYTES)
        nonces = ours + answer[: secret.NONCE_BYTES]
        expected = secret.proof(self._key, _PURPOSE, "leader", nonces)
        if not secret.same(answer[secret.NONCE_BYTES :], expected):
            raise _Broken(
                "what answers for the leader, {}, at port {} does not know this job's secret".format(
                    self._leader, self._port
                )
            )
        name = self._host.encode()
        proof = secret.proof(self._key, _PURPOSE, "follower", nonces, name)
        connection.sendall(proof + bytes([len(name)]) + name)
        wire = _Wire(connection, self._key, "follower", nonces)
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        try:
            while not self._early:
                poll.poll()
                self._early = wire.take()
        except (_Broken, ValueError):
            raise _Broken(self._gone()) from None
        self._wire = wire


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        block = connection.recv(size - len(data))
        if not block:
            raise ConnectionResetError("it hung up")
        data += block
    return data


def _keep_alive(connection: socket.socket) -> None:
    """Asks after 15 s of silence, and three times more."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # macOS calls the first one otherwise
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
