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
import threading
from typing import Any, Dict, Mapping, Optional

from smlaunch.runtime.peer_connection import (
    AGENT_PURPOSE,
    EXIT_STATUS,
    STDERR,
    STDOUT,
    PeerConnection,
    PeerError,
)
from smlaunch.runtime.peer_listener import ConnectionHandler, PeerListener

SHELL = "/bin/sh"
_READ_BYTES = 1 << 16


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
        on_request: Optional[ConnectionHandler] = None,
    ) -> None:
        self._environ = dict(environ)
        self._on_request = on_request
        self._lock = threading.Lock()
        self._process_groups: Dict[int, None] = {}
        self._is_closed = False
        self._listener = PeerListener(key, AGENT_PURPOSE, host, address, port, self._handle_request)
        self.port = self._listener.port

    def start(self) -> None:
        self._listener.start()

    def close(self) -> None:
        """Accept no more requests and kill running commands."""
        with self._lock:  # nothing is reaped meanwhile, so the pids are valid
            self._is_closed = True
            for group in self._process_groups:
                _kill_group(group)
        self._listener.close()

    def _handle_request(self, peer: PeerConnection, request: Dict[str, Any]) -> None:
        """Do what a host of this job requests: run a command, or, for other requests, what the owner of this
        agent does. Runs in a thread. Raises PeerError where the other side is gone; its command is killed.
        """
        if request.get("do") == "run":
            self._run_command(peer, str(request["line"]))
        elif self._on_request is not None:
            self._on_request(peer, request)

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
    """Forward the output of the process ``pid`` to the other side until the process has exited and its output
    is read. Kill its process group and raise PeerError when the other side is gone. The pipes may stay open:
    only the exit of the process itself counts, not that of its descendants.

    ``frame_kind_by_fd``: for each pipe of the output, the kind of the frames (STDOUT or STDERR) that carry
    what is read from it.
    """
    # The waiter closes exit_write_fd when the process exits, so that exit_fd is ready.
    exit_fd, exit_write_fd = os.pipe()
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
            has_exited = exit_fd in ready_fds
            # After the exit each pipe is read once more: it may have been written to since poll.
            for descriptor in sorted(open_fds if has_exited else open_fds & ready_fds):
                if not _send_available_output(peer, frame_kind_by_fd[descriptor], descriptor):
                    open_fds.discard(descriptor)
                    poll.unregister(descriptor)
            if has_exited:
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
