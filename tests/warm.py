"""The command line from processes that have imported it already: most of a command's time is its imports.

A server of each pytest process imports the package once and then forks a process per command, with the
words, environment, directory and streams that the test gives. Such a process ends as any other does: exit
code, ``atexit``, signals. What it cannot show is how an interpreter starts: another locale, ``PYTHON...``
variables or which modules a command loads. For those, and for the installed script itself, tests start a
real one.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import functools
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_HEADER = 8
_SKIPPED = {"airflow", "entrypoints", "moto", "runtime", "train", "__main__", "standing_process"}
"""Modules that no command imports in its own process."""

_OF_THE_INTERPRETER = ("PYTHON", "LC_", "LANG", "TZ", "LD_", "MALLOC")


def run(
    arguments: Sequence[str],
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Does what ``subprocess.run(["smlaunch", *arguments], capture_output=True, text=True)`` does, without
    standard input."""
    variables = dict(os.environ if env is None else env)
    server = _server()
    if server.of_the_interpreter != _of_the_interpreter(variables):
        raise ValueError("another interpreter's settings: start a real process")
    request = {"words": list(arguments), "env": variables, "cwd": str(cwd or Path.cwd())}
    with server.connect() as connection, _pipe() as (out, out_end), _pipe() as (err, err_end):
        _send(connection, request, [out_end, err_end])
        for end in (out_end, err_end):
            os.close(end)
        text, code = _follow(connection, out, err, timeout, arguments)
    return subprocess.CompletedProcess(["smlaunch", *arguments], code, text[0], text[1])


def _follow(
    connection: socket.socket, out: int, err: int, timeout: float | None, arguments: Sequence[str]
) -> tuple[list[str], int]:
    """Both streams to their ends, and the exit code, which may come before."""
    deadline = None if timeout is None else time.monotonic() + timeout
    received: dict[int, bytearray] = {out: bytearray(), err: bytearray(), connection.fileno(): bytearray()}
    with selectors.DefaultSelector() as selector:
        for descriptor in received:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            seconds_left = None if deadline is None else deadline - time.monotonic()
            ready = selector.select(seconds_left) if seconds_left is None or seconds_left > 0 else []
            if not ready:
                pid, _, _ = received[connection.fileno()].partition(b"\n")
                os.kill(int(pid), signal.SIGKILL)
                raise subprocess.TimeoutExpired(["smlaunch", *arguments], timeout or 0, bytes(received[out]))
            for key, _ in ready:
                received_bytes = os.read(key.fd, 1 << 16)
                received[key.fd] += received_bytes
                if not received_bytes:
                    selector.unregister(key.fd)
    pid, _, status = received[connection.fileno()].partition(b"\n")
    assert status, "the server of commands has ended"
    return [received[end].decode() for end in (out, err)], os.waitstatus_to_exitcode(int(status))


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    """The writing end is the caller's to close."""
    reading, writing = os.pipe()
    try:
        yield reading, writing
    finally:
        os.close(reading)


def _of_the_interpreter(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith(_OF_THE_INTERPRETER)}


# ---- the server, as the test sees it -----------------------------------------------------------------------


class _Server:
    def __init__(self) -> None:
        self.of_the_interpreter = _of_the_interpreter(os.environ)
        self.folder = tempfile.mkdtemp(prefix="warm-")
        self.path = os.path.join(self.folder, "s")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.path)
        listener.listen(64)
        with listener:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm", str(listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                cwd=Path(__file__).resolve().parent.parent,
            )
        atexit.register(self.close)

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self.path)
        return connection

    def close(self) -> None:
        """It ends with its standard input, so also where this process is killed."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@functools.cache
def _server() -> _Server:
    return _Server()


# ---- inside the server -------------------------------------------------------------------------------------


def _send(connection: socket.socket, request: object, descriptors: list[int]) -> None:
    text = json.dumps(request).encode()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    connection.sendmsg([len(text).to_bytes(_HEADER, "big")], rights)
    connection.sendall(text)


def _receive(connection: socket.socket) -> tuple[dict[str, object], list[int]]:
    header, descriptors, _, _ = socket.recv_fds(connection, _HEADER, 2)
    missing = int.from_bytes(header, "big")
    with connection.makefile("rb") as stream:
        return json.loads(stream.read(missing)), descriptors


def _serve(listener: socket.socket) -> None:
    """Returns in the process of each command, and nowhere else."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for the ones that wait for commands
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == 0:
                    os._exit(0)
                connection, _ = listener.accept()
                if os.fork() == 0:
                    selector.close()
                    listener.close()
                    if _start(connection):
                        return
                connection.close()


def _start(connection: socket.socket) -> bool:
    """In a process between: forks the command's, true there; here waits for it and says how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request, descriptors = _receive(connection)
    pid = os.fork()
    if pid == 0:
        connection.close()
        _become(request, descriptors)
        return True
    for descriptor in (0, *descriptors):
        os.close(descriptor)
    connection.sendall(b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):
        connection.sendall(b"%d" % status)
    os._exit(0)


def _become(request: dict[str, object], descriptors: list[int]) -> None:
    arguments, variables = request["words"], request["env"]
    assert isinstance(arguments, list) and isinstance(variables, dict)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((nothing, *descriptors)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = ["smlaunch", *arguments]


def _import_all() -> None:
    import gc
    import importlib
    import pkgutil

    import boto3  # noqa: F401

    import smlaunch

    def is_skipped(name: str) -> bool:
        return bool(_SKIPPED & set(name.split(".")))

    todo = [smlaunch.__name__]
    while todo:
        package = importlib.import_module(todo.pop())
        for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            if not is_skipped(module.name):
                importlib.import_module(module.name)
                if module.ispkg:
                    todo.append(module.name)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    _import_all()
    assert threading.active_count() == 1, threading.enumerate()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    from smlaunch.cli.main import main

    main()
