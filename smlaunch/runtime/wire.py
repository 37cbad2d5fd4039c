"""What travels between the hosts of one job: a handshake, one request, then frames both ways.

Whoever connects is a, whoever accepts is b. Everything after the nonces carries a proof (secret.py):

    a -> b  nonce_a
    b -> a  nonce_b, proof(b)
    a -> b  size, request, proof(a)    the proof covers the request, which names the host that it is for
    frames  kind, size, payload, proof     with a key of this connection, the side, and the frame's number

So a request cannot be made without the secret, changed, sent again, or handed on to another host, and no
frame can be changed, left out, repeated or sent back. The purpose is part of every proof: what was signed for
one is worth nothing for another. Nothing is hidden: what ranks print is not a secret, and what is travels
elsewhere.

Nobody reads more than is needed for what comes next, so whoever polls a connection is told of the rest. A
connection that does not wait (setblocking) raises BlockingIOError, and may be asked again: nothing is lost.
"""

import contextlib
import json
import socket
import time
from typing import Any, Dict, NamedTuple, Optional, Tuple

from smlaunch.runtime import secret


class Purpose(NamedTuple):
    """``largest``: bytes of a request, and of a frame."""

    name: str
    largest: int


TO_AGENT = Purpose("agent", 4 << 20)
"""Commands and their output, and what the hosts of an MPI program tell each other (agent.py, mpi_host.py)."""

TO_LEADER = Purpose("link", 1 << 16)
"""How hosts have ended (link.py)."""

OUT, ERR, ENDED, NEWS = (b"o", b"e", b"x", b"n")
"""Kinds of frames: output, error output and exit status of what was run; what hosts tell each other."""

STRANGERS = 64
"""Connections that may be about to prove themselves at one time."""

HANDSHAKE_SECONDS = 20.0
"""For each thing that the other side has to say."""

_SIZE_BYTES = 4
_HEAD_BYTES = 1 + _SIZE_BYTES
_PIECE = 1 << 16
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0


class WireError(Exception):
    """The other side is not one of us, or is gone. The message is one line."""


class Lost(WireError):
    """The connection has ended, for a reason that nobody has told."""


class Frame(NamedTuple):
    kind: bytes
    payload: bytes

    def document(self) -> Any:
        return json.loads(self.payload.decode("utf-8"))


class Wire:
    """One connection after its handshake. Frames may be sent and received by two threads, one each.

    ``key``: of this connection alone; ``own``, ``other``: "a" or "b".
    """

    def __init__(self, connection: socket.socket, key: bytes, purpose: Purpose, own: str, other: str) -> None:
        self._connection = connection
        self._incoming = _Incoming(connection)
        self._key = key
        self._purpose = purpose
        self._own, self._other = own, other
        self._sent = self._received = 0

    def fileno(self) -> int:
        return self._connection.fileno()

    def do_not_wait(self) -> None:
        """From now on. A message that the connection has no room for is then one that is lost."""
        self._connection.setblocking(False)

    def send(self, kind: bytes, payload: bytes) -> None:
        """Raises Lost."""
        head = kind + _size(payload)
        signed = self._proof(self._own, self._sent, head, payload)
        self._sent += 1
        _send(self._connection, head + payload + signed)

    def tell(self, document: Any) -> None:
        self.send(NEWS, json.dumps(document).encode("utf-8"))

    def receive(self) -> Optional[Frame]:
        """Waits for the next frame; None when the other side has closed between two. Raises WireError."""
        head = self._incoming.whole(_HEAD_BYTES, or_nothing=True)
        if not head:
            return None
        size = int.from_bytes(head[1:], "big")
        if size > self._purpose.largest:
            raise WireError("a frame of {} bytes is none of ours".format(size))
        end = _HEAD_BYTES + size
        block = self._incoming.whole(end + secret.PROOF_BYTES)
        self._incoming.drop()
        payload = block[_HEAD_BYTES:end]
        if not secret.same(block[end:], self._proof(self._other, self._received, head, payload)):
            raise WireError("a frame is not from who it should be from")
        self._received += 1
        return Frame(head[:1], payload)

    def take(self) -> Optional[Frame]:
        """Of a connection that does not wait: None while the next frame has not come whole. Raises WireError,
        Lost when the other side has closed.
        """
        try:
            frame = self.receive()
        except BlockingIOError:
            return None
        if frame is None:
            raise Lost("its connection was closed")
        return frame

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # wakes up who waits in receive
        self._connection.close()

    def _proof(self, side: str, number: int, head: bytes, payload: bytes) -> bytes:
        return secret.proof(self._key, self._purpose.name, side, number.to_bytes(8, "big"), head, payload)


class Stranger:
    """b's part: somebody who has connected to ``host``, which is us, and is to prove itself."""

    def __init__(self, connection: socket.socket, key: bytes, purpose: Purpose, host: str) -> None:
        self._connection = connection
        self._incoming = _Incoming(connection)
        self._key = key
        self._purpose = purpose
        self._host = host
        self._nonces: Optional[Tuple[bytes, bytes]] = None

    def admit(self) -> Tuple[Wire, Dict[str, Any]]:
        """The connection, and what is asked for. Raises WireError for anybody who does not know the key, and
        for a request that is meant for another host, ValueError for one that is no JSON.
        """
        if self._nonces is None:
            theirs = self._incoming.whole(secret.NONCE_BYTES)
            self._incoming.drop()
            self._nonces = (theirs, secret.nonce())
            _send(self._connection, self._nonces[1] + self._proof("b"))
        size = int.from_bytes(self._incoming.whole(_SIZE_BYTES), "big")
        if size > self._purpose.largest:
            raise WireError("a request of {} bytes is none of ours".format(size))
        end = _SIZE_BYTES + size
        block = self._incoming.whole(end + secret.PROOF_BYTES)
        body = block[_SIZE_BYTES:end]
        if not secret.same(block[end:], self._proof("a", body)):
            raise WireError("it does not know this job's secret")
        request = json.loads(body.decode("utf-8"))
        meant = request.get("host") if isinstance(request, dict) else None
        if meant != self._host:
            raise WireError("a request for {} has come to {}".format(meant, self._host))
        return Wire(self._connection, self._proof("session"), self._purpose, "b", "a"), request

    def _proof(self, side: str, *parts: bytes) -> bytes:
        return secret.proof(self._key, self._purpose.name, side, *(self._nonces or ()), *parts)


def ask(connection: socket.socket, key: bytes, purpose: Purpose, request: Dict[str, Any], other: str) -> Wire:
    """a's part. ``request`` names the ``host`` that it is for; ``other``: what to call who answers. Raises
    WireError, Lost when it has gone before it has proved itself.
    """
    nonce_a = secret.nonce()
    _send(connection, nonce_a)
    answer = _Incoming(connection).whole(secret.NONCE_BYTES + secret.PROOF_BYTES)
    nonce_b, signed = answer[: secret.NONCE_BYTES], answer[secret.NONCE_BYTES :]
    if not secret.same(signed, secret.proof(key, purpose.name, "b", nonce_a, nonce_b)):
        raise WireError("{} does not know this job's secret".format(other))
    body = json.dumps(request).encode("utf-8")
    signed = secret.proof(key, purpose.name, "a", nonce_a, nonce_b, body)
    _send(connection, _size(body) + body + signed)
    session = secret.proof(key, purpose.name, "session", nonce_a, nonce_b)
    return Wire(connection, session, purpose, "a", "b")


def call_agent(host: str, port: int, key: bytes, request: Dict[str, Any], patience: float) -> Wire:
    """The agent of another host, which may not be there yet, for ``patience`` seconds. Raises WireError."""
    try:
        connection = dial(host, port, time.monotonic() + patience, HANDSHAKE_SECONDS)
    except (OSError, UnicodeError) as error:
        raise WireError("{}: no runtime of this job answers there ({})".format(host, error)) from None
    try:
        connection.settimeout(HANDSHAKE_SECONDS)
        wire = ask(connection, key, TO_AGENT, {**request, "host": host}, host)
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return wire


# ---- sockets ---------------------------------------------------------------------------------------------


def dial(host: str, port: int, give_up: float, at_once: float) -> socket.socket:
    """A connection to a host whose name may not resolve yet, and where nobody may listen yet: both are waited
    for until ``give_up`` (time.monotonic), ``at_once`` seconds at a time. Raises OSError or UnicodeError.
    """
    pause = _FIRST_PAUSE
    while True:
        try:
            connection = socket.create_connection((host, port), at_once)
        except (OSError, UnicodeError):
            # Nothing tells when a name appears or when somebody begins to listen: it has to be asked again.
            if time.monotonic() + pause > give_up:
                raise
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
            continue
        tune(connection)
        return connection


def tune(connection: socket.socket) -> None:
    """Small frames go at once. After 15 s of silence the other side is asked, and three times more."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # macOS calls the first one otherwise
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def own_address(host: str) -> str:
    """Where this host listens: at the address that the others know it by, else everywhere. A look-up, which
    may take its time.
    """
    try:
        return socket.gethostbyname(host)
    except OSError:
        return ""


class _Incoming:
    """What has come, up to what is needed next. Only ``drop`` takes something away."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._come = bytearray()

    def whole(self, size: int, or_nothing: bool = False) -> bytes:
        """The first ``size`` bytes. Raises Lost for less; an orderly end before the first byte is empty where
        that is expected.
        """
        while len(self._come) < size:
            try:
                piece = self._connection.recv(min(size - len(self._come), _PIECE))
            except BlockingIOError:
                raise
            except OSError as error:
                raise _lost(error) from None
            if not piece:
                if or_nothing and not self._come:
                    return b""
                raise Lost("the connection was closed: the other side does not take ours, or is gone")
            self._come += piece
        return bytes(self._come[:size])

    def drop(self) -> None:
        self._come.clear()


def _send(connection: socket.socket, data: bytes) -> None:
    """Raises Lost, also where there is no room for it and the connection does not wait."""
    try:
        connection.sendall(data)
    except OSError as error:
        raise _lost(error) from None


def _lost(error: OSError) -> Lost:
    return Lost("the connection is lost: {}".format(error))


def _size(body: bytes) -> bytes:
    return len(body).to_bytes(_SIZE_BYTES, "big")
