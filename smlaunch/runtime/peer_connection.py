"""Connections between the hosts of one job: a handshake, one request, then frames both ways.

Side a connects, side b accepts. Everything after the nonces carries a proof (secret.py):

    a -> b  nonce_a
    b -> a  nonce_b, proof(b)
    a -> b  size, request, proof(a)    the proof covers the request, which names the host that it is for
    frames  kind, size, payload, proof     with a key of this connection, the side, and the frame's number

So a request cannot be made without the secret, changed, sent again, or sent on to another host, and no frame
can be changed, left out, repeated or sent back. The purpose is part of every proof: a signature for one
purpose is not valid for another. Nothing is encrypted: output of ranks is not secret, and secrets do not
travel here.

No more is read than the next item needs, so poll() reports the rest. A non-blocking connection raises
BlockingIOError, and the call can be repeated: nothing is lost.
"""

import contextlib
import json
import socket
import time
from typing import Any, Dict, NamedTuple, Optional, Tuple

from smlaunch.runtime import secret


class ConnectionPurpose(NamedTuple):
    """What connections are for. ``max_bytes``: of a request, and of a frame."""

    name: str
    max_bytes: int


TO_AGENT = ConnectionPurpose("agent", 4 << 20)
"""Commands and their output, and messages between the hosts of an MPI program (mpi/)."""

TO_LEADER = ConnectionPurpose("link", 1 << 16)
"""How hosts have ended (control_channel.py)."""

STDOUT, STDERR, EXIT_STATUS, MESSAGE = (b"o", b"e", b"x", b"n")
"""Kinds of frames: output, error output and exit status of a command; messages between hosts."""

MAX_PENDING_HANDSHAKES = 64
"""Handshakes that may be under way at the same time."""

HANDSHAKE_SECONDS = 20.0
"""Time-out of each read of a handshake."""

_SIZE_BYTES = 4
_HEAD_BYTES = 1 + _SIZE_BYTES
_RECEIVE_BYTES = 1 << 16
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.02, 1.0


class PeerError(Exception):
    """The other side is no host of this job, or is gone. The message is one line."""


class PeerLost(PeerError):
    """The connection has ended without a reason being given."""


class Frame(NamedTuple):
    """One frame. ``kind``: STDOUT, STDERR, EXIT_STATUS or MESSAGE."""

    kind: bytes
    payload: bytes

    def parse_json(self) -> Any:
        return json.loads(self.payload.decode("utf-8"))


class PeerConnection:
    """One connection after its handshake. One thread may send while another one receives.

    ``key``: of this connection alone. ``own_side``, ``other_side``: "a" or "b".
    """

    def __init__(
        self,
        connection: socket.socket,
        key: bytes,
        purpose: ConnectionPurpose,
        own_side: str,
        other_side: str,
    ) -> None:
        self._connection = connection
        self._incoming = _ReceiveBuffer(connection)
        self._key = key
        self._purpose = purpose
        self._own_side, self._other_side = own_side, other_side
        self._sent_frames = self._received_frames = 0

    def fileno(self) -> int:
        return self._connection.fileno()

    def set_non_blocking(self) -> None:
        """Do not wait from now on. A message that does not fit into the send buffer raises PeerLost."""
        self._connection.setblocking(False)

    def send(self, kind: bytes, payload: bytes) -> None:
        """Send one frame. Raises PeerLost."""
        header = kind + _size_prefix(payload)
        proof = self._frame_proof(self._own_side, self._sent_frames, header, payload)
        self._sent_frames += 1
        _send_all(self._connection, header + payload + proof)

    def send_message(self, document: Any) -> None:
        """Send a JSON document."""
        self.send(MESSAGE, json.dumps(document).encode("utf-8"))

    def receive(self) -> Optional[Frame]:
        """Wait for the next frame; None when the other side has closed the connection between two frames.
        Raises PeerError.
        """
        header = self._incoming.read_exactly(_HEAD_BYTES, allow_end=True)
        if not header:
            return None
        size = int.from_bytes(header[1:], "big")
        if size > self._purpose.max_bytes:
            raise PeerError("a frame of {} bytes is too large".format(size))
        payload_end = _HEAD_BYTES + size
        block = self._incoming.read_exactly(payload_end + secret.PROOF_BYTES)
        self._incoming.clear()
        payload = block[_HEAD_BYTES:payload_end]
        if not secret.equal_constant_time(
            block[payload_end:], self._frame_proof(self._other_side, self._received_frames, header, payload)
        ):
            raise PeerError("a frame has a wrong signature")
        self._received_frames += 1
        return Frame(header[:1], payload)

    def receive_available(self) -> Optional[Frame]:
        """Return the next frame of a non-blocking connection; None while it is incomplete. Raises PeerError,
        and PeerLost when the other side has closed the connection.
        """
        try:
            frame = self.receive()
        except BlockingIOError:
            return None
        if frame is None:
            raise PeerLost("its connection was closed")
        return frame

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # wakes up a thread that waits in receive
        self._connection.close()

    def _frame_proof(self, side: str, frame_number: int, header: bytes, payload: bytes) -> bytes:
        return secret.compute_proof(
            self._key, self._purpose.name, side, frame_number.to_bytes(8, "big"), header, payload
        )


class IncomingHandshake:
    """Side b of the handshake, on ``host``."""

    def __init__(self, connection: socket.socket, key: bytes, purpose: ConnectionPurpose, host: str) -> None:
        self._connection = connection
        self._incoming = _ReceiveBuffer(connection)
        self._key = key
        self._purpose = purpose
        self._host = host
        self._nonces: Optional[Tuple[bytes, bytes]] = None

    def accept(self) -> Tuple[PeerConnection, Dict[str, Any]]:
        """Return the verified connection and its request. Raises PeerError where the other side does not know
        the key or the request is for another host, ValueError where the request is no JSON.
        """
        if self._nonces is None:
            peer_nonce = self._incoming.read_exactly(secret.NONCE_BYTES)
            self._incoming.clear()
            self._nonces = (peer_nonce, secret.make_nonce())
            _send_all(self._connection, self._nonces[1] + self._handshake_proof("b"))
        size = int.from_bytes(self._incoming.read_exactly(_SIZE_BYTES), "big")
        if size > self._purpose.max_bytes:
            raise PeerError("a request of {} bytes is too large".format(size))
        body_end = _SIZE_BYTES + size
        block = self._incoming.read_exactly(body_end + secret.PROOF_BYTES)
        body = block[_SIZE_BYTES:body_end]
        if not secret.equal_constant_time(block[body_end:], self._handshake_proof("a", body)):
            raise PeerError("it does not know this job's secret")
        request = json.loads(body.decode("utf-8"))
        target_host = request.get("host") if isinstance(request, dict) else None
        if target_host != self._host:
            raise PeerError("a request for {} has come to {}".format(target_host, self._host))
        return PeerConnection(
            self._connection, self._handshake_proof("session"), self._purpose, "b", "a"
        ), request

    def _handshake_proof(self, side: str, *parts: bytes) -> bytes:
        return secret.compute_proof(self._key, self._purpose.name, side, *(self._nonces or ()), *parts)


def connect_handshake(
    connection: socket.socket,
    key: bytes,
    purpose: ConnectionPurpose,
    request: Dict[str, Any],
    other_name: str,
) -> PeerConnection:
    """Side a of the handshake. ``request`` names the ``host`` that it is for; ``other_name``: what messages
    call the other side. Raises PeerError; PeerLost when the other side closes before its proof.
    """
    nonce_a = secret.make_nonce()
    _send_all(connection, nonce_a)
    response = _ReceiveBuffer(connection).read_exactly(secret.NONCE_BYTES + secret.PROOF_BYTES)
    nonce_b, proof = response[: secret.NONCE_BYTES], response[secret.NONCE_BYTES :]
    if not secret.equal_constant_time(proof, secret.compute_proof(key, purpose.name, "b", nonce_a, nonce_b)):
        raise PeerError("{} does not know this job's secret".format(other_name))
    body = json.dumps(request).encode("utf-8")
    proof = secret.compute_proof(key, purpose.name, "a", nonce_a, nonce_b, body)
    _send_all(connection, _size_prefix(body) + body + proof)
    session = secret.compute_proof(key, purpose.name, "session", nonce_a, nonce_b)
    return PeerConnection(connection, session, purpose, "a", "b")


def connect_to_agent(
    host: str, port: int, key: bytes, request: Dict[str, Any], timeout_seconds: float
) -> PeerConnection:
    """Connect to the agent of another host, which may start up to ``timeout_seconds`` later. Raises
    PeerError.
    """
    try:
        connection = connect_with_retry(host, port, time.monotonic() + timeout_seconds, HANDSHAKE_SECONDS)
    except (OSError, UnicodeError) as error:
        raise PeerError("{}: no runtime of this job answers there ({})".format(host, error)) from None
    try:
        connection.settimeout(HANDSHAKE_SECONDS)
        peer = connect_handshake(connection, key, TO_AGENT, {**request, "host": host}, host)
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return peer


# ---- sockets ---------------------------------------------------------------------------------------------


def connect_with_retry(host: str, port: int, deadline: float, attempt_seconds: float) -> socket.socket:
    """Return a connection to a host whose name may not resolve yet, or whose port may not be open yet: retry
    until ``deadline`` (time.monotonic). One attempt takes ``attempt_seconds`` at most. Raises OSError or
    UnicodeError.
    """
    pause_seconds = _FIRST_PAUSE_SECONDS
    while True:
        try:
            connection = socket.create_connection((host, port), attempt_seconds)
        except (OSError, UnicodeError):
            # There is no event for a name that appears or a port that opens: try again.
            if time.monotonic() + pause_seconds > deadline:
                raise
            time.sleep(pause_seconds)
            pause_seconds = min(pause_seconds * 2, _MAX_PAUSE_SECONDS)
            continue
        configure_socket(connection)
        return connection


def configure_socket(connection: socket.socket) -> None:
    """Send small frames at once. Probe the other side after 15 s of silence, and three times more."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # macOS has another name for the first one
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def listen_address(host: str) -> str:
    """Return the address that other hosts know this one by; empty (all addresses) where the name does not
    resolve. The look-up may take long.
    """
    try:
        return socket.gethostbyname(host)
    except OSError:
        return ""


class _ReceiveBuffer:
    """Bytes received so far of the next item. Only ``clear`` removes them."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = bytearray()

    def read_exactly(self, size: int, allow_end: bool = False) -> bytes:
        """Return the first ``size`` bytes. Raises PeerLost for fewer. ``allow_end``: return b"" where the
        other side has closed the connection before the first byte.
        """
        while len(self._received) < size:
            try:
                chunk = self._connection.recv(min(size - len(self._received), _RECEIVE_BYTES))
            except BlockingIOError:
                raise
            except OSError as error:
                raise _connection_lost(error) from None
            if not chunk:
                if allow_end and not self._received:
                    return b""
                raise PeerLost("the connection was closed: the other side has refused it, or is gone")
            self._received += chunk
        return bytes(self._received[:size])

    def clear(self) -> None:
        self._received.clear()


def _send_all(connection: socket.socket, data: bytes) -> None:
    """Raises PeerLost, also where a non-blocking connection has no space."""
    try:
        connection.sendall(data)
    except OSError as error:
        raise _connection_lost(error) from None


def _connection_lost(error: OSError) -> PeerLost:
    return PeerLost("the connection is lost: {}".format(error))


def _size_prefix(body: bytes) -> bytes:
    return len(body).to_bytes(_SIZE_BYTES, "big")
