"""The exec agent: the commands it runs, the clients it accepts, and the end of its processes."""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from smlaunch.runtime import job_secret
from smlaunch.runtime.mpi.exec_agent import ExecAgent
from smlaunch.runtime.peer_connection import (
    AGENT_PURPOSE,
    EXIT_STATUS,
    STDERR,
    STDOUT,
    Frame,
    PeerConnection,
    PeerError,
    connect_to_host,
    initiate_handshake,
)

KEY = bytes(range(32))
HOST = "127.0.0.1"


@pytest.fixture
def agent() -> Iterator[ExecAgent]:
    environ = {b"PATH": os.environb[b"PATH"], b"OWN": b"this host's"}
    exec_agent = ExecAgent(KEY, HOST, HOST, 0, environ)
    exec_agent.start()
    yield exec_agent
    exec_agent.close()


def start_command(agent: ExecAgent, line: str, key: bytes = KEY) -> PeerConnection:
    return connect_to_host(HOST, agent.port, key, AGENT_PURPOSE, {"do": "run", "line": line}, 5)


def receive_frames(wire: PeerConnection) -> list[Frame]:
    received = []
    while (frame := wire.receive()) is not None:
        received.append(frame)
    return received


def join_payloads(received: list[Frame], kind: bytes) -> bytes:
    return b"".join(frame.payload for frame in received if frame.kind == kind)


def eventually(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize(
    ("line", "status"),
    [("true", 0), ("exit 5", 5), ("kill -9 $$", 137), ("kill -TERM $$", 143), ("no-such-program-here", 127)],
)
def test_the_status_is_the_commands(agent: ExecAgent, line: str, status: int) -> None:
    assert join_payloads(receive_frames(start_command(agent, line)), EXIT_STATUS) == str(status).encode()


def test_output_and_error_output_come_apart_and_whole(agent: ExecAgent) -> None:
    received = receive_frames(start_command(agent, 'head -c 300000 /dev/zero; echo "$OWN" >&2; cat'))
    assert join_payloads(received, STDOUT) == bytes(300000)
    assert join_payloads(received, STDERR).decode() == "this host's\n"
    assert join_payloads(received, EXIT_STATUS) == b"0"


def test_what_it_leaves_behind_does_not_hold_up_the_answer(agent: ExecAgent, tmp_path: Path) -> None:
    """A child in the same group that keeps the pipes open is killed with the group."""
    received = receive_frames(start_command(agent, f"sleep 300 & echo $! > {tmp_path}/pid; exit 3"))
    assert join_payloads(received, EXIT_STATUS) == b"3"
    assert eventually(lambda: not is_alive(int((tmp_path / "pid").read_text())))


def test_the_group_dies_with_the_connection(agent: ExecAgent, tmp_path: Path) -> None:
    wire = start_command(agent, f"sleep 300 & echo $! > {tmp_path}/one; echo here; sleep 300")
    frame = wire.receive()
    assert frame is not None and frame.payload == b"here\n"
    pid = int((tmp_path / "one").read_text())
    assert is_alive(pid)
    wire.close()
    assert eventually(lambda: not is_alive(pid))


def test_the_group_dies_with_the_agent(agent: ExecAgent, tmp_path: Path) -> None:
    wire = start_command(agent, f"echo $$ > {tmp_path}/pid; echo here; sleep 300")
    assert wire.receive() is not None
    agent.close()
    assert join_payloads(receive_frames(wire), EXIT_STATUS) == b"137"
    with pytest.raises(PeerError):
        start_command(agent, "true")


@pytest.mark.skipif(not hasattr(socket, "TCP_KEEPIDLE"), reason="this system has no such option")
def test_a_host_that_vanishes_is_noticed_on_both_sides() -> None:
    """The kernel sends keepalive probes after 15 s of silence, not after its default of two hours."""
    served: queue.SimpleQueue[int] = queue.SimpleQueue()

    def handle_request(wire: PeerConnection, request: dict[str, Any]) -> None:
        served.put(idle_seconds(wire))

    exec_agent = ExecAgent(KEY, HOST, HOST, 0, {}, handle_request)
    exec_agent.start()
    try:
        wire = connect_to_host(HOST, exec_agent.port, KEY, AGENT_PURPOSE, {"do": "follow"}, 5)
        assert idle_seconds(wire) == served.get(timeout=20) == 15
        wire.close()
    finally:
        exec_agent.close()


def idle_seconds(wire: PeerConnection) -> int:
    with socket.socket(fileno=os.dup(wire.fileno())) as connection:
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


# ---- who may ask -----------------------------------------------------------------------------------------


def test_another_key_gets_nothing_done(agent: ExecAgent, tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"127\.0\.0\.1 does not know this job's secret"):
        start_command(agent, f"touch {tmp_path}/done", key=bytes(32))
    # The same request from a client that does not verify the agent.
    with connect(agent) as raw:
        raw.sendall(job_secret.make_nonce())
        nonce_b = receive_exactly(raw, 64)[:32]
        body = b'{"do": "run", "host": "127.0.0.1", "line": "touch done"}'
        forged = job_secret.compute_proof(bytes(32), AGENT_PURPOSE.name, "a", bytes(32), nonce_b, body)
        raw.sendall(len(body).to_bytes(4, "big") + body + forged)
        assert raw.recv(1) == b""
    assert list(tmp_path.iterdir()) == []


def test_what_was_said_before_is_not_taken_again(agent: ExecAgent, tmp_path: Path) -> None:
    """A man in the middle records a valid request and sends the same bytes again."""
    server = socket.create_server((HOST, 0))
    sent_bytes: list[bytes] = []

    def relay() -> None:
        downstream, _ = server.accept()
        with downstream, connect(agent) as upstream:
            sent_bytes.append(receive_exactly(downstream, 32))
            upstream.sendall(sent_bytes[0])
            downstream.sendall(receive_exactly(upstream, 64))
            size = receive_exactly(downstream, 4)
            sent_bytes.append(size + receive_exactly(downstream, int.from_bytes(size, "big") + 32))
            upstream.sendall(sent_bytes[1])
            while block := upstream.recv(4096):
                downstream.sendall(block)

    thread = threading.Thread(target=relay)
    thread.start()
    request = {"do": "run", "line": f"echo ran >> {tmp_path}/count"}
    wire = connect_to_host(HOST, server.getsockname()[1], KEY, AGENT_PURPOSE, request, 5)
    assert join_payloads(receive_frames(wire), EXIT_STATUS) == b"0"
    thread.join()
    server.close()
    with connect(agent) as raw:
        raw.sendall(sent_bytes[0])
        receive_exactly(raw, 64)
        raw.sendall(sent_bytes[1])
        assert raw.recv(1) == b""
    assert (tmp_path / "count").read_text() == "ran\n"


@pytest.mark.parametrize("change", ["line", "host"])
def test_a_request_that_was_changed_or_is_for_another_host(
    agent: ExecAgent, tmp_path: Path, change: str
) -> None:
    if change == "host":
        with connect(agent) as raw:
            wire = initiate_handshake(
                raw, KEY, AGENT_PURPOSE, {"do": "run", "host": "algo-7", "line": "touch done"}, HOST
            )
            assert wire.receive() is None
    else:
        with connect(agent) as raw:
            nonce_a = job_secret.make_nonce()
            raw.sendall(nonce_a)
            nonce_b = receive_exactly(raw, 64)[:32]
            body = b'{"do": "run", "host": "127.0.0.1", "line": "true"}'
            signed = job_secret.compute_proof(KEY, AGENT_PURPOSE.name, "a", nonce_a, nonce_b, body)
            other = body.replace(b"true", b"touch done")
            raw.sendall(len(other).to_bytes(4, "big") + other + signed)
            assert raw.recv(1) == b""
    assert list(tmp_path.iterdir()) == []


def test_strangers_do_not_keep_others_waiting(agent: ExecAgent) -> None:
    silent = [connect(agent) for _ in range(20)]
    assert join_payloads(receive_frames(start_command(agent, "true")), EXIT_STATUS) == b"0"
    for stranger in silent:
        stranger.close()


def connect(agent: ExecAgent) -> socket.socket:
    return socket.create_connection((HOST, agent.port), timeout=20)


def receive_exactly(raw: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = raw.recv(size - len(data))
        assert piece, "closed"
        data += piece
    return data


def test_other_requests_go_to_who_understands_them() -> None:
    requests: list[dict[str, Any]] = []

    def handle_request(wire: PeerConnection, request: dict[str, Any]) -> None:
        requests.append(request)
        wire.send_message(["yes"])

    exec_agent = ExecAgent(KEY, HOST, HOST, 0, {}, handle_request)
    exec_agent.start()
    wire = connect_to_host(HOST, exec_agent.port, KEY, AGENT_PURPOSE, {"do": "follow"}, 5)
    assert wire.receive_message() == ["yes"]
    exec_agent.close()
    assert requests == [{"do": "follow", "host": HOST}]
