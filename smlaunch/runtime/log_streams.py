"""From each rank's pipe to the output of the host: whole lines, and no rank or signal waits for another.

Every rank writes stdout and stderr to one pipe, which keeps their order. Whole lines are written with the
rank's prefix, in blocks of many lines. Nothing here blocks: the host's output is written only in pieces that
fit. While it takes no more, ranks are not read, and wait as on any full pipe.
"""

import contextlib
import os
import select
import stat
import time
from collections import deque
from typing import Deque, Optional, Tuple

from smlaunch.contract.progress_line import iter_steps
from smlaunch.runtime.redrawn_line import RedrawnLine, drop_earlier_states, last_state
from smlaunch.runtime.step_tracker import StepTracker

_READ_BYTES = 1 << 17
_MAX_WRITE_BYTES = 1 << 17
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
        self.descriptor, self._max_write_bytes = _open_non_blocking_output(descriptor)
        self._owns_descriptor = self.descriptor != descriptor
        self._pending_blocks: Deque[bytes] = deque()
        self._unwritten_piece = memoryview(b"")
        self._pending_bytes = 0
        self._is_reader_gone = False
        self._poll = select.poll()
        self._poll.register(self.descriptor, select.POLLOUT)

    @property
    def has_pending(self) -> bool:
        return self._pending_bytes > 0

    @property
    def is_full(self) -> bool:
        return self._pending_bytes > self._FULL_BYTES

    def append(self, data: bytes) -> None:
        if data and not self._is_reader_gone:
            self._pending_blocks.append(data)
            self._pending_bytes += len(data)

    def write_available(self) -> None:
        """Write what can be written without waiting; a few pieces only, so that signals are handled in
        between.
        """
        for _ in range(16):
            if not self._pending_bytes or not self._poll.poll(0):
                return
            self._write_next_piece()

    def flush(self, deadline: float) -> None:
        """Write everything that is accepted before ``deadline`` (of time.monotonic)."""
        while self._pending_bytes:
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0 or not self._poll.poll(int(seconds_left * 1000) + 1):
                return
            self._write_next_piece()

    def close(self) -> None:
        """Close the descriptor that this object opened; the one it was given stays open."""
        if self._owns_descriptor:
            self._owns_descriptor = False
            os.close(self.descriptor)

    def _write_next_piece(self) -> None:
        """Write one piece of the output that is pending, not yet written, of at most ``_max_write_bytes``
        bytes, without waiting. What the reader does not accept of it stays for the next call.
        """
        if not self._unwritten_piece:
            self._unwritten_piece = memoryview(self._take_next_piece())
        try:
            written_bytes = os.write(self.descriptor, self._unwritten_piece[: self._max_write_bytes])
        except BlockingIOError:  # another process that shares the pipe has filled it
            return
        except OSError:
            # The reader is gone. The training goes on without its log.
            self._is_reader_gone = True
            self._pending_blocks.clear()
            self._pending_bytes = 0
            return
        self._unwritten_piece = self._unwritten_piece[written_bytes:]
        self._pending_bytes -= written_bytes

    def _take_next_piece(self) -> bytes:
        """Remove the first of the appended blocks, and as many more as fit into one write; return them joined
        to one piece.
        """
        blocks = [self._pending_blocks.popleft()]
        joined_bytes = len(blocks[0])
        while self._pending_blocks and joined_bytes + len(self._pending_blocks[0]) <= self._max_write_bytes:
            joined_bytes += len(self._pending_blocks[0])
            blocks.append(self._pending_blocks.popleft())
        return b"".join(blocks)


def _open_non_blocking_output(descriptor: int) -> Tuple[int, int]:
    """Return a descriptor for the same output, and how many bytes can be written to it at once without
    blocking when poll() says that it is ready.

    A file accepts everything. A pipe can be opened a second time, non-blocking for this process alone;
    O_NONBLOCK on the descriptor itself would apply to every process that shares it. Where that fails, a pipe
    that is ready accepts PIPE_BUF bytes.
    """
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor, _MAX_WRITE_BYTES
    if stat.S_ISFIFO(mode):
        with contextlib.suppress(OSError):
            own_path = "/proc/self/fd/{}".format(descriptor)
            return os.open(own_path, os.O_WRONLY | os.O_NONBLOCK), _MAX_WRITE_BYTES
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
        self._host_output = output
        self._partial_line = b""
        self._redrawn_line = RedrawnLine()
        self._ends_in_line = False
        """The output that was forwarded ends within a line."""
        self._partial_progress_line = b""
        """The beginning of a line that may be a progress line."""
        self._previous_end = b""
        self._tail_blocks: Deque[bytes] = deque()
        self._tail_bytes = 0

    def forward_block(self) -> int:
        """Read one block of output from the process's pipe and forward it to the host's output, the log.
        Returns its size; 0 when the pipe is empty for now, or closed. The end of all output is kept for a
        failure message, and the training steps that it reports are recorded.
        """
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
        self._record_progress_steps(block)
        # The prefix names the rank in front of each line.
        if self.prefix or self._partial_line or b"\r" in block:
            self._forward_whole_lines(block)
        else:
            self._host_output.append(block)
            self._ends_in_line = not block.endswith(b"\n")
        return len(block)

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            os.close(self.descriptor)
            self._record_progress_steps(b"\n")
            if self._partial_line:
                self._host_output.append(self.prefix + last_state(self._partial_line) + b"\n")
                self._partial_line = b""

    def tail(self) -> str:
        """Return the end of the output."""
        return b"".join(self._tail_blocks).decode("utf-8", "replace")

    def _forward_whole_lines(self, block: bytes) -> None:
        """Forward the whole lines of a process's output to the log, each with the prefix of its rank; keep
        the incomplete last line for the next block. A line of ``_MAX_LINE_BYTES`` (256 KiB) is split. A line
        with carriage returns is forwarded as a terminal shows it in the end, and now and then before.
        """
        data = self._partial_line + block if self._partial_line else block
        if b"\r" in data:
            self._forward_redrawn_lines(data)
            return
        line_end = data.rfind(b"\n")
        if line_end < 0:
            if len(data) < _MAX_LINE_BYTES:
                self._partial_line = data
                return
            data += b"\n"  # split it here
            line_end = len(data) - 1
        self._partial_line = data[line_end + 1 :]
        self._host_output.append(self.prefix + data[:line_end].replace(b"\n", b"\n" + self.prefix) + b"\n")

    def _forward_redrawn_lines(self, data: bytes) -> None:
        """Forward the whole lines of output with carriage returns, such as a progress bar's, each as a
        terminal shows it in the end. Of the incomplete last line only its present state is kept, and
        forwarded now and then.
        """
        *lines, partial_line = data.split(b"\n")
        first_line = lines[0] if lines else partial_line
        is_redrawn = b"\r" in first_line.rstrip(b"\r")  # at its end it may belong to a line end, CR LF
        if self._ends_in_line and is_redrawn:
            self._host_output.append(b"\n")  # ends the line that was forwarded in part
        self._ends_in_line = self._ends_in_line and not is_redrawn and not lines
        self._partial_line = self._redrawn_line.drop_earlier_states(partial_line)
        if len(self._partial_line) >= _MAX_LINE_BYTES:
            lines.append(self._partial_line)  # split it here
            self._partial_line = b""
        forwarded_lines = [last_state(line) for line in lines]
        live_line = self._redrawn_line.take_live_line_if_due(self._partial_line)
        if live_line:
            forwarded_lines.append(live_line)
        self._host_output.append(b"".join(self.prefix + line + b"\n" for line in forwarded_lines))

    def _record_progress_steps(self, block: bytes) -> None:
        """Record the training steps that the process reports in progress lines (``smlaunch: progress step=3``
        in its output). A line at the end of ``block`` that is not complete is kept for the next block.
        """
        data = self._partial_progress_line + block if self._partial_progress_line else block
        lines_end = data.rfind(b"\n") + 1
        for step, total_steps in iter_steps(data[:lines_end]):
            self._host_output.step_tracker.record_step(step, total_steps)
        last_line = drop_earlier_states(data[lines_end:])
        # One longer than 4 KiB is no progress line.
        self._partial_progress_line = last_line if len(last_line) < _MAX_PROGRESS_LINE_BYTES else b""

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
