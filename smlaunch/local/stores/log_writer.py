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

from smlaunch.local.front.api_errors import ApiError

_MAX_BUFFER_BYTES = 8 << 20
_RETRY_SECONDS = 0.1

log = logging.getLogger(__name__)

Events = Sequence[tuple[int, str]]


class LogWriter:
    """Appends events to a stream, for many threads. ``open_stream_file`` opens the stream's file and creates
    it if it is missing. The file stays open, so that a process without free descriptors can still write."""

    def __init__(
        self, name: str, open_stream_file: Callable[[], int], encode_events: Callable[[Events], bytes]
    ) -> None:
        self._name = name
        self._open_stream_file = open_stream_file
        self._encode_events = encode_events
        self._descriptor = -1
        self._buffer = bytearray()
        self._lost_line_count = 0
        self._last_error_text = ""
        self._lock = threading.Lock()

    def append_events(self, events: Events) -> None:
        """Append events to the log of one host, given as (milliseconds since the epoch, message). Never
        raises: lines that cannot be written stay in the buffer, and are counted as lost when it is full
        (8 MiB)."""
        if not events:
            return
        encoded_events = self._encode_events(events)  # one line each
        with self._lock:
            if self._buffer:
                self._write_buffer()  # older lines first; empties the buffer if they can be written now
            is_buffer_full = self._buffer and len(self._buffer) + len(encoded_events) > _MAX_BUFFER_BYTES
            if is_buffer_full:
                self._lost_line_count += len(events)
                return
            self._buffer += encoded_events
            self._write_buffer()

    def flush(self, timeout_seconds: float = 0.0) -> None:
        """Write a host's buffered log lines, and close the file when the buffer is empty. Lines that cannot
        be written stay in the buffer if ``timeout_seconds`` is 0; otherwise they are tried again for so long,
        then dropped, with a line in the endpoint's log. ``append_events`` still works afterwards."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            with self._lock:
                self._write_buffer()  # as much as possible
                is_overdue = time.monotonic() >= deadline
                may_drop_lines = is_overdue and timeout_seconds > 0
                if not self._buffer or may_drop_lines:
                    self._drop_buffer_and_close_file()
                if is_overdue or not self._buffer:
                    return
            time.sleep(_RETRY_SECONDS)

    def _write_buffer(self) -> None:
        """Write as much of the buffered log lines as possible, and then a line with the number of lost ones.
        Never raises: lines that cannot be written stay in the buffer."""
        try:
            self._open_log_file()
            while self._buffer:
                written_bytes = os.write(self._descriptor, self._buffer)
                del self._buffer[:written_bytes]
                if self._lost_line_count and not self._buffer:
                    message = (
                        f"[smlaunch] {self._lost_line_count} lines were lost: the log could not "
                        f"be written ({self._last_error_text})"
                    )
                    # The loop then writes this line.
                    self._buffer += self._encode_events([(time.time_ns() // 1_000_000, message)])
                    self._lost_line_count = 0
            self._last_error_text = ""
        except (OSError, ApiError) as error:
            error_text = str(getattr(error, "strerror", None) or error)
            if error_text != self._last_error_text:  # the same error is logged once
                log.warning("the log of %s cannot be written, its lines wait: %s", self._name, error_text)
            self._last_error_text = error_text

    def _open_log_file(self) -> None:
        """Open the file of the log stream unless it is open or the buffer of unwritten lines is empty; open
        it again if the stream was deleted."""
        # -1: no file is open. A file without links was removed.
        is_deleted = self._descriptor >= 0 and os.fstat(self._descriptor).st_nlink == 0
        if is_deleted:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._descriptor >= 0 or not self._buffer:
            return
        self._descriptor = self._open_stream_file()
        file_size_bytes = os.fstat(self._descriptor).st_size
        has_incomplete_line = (
            file_size_bytes > 0 and os.pread(self._descriptor, 1, file_size_bytes - 1) != b"\n"
        )
        if has_incomplete_line:  # a writer was killed in the middle of its line
            self._buffer[:0] = b"\n"

    def _drop_buffer_and_close_file(self) -> None:
        lost_lines = self._lost_line_count + self._buffer.count(b"\n")
        if lost_lines:
            log.error(
                "%d lines of %s were lost: the log could not be written (%s)",
                lost_lines,
                self._name,
                self._last_error_text,
            )
        self._buffer.clear()
        self._lost_line_count = 0
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
