"""From each rank's own pipe to the host's one output: no line torn, no rank and no signal kept waiting.

Every rank writes stdout and stderr to one pipe, so its own order is kept. Whole lines go out with the
rank's prefix. All is done on blocks of many lines, never line by line in Python. Nothing here ever blocks:
the host's output is written only in pieces that fit, and while it does not take more, ranks are simply not
read, so they wait as they would on any full pipe.
"""

import os
import select
import stat
import time
from collections import deque
from typing import Deque, Optional, Tuple

from smlaunch.protocol.progress import steps_in
from smlaunch.runtime.reported import Reported

_READ = 1 << 17
_WRITE = 1 << 17
_LONGEST_LINE = 1 << 18
"""A longer line is cut: CloudWatch Logs takes 256 KiB in one event."""

_TAIL = 1 << 16
"""How much of a rank's last output is kept to find its traceback in."""

_LONGEST_PROGRESS = 1 << 12
"""A longer line is no progress line."""

_TRACEBACK = b"Traceback (most recent call last)"


class Output:
    """The host's own output. ``put`` takes everything; ``full`` says when to stop reading ranks. ``reported``
    hears of the steps in what ranks write."""

    _FULL = 1 << 20

    def __init__(self, descriptor: int, reported: Optional[Reported] = None) -> None:
        self.reported = Reported() if reported is None else reported
        self.descriptor, self._room = _without_blocking(descriptor)
        self._own = self.descriptor != descriptor
        self._queue: Deque[bytes] = deque()
        self._piece = memoryview(b"")
        self._waiting = 0
        self._broken = False
        self._poll = select.poll()
        self._poll.register(self.descriptor, select.POLLOUT)

    @property
    def waiting(self) -> bool:
        return self._waiting > 0

    @property
    def full(self) -> bool:
        return self._waiting > self._FULL

    def put(self, data: bytes) -> None:
        if data and not self._broken:
            self._queue.append(data)
            self._waiting += len(data)

    def write(self) -> None:
        """Writes as much as goes without waiting, a few pieces only so that signals are seen in between."""
        for _ in range(16):
            if not self._waiting or not self._poll.poll(0):
                return
            self._write_piece()

    def flush(self, give_up: float) -> None:
        """Writes everything, unless it is not taken until ``give_up`` (of time.monotonic)."""
        while self._waiting:
            left = give_up - time.monotonic()
            if left <= 0 or not self._poll.poll(int(left * 1000) + 1):
                return
            self._write_piece()

    def close(self) -> None:
        """Gives up what this opened itself; the descriptor it was given stays open."""
        if self._own:
            self._own = False
            os.close(self.descriptor)

    def _write_piece(self) -> None:
        if not self._piece:
            blocks = [self._queue.popleft()]
            size = len(blocks[0])
            while self._queue and size + len(self._queue[0]) <= self._room:
                size += len(self._queue[0])
                blocks.append(self._queue.popleft())
            self._piece = memoryview(b"".join(blocks))
        try:
            written = os.write(self.descriptor, self._piece[: self._room])
        except BlockingIOError:  # somebody who shares it was quicker
            return
        except OSError:
            # Nobody reads any more. The training is worth more than its log: it goes on.
            self._broken = True
            self._queue.clear()
            self._waiting = 0
            return
        self._piece = self._piece[written:]
        self._waiting -= written


def _without_blocking(descriptor: int) -> Tuple[int, int]:
    """A descriptor for the same output, and how many bytes can be written to it at once and never block.

    A file takes all. A pipe can be opened a second time to be non-blocking for us alone; setting that on
    the descriptor itself would set it for everyone who shares it. Where that cannot be, a pipe that is
    ready takes PIPE_BUF bytes, and promises no more.
    """
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor, _WRITE
    if stat.S_ISFIFO(mode):
        try:
            return os.open("/proc/self/fd/{}".format(descriptor), os.O_WRONLY | os.O_NONBLOCK), _WRITE
        except OSError:
            return descriptor, select.PIPE_BUF
    return descriptor, select.PIPE_BUF


class Stream:
    """The reading end of one process's pipe."""

    def __init__(self, descriptor: int, prefix: bytes, output: Output) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.open = True
        self.traceback_at: Optional[float] = None
        """When the last traceback so far began to arrive (seconds since the epoch)."""
        self.prefix = prefix
        self._output = output
        self._rest = b""
        self._heard = b""
        """The beginning of a line, for whoever hears of steps."""
        self._edge = b""
        self._tail: Deque[bytes] = deque()
        self._tail_size = 0

    def pump(self) -> int:
        """Passes on one block and returns its size; 0 when the pipe is empty for now, or closed for good."""
        if not self.open:
            return 0
        try:
            block = os.read(self.descriptor, _READ)
        except BlockingIOError:
            return 0
        if not block:
            self.close()
            return 0
        self._keep(block)
        self._hear(block)
        if self.prefix:
            self._pass_lines(block)
        else:
            self._output.put(block)
        return len(block)

    def close(self) -> None:
        if self.open:
            self.open = False
            os.close(self.descriptor)
            self._hear(b"\n")
            if self._rest:
                self._output.put(self.prefix + self._rest + b"\n")
                self._rest = b""

    def tail(self) -> str:
        return b"".join(self._tail).decode("utf-8", "replace")

    def _pass_lines(self, block: bytes) -> None:
        data = self._rest + block if self._rest else block
        cut = data.rfind(b"\n")
        if cut < 0:
            if len(data) < _LONGEST_LINE:
                self._rest = data
                return
            data += b"\n"
            cut = len(data) - 1
        self._rest = data[cut + 1 :]
        self._output.put(self.prefix + data[:cut].replace(b"\n", b"\n" + self.prefix) + b"\n")

    def _hear(self, block: bytes) -> None:
        data = self._heard + block if self._heard else block
        cut = data.rfind(b"\n") + 1
        for step in steps_in(data[:cut]):
            self._output.reported.hear(step)
        self._heard = data[cut:] if len(data) - cut < _LONGEST_PROGRESS else b""

    def _keep(self, block: bytes) -> None:
        seam = self._edge + block
        if _TRACEBACK in seam:
            self.traceback_at = time.time()
        self._edge = seam[1 - len(_TRACEBACK) :]
        self._tail.append(block)
        self._tail_size += len(block)
        while self._tail_size - len(self._tail[0]) >= _TAIL:
            self._tail_size -= len(self._tail.popleft())
