"""Signed messages between the leader and a host that follows it (link.py)."""

import json
import socket
import struct
from typing import Any, Dict, List

from smlaunch.runtime import secret

PURPOSE = "link 1"
_HEADER = struct.Struct(">I")
_LARGEST = 1 << 16


class Broken(Exception):
    """The other side is gone, or says what nobody who knows the secret would say."""


class Wire:
    """Messages over a connection whose sides have proved themselves: length, signature, JSON."""

    def __init__(self, connection: socket.socket, key: bytes, side: str, nonces: bytes) -> None:
        connection.setblocking(False)
        self.connection = connection
        self._key = key
        self._side = side
        self._nonces = nonces
        self._sent = self._taken = 0
        self._rest = b""

    def send(self, message: Dict[str, Any]) -> None:
        """A few messages of a few hundred bytes: a connection that has no room for them is broken."""
        body = json.dumps(message).encode()
        signed = self._sign(self._side, self._sent, body)
        self._sent += 1
        try:
            self.connection.sendall(_HEADER.pack(len(body)) + signed + body)
        except OSError:  # BlockingIOError too
            raise Broken from None

    def take(self) -> List[Dict[str, Any]]:
        """What has arrived whole. Raises Broken, though not before all that came has been taken."""
        try:
            block = self.connection.recv(_LARGEST)
        except BlockingIOError:
            return []
        except OSError:
            block = b""
        if not block:
            raise Broken
        self._rest += block
        messages = []
        start = _HEADER.size + secret.PROOF_BYTES
        while len(self._rest) >= start:
            (size,) = _HEADER.unpack_from(self._rest)
            if size > _LARGEST:
                raise Broken
            if len(self._rest) < start + size:
                break
            signed, body = self._rest[_HEADER.size : start], self._rest[start : start + size]
            other = "leader" if self._side == "follower" else "follower"
            if not secret.same(signed, self._sign(other, self._taken, body)):
                raise Broken
            self._taken += 1
            self._rest = self._rest[start + size :]
            messages.append(json.loads(body.decode()))
        return messages

    def close(self) -> None:
        self.connection.close()

    def _sign(self, side: str, number: int, body: bytes) -> bytes:
        return secret.proof(self._key, PURPOSE, side + " says", self._nonces, _HEADER.pack(number), body)


def exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        block = connection.recv(size - len(data))
        if not block:
            raise ConnectionResetError("it hung up")
        data += block
    return data


def keep_alive(connection: socket.socket) -> None:
    """Asks after 15 s of silence, and three times more."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # macOS calls the first one otherwise
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
