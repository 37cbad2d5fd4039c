"""Starting processes and looking after them until all are gone: the heart of PID 1.

One loop waits for everything at once: signals, ends of processes, output of ranks, room in the host's output,
deadlines. It never sleeps and never asks a process whether it is still there.

    stop signal            passed on to each rank (not to its group: loader workers must not die before the
                           rank that uses them), SIGKILL to the groups after ``grace_seconds``; the stop
                           file first, so that a rank finds it when it hears the signal
    the planned end        the stop file; ranks that do not leave then are stopped as by a signal
    a rank fails           SIGTERM to the others, SIGKILL to the groups after ``failure_grace_seconds``
    all ranks hang         SIGABRT to all, so that they show their stacks (hang.py), then as above
    an orphan ends         reaped
    all ranks are gone     what they left behind is killed, the rest of their output passed on
"""

import errno
import os
import select
import signal
import time
from typing import Dict, List, Optional, Sequence, Set

from smlaunch.runtime import hang, orphans
from smlaunch.runtime.commands import Command
from smlaunch.runtime.outcome import Ended, Outcome
from smlaunch.runtime.problems import Unusable
from smlaunch.runtime.segments import End
from smlaunch.runtime.signals import STOP, Signals
from smlaunch.runtime.streams import Output, Stream

_FLUSH_SECONDS = 5.0
"""How long the host's output may take to be written when everything else is over."""

_MOST_IN_A_PIPE = 1 << 20
"""What may still be unread when the last writer is gone. Where one could not be found, it may go on
writing.
"""

_DEFAULTED = frozenset((signal.SIGPIPE, signal.SIGXFSZ))
"""Python ignores these, and what is ignored stays so through an exec: give them back to the ranks."""


class _Process:
    def __init__(self, command: Command, pid: int, stream: Stream) -> None:
        self.command = command
        self.pid = pid
        self.stream = stream
        self.rank_streams: Dict[int, Stream] = {}
        """Of ranks that it starts itself."""
        self.status: Optional[int] = None
        self.ended = 0.0
        self.stopped = False
        """Told to end because another one had failed."""

    @property
    def running(self) -> bool:
        return self.status is None


class Supervisor:
    """Runs one set of commands. ``signals`` must be installed; it is left holding. ``end``: of the segment
    that they train.
    """

    def __init__(
        self,
        signals: Signals,
        output: Output,
        grace_seconds: float,
        failure_grace_seconds: float,
        hang_seconds: Optional[float] = None,
        end: Optional[End] = None,
    ) -> None:
        self._signals = signals
        self._output = output
        self._grace = grace_seconds
        self._failure_grace = failure_grace_seconds
        self._processes: List[_Process] = []
        self._by_pid: Dict[int, _Process] = {}
        self._streams: List[Stream] = []
        self._kill_at: Optional[float] = None
        self._stopped_by: Optional[int] = None
        self._end = end
        self._hang_seconds = hang_seconds
        self._watch: Optional[hang.Watch] = None
        self._hang: Optional[hang.Hang] = None
        self._aborted: List[int] = []
        self._overstayed: Optional[float] = None

    def run(self, commands: Sequence[Command]) -> Outcome:
        """Returns when every process is gone. Raises Unusable when one of them cannot be started."""
        self._signals.hold()
        try:
            for command in commands:
                self._start(command)
            orphans.adopt()
            if self._hang_seconds is not None:
                agents = {process.pid for process in self._processes if process.command.outlets}
                self._watch = hang.Watch(self._hang_seconds, time.monotonic(), agents)
            self._look_after()
        finally:
            self._sweep()
        ended = tuple(self._ended(process) for process in self._processes)
        return Outcome(ended, self._stopped_by, self._hang, self._overstayed)

    def _start(self, command: Command) -> None:
        read_end, write_end = os.pipe()
        try:
            pid = os.posix_spawnp(
                command.argv[0],
                command.argv,
                command.env,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, write_end, 1),
                    (os.POSIX_SPAWN_DUP2, write_end, 2),
                ],
                setpgroup=0,
                setsigmask=(),
                setsigdef=_DEFAULTED,
            )
        except OSError as error:
            os.close(read_end)
            raise Unusable(_why_not(command, error)) from None
        finally:
            os.close(write_end)
        stream = Stream(read_end, command.prefix, self._output)
        process = _Process(command, pid, stream)
        self._processes.append(process)
        self._by_pid[pid] = process
        self._streams.append(stream)
        for outlet in command.outlets:
            # Opened for writing too: so it never ends before its first writer has come.
            descriptor = os.open(outlet.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            process.rank_streams[outlet.rank] = Stream(descriptor, outlet.prefix, self._output)
            self._streams.append(process.rank_streams[outlet.rank])

    def _look_after(self) -> None:
        wakeup = self._signals.wakeup
        while self._unfinished():
            # A new set each time: it is small, and which descriptors belong in it depends on so much.
            poll = select.poll()
            poll.register(wakeup, select.POLLIN)
            if self._output.waiting:
                poll.register(self._output.descriptor, select.POLLOUT)
            if not self._output.full:
                for stream in self._streams:
                    if stream.open:
                        poll.register(stream.descriptor, select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll(self._milliseconds_left())}
            # Ends first: a rank that was killed must be seen to be gone before its peers' complaints are
            # read.
            self._reap()
            for number in self._signals.take():
                self._answer(number)
            self._end_when_due()
            self._kill_when_due()
            self._pump(ready)
            self._output.write()
            self._abort_when_hanging()

    def _unfinished(self) -> bool:
        """Ranks are running, or somebody is still writing down the stacks of a hang."""
        if any(process.running for process in self._processes):
            return True
        self._aborted = hang.still_there(self._aborted) if self._aborted else []
        return bool(self._aborted) and self._kill_at != float("inf")

    def _pump(self, ready: Set[int]) -> None:
        for stream in self._streams:
            if stream.open and stream.descriptor in ready and stream.pump() and self._watch is not None:
                self._watch.heard()

    def _abort_when_hanging(self) -> None:
        if self._watch is None or self._kill_at is not None:
            return
        if self._output.full:
            self._watch.heard()  # ranks wait for whoever reads our output, not for each other
        if self._watch.is_hang(time.monotonic()):
            silent = [process for process in self._processes if process.running]
            ranks = tuple(rank for process in silent for rank in process.command.ranks)
            self._hang = hang.Hang(self._watch.seconds, ranks)
            self._kill_within(self._failure_grace)
            self._aborted = hang.abort([process.pid for process in silent])

    def _answer(self, number: int) -> None:
        if number in STOP:
            if self._stopped_by is not None:
                return  # a second stop changes nothing: handlers of ranks must not run twice
            self._stopped_by = number
            self._kill_within(self._grace)
            if self._end is not None:
                self._end.tell()
        for process in self._processes:
            if process.running:
                _send(process.pid, number)

    def _end_when_due(self) -> None:
        """Not where a stop or a failure ends everything already."""
        end = self._end
        if end is None or self._kill_at is not None:
            return
        now = time.monotonic()
        if end.at is not None and now >= end.at:
            end.tell()
        if end.at is not None and end.signal_at is not None and now >= end.signal_at:
            self._overstayed = now - end.at
            self._kill_within(end.kill_after(now))
            self._answer(signal.SIGTERM)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            process = self._by_pid.get(pid)
            if process is None:
                continue  # an orphan that came to us as its new parent
            process.status = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            process.ended = time.time()
            if process.status != 0 and self._kill_at is None:
                self._stop_peers()

    def _stop_peers(self) -> None:
        self._kill_within(self._failure_grace)
        for process in self._processes:
            if process.running:
                process.stopped = True
                _send(process.pid, signal.SIGTERM)

    def _kill_within(self, seconds: float) -> None:
        due = time.monotonic() + seconds
        self._kill_at = due if self._kill_at is None else min(due, self._kill_at)

    def _kill_when_due(self) -> None:
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            for process in self._processes:
                if process.running:
                    _kill_group(process.pid)
            self._kill_at = float("inf")

    def _milliseconds_left(self) -> Optional[int]:
        due = self._kill_at
        if due is None:
            waits = [source.due for source in (self._watch, self._end) if source is not None]
            due = min((at for at in waits if at is not None), default=None)
        if due is None or due == float("inf"):
            return None
        # poll takes no more than a C int.
        return min(max(0, int((due - time.monotonic()) * 1000) + 1), 86_400_000)

    def _sweep(self) -> None:
        """Kills what is left, then passes on what is still in the pipes: an orphan may hold them open for
        ever.
        """
        for process in self._processes:
            _kill_group(process.pid)
        self._reap_killed()
        orphans.kill_descendants()
        give_up = time.monotonic() + _FLUSH_SECONDS
        for stream in self._streams:
            left = _MOST_IN_A_PIPE
            while left > 0:
                size = stream.pump()
                if not size:
                    break
                left -= size
                if self._output.full:
                    self._output.flush(give_up)
            stream.close()
        self._output.flush(give_up)

    def _reap_killed(self) -> None:
        """Only after a start that failed half-way are there any."""
        for process in self._processes:
            if process.running:
                os.waitpid(process.pid, 0)
                process.status = -signal.SIGKILL

    def _ended(self, process: _Process) -> Ended:
        from smlaunch.runtime import tracebacks  # not before the ranks are started: they need not wait for it

        status = process.status if process.status is not None else 0
        tail = process.stream.tail()
        at = process.stream.traceback_at
        began = process.ended
        if status != 0 and at is not None and tracebacks.find(tail) is not None:
            began = min(began, at)
        rank = next(iter(process.command.ranks), None)
        tails = {rank: (stream.tail(), stream.traceback_at) for rank, stream in process.rank_streams.items()}
        return Ended(rank, status, process.ended, began, tail, process.stopped, tails)


def _send(pid: int, number: int) -> None:
    """To a child that has not been reaped, so its number is still its own."""
    try:
        os.kill(pid, number)
    except PermissionError:  # it has taken another user's identity
        return


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # none left; or, on macOS, none left but zombies
        return


def _why_not(command: Command, error: OSError) -> str:
    program = command.argv[0].decode("utf-8", "replace")
    if error.errno == errno.E2BIG:
        size = sum(map(len, command.argv)) + sum(len(k) + len(v) for k, v in command.env.items())
        return "{}: arguments and environment are {} bytes, more than this system takes".format(program, size)
    if error.errno == errno.EACCES:
        return "{}: is not executable (chmod +x), or may not be run by this user".format(program)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return "{}: no such program on this host".format(program)
    return "{}: cannot be started: {}".format(program, error.strerror)
