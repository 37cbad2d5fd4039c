"""The process of a standing endpoint, which standing.py starts: it serves until it is told to end.

    python -m smlaunch.local.standing_process DESCRIPTOR < orders

The descriptor is a pipe's, for the address, or for the reason why there is none.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from smlaunch.errors import EndpointError
from smlaunch.local.endpoint import Endpoint
from smlaunch.local.faults import read
from smlaunch.local.settings import Settings
from smlaunch.local.state_dir import StateDir, publish


@contextlib.contextmanager
def _only_one(state: StateDir) -> Iterator[None]:
    descriptor = os.open(state.standing_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EndpointError(f"another endpoint was started for {state.root} at the same time") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        os.close(descriptor)


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
                stack.enter_context(_only_one(state))
                info = endpoint.start()
                stack.callback(endpoint.close)
                publish(state.address, info.to_json())
            except EndpointError as error:
                answer.write(str(error).encode())
                sys.exit(1)
            answer.write(info.to_json())
            answer.close()
            os.read(woken, 1)
            with contextlib.suppress(OSError):
                state.address.unlink()


def _noted(number: int, frame: object) -> None:
    """The main thread reads the number from the wake-up pipe."""


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
