"""Connections between the hosts of one job: a handshake, one request, then frames both ways.

Side a connects, side b accepts. Everything after the nonces carries a proof (job_secret.py):

    a -> b  nonce_a
    b -> a  nonce_b, proof(b)
    a -> b  size, request, proof(a)    the proof covers the request, which names the host that it is for
    frames  kind, size, payload, proof     with a key of this connection, the side, and the frame's number

So a request cannot be made without the secret, changed, sent again, or sent on to another host, and no frame
can be changed, left out, repeated or sent back. The purpose is part of every proof: a signature for one
purpose is not valid for another. Nothing is encrypted: output of ranks is not secret, and secrets do not
travel here.

No more is read than the next item needs, so poll() reports the rest.
"""

import contextlib
import json
import socket
import time
from typing import Any, Dict, NamedTuple, Optional, Tuple

from smlaunch.runtime import job_secret


class ConnectionPurpose(NamedTuple):
    """What connections are for. ``max_bytes``: of a request, and of a frame."""

    name: str
    max_bytes: int


AGENT_PURPOSE = ConnectionPurpose("agent", 4 << 20)
"""Commands and their output, and messages between the hosts of an MPI program (mpi/)."""

CONTROL_PURPOSE = ConnectionPurpose("link", 1 << 16)
"""Messages between the hosts of a job with services (control_channel.py)."""

STDOUT, STDERR, EXIT_STATUS, MESSAGE = (b"o", b"e", b"x", b"n")
"""Kinds of frames: output, error output and exit status of a command; messages between hosts."""

_HANDSHAKE_SECONDS = 30.0
"""Time for one attempt to connect, and for a handshake."""

_CONNECTING_SIDE, _ACCEPTING_SIDE, _SESSION = "a", "b", "session"
"""What a proof is for: the two sides of a connection, or the key of its frames."""

_SIZE_FIELD_BYTES = 4
_FRAME_HEADER_BYTES = 1 + _SIZE_FIELD_BYTES
_MAX_RECEIVE_BYTES = 1 << 16
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.02, 1.0


class PeerError(Exception):
    """The other side is no host of this job, or is gone. The message is one line."""


class PeerLost(PeerError):
    """The connection has ended without a reason being given."""


class PeerUnreachable(PeerError):
    """No runtime of this job has answered in time. ``cause``: why the last attempt failed."""

    def __init__(self, host: str, cause: Exception) -> None:
        super().__init__("{}: no runtime of this job answers there ({})".format(host, cause))
        self.cause = cause


class Frame(NamedTuple):
    """One frame. ``kind``: STDOUT, STDERR, EXIT_STATUS or MESSAGE."""

    kind: bytes
    payload: bytes


class PeerConnection:
    """One connection after its handshake. One thread may send while another one receives.

    ``key``: of this connection alone. ``own_side``, ``peer_side``: _CONNECTING_SIDE or
    _ACCEPTING_SIDE.
    """

    def __init__(
        self,
        connection: socket.socket,
        key: bytes,
        purpose: ConnectionPurpose,
        own_side: str,
        peer_side: str,
    ) -> None:
        self._socket = connection
        self._key = key
        self._purpose = purpose
        self._own_side, self._peer_side = own_side, peer_side
        self._sent_frame_count = self._received_frame_count = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, kind: bytes, payload: bytes) -> None:
        """Send one frame. Raises PeerLost."""
        header = kind + _encode_size(payload)
        proof = self._compute_frame_proof(self._own_side, self._sent_frame_count, header, payload)
        self._sent_frame_count += 1
        _send_all(self._socket, header + payload + proof)

    def send_message(self, document: Any) -> None:
        """Send a JSON document."""
        self.send(MESSAGE, json.dumps(document).encode("utf-8"))

    def receive(self) -> Optional[Frame]:
        """Wait for the next frame from the other host and return it; None when the other host has closed the
        connection between two frames. Raises PeerError, also for a frame whose HMAC (``proof``) does not fit.

        A frame: kind (1 byte), size (4 bytes), payload, proof.
        """
        header = _receive_exactly(self._socket, _FRAME_HEADER_BYTES, allow_eof=True)
        if not header:
            return None
        size = int.from_bytes(header[1:], "big")
        if size > self._purpose.max_bytes:  # the limit of this kind of connection
            raise PeerError("a frame of {} bytes is too large".format(size))
        payload_and_proof = _receive_exactly(self._socket, size + job_secret.PROOF_BYTES)
        payload, proof = payload_and_proof[:size], payload_and_proof[size:]
        # The side ("a" or "b") and the number make a frame that is left out, repeated or sent back fail too.
        expected_proof = self._compute_frame_proof(
            self._peer_side, self._received_frame_count, header, payload
        )
        if not job_secret.equal_constant_time(proof, expected_proof):
            raise PeerError("a frame has a wrong signature")
        self._received_frame_count += 1
        return Frame(header[:1], payload)

    def receive_message(self) -> Any:
        """Wait for the next message, a JSON document, and return it. Raises PeerError, and PeerLost when the
        other side has closed the connection.
        """
        frame = self.receive()
        if frame is None:
            raise PeerLost("its connection was closed")
        return _parse_json(frame.payload)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes up a thread that waits in receive
        self._socket.close()

    def _compute_frame_proof(self, side: str, frame_number: int, header: bytes, payload: bytes) -> bytes:
        return job_secret.compute_proof(
            self._key, self._purpose.name, side, frame_number.to_bytes(8, "big"), header, payload
        )


def accept_handshake(
    connection: socket.socket, key: bytes, purpose: ConnectionPurpose, host: str
) -> Tuple[PeerConnection, Dict[str, Any]]:
    """Do the part of the handshake of the side that accepts the connection, on ``host``: exchange nonces
    (random numbers) and proofs (HMACs over them, with the job's secret as key), and receive the request.
    Return the verified connection and the request. Raises PeerError where the other side does not know the
    key or is too slow, or the request is for another host.
    """
    deadline = time.monotonic() + _HANDSHAKE_SECONDS
    nonce_a = _receive_exactly(connection, job_secret.NONCE_BYTES, deadline)
    nonce_b = job_secret.make_nonce()

    def compute_proof(side: str, *parts: bytes) -> bytes:
        return job_secret.compute_proof(key, purpose.name, side, nonce_a, nonce_b, *parts)

    _send_all(connection, nonce_b + compute_proof(_ACCEPTING_SIDE))
    size = int.from_bytes(_receive_exactly(connection, _SIZE_FIELD_BYTES, deadline), "big")
    if size > purpose.max_bytes:
        raise PeerError("a request of {} bytes is too large".format(size))
    body_and_proof = _receive_exactly(connection, size + job_secret.PROOF_BYTES, deadline)
    body, proof = body_and_proof[:size], body_and_proof[size:]
    if not job_secret.equal_constant_time(proof, compute_proof(_CONNECTING_SIDE, body)):
        raise PeerError("it does not know this job's secret")
    request = _parse_json(body)
    target_host = request.get("host") if isinstance(request, dict) else None
    if target_host != host:
        raise PeerError("a request for {} has come to {}".format(target_host, host))
    connection.settimeout(None)
    session_key = compute_proof(_SESSION)  # a key of this connection alone
    return PeerConnection(connection, session_key, purpose, _ACCEPTING_SIDE, _CONNECTING_SIDE), request


def initiate_handshake(
    connection: socket.socket,
    key: bytes,
    purpose: ConnectionPurpose,
    request: Dict[str, Any],
    peer_description: str,
) -> PeerConnection:
    """Side a of the handshake. ``request`` names the ``host`` that it is for; ``peer_description``: what
    messages call the other side. Raises PeerError; PeerLost when the other side closes before its proof.
    """
    deadline = time.monotonic() + _HANDSHAKE_SECONDS
    nonce_a = job_secret.make_nonce()
    _send_all(connection, nonce_a)
    response = _receive_exactly(connection, job_secret.NONCE_BYTES + job_secret.PROOF_BYTES, deadline)
    nonce_b, proof = response[: job_secret.NONCE_BYTES], response[job_secret.NONCE_BYTES :]
    if not job_secret.equal_constant_time(
        proof, job_secret.compute_proof(key, purpose.name, _ACCEPTING_SIDE, nonce_a, nonce_b)
    ):
        raise PeerError("{} does not know this job's secret".format(peer_description))
    body = json.dumps(request).encode("utf-8")
    proof = job_secret.compute_proof(key, purpose.name, _CONNECTING_SIDE, nonce_a, nonce_b, body)
    _send_all(connection, _encode_size(body) + body + proof)
    connection.settimeout(None)
    session_key = job_secret.compute_proof(key, purpose.name, _SESSION, nonce_a, nonce_b)
    return PeerConnection(connection, session_key, purpose, _CONNECTING_SIDE, _ACCEPTING_SIDE)


def connect_to_host(
    host: str,
    port: int,
    key: bytes,
    purpose: ConnectionPurpose,
    request: Dict[str, Any],
    timeout_seconds: float,
    peer_description: str = "",
) -> PeerConnection:
    """Return a verified connection to another host, whose name may not resolve yet, and whose port may not be
    open yet or have too many connections: retry for ``timeout_seconds``. ``peer_description``: what messages
    call the other side, by default ``host``. Raises PeerUnreachable when the time is over, PeerError when the
    other side does not know the job's secret.
    """
    deadline = time.monotonic() + timeout_seconds
    pause_seconds = _FIRST_PAUSE_SECONDS
    while True:
        try:
            connection = socket.create_connection((host, port), _HANDSHAKE_SECONDS)
            try:
                configure_socket(connection)  # small frames at once, and probes after a silence
                return initiate_handshake(
                    connection, key, purpose, {**request, "host": host}, peer_description or host
                )
            except BaseException:
                connection.close()
                raise
        except (PeerLost, OSError, UnicodeError) as error:  # UnicodeError: by the name's IDNA encoding
            # There is no event for a name that appears or a port that opens: try again.
            if time.monotonic() + pause_seconds > deadline:
                raise PeerUnreachable(host, error) from None
        time.sleep(pause_seconds)
        pause_seconds = min(pause_seconds * 2, _MAX_PAUSE_SECONDS)


# ---- sockets ---------------------------------------------------------------------------------------------


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


def _receive_exactly(
    connection: socket.socket, size: int, deadline: Optional[float] = None, allow_eof: bool = False
) -> bytes:
    """Wait for the next ``size`` bytes, at most until ``deadline`` (time.monotonic), and return them. Raises
    PeerLost when the time is over or the connection ends before. ``allow_eof``: return b"" where the other
    side has closed the connection before the first byte.
    """
    received_bytes = bytearray()
    while len(received_bytes) < size:
        try:
            if deadline is not None:
                remaining_seconds = deadline - time.monotonic()
                if remaining_seconds <= 0:
                    raise socket.timeout("timed out")
                connection.settimeout(remaining_seconds)
            chunk = connection.recv(min(size - len(received_bytes), _MAX_RECEIVE_BYTES))
        except OSError as error:
            raise _connection_lost_error(error) from None
        if not chunk:
            if allow_eof and not received_bytes:
                return b""
            raise PeerLost("the connection was closed: the other side has refused it, or is gone")
        received_bytes += chunk
    return bytes(received_bytes)


def _send_all(connection: socket.socket, data: bytes) -> None:
    """Raises PeerLost."""
    try:
        connection.sendall(data)
    except OSError as error:
        raise _connection_lost_error(error) from None


def _parse_json(text: bytes) -> Any:
    try:
        return json.loads(text.decode("utf-8"))
    except ValueError as error:
        raise PeerError("it has sent no JSON: {}".format(error)) from None


def _connection_lost_error(error: OSError) -> PeerLost:
    return PeerLost("the connection is lost: {}".format(error))


def _encode_size(body: bytes) -> bytes:
    return len(body).to_bytes(_SIZE_FIELD_BYTES, "big")
