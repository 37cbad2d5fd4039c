"""The HTTP server: which clients it accepts, and its HTTP."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import urllib.error
import urllib.request
from typing import Any

import pytest

from smlaunch.local.front.http_messages import Request, Response
from smlaunch.local.front.http_server import Server, is_loopback
from tests.local.front.conftest import ServerHarness


def send_request(front: ServerHarness, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=5)
    connection.putrequest("POST", "/", skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


@pytest.mark.parametrize(
    "host",
    [
        "example.com",
        "169.254.169.254",
        "192.168.0.1:80",
        "localhost.example.com",
        "127.0.0.1.nip.io",
        "",
        "[::2]",
    ],
)
def test_a_foreign_host_header_is_rejected(front: ServerHarness, host: str) -> None:
    status, text = send_request(front, Host=host)
    assert status == 403
    assert "is not this machine" in text


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000"])
def test_requests_of_web_pages_are_rejected(front: ServerHarness, origin: str) -> None:
    status, text = send_request(front, Origin=origin)
    assert status == 403
    assert "web pages" in text


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8080", "bucket.localhost", "[::1]:99", "127.8.0.1"])
def test_host_names_of_this_machine_are_accepted(front: ServerHarness, host: str) -> None:
    status, text = send_request(front, Host=host)
    assert status == 403
    assert "AccessDenied" in text


def test_unsigned_calls_get_an_error_of_their_protocol(front: ServerHarness) -> None:
    status, text = send_request(front, X_Amz_Target="SageMaker.CreateTrainingJob")
    assert (status, json.loads(text)["__type"]) == (403, "MissingAuthenticationTokenException")
    status, text = send_request(front, Content_Type="application/x-www-form-urlencoded", Content_Length="0")
    assert status == 403
    assert "<Code>MissingAuthenticationToken</Code>" in text
    assert front.sagemaker.requests == []


def test_it_binds_to_loopback_only() -> None:
    for host in ("0.0.0.0", "", "example.com", "192.168.1.1", "::"):
        with pytest.raises(ValueError, match="loopback"):
            Server(lambda request: Response(), host)
    assert is_loopback("::1")


class EchoServer:
    """A server that returns the request's body; ``read``: whether it reads the body."""

    def __init__(self, read: bool = True) -> None:
        self.read = read
        self.server = Server(self.handle)

    def handle(self, request: Request) -> Response:
        body = request.stream.read() if self.read else b""
        headers = {"X-Target": request.target, "X-Seen": request.headers.get("x-seen", "")}
        return Response(200, headers, body)

    def __enter__(self) -> socket.socket:
        self.connection = socket.create_connection(("127.0.0.1", self.server.port), timeout=5)
        return self.connection

    def __exit__(self, *_: Any) -> None:
        self.connection.close()
        self.server.close()


def read_response(connection: socket.socket) -> http.client.HTTPResponse:
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    return answer


HOST = b"Host: localhost\r\n"


def test_targets_and_headers_arrive_as_sent() -> None:
    with EchoServer() as connection:
        connection.sendall(
            b"PUT //b//k%2F?x=%20&uploads HTTP/1.1\r\n" + HOST + b"X-Seen: a\r\nX-Seen: b\r\n\r\n"
        )
        answer = read_response(connection)
        assert answer.headers["X-Target"] == "//b//k%2F?x=%20&uploads"
        assert answer.headers["X-Seen"] == "a,b"


def test_several_requests_on_one_connection_with_chunks_and_unread_bodies() -> None:
    chunked = (
        b"POST / HTTP/1.1\r\n"
        + HOST
        + b"Transfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n1\r\n!\r\n0\r\nT: 1\r\n\r\n"
    )
    plain = b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc"
    with EchoServer() as connection:
        for request, body in ((chunked, b"hello!"), (plain, b"abc"), (chunked, b"hello!")):
            connection.sendall(request)
            assert read_response(connection).read() == body
    with EchoServer(read=False) as connection:
        for request in (chunked, plain, chunked):
            connection.sendall(request)
            assert read_response(connection).read() == b""


def test_100_continue_is_sent_when_the_body_is_read() -> None:
    head = b"PUT / HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    with EchoServer() as connection:
        connection.sendall(head)
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"ok")
        assert read_response(connection).read() == b"ok"
    with EchoServer(read=False) as connection:
        connection.sendall(head)
        answer = read_response(connection)
        assert (answer.status, answer.headers["Connection"]) == (200, "close")


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Content-Length: 3\r\nContent-Length: 4\r\n",
        b"Content-Length: +3\r\n",
        b"Content-Length: -1\r\n",
    ],
)
def test_a_body_with_an_ambiguous_end_is_rejected(framing: bytes) -> None:
    with EchoServer() as connection:
        connection.sendall(b"POST / HTTP/1.1\r\n" + HOST + framing + b"\r\nabc")
        answer = read_response(connection)
        assert (answer.status, answer.headers["Connection"]) == (400, "close")


def test_response_splitting_is_impossible() -> None:
    server = Server(lambda request: Response(200, {"X-Type": "a\r\nX-Evil: 1"}))
    with server, urllib.request.urlopen(server.url, timeout=5) as answer:
        assert "X-Evil" not in answer.headers


def test_closing_ends_idle_connections_and_their_threads() -> None:
    before = threading.active_count()
    server = Server(lambda request: Response())
    connections = [http.client.HTTPConnection("127.0.0.1", server.port, timeout=5) for _ in range(5)]
    for connection in connections:
        connection.request("GET", "/")
        connection.getresponse().read()
    server.close()
    assert threading.active_count() == before
    for connection in connections:
        with pytest.raises(OSError):
            connection.request("GET", "/")
            connection.getresponse()
        connection.close()


def test_close_lets_responses_in_progress_finish() -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow(request: Request) -> Response:
        entered.set()
        leave.wait(10)
        return Response(200, {}, b"done")

    server = Server(slow)
    texts: list[bytes] = []
    client = threading.Thread(
        target=lambda: texts.append(urllib.request.urlopen(server.url, timeout=10).read())
    )
    client.start()
    entered.wait(10)
    closing = threading.Thread(target=server.close)
    closing.start()
    leave.set()
    closing.join(10)
    client.join(10)
    assert texts == [b"done"]


def test_an_exception_in_a_service_is_an_internal_failure_with_a_request_id(front: ServerHarness) -> None:
    client = front.client("sagemaker")
    with pytest.raises(client.exceptions.ClientError) as failed:
        client.describe_training_job(TrainingJobName="x")
    error = failed.value.response
    assert error["Error"]["Code"] == "InternalFailure"
    assert error["ResponseMetadata"]["RequestId"] in error["Error"]["Message"]


def test_close_does_not_wait_for_a_client_that_does_not_read() -> None:
    before = set(threading.enumerate())
    server = Server(lambda request: Response(200, {}, bytes(64 << 20)))
    with socket.create_connection(("127.0.0.1", server.port)) as stalled:
        stalled.sendall(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        stalled.recv(1)
        server.close(timeout_seconds=0.1)
        assert set(threading.enumerate()) <= before
