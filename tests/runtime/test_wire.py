"""Connections between the hosts of one job: authentication, and rejection of forged frames."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from smlaunch.runtime import job_secret, peer_connection
from smlaunch.runtime.peer_connection import (
    AGENT_PURPOSE,
    CONTROL_PURPOSE,
    MESSAGE,
    STDOUT,
    ConnectionPurpose,
    Frame,
    PeerConnection,
    PeerError,
    PeerLost,
    accept_handshake,
    initiate_handshake,
)

KEY = bytes(range(32))
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left_socket, right_socket = socket.socketpair()
    left_socket.settimeout(20)
    right_socket.settimeout(20)
    yield left_socket, right_socket
    left_socket.close()
    right_socket.close()


def connections(
    pair: Pair, purpose: ConnectionPurpose = AGENT_PURPOSE
) -> tuple[PeerConnection, PeerConnection]:
    left_socket, right_socket = pair
    return PeerConnection(left_socket, KEY, purpose, "a", "b"), PeerConnection(
        right_socket, KEY, purpose, "b", "a"
    )


def receive_exactly(raw: socket.socket, size: int) -> bytes:
    data = raw.recv(size, socket.MSG_WAITALL)
    assert len(data) == size
    return data


def test_frames_cannot_be_made_changed_or_repeated(pair: Pair) -> None:
    left_socket, right_socket = pair
    left_peer, right_peer = connections(pair)
    left_peer.send(STDOUT, b"first")
    assert right_peer.receive() == Frame(STDOUT, b"first")
    left_peer.send(STDOUT, b"second")
    frame_bytes = receive_exactly(right_socket, 5 + 6 + 32)
    left_socket.sendall(frame_bytes)
    assert right_peer.receive() == Frame(STDOUT, b"second")
    left_socket.sendall(frame_bytes)  # the same once more
    with pytest.raises(PeerError, match="a frame has a wrong signature"):
        right_peer.receive()
    right_socket.sendall(frame_bytes)  # sent back
    with pytest.raises(PeerError, match="a frame has a wrong signature"):
        left_peer.receive()


def test_a_frame_for_one_purpose_is_none_for_another(pair: Pair) -> None:
    left_socket, right_socket = pair
    PeerConnection(left_socket, KEY, AGENT_PURPOSE, "a", "b").send_message("news")
    with pytest.raises(PeerError, match="a frame has a wrong signature"):
        PeerConnection(right_socket, KEY, CONTROL_PURPOSE, "b", "a").receive()


@pytest.mark.parametrize("purpose", [AGENT_PURPOSE, CONTROL_PURPOSE])
def test_no_frame_is_larger_than_its_purpose_allows(pair: Pair, purpose: ConnectionPurpose) -> None:
    left_socket, _ = pair
    _, right_peer = connections(pair, purpose)
    left_socket.sendall(MESSAGE + (purpose.max_bytes + 1).to_bytes(4, "big"))
    with pytest.raises(PeerError, match=f"a frame of {purpose.max_bytes + 1} bytes is too large"):
        right_peer.receive()


def test_what_comes_byte_by_byte_is_taken_whole(pair: Pair) -> None:
    left_socket, right_socket = pair
    left_peer, right_peer = connections(pair)
    left_peer.send_message({"ready": True})
    left_peer.send_message(["next"])
    sent_bytes = right_socket.recv(1 << 16)
    sender = threading.Thread(target=send_byte_by_byte, args=(left_socket, sent_bytes + MESSAGE))
    sender.start()
    assert [right_peer.receive_message(), right_peer.receive_message()] == [{"ready": True}, ["next"]]
    sender.join()
    left_socket.close()
    with pytest.raises(PeerLost):  # in the middle of a frame
        right_peer.receive_message()


def send_byte_by_byte(raw: socket.socket, data: bytes) -> None:
    for byte in data:
        raw.sendall(bytes([byte]))


def test_a_message_that_is_no_json_is_refused(pair: Pair) -> None:
    left_peer, right_peer = connections(pair)
    left_peer.send(MESSAGE, b"{")
    with pytest.raises(PeerError, match="it has sent no JSON"):
        right_peer.receive_message()


def test_a_stranger_proves_itself_byte_by_byte(pair: Pair) -> None:
    left_socket, right_socket = pair
    nonce = job_secret.make_nonce()
    theirs: list[bytes] = []

    def prove() -> None:
        send_byte_by_byte(left_socket, nonce)
        theirs.append(receive_exactly(left_socket, 64)[:32])
        body = b'{"host": "algo-1", "from": "algo-2"}'
        send_byte_by_byte(left_socket, signed(CONTROL_PURPOSE, nonce, theirs[0], body))

    stranger = threading.Thread(target=prove)
    stranger.start()
    peer, request = accept_handshake(right_socket, KEY, CONTROL_PURPOSE, "algo-1")
    stranger.join()
    assert request == {"host": "algo-1", "from": "algo-2"}
    peer.send_message("news")
    session = job_secret.compute_proof(KEY, CONTROL_PURPOSE.name, "session", nonce, theirs[0])
    assert PeerConnection(left_socket, session, CONTROL_PURPOSE, "a", "b").receive_message() == "news"


def test_a_stranger_that_is_too_slow_is_refused(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_connection, "_HANDSHAKE_SECONDS", 0.05)
    with pytest.raises(PeerLost, match="timed out"):
        accept_handshake(pair[1], KEY, CONTROL_PURPOSE, "algo-1")


@pytest.mark.parametrize(
    ("purpose", "body", "message"),
    [
        (
            AGENT_PURPOSE,
            b'{"host": "algo-1"}',
            "does not know this job's secret",
        ),  # signed for another purpose
        (CONTROL_PURPOSE, b'{"host": "algo-3"}', "a request for algo-3 has come to algo-1"),
        (CONTROL_PURPOSE, b'["algo-1"]', "a request for None has come to algo-1"),
        (
            CONTROL_PURPOSE,
            bytes(CONTROL_PURPOSE.max_bytes + 1),
            f"a request of {CONTROL_PURPOSE.max_bytes + 1} bytes",
        ),
    ],
)
def test_what_is_asked_for_otherwise_is_refused(
    pair: Pair, purpose: ConnectionPurpose, body: bytes, message: str
) -> None:
    left_socket, right_socket = pair
    nonce = job_secret.make_nonce()

    def ask() -> None:
        left_socket.sendall(nonce)
        theirs = receive_exactly(left_socket, 64)[:32]
        with contextlib.suppress(OSError):  # the other side need not read a request that is too large
            left_socket.sendall(signed(purpose, nonce, theirs, body))

    stranger = threading.Thread(target=ask)
    stranger.start()
    with pytest.raises(PeerError, match=message):
        accept_handshake(right_socket, KEY, CONTROL_PURPOSE, "algo-1")
    right_socket.close()
    stranger.join()


def test_whoever_answers_for_another_purpose_is_not_believed(pair: Pair) -> None:
    left_socket, right_socket = pair
    right_socket.sendall(job_secret.make_nonce() + bytes(32))
    with pytest.raises(PeerError, match="algo-1 does not know this job's secret"):
        initiate_handshake(left_socket, KEY, CONTROL_PURPOSE, {"host": "algo-1"}, "algo-1")
    right_socket.close()
    with pytest.raises(PeerLost):
        initiate_handshake(left_socket, KEY, CONTROL_PURPOSE, {"host": "algo-1"}, "algo-1")


def signed(purpose: ConnectionPurpose, nonce_a: bytes, nonce_b: bytes, body: bytes) -> bytes:
    proof = job_secret.compute_proof(KEY, purpose.name, "a", nonce_a, nonce_b, body)
    return len(body).to_bytes(4, "big") + body + proof
