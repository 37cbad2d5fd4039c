"""What travels between the hosts of one job: a handshake, one request, then frames both ways.

Whoever connects is a, whoever accepts is b (secret.py). Everything after the nonces carries a proof:

    a -> b  nonce_a
    b -> a  nonce_b, proof(b)
    a -> b  request                  proof(a) covers the request, which names the host that it is for
    frames  kind, size, payload      proof with a key of this connection, the side, and the frame's number

So a request cannot be made without the secret, changed, sent again, or handed on to another host, and no
frame can be changed, left out, repeated or sent back. Nothing is hidden: what ranks print is not a secret,
and what is travels elsewhere.
"""

import contextlib
import json
import select
import socket
import time
from typing import Any, Dict, NamedTuple, Optional, Tuple

from smlaunch.runtime import secret
from smlaunch.runtime.link_wire import keep_alive

PURPOSE = "smlaunch agent 1"

OUT, ERR, ENDED, NEWS = (b"o", b"e", b"x", b"n")
"""Kinds of frames: output, error output and exit status of what was run; what hosts tell each other."""

_LARGEST = 4 << 20
_HEAD = 5
_PATIENCE = 20.0
"""Seconds that one side may take for its part of the handshake."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0


class WireError(Exception):
    """The other side is not one of us, or is gone. The message is one line."""


class Frame(NamedTuple):
    kind: bytes
    payload: bytes

    def document(self) -> Any:
        return json.loads(self.payload.decode("utf-8"))


class Wire:
    """One connection after its handshake. Frames may be sent and received by two threads, one each."""

    def __init__(self, connection: socket.socket, key: bytes, own: str, other: str) -> None:
        self._connection = connection
        self._key = key
        self._own, self._other = own, other
        self._sent = self._received = 0

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, kind: bytes, payload: bytes) -> None:
        """Raises WireError when the other side is gone."""
        head = kind + len(payload).to_bytes(4, "big")
        number = self._sent.to_bytes(8, "big")
        self._sent += 1
        signed = secret.proof(self._key, PURPOSE, self._own, number, head, payload)
        try:
            self._connection.sendall(head + payload + signed)
        except OSError as error:
            raise WireError("the connection is lost: {}".format(error.strerror)) from None

    def tell(self, kind: bytes, document: Any) -> None:
        self.send(kind, json.dumps(document).encode("utf-8"))

    def receive(self) -> Optional[Frame]:
        """Waits for the next frame; None when the other side has closed between two. Raises WireError."""
        head = _exactly(self._connection, _HEAD, or_nothing=True)
        if not head:
            return None
        size = int.from_bytes(head[1:], "big")
        if size > _LARGEST:
            raise WireError("a frame of {} bytes is none of ours".format(size))
        payload = _exactly(self._connection, size)
        signed = _exactly(self._connection, secret.PROOF_BYTES)
        number = self._received.to_bytes(8, "big")
        self._received += 1
        if not secret.same(signed, secret.proof(self._key, PURPOSE, self._other, number, head, payload)):
            raise WireError("a frame is not from who it should be from")
        return Frame(head[:1], payload)

    def readable(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        return bool(poll.poll(int(seconds * 1000)))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # wakes up who waits in receive
        self._connection.close()


def accept(connection: socket.socket, key: bytes, host: str) -> Tuple[Wire, Dict[str, Any]]:
    """b's part: the connection, and what is asked for. Raises WireError for anybody who does not know the
    key, and for a request that is meant for another host than ``host``.
    """
    connection.settimeout(_PATIENCE)
    nonce_a = _exactly(connection, secret.NONCE_BYTES)
    nonce_b = secret.nonce()
    _send(connection, nonce_b + secret.proof(key, PURPOSE, "b", nonce_a, nonce_b))
    size = int.from_bytes(_exactly(connection, 4), "big")
    if size > _LARGEST:
        raise WireError("a request of {} bytes is none of ours".format(size))
    request = _exactly(connection, size)
    signed = _exactly(connection, secret.PROOF_BYTES)
    if not secret.same(signed, secret.proof(key, PURPOSE, "a", nonce_a, nonce_b, request)):
        raise WireError("it does not know this job's secret")
    document = json.loads(request.decode("utf-8"))
    if document.get("host") != host:
        raise WireError("a request for {} has come to {}".format(document.get("host"), host))
    connection.settimeout(None)
    return Wire(connection, _session(key, nonce_a, nonce_b), "b", "a"), document


def connect(address: str, port: int, key: bytes, request: Dict[str, Any], patience: float) -> Wire:
    """a's part. ``address``: a host's name, which may not resolve yet, nor may anybody listen there yet: both
    are waited for, for ``patience`` seconds. Raises WireError.
    """
    connection = _connected(address, port, patience)
    try:
        connection.settimeout(_PATIENCE)
        nonce_a = secret.nonce()
        _send(connection, nonce_a)
        nonce_b = _exactly(connection, secret.NONCE_BYTES)
        signed = _exactly(connection, secret.PROOF_BYTES)
        if not secret.same(signed, secret.proof(key, PURPOSE, "b", nonce_a, nonce_b)):
            raise WireError("{} does not know this job's secret".format(address))
        body = json.dumps(request).encode("utf-8")
        _send(
            connection,
            len(body).to_bytes(4, "big") + body + secret.proof(key, PURPOSE, "a", nonce_a, nonce_b, body),
        )
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return Wire(connection, _session(key, nonce_a, nonce_b), "a", "b")


def _session(key: bytes, nonce_a: bytes, nonce_b: bytes) -> bytes:
    return secret.proof(key, PURPOSE, "session", nonce_a, nonce_b)


def _connected(address: str, port: int, patience: float) -> socket.socket:
    give_up = time.monotonic() + patience
    pause = _FIRST_PAUSE
    while True:
        try:
            connection = socket.create_connection((address, port), timeout=_PATIENCE)
        except (OSError, UnicodeError) as error:
            # Nothing tells when a name appears or when somebody begins to listen: it has to be asked again.
            if time.monotonic() + pause > give_up:
                raise WireError(
                    "{}: no runtime of this job answers there ({})".format(address, error)
                ) from None
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
            continue
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(connection)
        return connection


def _send(connection: socket.socket, data: bytes) -> None:
    try:
        connection.sendall(data)
    except OSError as error:
        raise WireError("the connection is lost: {}".format(error)) from None


def _exactly(connection: socket.socket, size: int, or_nothing: bool = False) -> bytes:
    """Raises WireError for less; an orderly end before the first byte is empty where that is expected."""
    data = b""
    while len(data) < size:
        try:
            piece = connection.recv(min(size - len(data), 1 << 16))
        except OSError as error:
            raise WireError("the connection is lost: {}".format(error)) from None
        if not piece:
            if or_nothing and not data:
                return b""
            raise WireError("the connection was closed: the other side does not take ours, or is gone")
        data += piece
    return data


def own_address(host: str) -> str:
    """Where this host listens: at the address that the others know it by, else everywhere."""
    try:
        return socket.gethostbyname(host)
    except OSError:
        return ""
