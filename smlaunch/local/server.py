"""The HTTP server: one port on loopback, a thread for each connection.

It answers nobody who was led here from elsewhere: a request whose ``Host`` is no name of this machine (DNS
rebinding) or that carries the ``Origin`` of a web page is refused before a byte of its body is read. What is
left still has to carry a good signature, which the dispatcher sees to. Until it does, a client gets little: a
head of limited size, and limited time.
"""

from __future__ import annotations

import errno
import io
import ipaddress
import logging
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import urlsplit

from smlaunch.local.connections import Connections, Peer, most_connections
from smlaunch.local.errors import ApiError
from smlaunch.local.messages import ChunkedBody, FileRange, PlainBody, Request, Response

Handle = Callable[[Request], Response]
_HEAD_LIMIT = 64 << 10
"""Bytes of a request before its body. S3 takes 8 KiB."""
_DRAINED = 4 << 20
"""Bytes of an unread body that are dropped so that the next request can come; after more the line is cut."""
_PATIENCE = 60.0
"""Seconds from a request's first byte until its signature was found good."""
_LINGER = 10.0
"""Seconds that a client has to see the answer although it still sends."""
_LINGER_BYTES = 32 << 20
"""That are dropped of what it sends; no more are read."""
_STALL = 300.0
"""Seconds that a peer may take over the next bytes of a request or answer it has begun."""

_FULL = 0.1
"""Seconds after which those who are slow are looked at again while nobody new can be let in."""
_NO_MORE = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))

log = logging.getLogger(__name__)


class Server:
    """Serves from construction to ``close()``. ``port=0`` takes a free one; ``url`` tells which.

    ``handle`` calls ``accept`` of a request whose client it believes; others are cut after ``patience``
    seconds. There may be ``most`` connections, by default as many as the machine's limits allow.
    """

    def __init__(
        self,
        handle: Handle,
        host: str = "127.0.0.1",
        port: int = 0,
        patience: float = _PATIENCE,
        most: int | None = None,
    ) -> None:
        if not is_loopback(host):
            raise ValueError(
                f"{host} is no loopback address: the endpoint runs code and stays on this machine"
            )
        self._stop, self._woken = socket.socketpair()
        self._stop.setblocking(False)
        self._connections = Connections(most or most_connections(), patience, self._wake)
        try:
            self._http = _Listener(handle, host, port, self._connections)
        except OSError:
            self._stop.close()
            self._woken.close()
            raise
        self.host = host
        self._stopping = False
        self.port: int = self._http.server_address[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._thread = threading.Thread(target=self._accept, name="endpoint-accept", daemon=True)
        self._thread.start()

    def close(self, patience: float = 5.0) -> None:
        """Stops listening and ends all connections; returns when no handler runs any more.

        Answers that are under way are finished, unless their client takes them for ``patience`` seconds.
        """
        self._stopping = True
        self._wake()
        self._thread.join()
        self._http.server_close()
        self._http.end_connections(patience)
        self._stop.close()
        self._woken.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wake(self) -> None:
        with suppress(OSError):  # full: it wakes anyway
            self._stop.send(b".")

    def _accept(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            listening = False
            while not self._stopping:
                room = self._connections.has_room()
                if room and not listening:
                    selector.register(self._http, selectors.EVENT_READ)
                elif listening and not room:
                    selector.unregister(self._http)
                listening = room
                ready = {
                    key.fileobj
                    for key, _ in selector.select(self._connections.patience / 4 if room else _FULL)
                }
                if self._woken in ready:
                    self._woken.recv(4096)
                self._connections.cut_overdue()
                if self._http in ready and not self._stopping:
                    self._http.handle_request()


class _Listener(HTTPServer):
    """Keeps its own threads: ThreadingMixIn cannot end those that wait for a next request."""

    timeout = 0
    request_queue_size = 512

    def __init__(self, handle: Handle, host: str, port: int, connections: Connections) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.handle = handle
        self.connections = connections
        super().__init__((host, port), _Connection)

    def server_bind(self) -> None:
        # HTTPServer's own asks the resolver for this machine's name, which can take seconds.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _NO_MORE:
                self.connections.went_short()
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        peer = Peer(request)
        peer.thread = threading.Thread(target=self._serve, args=(peer, client_address), daemon=True)
        self.connections.add(peer)
        try:
            peer.thread.start()
        except RuntimeError:
            self.connections.went_short()
            self.connections.remove(peer)
            self.shutdown_request(request)

    def _serve(self, peer: Peer, client_address: Any) -> None:
        try:
            _Connection(peer, client_address, self)
        except (ConnectionError, TimeoutError) as error:
            log.debug("connection from %s ended: %r", client_address, error)
        except Exception:
            log.exception("while serving %s", client_address)
        finally:
            self.shutdown_request(peer.socket)
            self.connections.remove(peer)

    def end_connections(self, patience: float) -> None:
        peers = [peer for peer in self.connections.all() if peer.thread is not threading.current_thread()]
        deadline = time.monotonic() + patience
        # First for reading only: an answer that is being sent may still go out.
        for how in (socket.SHUT_RD, socket.SHUT_RDWR):
            for peer in peers:
                with suppress(OSError):
                    peer.socket.shutdown(how)
            for peer in peers:
                assert peer.thread is not None
                peer.thread.join(max(0.0, deadline - time.monotonic()) if how == socket.SHUT_RD else None)


class _Head:
    """The lines before a body, and only so many bytes of them."""

    def __init__(self, source: Any, left: int) -> None:
        self._source = source
        self._left = left

    def readline(self, limit: int) -> bytes:
        line: bytes = self._source.readline(min(limit, self._left + 1))
        self._left -= len(line)
        if self._left < 0:
            raise HTTPException(f"The head of the request is longer than {_HEAD_LIMIT} bytes")
        return line


class _Connection(BaseHTTPRequestHandler):
    server: _Listener
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    rbufsize = 1 << 16
    _continue_wanted = False

    def __init__(self, peer: Peer, client_address: Any, server: _Listener) -> None:
        self._peer = peer
        super().__init__(peer.socket, client_address, server)

    def handle_one_request(self) -> None:
        self.connection.settimeout(None)  # an idle connection may stay: its peer is on this machine
        self.server.connections.idle(self._peer)
        if not self.rfile.peek(1) or not self.server.connections.begin(self._peer):  # type: ignore[attr-defined]
            self.close_connection = True
            return
        self.connection.settimeout(_STALL)
        if self._read_head():
            self._answer()
        else:
            self.close_connection = True
            self._linger()

    def _read_head(self) -> bool:
        """False when it cannot be read, which has been answered."""
        self.raw_requestline = self.rfile.readline(_HEAD_LIMIT + 1)
        if len(self.raw_requestline) > _HEAD_LIMIT:
            self.requestline = self.command = self.request_version = ""
            self.send_error(414)
            return False
        source = self.rfile
        self.rfile = _Head(source, _HEAD_LIMIT - len(self.raw_requestline))  # type: ignore[assignment]
        try:
            return self.parse_request()
        finally:
            self.rfile = source

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
            self._refuse(403, refusal)
            return
        try:
            body = self._body(headers)
        except ValueError as error:
            self._refuse(400, f"{error}\n")
            return
        # The request line as it was sent: http.server takes double slashes out of self.path.
        target = self.requestline.split()[1]
        if not target.startswith("/"):
            parts = urlsplit(target)
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        stream = io.BufferedReader(body, 1 << 16)
        response = self.server.handle(Request(self.command, target, headers, stream, self._accept))
        waiting, self._continue_wanted = self._continue_wanted, False
        if body.left and (waiting or body.left > _DRAINED):
            self.close_connection = True
        self._send(response)
        if body.left and (self.close_connection or not self._drain(body)):
            self.close_connection = True
            self._linger()

    def _accept(self) -> None:
        self.server.connections.accept(self._peer)

    def _refuse(self, status: int, text: str) -> None:
        self.close_connection = True
        self._send(Response(status, {"Content-Type": "text/plain; charset=utf-8"}, text.encode()))
        self._linger()

    def _linger(self) -> None:
        """A line that is cut while the client still sends takes the answer with it."""
        self.server.connections.hurry(self._peer, _LINGER)
        buffer, dropped = bytearray(1 << 16), 0
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            while dropped < _LINGER_BYTES and (size := self.connection.recv_into(buffer)):
                dropped += size
            if dropped >= _LINGER_BYTES:
                # To close now would take the answer away from a client that reads while it sends.
                hung_up = select.poll()
                hung_up.register(self.connection, 0)
                hung_up.poll(1000 * _LINGER)

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
