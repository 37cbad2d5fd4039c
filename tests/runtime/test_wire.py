"""What travels between the hosts of one job: who is let in, and which frames are taken."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from smlaunch.runtime import secret
from smlaunch.runtime.wire import (
    NEWS,
    OUT,
    TO_AGENT,
    TO_LEADER,
    Frame,
    Lost,
    Purpose,
    Stranger,
    Wire,
    WireError,
    ask,
)

KEY = bytes(range(32))
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    here, there = socket.socketpair()
    here.settimeout(20)
    there.settimeout(20)
    yield here, there
    here.close()
    there.close()


def wires(pair: Pair, purpose: Purpose = TO_AGENT) -> tuple[Wire, Wire]:
    here, there = pair
    return Wire(here, KEY, purpose, "a", "b"), Wire(there, KEY, purpose, "b", "a")


def exactly(raw: socket.socket, size: int) -> bytes:
    data = raw.recv(size, socket.MSG_WAITALL)
    assert len(data) == size
    return data


def test_frames_cannot_be_made_changed_or_repeated(pair: Pair) -> None:
    here, there = pair
    one, other = wires(pair)
    one.send(OUT, b"first")
    assert other.receive() == Frame(OUT, b"first")
    one.send(OUT, b"second")
    noted = exactly(there, 5 + 6 + 32)
    here.sendall(noted)
    assert other.receive() == Frame(OUT, b"second")
    here.sendall(noted)  # the same once more
    with pytest.raises(WireError, match="not from who it should be from"):
        other.receive()
    there.sendall(noted)  # sent back
    with pytest.raises(WireError, match="not from who it should be from"):
        one.receive()


def test_a_frame_for_one_purpose_is_none_for_another(pair: Pair) -> None:
    here, there = pair
    Wire(here, KEY, TO_AGENT, "a", "b").tell("news")
    with pytest.raises(WireError, match="not from who it should be from"):
        Wire(there, KEY, TO_LEADER, "b", "a").receive()


@pytest.mark.parametrize("purpose", [TO_AGENT, TO_LEADER])
def test_no_frame_is_larger_than_its_purpose_allows(pair: Pair, purpose: Purpose) -> None:
    here, _ = pair
    _, other = wires(pair, purpose)
    here.sendall(NEWS + (purpose.largest + 1).to_bytes(4, "big"))
    with pytest.raises(WireError, match=f"a frame of {purpose.largest + 1} bytes is none of ours"):
        other.receive()


def test_what_comes_byte_by_byte_is_taken_whole_and_nobody_waits(pair: Pair) -> None:
    here, there = pair
    one, other = wires(pair)
    one.tell({"ready": True})
    one.tell(["next"])
    said = there.recv(1 << 16)
    other.do_not_wait()
    taken = []
    for byte in said:
        here.sendall(bytes([byte]))
        frame = other.take()
        taken += [] if frame is None else [frame.document()]
    assert taken == [{"ready": True}, ["next"]]
    here.sendall(said[:1])
    assert other.take() is None
    here.close()
    with pytest.raises(Lost):
        other.take()


def test_a_message_that_there_is_no_room_for_is_lost_at_once(pair: Pair) -> None:
    one, _ = wires(pair)
    one.do_not_wait()
    with pytest.raises(Lost):
        for _ in range(1000):
            one.send(OUT, bytes(1 << 16))


def test_a_stranger_proves_itself_byte_by_byte_and_nobody_waits(pair: Pair) -> None:
    here, there = pair
    there.setblocking(False)
    stranger = Stranger(there, KEY, TO_LEADER, "algo-1")
    nonce = secret.nonce()
    for byte in nonce:
        with pytest.raises(BlockingIOError):
            stranger.admit()
        here.sendall(bytes([byte]))
    with pytest.raises(BlockingIOError):
        stranger.admit()
    theirs = exactly(here, 64)[:32]
    for byte in signed(TO_LEADER, nonce, theirs, b'{"host": "algo-1", "from": "algo-2"}'):
        with pytest.raises(BlockingIOError):
            stranger.admit()
        here.sendall(bytes([byte]))
    wire, request = stranger.admit()
    assert request == {"host": "algo-1", "from": "algo-2"}
    wire.tell({"welcome": True})
    session = secret.proof(KEY, TO_LEADER.name, "session", nonce, theirs)
    frame = Wire(here, session, TO_LEADER, "a", "b").receive()
    assert frame is not None and frame.document() == {"welcome": True}


@pytest.mark.parametrize(
    ("purpose", "body", "said"),
    [
        (TO_AGENT, b'{"host": "algo-1"}', "does not know this job's secret"),  # signed for another purpose
        (TO_LEADER, b'{"host": "algo-3"}', "a request for algo-3 has come to algo-1"),
        (TO_LEADER, b'["algo-1"]', "a request for None has come to algo-1"),
        (TO_LEADER, bytes(TO_LEADER.largest + 1), f"a request of {TO_LEADER.largest + 1} bytes"),
    ],
)
def test_what_is_asked_for_otherwise_is_refused(pair: Pair, purpose: Purpose, body: bytes, said: str) -> None:
    here, there = pair
    there.setblocking(False)
    stranger = Stranger(there, KEY, TO_LEADER, "algo-1")
    nonce = secret.nonce()
    here.sendall(nonce)
    with pytest.raises(BlockingIOError):
        stranger.admit()
    here.sendall(signed(purpose, nonce, exactly(here, 64)[:32], body))
    with pytest.raises(WireError, match=said):
        stranger.admit()


def test_whoever_answers_for_another_purpose_is_not_believed(pair: Pair) -> None:
    here, there = pair
    there.sendall(secret.nonce() + bytes(32))
    with pytest.raises(WireError, match="algo-1 does not know this job's secret"):
        ask(here, KEY, TO_LEADER, {"host": "algo-1"}, "algo-1")
    there.close()
    with pytest.raises(Lost):
        ask(here, KEY, TO_LEADER, {"host": "algo-1"}, "algo-1")


def signed(purpose: Purpose, nonce_a: bytes, nonce_b: bytes, body: bytes) -> bytes:
    proof = secret.proof(KEY, purpose.name, "a", nonce_a, nonce_b, body)
    return len(body).to_bytes(4, "big") + body + proof
