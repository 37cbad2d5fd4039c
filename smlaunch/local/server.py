"""The HTTP server: one port on loopback, a thread for each connection.

It answers nobody who was led here from elsewhere: a request whose ``Host`` is no name of this machine (DNS
rebinding) or that carries the ``Origin`` of a web page is refused before a byte of its body is read. What is
left still has to carry a good signature, which the dispatcher sees to.
"""

from __future__ import annotations

import io
import ipaddress
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import urlsplit

from smlaunch.local.errors import ApiError
from smlaunch.local.messages import ChunkedBody, FileRange, PlainBody, Request, Response

Handle = Callable[[Request], Response]
_DRAINED = 4 << 20
"""Bytes of an unread body that are dropped so that the answer arrives; after more the line is cut."""
_STALL = 300.0
"""Seconds that a peer may take over the next bytes of a request or answer it has begun."""

log = logging.getLogger(__name__)


class Server:
    """Serves from construction to ``close()``. ``port=0`` takes a free one; ``url`` tells which."""

    def __init__(self, handle: Handle, host: str = "127.0.0.1", port: int = 0) -> None:
        if not is_loopback(host):
            raise ValueError(
                f"{host} is no loopback address: the endpoint runs code and stays on this machine"
            )
        self._http = _Listener(handle, host, port)
        self.host = host
        self.port: int = self._http.server_address[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._stop, self._stopped = socket.socketpair()
        self._thread = threading.Thread(target=self._accept, name="endpoint-accept", daemon=True)
        self._thread.start()

    def close(self, patience: float = 5.0) -> None:
        """Stops listening and ends all connections; returns when no handler runs any more.

        Answers that are under way are finished, unless their client takes them for ``patience`` seconds.
        """
        self._stop.close()
        self._thread.join()
        self._stopped.close()
        self._http.server_close()
        self._http.end_connections(patience)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._http, selectors.EVENT_READ)
            selector.register(self._stopped, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._stopped in ready:
                    return
                self._http.handle_request()


class _Listener(HTTPServer):
    """Keeps its own threads: ThreadingMixIn cannot end those that wait for a next request."""

    timeout = 0
    request_queue_size = 512

    def __init__(self, handle: Handle, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.handle = handle
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._lock = threading.Lock()
        super().__init__((host, port), _Connection)

    def server_bind(self) -> None:
        # HTTPServer's own asks the resolver for this machine's name, which can take seconds.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(target=self._serve, args=(request, client_address), daemon=True)
        with self._lock:
            self._connections[request] = thread
        thread.start()

    def _serve(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except (ConnectionError, TimeoutError) as error:
            log.debug("connection from %s ended: %r", client_address, error)
        except Exception:
            log.exception("while serving %s", client_address)
        finally:
            with self._lock:
                self._connections.pop(request, None)
            self.shutdown_request(request)

    def end_connections(self, patience: float) -> None:
        with self._lock:
            connections = dict(self._connections)
        connections = {
            c: thread for c, thread in connections.items() if thread is not threading.current_thread()
        }
        deadline = time.monotonic() + patience
        # First for reading only: an answer that is being sent may still go out.
        for how in (socket.SHUT_RD, socket.SHUT_RDWR):
            for connection in connections:
                with suppress(OSError):
                    connection.shutdown(how)
            for thread in connections.values():
                thread.join(max(0.0, deadline - time.monotonic()) if how == socket.SHUT_RD else None)


class _Connection(BaseHTTPRequestHandler):
    server: _Listener
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    rbufsize = 1 << 16
    _continue_wanted = False

    def handle_one_request(self) -> None:
        self.connection.settimeout(None)  # an idle connection may stay: its peer is on this machine
        if not self.rfile.peek(1):  # type: ignore[attr-defined]
            self.close_connection = True
            return
        self.connection.settimeout(_STALL)
        self.raw_requestline = self.rfile.readline(65537)
        if len(self.raw_requestline) > 65536:
            self.requestline = self.command = self.request_version = ""
            self.send_error(414)
            return
        if not self.parse_request():
            return
        self._answer()

    def handle_expect_100(self) -> bool:
        self._continue_wanted = True
        return True  # told to go on when the body is wanted, after the signature was found good

    def _answer(self) -> None:
        headers: dict[str, str] = {}
        for name, value in self.headers.items():
            name = name.lower()
            headers[name] = f"{headers[name]},{value}" if name in headers else value
        refusal = _foreign(headers)
        if refusal:
            self.close_connection = True
            self._send(Response(403, {"Content-Type": "text/plain; charset=utf-8"}, refusal.encode()))
            return
        try:
            body = self._body(headers)
        except ValueError as error:
            self.close_connection = True
            self._send(Response(400, {"Content-Type": "text/plain; charset=utf-8"}, f"{error}\n".encode()))
            return
        # The request line as it was sent: http.server takes double slashes out of self.path.
        target = self.requestline.split()[1]
        if not target.startswith("/"):
            parts = urlsplit(target)
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        response = self.server.handle(
            Request(self.command, target, headers, io.BufferedReader(body, 1 << 16))
        )
        waiting = self._continue_wanted
        if body.left and (waiting or not self._drain(body)):
            self.close_connection = True
        self._continue_wanted = False
        self._send(response)

    def _body(self, headers: dict[str, str]) -> PlainBody | ChunkedBody:
        """Raises ValueError for a body whose end cannot be told for certain."""
        source: Any = self.rfile
        coding, length = headers.get("transfer-encoding", "").lower(), headers.get("content-length")
        if coding and (coding != "chunked" or length is not None):
            raise ValueError("Transfer-Encoding may only be chunked, and not together with Content-Length")
        if coding:
            return ChunkedBody(source, self._go_on)
        if length is not None and not (length.isascii() and length.isdigit()):
            raise ValueError("Content-Length is not a number")
        return PlainBody(source, int(length or 0), self._go_on)

    def _go_on(self) -> None:
        if self._continue_wanted:
            self._continue_wanted = False
            self.connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")

    @staticmethod
    def _drain(body: PlainBody | ChunkedBody) -> bool:
        """Reads what the handler left of a body; False when that is too much."""
        buffer, dropped = bytearray(1 << 16), 0
        try:
            while dropped < _DRAINED and (size := body.readinto(buffer)):
                dropped += size
        except (ApiError, OSError):
            return False
        return not body.left

    def _send(self, response: Response) -> None:
        body = response.body
        length = body.length if isinstance(body, FileRange) else len(body)
        lines = [f"HTTP/1.1 {response.status} {self.responses.get(response.status, ('',))[0]}"]
        if response.status not in (204, 304):
            response.headers.setdefault("Content-Length", str(length))
        if self.close_connection:
            response.headers["Connection"] = "close"
        lines += [f"{name}: {' '.join(value.splitlines())}" for name, value in response.headers.items()]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")
        with_body = self.command != "HEAD"
        if isinstance(body, FileRange):
            with body.file as file:
                self.connection.sendall(head)
                if with_body and length:
                    self.connection.sendfile(file, body.start, length)
        else:
            self.connection.sendall(head + body if with_body else head)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


def is_loopback(name: str) -> bool:
    """Of a host's name or address: does it mean this machine, whatever a name server says?"""
    name = name.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):  # RFC 6761; S3 puts the bucket in front
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _foreign(headers: dict[str, str]) -> str | None:
    """Why a request is not one of this machine's own clients', or None."""
    host = headers.get("host", "")
    name = host.rpartition(":")[0] if ":" in host.rpartition("]")[2] else host
    if not is_loopback(name.strip("[]")):
        return f"Host {host!r} is not this machine. smlaunch's endpoint answers on loopback only.\n"
    if "origin" in headers:
        return f"Origin {headers['origin']!r}: smlaunch's endpoint does not answer web pages.\n"
    return None
