"""The process of a standing endpoint, which standing.py starts: it serves until it is told to end.

    python -m smlaunch.local.standing_process DESCRIPTOR < orders

The descriptor is a pipe's, for the address, or for the reason why there is none.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import stat
import sys
import time
from pathlib import Path

from smlaunch.errors import EndpointError
from smlaunch.local import standing
from smlaunch.local.endpoint import Endpoint
from smlaunch.local.endpoint_info import EndpointInfo
from smlaunch.local.faults import read
from smlaunch.local.settings import Settings
from smlaunch.local.state_dir import StateDir, publish

_LOOK_SECONDS = 1.0
"""After which it looks whether its files are still there."""
_OTHERS_LOOK_SECONDS = 2.0
"""For which clients may hold a lock, who only look whether there is an endpoint: each does for a moment."""


class _Presence:
    """What tells that this endpoint is there: locks, and files that it makes anew when they are gone."""

    def __init__(self, state: StateDir) -> None:
        self._state = state
        folder, _ = standing.lock_files(state.root)
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._file = -1
        try:
            with contextlib.suppress(_NoLocksHere):
                _lock(self._folder, state)
            self._file = os.open(state.standing_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            _lock(self._file, state)
            self._say(b"%d\n" % os.getpid())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for descriptor in {self._file, self._folder} - {-1}:
            os.close(descriptor)

    def end(self) -> None:
        """No client finds it any more; the locks stay."""
        self._say(b"%d %s\n" % (os.getpid(), standing.ENDING.encode()))
        with contextlib.suppress(OSError):
            self._state.address.unlink()

    def restore(self, info: EndpointInfo) -> None:
        """What cannot be written now, on a full disk, say, is tried the next time."""
        with contextlib.suppress(OSError):
            if not self._has_its_name():
                made = self._state.standing_lock.with_name(f".{self._state.standing_lock.name}.{os.getpid()}")
                descriptor = os.open(made, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.close(self._file)
                self._file = descriptor
                self._say(b"%d\n" % os.getpid())
                made.replace(self._state.standing_lock)
            if not self._state.address.exists():
                publish(self._state.address, info.to_json())

    def _has_its_name(self) -> bool:
        try:
            return os.path.samestat(self._state.standing_lock.stat(), os.fstat(self._file))
        except FileNotFoundError:
            return False

    def _say(self, text: bytes) -> None:
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, text, 0)


class _NoLocksHere(OSError):
    """The disk has no locks on folders, as NFS."""


def _lock(descriptor: int, state: StateDir) -> None:
    until = time.monotonic() + _OTHERS_LOOK_SECONDS
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                text = (
                    f"another endpoint has {state.root}: it was started at the same time, or is just ending"
                )
                raise EndpointError(text) from None
            time.sleep(0.02)
        except OSError as error:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise _NoLocksHere(*error.args) from None
            raise


def _serve(ready: int) -> None:
    """The standing process: serves until SIGTERM or SIGINT."""
    orders = json.loads(sys.stdin.buffer.read())
    state = StateDir(Path(orders["home"]))
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _noted)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    chosen = {
        **orders["settings"],
        "inherit_environment": tuple(orders["settings"]["inherit_environment"]),
        "step_functions_error_names": tuple(map(tuple, orders["settings"]["step_functions_error_names"])),
        "container_options": tuple(orders["settings"]["container_options"]),
        "faults": read(orders["faults"], "the fault plan"),
    }
    endpoint = Endpoint(
        state.root,
        isolation=orders["isolation"],
        executor=orders["executor"],
        settings=Settings(**chosen),
        port=orders["port"],
    )
    with os.fdopen(ready, "wb") as answer:
        os.set_inheritable(ready, False)
        with contextlib.ExitStack() as stack:
            try:
                presence = stack.enter_context(contextlib.closing(_Presence(state)))
                info = endpoint.start()
                stack.callback(endpoint.close)
                publish(state.address, info.to_json())
            except EndpointError as error:
                answer.write(str(error).encode())
                sys.exit(1)
            answer.write(info.to_json())
            answer.close()
            while not select.select([woken], [], [], _LOOK_SECONDS)[0]:
                presence.restore(info)
            presence.end()


def _noted(number: int, frame: object) -> None:
    """The main thread reads the number from the wake-up pipe."""


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
