"""What other programs have sshd for: it runs on this host what the job's leader asks for, and nobody else.

Each connection is served by a thread of its own. ``run`` starts one shell line, as a remote shell does (an
MPI's launcher makes it, for its own daemon), in a process group of its own; output and error output go back
in frames, then the exit status, 128 + n for a signal. When the connection closes before that, the group is
killed. All other requests are handed to ``others``.
"""

import contextlib
import os
import select
import signal
import socket
import threading
from typing import Any, Callable, Dict, Mapping, Optional

from smlaunch.runtime import wire as wires
from smlaunch.runtime.wire import ENDED, ERR, OUT, TO_AGENT, Stranger, Wire, WireError

SHELL = "/bin/sh"
_READ = 1 << 16
_WAITING = 512

_REFUSALS = 10
"""How many of them are told in the log: whoever tries more often shall not fill it."""

Others = Callable[[Wire, Dict[str, Any]], None]


class Agent:
    """Listens from the start, at ``address`` and ``port``. Raises OSError when it cannot.

    ``environ`` is what commands are started with; they run where we do.
    """

    def __init__(
        self,
        key: bytes,
        host: str,
        address: str,
        port: int,
        environ: Mapping[bytes, bytes],
        others: Optional[Others] = None,
    ) -> None:
        self._key = key
        self._host = host
        self._environ = dict(environ)
        self._others = others
        self._lock = threading.Lock()
        self._groups: Dict[int, None] = {}
        self._closed = False
        self._strangers = threading.BoundedSemaphore(wires.STRANGERS)
        self._refused = 0
        self._server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._server.bind((address, port))
        self._server.listen(_WAITING)
        self.port: int = self._server.getsockname()[1]

    def start(self) -> None:
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Takes no more requests and kills what is still running."""
        with self._lock:  # none is waited for meanwhile, so that each number is still its own
            self._closed = True
            for group in self._groups:
                _kill(group)
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # wakes up who waits in accept
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, peer = self._server.accept()
            except OSError:
                return
            if not self._strangers.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection, peer[0]), daemon=True).start()

    def _serve(self, connection: socket.socket, peer: str) -> None:
        try:
            wires.tune(connection)
            connection.settimeout(wires.HANDSHAKE_SECONDS)
            wire, request = Stranger(connection, self._key, TO_AGENT, self._host).admit()
            connection.settimeout(None)
        except (WireError, ValueError, OSError) as error:
            connection.close()
            self._refused += 1
            if self._refused <= _REFUSALS:
                _say("refused a connection from {}: {}".format(peer, error))
            return
        finally:
            self._strangers.release()
        try:
            if request.get("do") == "run":
                self._run(wire, str(request["line"]))
            elif self._others is not None:
                self._others(wire, request)
        except WireError:
            return  # whoever asked is gone, and what ran for it is killed
        finally:
            wire.close()

    def _run(self, wire: Wire, line: str) -> None:
        out, out_write = os.pipe()
        err, err_write = os.pipe()
        pid = None
        try:
            with self._lock:
                if self._closed:
                    return
                pid = os.posix_spawn(
                    SHELL,
                    (SHELL.encode(), b"-c", line.encode("utf-8", "surrogateescape")),
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
                self._groups[pid] = None
        finally:
            os.close(out_write)
            os.close(err_write)
            if pid is None:
                os.close(out)
                os.close(err)
        try:
            _forward(wire, {out: OUT, err: ERR}, pid)
        finally:
            _kill(pid)
            with self._lock:  # first: once it has been waited for, its number may be somebody else's
                del self._groups[pid]
            status = _wait(pid)
            os.close(out)
            os.close(err)
        wire.send(ENDED, str(status).encode())


def _forward(wire: Wire, kinds: Dict[int, bytes], pid: int) -> None:
    """Until the process has ended and its output has come. Raises WireError when nobody is there to take it.

    Others may hold the pipes open for ever; that the process itself has ended is what counts.
    """
    ended, ended_write = os.pipe()
    waiter = threading.Thread(target=_wait_without_reaping, args=(pid, ended_write), daemon=True)
    waiter.start()
    poll = select.poll()
    for descriptor in (*kinds, ended):
        os.set_blocking(descriptor, False)
        poll.register(descriptor, select.POLLIN)
    poll.register(wire, select.POLLIN)
    left = set(kinds)
    try:
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            for descriptor in sorted(left & ready if ended not in ready else left):
                if not _pass_on(wire, kinds[descriptor], descriptor):
                    left.discard(descriptor)
                    poll.unregister(descriptor)
            if ended in ready:
                return
            if wire.fileno() in ready and wire.receive() is None:
                raise WireError("whoever asked for it is gone")
    except WireError:
        _kill(pid)
        raise
    finally:
        waiter.join()
        os.close(ended)


def _pass_on(wire: Wire, kind: bytes, descriptor: int) -> bool:
    """What is there for now. False at the end of it."""
    while True:
        try:
            block = os.read(descriptor, _READ)
        except BlockingIOError:
            return True
        if not block:
            return False
        wire.send(kind, block)


def _wait_without_reaping(pid: int, ended: int) -> None:
    """Its number must stay its own until its group has been killed."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    os.close(ended)


def _wait(pid: int) -> int:
    _, status = os.waitpid(pid, 0)
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _kill(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, "smlaunch: {}\n".format(text).encode("utf-8", "replace"))
