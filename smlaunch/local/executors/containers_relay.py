"""A host's way to the endpoint: its address, 127.0.0.1 and a port, exists inside the container too.

The endpoint listens on this machine's loopback alone, and must. So a socket is made in the container's
network that listens on the same address there: a socket stays in the network it was made in, whichever
process holds it. What is said to it is passed on. Nothing else of the machine can be reached this way.
"""

# ruff: noqa: PTH115
from __future__ import annotations

import ctypes
import os
import socket
import threading

_ADDRESS = "127.0.0.1"
_BACKLOG = 128
_CHUNK = 1 << 18


def listen_inside(pid: int, port: int) -> socket.socket:
    """A listening socket in the network of the process ``pid``. Raises OSError where that cannot be entered.

    A child enters it, because a process cannot leave another user namespace again (a rootless engine's).
    """
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            _enter(pid)
            with socket.create_server((_ADDRESS, port), backlog=_BACKLOG) as server:
                socket.send_fds(theirs, [b"."], [server.fileno()])
        except OSError as error:
            theirs.send(f"{error.strerror or error}".encode())
        finally:
            os._exit(0)
    theirs.close()
    with ours:
        message, descriptors, _, _ = socket.recv_fds(ours, 1024, 1)
    os.waitpid(child, 0)
    if not descriptors:
        raise OSError(f"entering the network of the container: {message.decode(errors='replace')}")
    return socket.socket(fileno=descriptors[0])


def serve(server: socket.socket, port: int) -> None:
    """Passes every connection on to this machine's ``port``, in threads that end with the process."""
    threading.Thread(target=_accept, args=(server, port), daemon=True).start()


def _accept(server: socket.socket, port: int) -> None:
    while True:
        inner, _ = server.accept()
        threading.Thread(target=_connect, args=(inner, port), daemon=True).start()


def _connect(inner: socket.socket, port: int) -> None:
    try:
        outer = socket.create_connection((_ADDRESS, port))
    except OSError:
        inner.close()  # the endpoint is gone, or just going
        return
    other_way = threading.Thread(target=_copy, args=(outer, inner), daemon=True)
    other_way.start()
    _copy(inner, outer)
    other_way.join()
    inner.close()
    outer.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    buffer = memoryview(bytearray(_CHUNK))
    try:
        while count := source.recv_into(buffer):
            target.sendall(buffer[:count])
        target.shutdown(socket.SHUT_WR)
    except OSError:
        # Either side has gone: so must the other, or its reader would wait for ever.
        for end in (source, target):
            _shut(end)


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it is shut already


def _enter(pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for kind in ("user", "net"):
        path = f"/proc/{pid}/ns/{kind}"
        if os.readlink(path) == os.readlink(f"/proc/self/ns/{kind}"):
            continue  # entering one's own user namespace is refused
        descriptor = os.open(path, os.O_RDONLY)
        if libc.setns(descriptor, 0) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{kind} namespace: {os.strerror(number)}")
        os.close(descriptor)
