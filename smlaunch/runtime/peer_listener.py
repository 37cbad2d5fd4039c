"""Accepts the connections of other hosts of the job: verifies each and hands it on, in its own thread."""

import _thread
import contextlib
import os
import socket
from typing import Any, Callable, Dict

from smlaunch.runtime import peer_connection
from smlaunch.runtime.peer_connection import ConnectionPurpose, PeerConnection, PeerError

_LISTEN_BACKLOG = 512

_MAX_PENDING_HANDSHAKES = 64
"""Handshakes that may be under way at the same time; further connections are closed."""

_MAX_LOGGED_REFUSALS = 10
"""How many refused connections are logged, so that repeated attempts do not fill the log."""

ConnectionHandler = Callable[[PeerConnection, Dict[str, Any]], None]


class PeerListener:
    """Listens from the start, at ``address`` (empty: all addresses) and ``port``. Raises OSError when it
    cannot.

    ``on_connection`` is called in a thread with each connection, once verified, and its request. It raises
    PeerError where the request is not for it or the other side is gone; the connection is closed when it
    returns.
    """

    def __init__(
        self,
        key: bytes,
        purpose: ConnectionPurpose,
        host: str,
        address: str,
        port: int,
        on_connection: ConnectionHandler,
    ) -> None:
        self._key = key
        self._purpose = purpose
        self._host = host
        self._on_connection = on_connection
        self._lock = _thread.allocate_lock()
        self._pending_handshake_count = self._refused_count = 0
        self._server = socket.create_server((address, port), backlog=_LISTEN_BACKLOG)
        self.port: int = self._server.getsockname()[1]

    def start(self) -> None:
        _thread.start_new_thread(self._accept_connections, ())

    def close(self) -> None:
        """Accept no more connections."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # wakes up the thread in accept
        self._server.close()

    def _accept_connections(self) -> None:
        """Accept connections until the listener is closed, and serve each in a thread. Connections beyond the
        limit of pending handshakes are closed.
        """
        while True:
            try:
                connection, address = self._server.accept()
            except ConnectionAbortedError:  # the other side has closed it already
                continue
            except OSError:  # the listener was closed
                return
            with self._lock:
                has_room = self._pending_handshake_count < _MAX_PENDING_HANDSHAKES
                self._pending_handshake_count += has_room
            if has_room:
                _thread.start_new_thread(self._serve_connection, (connection, address[0]))
            else:
                connection.close()

    def _serve_connection(self, connection: socket.socket, address: str) -> None:
        """Verify that one connection comes from a host of this job, and hand it on. ``address``: where it
        comes from, for the log. Runs in a thread.
        """
        try:
            peer_connection.configure_socket(connection)
            # Both sides prove that they know the job's secret.
            peer, request = peer_connection.accept_handshake(connection, self._key, self._purpose, self._host)
        except (PeerError, OSError) as error:
            connection.close()
            self._log_refusal(address, error)
            return
        finally:
            with self._lock:
                self._pending_handshake_count -= 1
        try:
            self._on_connection(peer, request)
        except PeerError:
            return  # the other side is gone, or asks for something else
        finally:
            peer.close()

    def _log_refusal(self, address: str, error: Exception) -> None:
        """Log the first refused connections only: a scanner of ports may come again and again."""
        self._refused_count += 1
        if self._refused_count <= _MAX_LOGGED_REFUSALS:
            line = "smlaunch: refused a connection from {}: {}\n".format(address, error)
            with contextlib.suppress(OSError):
                os.write(2, line.encode("utf-8", "replace"))
