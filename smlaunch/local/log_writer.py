"""Writer for the log of one host. It buffers lines while the disk is full or descriptors are missing.

Buffered lines are written first once writing works again. When the buffer is full, further lines are counted,
and the log gets a line with their number.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence

from smlaunch.local.api_errors import ApiError

_MAX_BUFFER_BYTES = 8 << 20
_RETRY_SECONDS = 0.1

log = logging.getLogger(__name__)

Events = Sequence[tuple[int, str]]


class LogWriter:
    """Appends events to a stream, for many threads. ``open_stream`` opens the stream's file and creates it if
    it is missing. The file stays open, so that a process without free descriptors can still write."""

    def __init__(self, name: str, open_stream: Callable[[], int], encode: Callable[[Events], bytes]) -> None:
        self._name = name
        self._open_stream = open_stream
        self._encode = encode
        self._descriptor = -1
        self._buffer = bytearray()
        self._lost_lines = 0
        self._last_error = ""
        self._lock = threading.Lock()

    def append(self, events: Events) -> None:
        """Append events, given as (milliseconds since the epoch, message). Never raises."""
        if not events:
            return
        data = self._encode(events)
        with self._lock:
            if self._buffer:
                self._write()
            if self._buffer and len(self._buffer) + len(data) > _MAX_BUFFER_BYTES:
                self._lost_lines += len(events)
                return
            self._buffer += data
            self._write()

    def flush(self, timeout: float = 0.0) -> None:
        """Write the buffer, and close the file when the buffer is empty. With ``timeout``, drop the buffer
        after so many seconds and log the loss to the endpoint's log. ``append`` still works afterwards."""
        deadline = time.monotonic() + timeout
        while True:
            with self._lock:
                self._write()
                is_overdue = time.monotonic() >= deadline
                if not self._buffer or (is_overdue and timeout):
                    self._drop_buffer()
                if is_overdue or not self._buffer:
                    return
            time.sleep(_RETRY_SECONDS)

    def _write(self) -> None:
        """Write as much of the buffer as possible."""
        try:
            self._open()
            while self._buffer:
                del self._buffer[: os.write(self._descriptor, self._buffer)]
                if self._lost_lines and not self._buffer:
                    message = (
                        f"[smlaunch] {self._lost_lines} lines were lost: the log could not "
                        f"be written ({self._last_error})"
                    )
                    self._buffer += self._encode([(time.time_ns() // 1_000_000, message)])
                    self._lost_lines = 0
            self._last_error = ""
        except (OSError, ApiError) as error:
            error_text = str(getattr(error, "strerror", None) or error)
            if error_text != self._last_error:
                log.warning("the log of %s cannot be written, its lines wait: %s", self._name, error_text)
            self._last_error = error_text

    def _open(self) -> None:
        """Open the log's file unless it is open or nothing is to be written; again if its stream was
        deleted."""
        if self._descriptor >= 0 and os.fstat(self._descriptor).st_nlink == 0:  # the stream was deleted
            os.close(self._descriptor)
            self._descriptor = -1
        if self._descriptor < 0 and self._buffer:
            self._descriptor = self._open_stream()
            size = os.fstat(self._descriptor).st_size
            if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
                self._buffer[:0] = b"\n"  # a writer was killed in the middle of its line

    def _drop_buffer(self) -> None:
        lost_lines = self._lost_lines + self._buffer.count(b"\n")
        if lost_lines:
            log.error(
                "%d lines of %s were lost: the log could not be written (%s)",
                lost_lines,
                self._name,
                self._last_error,
            )
        self._buffer.clear()
        self._lost_lines = 0
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
