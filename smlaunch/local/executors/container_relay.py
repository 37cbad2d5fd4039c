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

_LOOPBACK_ADDRESS = "127.0.0.1"
_MAX_WAITING_CONNECTIONS = 128
_CHUNK_BYTES = 1 << 18


def listen_in_network_of(pid: int, port: int) -> socket.socket:
    """Return a socket that listens at loopback in the network namespace of the process ``pid`` (a container's
    network); a socket stays in the network where it was created. Raises OSError if that network cannot be
    entered.

    A child process enters the network and sends back the socket, because a process cannot leave another user
    namespace again (that of a rootless engine).
    """
    parent_end, child_end = socket.socketpair()
    child_pid = os.fork()
    if child_pid == 0:  # in the child
        try:
            _enter_namespaces(pid)
            with socket.create_server((_LOOPBACK_ADDRESS, port), backlog=_MAX_WAITING_CONNECTIONS) as server:
                # The parent gets a descriptor of the same socket.
                socket.send_fds(child_end, [b"."], [server.fileno()])  # a descriptor needs a byte beside it
        except OSError as error:
            child_end.send(f"{error.strerror or error}".encode())  # no descriptor: this is the error
        finally:
            os._exit(0)
    child_end.close()
    with parent_end:
        message, descriptors, _, _ = socket.recv_fds(parent_end, 1024, maxfds=1)
    os.waitpid(child_pid, 0)
    if not descriptors:
        raise OSError(f"entering the network of the container: {message.decode(errors='replace')}")
    return socket.socket(fileno=descriptors[0])


def start_forwarding(server: socket.socket, port: int) -> None:
    """Forward every connection to this machine's ``port``, in threads that end with the process."""
    threading.Thread(target=_accept_connections, args=(server, port), daemon=True).start()


def _accept_connections(server: socket.socket, port: int) -> None:
    while True:
        container_socket, _ = server.accept()
        threading.Thread(target=_forward_connection, args=(container_socket, port), daemon=True).start()


def _forward_connection(container_socket: socket.socket, port: int) -> None:
    try:
        endpoint_socket = socket.create_connection((_LOOPBACK_ADDRESS, port))
    except OSError:
        container_socket.close()  # the endpoint has ended
        return
    reply_thread = threading.Thread(target=_copy_bytes, args=(endpoint_socket, container_socket), daemon=True)
    reply_thread.start()
    _copy_bytes(container_socket, endpoint_socket)
    reply_thread.join()
    container_socket.close()
    endpoint_socket.close()


def _copy_bytes(source_socket: socket.socket, target_socket: socket.socket) -> None:
    """Copy from one socket to the other until the source is closed, then close the target for writing, so
    that its reader sees the end too. The other direction is copied by another thread."""
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    try:
        while byte_count := source_socket.recv_into(buffer):
            target_socket.sendall(buffer[:byte_count])
        target_socket.shutdown(socket.SHUT_WR)
    except OSError:
        # One side has ended: shut down the other too, or its reader would wait forever.
        for connection in (source_socket, target_socket):
            _shut_down(connection)


def _shut_down(socket_: socket.socket) -> None:
    try:
        socket_.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the socket is shut down already


def _enter_namespaces(pid: int) -> None:
    """Move this process into the user and network namespaces of the process ``pid``. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    for namespace in ("user", "net"):
        namespace_path = f"/proc/{pid}/ns/{namespace}"
        if os.readlink(namespace_path) == os.readlink(f"/proc/self/ns/{namespace}"):
            continue  # the kernel refuses to enter one's own user namespace
        namespace_fd = os.open(namespace_path, os.O_RDONLY)
        if libc.setns(namespace_fd, 0) != 0:  # 0: a namespace of any kind
            error_number = ctypes.get_errno()
            raise OSError(error_number, f"{namespace} namespace: {os.strerror(error_number)}")
        os.close(namespace_fd)
