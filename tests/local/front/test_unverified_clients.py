"""Limits for clients without a key: memory, descriptors, threads, time."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from smlaunch.local.front import connection_limiter
from smlaunch.local.front.http_messages import Request, Response
from smlaunch.local.front.http_server import Server
from tests.conftest import ROOT
from tests.local.client import EndpointClient
from tests.local.endpoint_harness import EndpointHarness
from tests.local.executors.conftest import eventually
from tests.local.front.conftest import CREDENTIALS, ServerHarness

HOST = b"Host: localhost\r\n"
LIMIT_DESCRIPTORS = "import resource as r, sys; r.setrlimit(r.RLIMIT_NOFILE, (int(sys.argv.pop(1)),) * 2); "
SERVER_SCRIPT = """
import pathlib, sys
from tests.local.front.conftest import ServerHarness
front = ServerHarness(pathlib.Path(sys.argv[1]))
print(front.port, flush=True)
sys.stdin.read()
front.close()
"""
OPEN_CONNECTIONS_SCRIPT = """
import socket, sys
connections = []
for _ in range(int(sys.argv[2])):
    connections.append(socket.create_connection(("127.0.0.1", int(sys.argv[1]))))
print("open", flush=True)
sys.stdin.read()
"""


@contextmanager
def run_program(text: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program; its standard input ends with the context."""
    process = subprocess.Popen(
        [sys.executable, "-c", text, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        yield process
        process.communicate(timeout=60)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def auth_headers(kind: str, service: str) -> dict[str, str]:
    """Return headers: unsigned, with an unknown key, or with a known key and a wrong signature."""
    if kind == "unsigned":
        return {}
    key = CREDENTIALS.access_key if kind == "forged" else "AKIDNOBODY"
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    text = f"AWS4-HMAC-SHA256 Credential={key}/{now[:8]}/us-east-1/{service}/aws4_request"
    names = "host;x-amz-date;x-amz-target"
    return {"X-Amz-Date": now, "Authorization": f"{text}, SignedHeaders={names}, Signature={'0' * 64}"}


@pytest.mark.parametrize("kind", ["unsigned", "unknown", "forged"])
def test_unverified_bodies_have_a_memory_limit(
    tmp_path: Path, kind: str, record_property: Callable[[str, object], None]
) -> None:
    body, statuses = bytes(30 << 20), []

    def send(port: int) -> None:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        headers = {"X-Amz-Target": "SageMaker.ListTrainingJobs", **auth_headers(kind, "sagemaker")}
        client.request("POST", "/", body, headers)
        statuses.append(client.getresponse().status)
        client.close()

    with run_program(SERVER_SCRIPT, tmp_path) as process:
        port = int(read_line(process))
        before = peak_memory(process.pid)
        clients = [threading.Thread(target=send, args=(port,)) for _ in range(12)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        memory_growth = peak_memory(process.pid) - before
    record_property("megabytes_taken", memory_growth >> 20)
    assert statuses == [403] * 12
    assert memory_growth < (120 << 20 if kind == "forged" else 40 << 20), f"{memory_growth >> 20} MB"


def peak_memory(pid: int) -> int:
    """Return the peak memory of a process in bytes."""
    (line,) = (
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")
    )
    return int(line.split()[1]) << 10


@pytest.mark.parametrize("expect", [b"", b"Expect: 100-continue\r\n"])
@pytest.mark.parametrize("kind", ["unsigned", "unknown", "beside", "too long"])
def test_a_rejection_is_sent_before_the_body_is_read(front: ServerHarness, kind: str, expect: bytes) -> None:
    headers = {"X-Amz-Target": "SageMaker.ListTrainingJobs", "Content-Length": str(1 << 20)}
    if kind == "too long":
        headers["Content-Length"] = str(65 << 20)
    elif kind == "beside":
        headers["X-Amz-Extra"] = "1"
    headers |= auth_headers("forged" if kind in ("beside", "too long") else kind, "sagemaker")
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()
    with socket.create_connection(("127.0.0.1", front.port), timeout=5) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\n" + HOST + lines + expect + b"\r\n")
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == (413 if kind == "too long" else 403)


@pytest.mark.parametrize("expect", [b"", b"Expect: 100-continue\r\n"])
def test_an_unverified_body_is_not_read_to_its_end(front: ServerHarness, bucket: str, expect: bytes) -> None:
    """The kernel's buffers hold some bytes beyond the 32 MB that the server reads and drops."""
    sent, block = 0, bytes(1 << 20)
    with socket.create_connection(("127.0.0.1", front.port), timeout=1) as connection:
        head = f"PUT /{bucket}/k HTTP/1.1\r\nContent-Length: {500 << 30}\r\n".encode()
        connection.sendall(head + HOST + expect + b"\r\n")
        with suppress(TimeoutError):
            while sent < 200 << 20:
                sent += connection.send(block)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 403
    assert sent < 100 << 20, f"{sent >> 20} MB"


def test_a_client_rejected_during_an_upload_gets_the_response(front: ServerHarness, bucket: str) -> None:
    client = http.client.HTTPConnection("127.0.0.1", front.port, timeout=10)
    client.request("PUT", f"/{bucket}/k", bytes(30 << 20))
    answer = client.getresponse()
    assert (answer.status, answer.headers["Connection"]) == (403, "close")
    assert b"AccessDenied" in answer.read()


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n", 414),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 70_000 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + HOST + b"".join(b"X-%d: %s\r\n" % (i, b"x" * 2000) for i in range(40)), 431),
    ],
)
def test_a_head_has_a_limit(head: bytes, status: int) -> None:
    with (
        Server(lambda request: Response()) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection,
    ):
        connection.sendall(head + b"\r\n")
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == status


def is_closed(connection: socket.socket) -> bool:
    with suppress(ConnectionError):
        return connection.recv(1) == b""
    return True


def test_slow_clients_are_disconnected_unless_verified() -> None:
    def handle(request: Request) -> Response:
        if request.path == "/friend":
            request.on_verified()
        return Response(200, {}, request.stream.read())

    body = b"Content-Length: 2\r\n\r\na"
    requests = {
        "head": b"GET / HT",
        "stranger": b"PUT /stranger HTTP/1.1\r\n" + HOST + body,
        "friend": b"PUT /friend HTTP/1.1\r\n" + HOST + body,
    }
    with Server(handle, verify_timeout=0.3) as server:
        open_ = {name: socket.create_connection(("127.0.0.1", server.port), timeout=10) for name in requests}
        for name, text in requests.items():
            open_[name].sendall(text)
        assert is_closed(open_["head"])
        assert is_closed(open_["stranger"])
        open_["friend"].sendall(b"b")
        answer = http.client.HTTPResponse(open_["friend"])
        answer.begin()
        assert answer.read() == b"ab"
        for connection in open_.values():
            connection.close()


@contextmanager
def open_connections(port: int, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            for _ in range(count)
        ]


def handle_request(request: Request) -> Response:
    if "x-friend" in request.headers:
        request.on_verified()
    return Response(200, {}, b"served")


def send_request(client: http.client.HTTPConnection, **headers: str) -> bytes:
    client.request("GET", "/", headers=headers)
    return client.getresponse().read()


def test_the_oldest_idle_unverified_connection_makes_room() -> None:
    with Server(handle_request, max_connections=4) as server:
        friend = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        assert send_request(friend, **{"X-Friend": "1"}) == b"served"
        with open_connections(server.port, 40) as opened:
            for connection in opened[:-3]:
                assert is_closed(connection)
            assert friend.sock is not None
            line = friend.sock
            assert send_request(friend, **{"X-Friend": "1"}) == b"served"
            assert friend.sock is line  # the same connection: it was not closed and opened again
            late = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
            assert send_request(late) == b"served"
            late.close()
        friend.close()


def test_a_new_client_waits_while_all_connections_have_requests() -> None:
    leave = threading.Event()

    def handle(request: Request) -> Response:
        request.on_verified()
        if request.path == "/long":
            leave.wait(20)
        return Response(200, {}, request.path.encode())

    with Server(handle, max_connections=2) as server, open_connections(server.port, 2) as busy:
        for connection in busy:
            connection.sendall(b"GET /long HTTP/1.1\r\n" + HOST + b"\r\n")
        assert eventually(
            lambda: [peer.has_request for peer in server._connections.open_connections()] == [True, True]
        )
        late = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        late.request("GET", "/late")
        leave.set()
        assert late.getresponse().read() == b"/late"
        for connection in busy:
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            assert answer.read() == b"/long"
        late.close()


def test_incomplete_unverified_requests_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limiter, "_MIN_SLOW_REQUEST_SECONDS", 0.1)
    with Server(handle_request, max_connections=3) as server, open_connections(server.port, 3) as slow:
        for connection in slow:
            connection.sendall(b"GET / HTTP/1.1\r\n")
        assert eventually(
            lambda: [peer.has_request for peer in server._connections.open_connections()] == [True] * 3
        )
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        assert send_request(client) == b"served"
        client.close()


MEASURE_CPU_SCRIPT = """
import sys, time
from smlaunch.local.front.http_messages import Response
from smlaunch.local.front.http_server import Server
server = Server(lambda request: Response(200, {}, b"served"), max_connections=1000)
print(server.port, flush=True)
sys.stdin.readline()
before = time.process_time()
time.sleep(1)
print(time.process_time() - before, flush=True)
sys.stdin.read()
server.close()
"""


def test_out_of_descriptors_neither_spins_nor_stops_accepting() -> None:
    with run_program(LIMIT_DESCRIPTORS + MEASURE_CPU_SCRIPT, 40) as process:
        port = int(read_line(process))
        with open_connections(port, 100):
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            assert float(read_line(process)) < 0.5
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        assert send_request(client) == b"served"
        client.close()


LINES = 10_000


@pytest.mark.parametrize("count", [1_100])
def test_idle_connections_cost_a_job_no_log_line(
    count: int, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    harness = EndpointHarness("plain")
    limited = (
        LIMIT_DESCRIPTORS
        + "import runpy; runpy.run_module('tests.local.endpoint_process', run_name='__main__')"
    )
    original_command = harness.command

    def command(*words: str) -> list[str]:
        return original_command(words[0], "-c", limited, "1024", *words[3:])

    monkeypatch.setattr(harness, "command", command)
    try:
        client = EndpointClient(harness.start())
        port = int(client.info.url.rpartition(":")[2])
        go_file = harness.home / "go"
        client.create("talks", PRINT_LINES_SCRIPT.replace("GO", str(go_file)))
        client.wait_for_line("talks", "ready")
        with (
            run_program(OPEN_CONNECTIONS_SCRIPT, port, count // 2) as one,
            run_program(OPEN_CONNECTIONS_SCRIPT, port, count - count // 2) as two,
        ):
            assert [read_line(one), read_line(two)] == ["open", "open"]
            go_file.touch()
            job = client.wait("talks")
            assert job["TrainingJobStatus"] == "Completed", job
        lines = all_lines(client, "talks")
        record_property("lines_that_arrived", sum(line.startswith("line ") for line in lines))
        record_property("lines_written", LINES)
        assert [line for line in lines if line.startswith("line ")] == [f"line {n}" for n in range(LINES)]
        assert not [line for line in lines if "lost" in line]
        harness.close()
    finally:
        if harness._pid is not None:
            harness.kill()
        harness.remove()


PRINT_LINES_SCRIPT = f"""
print("ready", flush=True)
while not os.path.exists('GO'):
    time.sleep(0.02)
for n in range({LINES}):
    print("line", n, flush=True)
"""


def all_lines(client: EndpointClient, name: str) -> list[str]:
    streams = client.logs.describe_log_streams(
        logGroupName="/aws/sagemaker/TrainingJobs", logStreamNamePrefix=f"{name}/"
    )
    (stream,) = (entry["logStreamName"] for entry in streams["logStreams"])
    lines: list[str] = []
    token: dict[str, str] = {}
    while True:
        page = client.logs.get_log_events(
            logGroupName="/aws/sagemaker/TrainingJobs", logStreamName=stream, startFromHead=True, **token
        )
        lines += [event["message"] for event in page["events"]]
        if page["nextForwardToken"] == token.get("nextToken"):
            return lines
        token = {"nextToken": page["nextForwardToken"]}


@pytest.mark.parametrize(
    "line",
    [
        b"X-Copy : a",
        b"X-Copy\t: a",
        b"\xc3\x97-copy: a",
        b"no colon",
        b": no name",
        b"From me",
        b"X-Copy: a\rX-Other: b",
        b"X-Copy: a\r\n folded",
    ],
)
def test_a_malformed_header_line_is_rejected(line: bytes) -> None:
    requests: list[Request] = []

    def handle(request: Request) -> Response:
        requests.append(request)
        return Response()

    with (
        Server(handle) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection,
    ):
        connection.sendall(b"PUT /k HTTP/1.1\r\n" + HOST + line + b"\r\nContent-Length: 3\r\n\r\nabc")
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert (answer.status, answer.headers["Connection"], requests) == (400, "close", [])
