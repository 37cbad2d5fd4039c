"""Makes the endpoint's address, 127.0.0.1 and a port, available inside a container.

The endpoint listens only on this machine's loopback. So a socket is created in the container's network that
listens on the same address there: a socket stays in the network in which it was created, whichever process
holds it. Connections to it are forwarded. Nothing else on the machine can be reached this way.
"""

# ruff: noqa: PTH115
from __future__ import annotations

import ctypes
import os
import socket
import threading

_ADDRESS = "127.0.0.1"
_BACKLOG = 128
_CHUNK_BYTES = 1 << 18


def listen_inside(pid: int, port: int) -> socket.socket:
    """Return a listening socket in the network of the process ``pid``. Raises OSError if that network cannot
    be entered.

    A child process enters the network, because a process cannot leave another user namespace again (that of
    a rootless engine).
    """
    parent_end, child_end = socket.socketpair()
    child_pid = os.fork()
    if child_pid == 0:
        try:
            _enter_namespaces(pid)
            with socket.create_server((_ADDRESS, port), backlog=_BACKLOG) as server:
                socket.send_fds(child_end, [b"."], [server.fileno()])
        except OSError as error:
            child_end.send(f"{error.strerror or error}".encode())
        finally:
            os._exit(0)
    child_end.close()
    with parent_end:
        message, descriptors, _, _ = socket.recv_fds(parent_end, 1024, 1)
    os.waitpid(child_pid, 0)
    if not descriptors:
        raise OSError(f"entering the network of the container: {message.decode(errors='replace')}")
    return socket.socket(fileno=descriptors[0])


def serve(server: socket.socket, port: int) -> None:
    """Forward every connection to this machine's ``port``, in threads that end with the process."""
    threading.Thread(target=_accept_connections, args=(server, port), daemon=True).start()


def _accept_connections(server: socket.socket, port: int) -> None:
    while True:
        container_socket, _ = server.accept()
        threading.Thread(target=_forward_connection, args=(container_socket, port), daemon=True).start()


def _forward_connection(container_socket: socket.socket, port: int) -> None:
    try:
        endpoint_socket = socket.create_connection((_ADDRESS, port))
    except OSError:
        container_socket.close()  # the endpoint has ended
        return
    reply_thread = threading.Thread(target=_copy_bytes, args=(endpoint_socket, container_socket), daemon=True)
    reply_thread.start()
    _copy_bytes(container_socket, endpoint_socket)
    reply_thread.join()
    container_socket.close()
    endpoint_socket.close()


def _copy_bytes(source: socket.socket, target: socket.socket) -> None:
    """Copy until the source is closed, then close the target for writing."""
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    try:
        while count := source.recv_into(buffer):
            target.sendall(buffer[:count])
        target.shutdown(socket.SHUT_WR)
    except OSError:
        # One side has ended: shut down the other too, or its reader would wait forever.
        for socket_ in (source, target):
            _shut_down(socket_)


def _shut_down(socket_: socket.socket) -> None:
    try:
        socket_.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the socket is shut down already


def _enter_namespaces(pid: int) -> None:
    """Enter the user and network namespaces of a process. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    for namespace in ("user", "net"):
        path = f"/proc/{pid}/ns/{namespace}"
        if os.readlink(path) == os.readlink(f"/proc/self/ns/{namespace}"):
            continue  # the kernel refuses to enter one's own user namespace
        descriptor = os.open(path, os.O_RDONLY)
        if libc.setns(descriptor, 0) != 0:
            error_number = ctypes.get_errno()
            raise OSError(error_number, f"{namespace} namespace: {os.strerror(error_number)}")
        os.close(descriptor)
