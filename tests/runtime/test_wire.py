"""Connections between the hosts of one job: authentication, and rejection of forged frames."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from smlaunch.runtime import secret
from smlaunch.runtime.peer_connection import (
    MESSAGE,
    STDOUT,
    TO_AGENT,
    TO_LEADER,
    ConnectionPurpose,
    Frame,
    IncomingHandshake,
    PeerConnection,
    PeerError,
    PeerLost,
    connect_handshake,
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


def connections(pair: Pair, purpose: ConnectionPurpose = TO_AGENT) -> tuple[PeerConnection, PeerConnection]:
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
    PeerConnection(left_socket, KEY, TO_AGENT, "a", "b").send_message("news")
    with pytest.raises(PeerError, match="a frame has a wrong signature"):
        PeerConnection(right_socket, KEY, TO_LEADER, "b", "a").receive()


@pytest.mark.parametrize("purpose", [TO_AGENT, TO_LEADER])
def test_no_frame_is_larger_than_its_purpose_allows(pair: Pair, purpose: ConnectionPurpose) -> None:
    left_socket, _ = pair
    _, right_peer = connections(pair, purpose)
    left_socket.sendall(MESSAGE + (purpose.max_bytes + 1).to_bytes(4, "big"))
    with pytest.raises(PeerError, match=f"a frame of {purpose.max_bytes + 1} bytes is too large"):
        right_peer.receive()


def test_what_comes_byte_by_byte_is_taken_whole_and_nobody_waits(pair: Pair) -> None:
    left_socket, right_socket = pair
    left_peer, right_peer = connections(pair)
    left_peer.send_message({"ready": True})
    left_peer.send_message(["next"])
    sent_bytes = right_socket.recv(1 << 16)
    right_peer.set_non_blocking()
    messages = []
    for byte in sent_bytes:
        left_socket.sendall(bytes([byte]))
        frame = right_peer.receive_available()
        messages += [] if frame is None else [frame.parse_json()]
    assert messages == [{"ready": True}, ["next"]]
    left_socket.sendall(sent_bytes[:1])
    assert right_peer.receive_available() is None
    left_socket.close()
    with pytest.raises(PeerLost):
        right_peer.receive_available()


def test_a_message_that_there_is_no_room_for_is_lost_at_once(pair: Pair) -> None:
    left_peer, _ = connections(pair)
    left_peer.set_non_blocking()
    with pytest.raises(PeerLost):
        for _ in range(1000):
            left_peer.send(STDOUT, bytes(1 << 16))


def test_a_stranger_proves_itself_byte_by_byte_and_nobody_waits(pair: Pair) -> None:
    left_socket, right_socket = pair
    right_socket.setblocking(False)
    stranger = IncomingHandshake(right_socket, KEY, TO_LEADER, "algo-1")
    nonce = secret.make_nonce()
    for byte in nonce:
        with pytest.raises(BlockingIOError):
            stranger.accept()
        left_socket.sendall(bytes([byte]))
    with pytest.raises(BlockingIOError):
        stranger.accept()
    theirs = receive_exactly(left_socket, 64)[:32]
    for byte in signed(TO_LEADER, nonce, theirs, b'{"host": "algo-1", "from": "algo-2"}'):
        with pytest.raises(BlockingIOError):
            stranger.accept()
        left_socket.sendall(bytes([byte]))
    wire, request = stranger.accept()
    assert request == {"host": "algo-1", "from": "algo-2"}
    wire.send_message({"welcome": True})
    session = secret.compute_proof(KEY, TO_LEADER.name, "session", nonce, theirs)
    frame = PeerConnection(left_socket, session, TO_LEADER, "a", "b").receive()
    assert frame is not None and frame.parse_json() == {"welcome": True}


@pytest.mark.parametrize(
    ("purpose", "body", "message"),
    [
        (TO_AGENT, b'{"host": "algo-1"}', "does not know this job's secret"),  # signed for another purpose
        (TO_LEADER, b'{"host": "algo-3"}', "a request for algo-3 has come to algo-1"),
        (TO_LEADER, b'["algo-1"]', "a request for None has come to algo-1"),
        (TO_LEADER, bytes(TO_LEADER.max_bytes + 1), f"a request of {TO_LEADER.max_bytes + 1} bytes"),
    ],
)
def test_what_is_asked_for_otherwise_is_refused(
    pair: Pair, purpose: ConnectionPurpose, body: bytes, message: str
) -> None:
    left_socket, right_socket = pair
    right_socket.setblocking(False)
    stranger = IncomingHandshake(right_socket, KEY, TO_LEADER, "algo-1")
    nonce = secret.make_nonce()
    left_socket.sendall(nonce)
    with pytest.raises(BlockingIOError):
        stranger.accept()
    left_socket.sendall(signed(purpose, nonce, receive_exactly(left_socket, 64)[:32], body))
    with pytest.raises(PeerError, match=message):
        stranger.accept()


def test_whoever_answers_for_another_purpose_is_not_believed(pair: Pair) -> None:
    left_socket, right_socket = pair
    right_socket.sendall(secret.make_nonce() + bytes(32))
    with pytest.raises(PeerError, match="algo-1 does not know this job's secret"):
        connect_handshake(left_socket, KEY, TO_LEADER, {"host": "algo-1"}, "algo-1")
    right_socket.close()
    with pytest.raises(PeerLost):
        connect_handshake(left_socket, KEY, TO_LEADER, {"host": "algo-1"}, "algo-1")


def signed(purpose: ConnectionPurpose, nonce_a: bytes, nonce_b: bytes, body: bytes) -> bytes:
    proof = secret.compute_proof(KEY, purpose.name, "a", nonce_a, nonce_b, body)
    return len(body).to_bytes(4, "big") + body + proof
