"""Runs commands for the job's leader on this host, in the place of sshd.

Each connection has a thread. ``run`` starts one shell line, as a remote shell does (an MPI's launcher makes
it, for its own daemon), in a process group of its own; output and error output go back in frames, then the
exit status, 128 + n for a signal. When the connection closes before that, the group is killed. All other
requests go to ``on_request``.
"""

import contextlib
import os
import select
import signal
import socket
import threading
from typing import Any, Callable, Dict, Mapping, Optional

from smlaunch.runtime import peer_connection
from smlaunch.runtime.peer_connection import (
    EXIT_STATUS,
    STDERR,
    STDOUT,
    TO_AGENT,
    IncomingHandshake,
    PeerConnection,
    PeerError,
)

SHELL = "/bin/sh"
_READ_BYTES = 1 << 16
_LISTEN_BACKLOG = 512

_MAX_LOGGED_REFUSALS = 10
"""How many refused connections are logged, so that repeated attempts do not fill the log."""

RequestHandler = Callable[[PeerConnection, Dict[str, Any]], None]


class ExecAgent:
    """Listens from the start, at ``address`` and ``port``. Raises OSError when it cannot. ``environ``: the
    environment of commands, which run in the current directory.
    """

    def __init__(
        self,
        key: bytes,
        host: str,
        address: str,
        port: int,
        environ: Mapping[bytes, bytes],
        on_request: Optional[RequestHandler] = None,
    ) -> None:
        self._key = key
        self._host = host
        self._environ = dict(environ)
        self._on_request = on_request
        self._lock = threading.Lock()
        self._process_groups: Dict[int, None] = {}
        self._is_closed = False
        self._pending_handshakes = threading.BoundedSemaphore(peer_connection.MAX_PENDING_HANDSHAKES)
        self._refused_count = 0
        self._server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._server.bind((address, port))
        self._server.listen(_LISTEN_BACKLOG)
        self.port: int = self._server.getsockname()[1]

    def start(self) -> None:
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no more requests and kill running commands."""
        with self._lock:  # nothing is reaped meanwhile, so the pids are valid
            self._is_closed = True
            for group in self._process_groups:
                _kill_group(group)
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # wakes up the thread in accept
        self._server.close()

    def _accept(self) -> None:
        """Accept connections and serve each in a thread."""
        while True:
            try:
                connection, address = self._server.accept()
            except OSError:
                return
            if not self._pending_handshakes.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection, address[0]), daemon=True).start()

    def _serve(self, connection: socket.socket, address: str) -> None:
        """Check one connection and run its request."""
        try:
            peer_connection.configure_socket(connection)
            connection.settimeout(peer_connection.HANDSHAKE_SECONDS)
            peer, request = IncomingHandshake(connection, self._key, TO_AGENT, self._host).accept()
            connection.settimeout(None)
        except (PeerError, ValueError, OSError) as error:
            connection.close()
            self._refused_count += 1
            if self._refused_count <= _MAX_LOGGED_REFUSALS:
                _log("refused a connection from {}: {}".format(address, error))
            return
        finally:
            self._pending_handshakes.release()
        try:
            if request.get("do") == "run":
                self._run_command(peer, str(request["line"]))
            elif self._on_request is not None:
                self._on_request(peer, request)
        except PeerError:
            return  # the other side is gone, and its command is killed
        finally:
            peer.close()

    def _run_command(self, peer: PeerConnection, command_line: str) -> None:
        """Run a shell line, forward its output, and send its exit status."""
        out, out_write = os.pipe()
        err, err_write = os.pipe()
        pid = None
        try:
            with self._lock:
                if self._is_closed:
                    return
                pid = os.posix_spawn(
                    SHELL,
                    (SHELL.encode(), b"-c", command_line.encode("utf-8", "surrogateescape")),
                    self._environ,
                    file_actions=[
                        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                        (os.POSIX_SPAWN_DUP2, out_write, 1),
                        (os.POSIX_SPAWN_DUP2, err_write, 2),
                    ],
                    setpgroup=0,
                    setsigmask=(),
                    setsigdef=(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGABRT),
                )
                self._process_groups[pid] = None
        finally:
            os.close(out_write)
            os.close(err_write)
            if pid is None:
                os.close(out)
                os.close(err)
        try:
            _forward_output(peer, {out: STDOUT, err: STDERR}, pid)
        finally:
            _kill_group(pid)
            with self._lock:  # before the wait: afterwards the pid may be reused
                del self._process_groups[pid]
            status = _wait_for_exit(pid)
            os.close(out)
            os.close(err)
        peer.send(EXIT_STATUS, str(status).encode())


def _forward_output(peer: PeerConnection, frame_kind_by_fd: Dict[int, bytes], pid: int) -> None:
    """Forward the output of the process ``pid`` until it has exited and its output is read. Raises PeerError
    when the other side is gone.

    ``frame_kind_by_fd``: for each pipe of the output, the kind of the frames that carry what is read from it.

    Descendants may hold the pipes open for ever; only the exit of the process itself counts.
    """
    exit_fd, exit_write_fd = os.pipe()  # exit_fd becomes readable when the process exits
    waiter = threading.Thread(target=_wait_without_reaping, args=(pid, exit_write_fd), daemon=True)
    waiter.start()
    poll = select.poll()
    for descriptor in (*frame_kind_by_fd, exit_fd):
        os.set_blocking(descriptor, False)
        poll.register(descriptor, select.POLLIN)
    poll.register(peer, select.POLLIN)
    open_fds = set(frame_kind_by_fd)
    try:
        while True:
            ready_fds = {descriptor for descriptor, _ in poll.poll()}
            for descriptor in sorted(open_fds & ready_fds if exit_fd not in ready_fds else open_fds):
                if not _send_available_output(peer, frame_kind_by_fd[descriptor], descriptor):
                    open_fds.discard(descriptor)
                    poll.unregister(descriptor)
            if exit_fd in ready_fds:  # all that the process has written was sent above
                return
            if peer.fileno() in ready_fds and peer.receive() is None:
                raise PeerError("the other side is gone")
    except PeerError:
        _kill_group(pid)
        raise
    finally:
        waiter.join()
        os.close(exit_fd)


def _send_available_output(peer: PeerConnection, kind: bytes, descriptor: int) -> bool:
    """Send what can be read from a pipe now, in frames of the kind ``kind``. Returns whether more may come:
    False at the end of the pipe."""
    while True:
        try:
            block = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return True
        if not block:
            return False
        peer.send(kind, block)


def _wait_without_reaping(pid: int, exit_write_fd: int) -> None:
    """Close ``exit_write_fd`` when the process exits. It stays a zombie, so that its pid is valid until its
    group is killed.
    """
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    os.close(exit_write_fd)


def _wait_for_exit(pid: int) -> int:
    _, status = os.waitpid(pid, 0)
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _log(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, "smlaunch: {}\n".format(text).encode("utf-8", "replace"))
