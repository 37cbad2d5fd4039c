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

from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.front.connection_limiter import ClientConnection, ConnectionLimiter, connection_limit
from smlaunch.local.front.http_messages import ChunkedBody, FileRange, FixedLengthBody, Request, Response

RequestHandler = Callable[[Request], Response]
_MAX_HEAD_BYTES = 64 << 10
"""Of the request line and headers. S3's limit is 8 KiB."""
_MAX_QUOTED_BYTES = 80
"""Of a malformed line, in the error response."""
_MAX_DISCARDED_BODY_BYTES = 4 << 20
"""An unread body up to this size is read, so that the connection can be reused; a larger one closes it."""
_VERIFY_TIMEOUT_SECONDS = 60.0
"""From the first byte of a request until its signature is verified."""
_LINGER_SECONDS = 10.0
"""How long a client that still sends may take to read the response before the connection is closed."""
_MAX_DISCARDED_INPUT_BYTES = 32 << 20
"""How much of a rejected request is read and dropped before the connection is closed."""
_STALL_TIMEOUT_SECONDS = 300.0
"""Maximum time without progress within a request or response."""

_HEADER_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\0\r]*\r?\n")
"""RFC 9112, 5 and 5.1. Python's parser silently ends the head at a line that does not match."""

_POLL_SECONDS_WITHOUT_ROOM = 0.1
"""How often connections are checked while no new one can be accepted."""
_OUT_OF_RESOURCES_ERRNOS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))

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
        """Start to serve HTTP requests on ``host``, a loopback address. ``handle`` turns a request into its
        response; ``port=0``: a free port; ``verify_timeout``: seconds that a client has until the signature
        of its request is verified; ``max_connections``: None for as many as the process's descriptors allow.
        Raises ValueError for another host and OSError for a port in use."""
        if not is_loopback(host):
            raise ValueError(
                f"{host} is not a loopback address: the endpoint runs code, so it must not be reachable from "
                "other machines"
            )
        # A byte in it ends the accept thread's wait for the next connection.
        self._wakeup_write_socket, self._wakeup_read_socket = socket.socketpair()
        self._wakeup_write_socket.setblocking(False)
        # Keeps the open connections, and says when there is room for another.
        self._connections = ConnectionLimiter(
            max_connections or connection_limit(),
            verify_timeout,
            on_connection_available=self._wake_accept_thread,
        )
        try:
            # An HTTPServer: it listens, and starts a thread for each connection.
            self._listener = _Listener(handle, host, port, self._connections)
        except OSError:
            self._wakeup_write_socket.close()
            self._wakeup_read_socket.close()
            raise
        self.host = host
        self._is_stopping = False
        self.port: int = self._listener.server_address[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._thread = threading.Thread(target=self._accept_connections, name="endpoint-accept", daemon=True)
        self._thread.start()

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Stop listening and close all connections; return when no handler runs any more.

        Responses in progress have ``timeout_seconds`` to finish.
        """
        self._is_stopping = True
        self._wake_accept_thread()
        self._thread.join()
        self._listener.server_close()
        self._listener.close_connections(timeout_seconds)
        self._wakeup_write_socket.close()
        self._wakeup_read_socket.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wake_accept_thread(self) -> None:
        with suppress(OSError):  # the buffer is full, so the thread wakes anyway
            self._wakeup_write_socket.send(b".")

    def _accept_connections(self) -> None:
        """Accept connections of HTTP clients while there is room for them, and close those whose requests are
        overdue, until ``close()``, which writes to the wake-up socket. The accept thread runs this."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._wakeup_read_socket, selectors.EVENT_READ)
            is_listening = False
            while not self._is_stopping:
                has_room = self._connections.ensure_room_for_connection()  # may close an idle connection
                if has_room and not is_listening:
                    selector.register(self._listener, selectors.EVENT_READ)
                elif is_listening and not has_room:
                    # New clients wait in the system's queue.
                    selector.unregister(self._listener)
                is_listening = has_room
                # Often enough to close an overdue request soon after its time limit, and to see room again.
                poll_seconds = (
                    self._connections.verify_timeout / 4 if has_room else _POLL_SECONDS_WITHOUT_ROOM
                )
                ready_sockets = {key.fileobj for key, _ in selector.select(poll_seconds)}
                if self._wakeup_read_socket in ready_sockets:
                    self._wakeup_read_socket.recv(4096)
                self._connections.close_overdue_connections()
                if self._listener in ready_sockets and not self._is_stopping:
                    self._listener.handle_request()  # accepts the connection and starts its thread


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
            if error.errno in _OUT_OF_RESOURCES_ERRNOS:
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

    def close_connections(self, timeout_seconds: float) -> None:
        """Close all connections of HTTP clients and join their threads, but not the calling one. Responses
        have ``timeout_seconds`` to finish."""
        connections = [
            connection
            for connection in self.connections.open_connections()
            if connection.thread is not threading.current_thread()
        ]
        # First only reading is shut down, so that responses in progress can be sent.
        self._shut_down_and_join(connections, socket.SHUT_RD, timeout_seconds)
        self._shut_down_and_join(connections, socket.SHUT_RDWR, timeout_seconds=None)

    @staticmethod
    def _shut_down_and_join(
        connections: list[ClientConnection], shutdown_direction: int, timeout_seconds: float | None
    ) -> None:
        """Shut down the sockets of all connections and wait until their threads have ended, at most
        ``timeout_seconds`` for all together; None: without a limit. ``shutdown_direction``: SHUT_RD, which
        lets responses in progress be sent, or SHUT_RDWR."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        for connection in connections:
            with suppress(OSError):
                connection.socket.shutdown(shutdown_direction)
        for connection in connections:
            assert connection.thread is not None  # set when the connection was accepted
            connection.thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))


class _HeadLineReader:
    """Reads at most ``max_bytes`` of header lines. ``malformed_line``: the first that is not a header."""

    def __init__(self, stream: Any, max_bytes: int) -> None:
        self._stream = stream
        self._remaining_bytes = max_bytes
        self.malformed_line: bytes | None = None

    def readline(self, limit: int) -> bytes:
        """Read one line of the head, at most ``limit`` bytes, and keep the first that is no header. Raises
        HTTPException for a head that is too long."""
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
        """Wait for the next request of the connection, and respond to it. http.server calls this until
        ``close_connection`` is set."""
        self.connection.settimeout(None)  # an idle connection may stay open: its client is on this machine
        self.server.connections.mark_idle(self._peer)
        if not self.rfile.peek(1) or not self.server.connections.begin_request(self._peer):  # type: ignore[attr-defined]
            self.close_connection = True
            return
        self.connection.settimeout(_STALL_TIMEOUT_SECONDS)
        if self._read_request_head():
            self._handle_request()
        else:
            self.close_connection = True
            self._discard_input_until_hangup()

    def _read_request_head(self) -> bool:
        """Read the request line and the headers of an HTTP request, with http.server's ``parse_request``,
        into the attributes of this BaseHTTPRequestHandler. Returns False when they are malformed or longer
        than 64 KiB, after an error response."""
        self.raw_requestline = self.rfile.readline(_MAX_HEAD_BYTES + 1)
        if len(self.raw_requestline) > _MAX_HEAD_BYTES:
            self.requestline = self.command = self.request_version = ""  # send_error needs them
            self.send_error(414)  # URI Too Long
            return False
        connection_stream = self.rfile
        # parse_request reads the header lines from self.rfile. It ignores malformed ones, so this reader
        # keeps the first of them.
        head_line_reader = _HeadLineReader(connection_stream, _MAX_HEAD_BYTES - len(self.raw_requestline))
        self.rfile = head_line_reader  # type: ignore[assignment]
        try:
            if not self.parse_request():
                return False
        finally:
            self.rfile = connection_stream
        if head_line_reader.malformed_line is not None:
            line_start = head_line_reader.malformed_line[:_MAX_QUOTED_BYTES]  # 80 bytes
            self.send_error(400, "Malformed header line", f"It begins with {line_start!r}")
            return False
        return True

    def handle_expect_100(self) -> bool:
        self._expects_continue = True
        return True  # 100 Continue is sent by the first read of the body

    def _handle_request(self) -> None:
        """Check an HTTP request whose head was read, pass it to the server's handler, and send the response.
        Ends the connection when the part of the body that the handler did not read is longer than 4 MiB, so
        that it is not worth discarding, or when the client will perhaps not send it."""
        headers = self._combined_headers()  # names in lower case; values of a repeated one joined by commas
        rejection_reason = _rejection_reason(headers)
        if rejection_reason:
            self._send_rejection(403, rejection_reason)  # also ends the connection
            return
        try:
            body_stream = self._open_body_stream(headers)
        except ValueError as error:
            self._send_rejection(400, f"{error}\n")
            return
        buffered_body = io.BufferedReader(body_stream, 1 << 16)
        response = self.server.handle(
            # The handler reports through _mark_verified that the signature is valid.
            Request(self.command, self._path_and_query(), headers, buffered_body, self._mark_verified)
        )
        # A client that has asked for 100 Continue, which the first read of the body sends, and did not get it
        # may send the body later or never.
        awaits_continue, self._expects_continue = self._expects_continue, False
        remaining_bytes = body_stream.remaining_bytes  # None: not known
        is_rest_too_long = remaining_bytes is not None and remaining_bytes > _MAX_DISCARDED_BODY_BYTES
        if not body_stream.is_at_end and (awaits_continue or is_rest_too_long):
            self.close_connection = True  # _send_response tells the client
        self._send_response(response)
        if body_stream.is_at_end:
            return
        # The unread rest of the body comes before the client's next request on this connection.
        if self.close_connection or not self._discard_unread_body(body_stream):
            self.close_connection = True
            self._discard_input_until_hangup()  # else the client might lose the response

    def _combined_headers(self) -> dict[str, str]:
        """Return the request's headers by names in lower case; values of a repeated one joined by commas."""
        headers: dict[str, str] = {}
        for name, value in self.headers.items():
            name = name.lower()
            headers[name] = f"{headers[name]},{value}" if name in headers else value
        return headers

    def _path_and_query(self) -> str:
        """Return the path and the query of the request line, which may have a whole URL. Not from self.path:
        http.server removes double slashes there."""
        target = self.requestline.split()[1]
        if target.startswith("/"):
            return target
        parsed_target = urlsplit(target)
        return (parsed_target.path or "/") + (f"?{parsed_target.query}" if parsed_target.query else "")

    def _mark_verified(self) -> None:
        self.server.connections.mark_verified(self._peer)

    def _send_rejection(self, status: int, text: str) -> None:
        self.close_connection = True
        self._send_response(Response(status, {"Content-Type": "text/plain; charset=utf-8"}, text.encode()))
        self._discard_input_until_hangup()

    def _discard_input_until_hangup(self) -> None:
        """Read on for a while before the connection is closed: closing it while the client still sends would
        discard the response."""
        self.server.connections.set_deadline(self._peer, _LINGER_SECONDS)
        buffer, discarded_bytes = bytearray(1 << 16), 0
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            while discarded_bytes < _MAX_DISCARDED_INPUT_BYTES:
                received_bytes = self.connection.recv_into(buffer)
                if received_bytes == 0:
                    return  # the client has hung up
                discarded_bytes += received_bytes
            # The client may read the response while it still sends: wait until it hangs up.
            hangup_poll = select.poll()
            hangup_poll.register(self.connection, 0)
            hangup_poll.poll(1000 * _LINGER_SECONDS)

    def _open_body_stream(self, headers: dict[str, str]) -> FixedLengthBody | ChunkedBody:
        """Return the body of an HTTP request as a stream, which sends 100 Continue at the first read if the
        client waits for it. ``headers``: names in lower case. Raises ValueError if the body's end is
        ambiguous (request smuggling)."""
        connection_stream: Any = self.rfile
        transfer_encoding = headers.get("transfer-encoding", "").lower()
        content_length = headers.get("content-length")
        if transfer_encoding and (transfer_encoding != "chunked" or content_length is not None):
            raise ValueError("Transfer-Encoding may only be chunked, and not together with Content-Length")
        if transfer_encoding:
            return ChunkedBody(connection_stream, self._send_continue)
        if content_length is not None and not (content_length.isascii() and content_length.isdigit()):
            raise ValueError("Content-Length is not a number")
        return FixedLengthBody(connection_stream, int(content_length or 0), self._send_continue)

    def _send_continue(self) -> None:
        if self._expects_continue:
            self._expects_continue = False
            self.connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")

    @staticmethod
    def _discard_unread_body(body: FixedLengthBody | ChunkedBody) -> bool:
        """Read and drop the unread rest of a body. Returns False when it is too long or cannot be read."""
        buffer, discarded_bytes = bytearray(1 << 16), 0
        try:
            while not body.is_at_end and discarded_bytes < _MAX_DISCARDED_BODY_BYTES:
                discarded_bytes += body.readinto(buffer)
        except (ApiError, OSError):
            return False
        return body.is_at_end

    def _send_response(self, response: Response) -> None:
        """Send an HTTP response: status line, headers and body, without the body for HEAD. The body is bytes,
        or a range of an open file, which is closed."""
        body = response.body
        body_bytes = body.length if isinstance(body, FileRange) else len(body)
        reason_phrase = self.responses.get(response.status, ("",))[0]  # by http.server: OK, Not Found, ...
        head_lines = [f"HTTP/1.1 {response.status} {reason_phrase}"]
        if response.status not in (204, 304):  # No Content and Not Modified have no body
            response.headers.setdefault("Content-Length", str(body_bytes))
        if self.close_connection:
            response.headers["Connection"] = "close"
        # A line break in a value would begin another header.
        head_lines += [f"{name}: {' '.join(value.splitlines())}" for name, value in response.headers.items()]
        encoded_head = ("\r\n".join(head_lines) + "\r\n\r\n").encode("latin-1", "replace")
        has_body = self.command != "HEAD"
        if isinstance(body, FileRange):
            with body.file as file:
                self.connection.sendall(encoded_head)
                if has_body and body_bytes:
                    self.connection.sendfile(file, body.start, body_bytes)
        else:
            self.connection.sendall(encoded_head + body if has_body else encoded_head)

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
    """Explain why an HTTP request must not be served: its Host is not this machine (DNS rebinding), or a web
    page sends it; None for others. ``headers``: names in lower case."""
    host_header = headers.get("host", "")
    # An IPv6 address has colons in brackets, as in [::1]:8080: one after them begins the port.
    has_port = ":" in host_header.rpartition("]")[2]
    host_name = host_header.rpartition(":")[0] if has_port else host_header
    if not is_loopback(host_name.strip("[]")):
        return f"Host {host_header!r} is not this machine. smlaunch's endpoint responds on loopback only.\n"
    if "origin" in headers:  # browsers add it to requests of a page's scripts
        return f"Origin {headers['origin']!r}: smlaunch's endpoint does not respond to web pages.\n"
    return None
