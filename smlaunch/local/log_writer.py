"""The log of one host on its way to a file, whatever becomes of disk and descriptors meanwhile.

Lines that cannot be written wait here and are written first when that works again. When too many wait, those
that come after are counted, and their number stands in the log in their place.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence

from smlaunch.local.errors import ApiError

_WAITING_BYTES = 8 << 20
_AGAIN_SECONDS = 0.1

log = logging.getLogger(__name__)

Events = Sequence[tuple[int, str]]


class LogWriter:
    """``reopen`` gives a descriptor of the stream's file, made where it is missing. It stays open from the
    first line on, so that a process without descriptors to spare still writes. For many threads."""

    def __init__(self, name: str, reopen: Callable[[], int], encode: Callable[[Events], bytes]) -> None:
        self._name = name
        self._reopen = reopen
        self._encode = encode
        self._descriptor = -1
        self._waiting = bytearray()
        self._lost = 0
        self._why = ""
        self._lock = threading.Lock()

    def append(self, events: Events) -> None:
        """Events are (milliseconds since the epoch, message)."""
        if not events:
            return
        data = self._encode(events)
        with self._lock:
            if self._waiting:
                self._write()
            if self._waiting and len(self._waiting) + len(data) > _WAITING_BYTES:
                self._lost += len(events)
                return
            self._waiting += data
            self._write()

    def settle(self, patience: float = 0.0) -> None:
        """Writes what waits, and closes the file when nothing is left. With ``patience``, the rest is given
        up after so many seconds, and the endpoint's own log tells it. Further lines may follow."""
        deadline = time.monotonic() + patience
        while True:
            with self._lock:
                self._write()
                late = time.monotonic() >= deadline
                if not self._waiting or (late and patience):
                    self._give_up()
                if late or not self._waiting:
                    return
            time.sleep(_AGAIN_SECONDS)

    def _write(self) -> None:
        """All that waits, as far as possible."""
        try:
            self._open()
            while self._waiting:
                del self._waiting[: os.write(self._descriptor, self._waiting)]
                if self._lost and not self._waiting:
                    text = (
                        f"[smlaunch] {self._lost} lines were lost: the log could not be written ({self._why})"
                    )
                    self._waiting += self._encode([(time.time_ns() // 1_000_000, text)])
                    self._lost = 0
            self._why = ""
        except (OSError, ApiError) as error:
            why = str(getattr(error, "strerror", None) or error)
            if why != self._why:
                log.warning("the log of %s cannot be written, its lines wait: %s", self._name, why)
            self._why = why

    def _open(self) -> None:
        if self._descriptor >= 0 and os.fstat(self._descriptor).st_nlink == 0:  # the stream was deleted
            os.close(self._descriptor)
            self._descriptor = -1
        if self._descriptor < 0 and self._waiting:
            self._descriptor = self._reopen()
            size = os.fstat(self._descriptor).st_size
            if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
                self._waiting[:0] = b"\n"  # a writer was killed in the middle of its line

    def _give_up(self) -> None:
        lost = self._lost + self._waiting.count(b"\n")
        if lost:
            log.error(
                "%d lines of %s were lost: the log could not be written (%s)", lost, self._name, self._why
            )
        self._waiting.clear()
        self._lost = 0
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
