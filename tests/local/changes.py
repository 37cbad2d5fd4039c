"""Wait until an endpoint writes its jobs or logs: by inotify on Linux, by polling elsewhere."""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

_MODIFY, _CLOSE_WRITE, _MOVED_TO, _CREATE = 0x2, 0x8, 0x80, 0x100
_NONBLOCK = os.O_NONBLOCK | os.O_CLOEXEC
_AT_MOST = 0.5
"""The most seconds between two probes: some results depend on the time alone."""

_Result = TypeVar("_Result")


def until(home: str | Path, probe: Callable[[], _Result | None], patience: float) -> _Result | None:
    """Call ``probe`` after each write below ``home`` until it returns a result; None after ``patience`` s."""
    deadline = time.monotonic() + patience
    changes = _Changes(Path(home))
    try:
        while True:
            changes.watch()
            result = probe()
            if result is not None or time.monotonic() > deadline:
                return result
            changes.wait()
    finally:
        changes.close()


class _Changes:
    """Watches the state directory's own files, among them the databases, and the logs of each group."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._watched: set[Path] = set()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(_NONBLOCK) if sys.platform == "linux" else -1

    def watch(self) -> None:
        if self._descriptor < 0:
            return
        logs = self._home / "logs"
        folders = {self._home, logs, *(logs.iterdir() if logs.is_dir() else ())}
        for folder in folders - self._watched:
            mask = _MODIFY | _CLOSE_WRITE | _MOVED_TO | _CREATE
            if self._libc.inotify_add_watch(self._descriptor, os.fsencode(folder), mask) >= 0:
                self._watched.add(folder)

    def wait(self) -> None:
        if not self._watched:
            time.sleep(0.02)
            return
        if select.select([self._descriptor], [], [], _AT_MOST)[0]:
            os.read(self._descriptor, 1 << 16)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
