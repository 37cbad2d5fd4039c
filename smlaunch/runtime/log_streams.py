"""From each rank's pipe to the output of the host: whole lines, and no rank or signal waits for another.

Every rank writes stdout and stderr to one pipe, which keeps their order. Whole lines are written with the
rank's prefix, in blocks of many lines. Nothing here blocks: the host's output is written only in pieces that
fit. While it takes no more, ranks are not read, and wait as on any full pipe.
"""

import os
import select
import stat
import time
from collections import deque
from typing import Deque, Optional, Tuple

from smlaunch.contract.progress import iter_steps
from smlaunch.runtime.step_tracker import StepTracker

_READ_BYTES = 1 << 17
_WRITE_BYTES = 1 << 17
_MAX_LINE_BYTES = 1 << 18
"""A longer line is split: an event of CloudWatch Logs has at most 256 KiB."""

_TAIL_BYTES = 1 << 16
"""How much of the end of a rank's output is kept, for its traceback."""

_MAX_PROGRESS_LINE_BYTES = 1 << 12
"""A longer line is no progress line."""

_TRACEBACK = b"Traceback (most recent call last)"


class HostOutput:
    """The host's own output. ``append`` takes everything; while ``is_full``, ranks should not be read.
    ``step_tracker`` records the steps in what ranks write.
    """

    _FULL_BYTES = 1 << 20

    def __init__(self, descriptor: int, step_tracker: Optional[StepTracker] = None) -> None:
        self.step_tracker = StepTracker() if step_tracker is None else step_tracker
        self.descriptor, self._write_limit = _open_non_blocking(descriptor)
        self._owns_descriptor = self.descriptor != descriptor
        self._pending_blocks: Deque[bytes] = deque()
        self._unwritten = memoryview(b"")
        self._pending_bytes = 0
        self._is_broken = False
        self._poll = select.poll()
        self._poll.register(self.descriptor, select.POLLOUT)

    @property
    def has_pending(self) -> bool:
        return self._pending_bytes > 0

    @property
    def is_full(self) -> bool:
        return self._pending_bytes > self._FULL_BYTES

    def append(self, data: bytes) -> None:
        if data and not self._is_broken:
            self._pending_blocks.append(data)
            self._pending_bytes += len(data)

    def write_available(self) -> None:
        """Write what can be written without waiting; a few pieces only, so that signals are handled in
        between.
        """
        for _ in range(16):
            if not self._pending_bytes or not self._poll.poll(0):
                return
            self._write_next()

    def flush(self, deadline: float) -> None:
        """Write everything that is accepted before ``deadline`` (of time.monotonic)."""
        while self._pending_bytes:
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0 or not self._poll.poll(int(seconds_left * 1000) + 1):
                return
            self._write_next()

    def close(self) -> None:
        """Close the descriptor that this object opened; the one it was given stays open."""
        if self._owns_descriptor:
            self._owns_descriptor = False
            os.close(self.descriptor)

    def _write_next(self) -> None:
        """Write one piece of at most ``_write_limit`` bytes."""
        if not self._unwritten:
            blocks = [self._pending_blocks.popleft()]
            size = len(blocks[0])
            while self._pending_blocks and size + len(self._pending_blocks[0]) <= self._write_limit:
                size += len(self._pending_blocks[0])
                blocks.append(self._pending_blocks.popleft())
            self._unwritten = memoryview(b"".join(blocks))
        try:
            written_bytes = os.write(self.descriptor, self._unwritten[: self._write_limit])
        except BlockingIOError:  # another process that shares the pipe has filled it
            return
        except OSError:
            # The reader is gone. The training goes on without its log.
            self._is_broken = True
            self._pending_blocks.clear()
            self._pending_bytes = 0
            return
        self._unwritten = self._unwritten[written_bytes:]
        self._pending_bytes -= written_bytes


def _open_non_blocking(descriptor: int) -> Tuple[int, int]:
    """Return a descriptor for the same output, and how many bytes can be written to it at once without
    blocking.

    A file accepts everything. A pipe can be opened a second time, non-blocking for this process alone;
    O_NONBLOCK on the descriptor itself would apply to every process that shares it. Where that fails, a pipe
    that is ready accepts PIPE_BUF bytes.
    """
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor, _WRITE_BYTES
    if stat.S_ISFIFO(mode):
        try:
            return os.open("/proc/self/fd/{}".format(descriptor), os.O_WRONLY | os.O_NONBLOCK), _WRITE_BYTES
        except OSError:
            return descriptor, select.PIPE_BUF
    return descriptor, select.PIPE_BUF


class ProcessOutput:
    """The reading end of one process's pipe."""

    def __init__(self, descriptor: int, prefix: bytes, output: HostOutput) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.is_open = True
        self.traceback_at: Optional[float] = None
        """When the last traceback began to arrive, in seconds since the epoch."""
        self.prefix = prefix
        self._output = output
        self._partial_line = b""
        self._partial_progress_line = b""
        """The beginning of a line that may be a progress line."""
        self._previous_end = b""
        self._tail_blocks: Deque[bytes] = deque()
        self._tail_bytes = 0

    def pump(self) -> int:
        """Forward one block and return its size; 0 when the pipe is empty for now, or closed."""
        if not self.is_open:
            return 0
        try:
            block = os.read(self.descriptor, _READ_BYTES)
        except BlockingIOError:
            return 0
        if not block:
            self.close()
            return 0
        self._remember_tail(block)
        self._track_steps(block)
        if self.prefix:
            self._write_lines(block)
        else:
            self._output.append(block)
        return len(block)

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            os.close(self.descriptor)
            self._track_steps(b"\n")
            if self._partial_line:
                self._output.append(self.prefix + self._partial_line + b"\n")
                self._partial_line = b""

    def tail(self) -> str:
        """Return the end of the output."""
        return b"".join(self._tail_blocks).decode("utf-8", "replace")

    def _write_lines(self, block: bytes) -> None:
        """Forward whole lines with the prefix; keep the incomplete last line."""
        data = self._partial_line + block if self._partial_line else block
        line_end = data.rfind(b"\n")
        if line_end < 0:
            if len(data) < _MAX_LINE_BYTES:
                self._partial_line = data
                return
            data += b"\n"
            line_end = len(data) - 1
        self._partial_line = data[line_end + 1 :]
        self._output.append(self.prefix + data[:line_end].replace(b"\n", b"\n" + self.prefix) + b"\n")

    def _track_steps(self, block: bytes) -> None:
        """Record the steps of progress lines."""
        data = self._partial_progress_line + block if self._partial_progress_line else block
        lines_end = data.rfind(b"\n") + 1
        for step, total_steps in iter_steps(data[:lines_end]):
            self._output.step_tracker.record_step(step, total_steps)
        self._partial_progress_line = (
            data[lines_end:] if len(data) - lines_end < _MAX_PROGRESS_LINE_BYTES else b""
        )

    def _remember_tail(self, block: bytes) -> None:
        """Keep the end of the output, and the time of the last traceback."""
        joined = self._previous_end + block
        if _TRACEBACK in joined:
            self.traceback_at = time.time()
        self._previous_end = joined[1 - len(_TRACEBACK) :]
        self._tail_blocks.append(block)
        self._tail_bytes += len(block)
        while self._tail_bytes - len(self._tail_blocks[0]) >= _TAIL_BYTES:
            self._tail_bytes -= len(self._tail_blocks.popleft())
