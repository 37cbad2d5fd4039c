"""The HTTP server: one port on loopback, a thread for each connection.

A request whose ``Host`` is not a name of this machine (DNS rebinding), or that has the ``Origin`` of a web
page, is rejected before its body is read. All other requests need a valid signature, which the dispatcher
verifies. Until then the size of a request's head and the time of its client are limited.
"""

from __future__ import annotations

import errno
import io
import ipaddress
import logging
import re
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

from smlaunch.local.api_errors import ApiError
from smlaunch.local.connections import ClientConnection, ConnectionLimiter, connection_limit
from smlaunch.local.http_messages import ChunkedBody, FileRange, FixedLengthBody, Request, Response

RequestHandler = Callable[[Request], Response]
_MAX_HEAD_BYTES = 64 << 10
"""Of the request line and headers. S3's limit is 8 KiB."""
_MAX_QUOTED_BYTES = 80
"""Of a malformed line, in the error response."""
_MAX_DRAINED_BYTES = 4 << 20
"""An unread body up to this size is read, so that the connection can be reused; a larger one closes it."""
_VERIFY_TIMEOUT_SECONDS = 60.0
"""From the first byte of a request until its signature is verified."""
_LINGER_SECONDS = 10.0
"""How long a client that still sends may take to read the response before the connection is closed."""
_MAX_LINGER_BYTES = 32 << 20
"""How much of a rejected request is read and dropped before the connection is closed."""
_STALL_TIMEOUT_SECONDS = 300.0
"""Maximum time without progress within a request or response."""

_HEADER_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\0\r]*\r?\n")
"""RFC 9112, 5 and 5.1. Python's parser silently ends the head at a line that does not match."""

_FULL_POLL_SECONDS = 0.1
"""How often connections are checked while no new one can be accepted."""
_OUT_OF_RESOURCES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))

log = logging.getLogger(__name__)


class Server:
    """An HTTP server that serves from construction to ``close()``.

    ``port=0`` chooses a free port; ``url`` contains it. ``handle`` calls ``on_verified`` of a request when
    its signature is verified; requests without that are cut after ``verify_timeout`` seconds.
    ``max_connections``: by default as many as the process's descriptors allow.
    """

    def __init__(
        self,
        handle: RequestHandler,
        host: str = "127.0.0.1",
        port: int = 0,
        verify_timeout: float = _VERIFY_TIMEOUT_SECONDS,
        max_connections: int | None = None,
    ) -> None:
        if not is_loopback(host):
            raise ValueError(
                f"{host} is not a loopback address: the endpoint runs code, so it must not be reachable from "
                "other machines"
            )
        self._wakeup_write, self._wakeup_read = socket.socketpair()
        self._wakeup_write.setblocking(False)
        self._connections = ConnectionLimiter(
            max_connections or connection_limit(), verify_timeout, self._wake
        )
        try:
            self._http = _Listener(handle, host, port, self._connections)
        except OSError:
            self._wakeup_write.close()
            self._wakeup_read.close()
            raise
        self.host = host
        self._is_stopping = False
        self.port: int = self._http.server_address[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._thread = threading.Thread(target=self._accept_connections, name="endpoint-accept", daemon=True)
        self._thread.start()

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Stop listening and close all connections; return when no handler runs any more.

        Responses in progress have ``timeout_seconds`` to finish.
        """
        self._is_stopping = True
        self._wake()
        self._thread.join()
        self._http.server_close()
        self._http.end_connections(timeout_seconds)
        self._wakeup_write.close()
        self._wakeup_read.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wake(self) -> None:
        with suppress(OSError):  # the buffer is full, so the thread wakes anyway
            self._wakeup_write.send(b".")

    def _accept_connections(self) -> None:
        """Accept connections while there is room for them, and close overdue ones, until ``close()``."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._wakeup_read, selectors.EVENT_READ)
            is_listening = False
            while not self._is_stopping:
                has_room = self._connections.make_room()
                if has_room and not is_listening:
                    selector.register(self._http, selectors.EVENT_READ)
                elif is_listening and not has_room:
                    selector.unregister(self._http)
                is_listening = has_room
                timeout = self._connections.verify_timeout / 4 if has_room else _FULL_POLL_SECONDS
                ready_sockets = {key.fileobj for key, _ in selector.select(timeout)}
                if self._wakeup_read in ready_sockets:
                    self._wakeup_read.recv(4096)
                self._connections.close_overdue()
                if self._http in ready_sockets and not self._is_stopping:
                    self._http.handle_request()


class _Listener(HTTPServer):
    """Starts a thread for each connection. ThreadingMixIn cannot end threads that wait for a request."""

    timeout = 0
    request_queue_size = 512

    def __init__(self, handle: RequestHandler, host: str, port: int, connections: ConnectionLimiter) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.handle = handle
        self.connections = connections
        super().__init__((host, port), _Connection)

    def server_bind(self) -> None:
        # HTTPServer's method asks the resolver for this machine's name, which can take seconds.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _OUT_OF_RESOURCES:
                self.connections.pause_accepting()
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        peer = ClientConnection(request)
        peer.thread = threading.Thread(target=self._serve, args=(peer, client_address), daemon=True)
        self.connections.add(peer)
        try:
            peer.thread.start()
        except RuntimeError:
            self.connections.pause_accepting()
            self.connections.remove(peer)
            self.shutdown_request(request)

    def _serve(self, peer: ClientConnection, client_address: Any) -> None:
        try:
            _Connection(peer, client_address, self)
        except (ConnectionError, TimeoutError) as error:
            log.debug("connection from %s ended: %r", client_address, error)
        except Exception:
            log.exception("while serving %s", client_address)
        finally:
            self.shutdown_request(peer.socket)
            self.connections.remove(peer)

    def end_connections(self, timeout_seconds: float) -> None:
        """Close all connections and join their threads. Responses have ``timeout_seconds`` to finish."""
        peers = [peer for peer in self.connections.peers() if peer.thread is not threading.current_thread()]
        deadline = time.monotonic() + timeout_seconds
        # Reading is shut down first, so that responses in progress can be sent.
        for direction in (socket.SHUT_RD, socket.SHUT_RDWR):
            for peer in peers:
                with suppress(OSError):
                    peer.socket.shutdown(direction)
            for peer in peers:
                assert peer.thread is not None
                peer.thread.join(
                    max(0.0, deadline - time.monotonic()) if direction == socket.SHUT_RD else None
                )


class _LimitedReader:
    """Reads at most ``max_bytes`` of header lines. ``malformed_line``: the first that is not a header."""

    def __init__(self, stream: Any, max_bytes: int) -> None:
        self._stream = stream
        self._remaining_bytes = max_bytes
        self.malformed_line: bytes | None = None

    def readline(self, limit: int) -> bytes:
        line: bytes = self._stream.readline(min(limit, self._remaining_bytes + 1))
        self._remaining_bytes -= len(line)
        if self._remaining_bytes < 0:
            raise HTTPException(f"The head of the request is longer than {_MAX_HEAD_BYTES} bytes")
        is_header = line in (b"\r\n", b"\n", b"") or _HEADER_LINE.fullmatch(line)
        if self.malformed_line is None and not is_header:
            self.malformed_line = line
        return line


class _Connection(BaseHTTPRequestHandler):
    server: _Listener
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    rbufsize = 1 << 16
    _expects_continue = False
    """Whether the client waits for 100 Continue before it sends the body."""

    def __init__(self, peer: ClientConnection, client_address: Any, server: _Listener) -> None:
        self._peer = peer
        super().__init__(peer.socket, client_address, server)

    def handle_one_request(self) -> None:
        self.connection.settimeout(None)  # an idle connection may stay open: its client is on this machine
        self.server.connections.mark_idle(self._peer)
        if not self.rfile.peek(1) or not self.server.connections.begin_request(self._peer):  # type: ignore[attr-defined]
            self.close_connection = True
            return
        self.connection.settimeout(_STALL_TIMEOUT_SECONDS)
        if self._read_head():
            self._respond()
        else:
            self.close_connection = True
            self._linger()

    def _read_head(self) -> bool:
        """Read request line and headers. Returns False when they are malformed, after an error response."""
        self.raw_requestline = self.rfile.readline(_MAX_HEAD_BYTES + 1)
        if len(self.raw_requestline) > _MAX_HEAD_BYTES:
            self.requestline = self.command = self.request_version = ""
            self.send_error(414)
            return False
        stream = self.rfile
        head = _LimitedReader(stream, _MAX_HEAD_BYTES - len(self.raw_requestline))
        self.rfile = head  # type: ignore[assignment]
        try:
            if not self.parse_request():
                return False
        finally:
            self.rfile = stream
        if head.malformed_line is not None:
            beginning = head.malformed_line[:_MAX_QUOTED_BYTES]
            self.send_error(400, "Malformed header line", f"It begins with {beginning!r}")
            return False
        return True

    def handle_expect_100(self) -> bool:
        self._expects_continue = True
        return True  # 100 Continue is sent by the first read of the body

    def _respond(self) -> None:
        """Check the request, pass it to the handler, and send the response."""
        headers: dict[str, str] = {}
        for name, value in self.headers.items():
            name = name.lower()
            headers[name] = f"{headers[name]},{value}" if name in headers else value
        rejection = _rejection_reason(headers)
        if rejection:
            self._reject(403, rejection)
            return
        try:
            body = self._body(headers)
        except ValueError as error:
            self._reject(400, f"{error}\n")
            return
        # From the request line, because http.server removes double slashes from self.path.
        target = self.requestline.split()[1]
        if not target.startswith("/"):
            url = urlsplit(target)
            target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        stream = io.BufferedReader(body, 1 << 16)
        response = self.server.handle(Request(self.command, target, headers, stream, self._mark_verified))
        client_waits, self._expects_continue = self._expects_continue, False
        if body.remaining_bytes and (client_waits or body.remaining_bytes > _MAX_DRAINED_BYTES):
            self.close_connection = True
        self._send(response)
        if body.remaining_bytes and (self.close_connection or not self._drain(body)):
            self.close_connection = True
            self._linger()

    def _mark_verified(self) -> None:
        self.server.connections.mark_verified(self._peer)

    def _reject(self, status: int, text: str) -> None:
        self.close_connection = True
        self._send(Response(status, {"Content-Type": "text/plain; charset=utf-8"}, text.encode()))
        self._linger()

    def _linger(self) -> None:
        """Read on for a while before the connection is closed: closing it while the client still sends would
        discard the response."""
        self.server.connections.set_deadline(self._peer, _LINGER_SECONDS)
        buffer, dropped_bytes = bytearray(1 << 16), 0
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            while dropped_bytes < _MAX_LINGER_BYTES and (size := self.connection.recv_into(buffer)):
                dropped_bytes += size
            if dropped_bytes >= _MAX_LINGER_BYTES:
                # The client may read the response while it still sends: wait until it hangs up.
                hangup_poll = select.poll()
                hangup_poll.register(self.connection, 0)
                hangup_poll.poll(1000 * _LINGER_SECONDS)

    def _body(self, headers: dict[str, str]) -> FixedLengthBody | ChunkedBody:
        """Return the body as a stream. Raises ValueError if its end is ambiguous (request smuggling)."""
        stream: Any = self.rfile
        transfer_encoding = headers.get("transfer-encoding", "").lower()
        content_length = headers.get("content-length")
        if transfer_encoding and (transfer_encoding != "chunked" or content_length is not None):
            raise ValueError("Transfer-Encoding may only be chunked, and not together with Content-Length")
        if transfer_encoding:
            return ChunkedBody(stream, self._send_continue)
        if content_length is not None and not (content_length.isascii() and content_length.isdigit()):
            raise ValueError("Content-Length is not a number")
        return FixedLengthBody(stream, int(content_length or 0), self._send_continue)

    def _send_continue(self) -> None:
        if self._expects_continue:
            self._expects_continue = False
            self.connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")

    @staticmethod
    def _drain(body: FixedLengthBody | ChunkedBody) -> bool:
        """Read and drop the unread rest of a body. Returns False when it is too long or cannot be read."""
        buffer, dropped_bytes = bytearray(1 << 16), 0
        try:
            while dropped_bytes < _MAX_DRAINED_BYTES and (size := body.readinto(buffer)):
                dropped_bytes += size
        except (ApiError, OSError):
            return False
        return not body.remaining_bytes

    def _send(self, response: Response) -> None:
        """Send status line, headers and body, without the body for HEAD."""
        body = response.body
        length = body.length if isinstance(body, FileRange) else len(body)
        header_lines = [f"HTTP/1.1 {response.status} {self.responses.get(response.status, ('',))[0]}"]
        if response.status not in (204, 304):
            response.headers.setdefault("Content-Length", str(length))
        if self.close_connection:
            response.headers["Connection"] = "close"
        header_lines += [
            f"{name}: {' '.join(value.splitlines())}" for name, value in response.headers.items()
        ]
        head = ("\r\n".join(header_lines) + "\r\n\r\n").encode("latin-1", "replace")
        has_body = self.command != "HEAD"
        if isinstance(body, FileRange):
            with body.file as file:
                self.connection.sendall(head)
                if has_body and length:
                    self.connection.sendfile(file, body.start, length)
        else:
            self.connection.sendall(head + body if has_body else head)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


def is_loopback(host: str) -> bool:
    """Return whether a host name or address means this machine, whatever a name server answers."""
    host = host.rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):  # RFC 6761; S3 puts the bucket in front
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _rejection_reason(headers: dict[str, str]) -> str | None:
    """Explain why a request does not come from a client on this machine; None when it does."""
    host = headers.get("host", "")
    name = host.rpartition(":")[0] if ":" in host.rpartition("]")[2] else host
    if not is_loopback(name.strip("[]")):
        return f"Host {host!r} is not this machine. smlaunch's endpoint responds on loopback only.\n"
    if "origin" in headers:
        return f"Origin {headers['origin']!r}: smlaunch's endpoint does not respond to web pages.\n"
    return None
