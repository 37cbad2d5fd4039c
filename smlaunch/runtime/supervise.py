"""Starting processes and looking after them until all are gone: the heart of PID 1.

One loop waits for everything at once: signals, ends of processes, output of ranks, room in the host's output,
deadlines, other hosts. It never sleeps and never asks a process whether it is still there.

    services             started one after the other, each when the one before it is ready; then the ranks
    stop signal          passed on to each rank (not to its group: loader workers must not die before the
                         rank that uses them), SIGKILL to the groups after ``grace_seconds``; the stop
                         file first, so that a rank finds it when it hears the signal
    the planned end      the stop file; ranks that do not leave then are stopped as by a signal
    a rank fails         SIGTERM to the others, SIGKILL to the groups after ``failure_grace_seconds``
    a service ends       the same, while there are ranks
    all ranks hang       SIGABRT to all, so that they show their stacks (hang.py), then as above
    an orphan ends       reaped
    all ranks are gone   SIGTERM to the services, SIGKILL to their groups after a moment; then what they all
                         left behind is killed, the rest of their output passed on

A host that follows the leader (link.py) has no ranks of its own. It does what it does when all ranks are gone
when it hears how the leader has ended, and leaves signals and the planned end to that one.
"""

import os
import select
import signal
import time
from collections import deque
from typing import TYPE_CHECKING, Deque, Dict, List, Optional, Sequence, Set

from smlaunch.runtime import hang, orphans, spawn
from smlaunch.runtime.commands import Command
from smlaunch.runtime.outcome import Ended, News, Outcome
from smlaunch.runtime.segments import End
from smlaunch.runtime.signals import STOP, Signals
from smlaunch.runtime.spawn import Process
from smlaunch.runtime.streams import Output, Stream

if TYPE_CHECKING:
    from smlaunch.runtime.link import Link
    from smlaunch.runtime.services import Door, Step

_FLUSH_SECONDS = 5.0
"""How long the host's output may take to be written when everything else is over."""

_SERVICE_GRACE = 5.0
"""Seconds for services to leave when there are no ranks any more."""

_MOST_IN_A_PIPE = 1 << 20
"""What may still be unread when the last writer is gone. Where one could not be found, it may go on
writing.
"""


class Supervisor:
    """Runs one set of commands. ``signals`` must be installed; it is left holding. ``end``: of the segment
    that they train. ``link``: to the hosts that follow this one, or to the leader that it follows.
    """

    def __init__(
        self,
        signals: Signals,
        output: Output,
        grace_seconds: float,
        failure_grace_seconds: float,
        hang_seconds: Optional[float] = None,
        end: Optional[End] = None,
        link: "Optional[Link]" = None,
    ) -> None:
        self._signals = signals
        self._output = output
        self._grace = grace_seconds
        self._failure_grace = failure_grace_seconds
        self._commands: Sequence[Command] = ()
        self._begun = False
        """The ranks have been started."""
        self._ranks: List[Process] = []
        self._by_pid: Dict[int, Process] = {}
        self._streams: List[Stream] = []
        self._kill_at: Optional[float] = None
        self._stopped_by: Optional[int] = None
        self._end = end
        self._hang_seconds = hang_seconds
        self._watch: Optional[hang.Watch] = None
        self._hang: Optional[hang.Hang] = None
        self._aborted: List[int] = []
        self._overstayed: Optional[float] = None
        self._steps: "Deque[Step]" = deque()
        self._door: "Optional[Door]" = None
        self._services: List[Process] = []
        self._services_kill_at: Optional[float] = None
        self._lost: Optional[Process] = None
        """The service that ended before the ranks did."""
        self._unready: "Optional[Door]" = None
        self._link = link
        self._elsewhere: Optional[News] = None

    def run(self, commands: Sequence[Command], steps: "Sequence[Step]" = ()) -> Outcome:
        """Returns when every process is gone. Raises Unusable when one of them cannot be started."""
        self._signals.hold()
        self._commands, self._steps = commands, deque(steps)
        try:
            self._advance()
            orphans.adopt()
            self._look_after()
        finally:
            self._sweep()
        return self._outcome()

    def _advance(self) -> None:
        """Starts what may be started by now: services in their order, then the ranks."""
        if self._begun or self._kill_at is not None:
            return
        while self._steps and self._door is None:
            step = self._steps[0]
            if step.command is not None:
                self._services.append(self._start(step.command))
            if step.ready is None:
                self._steps.popleft()
            else:
                self._door = step.door()
        if self._steps:
            return
        if self._link is not None:
            self._link.say_ready()
            if self._link.leads and not self._link.everyone_ready:
                return
        self._begun = True
        for command in self._commands:
            self._ranks.append(self._start(command))
        if self._hang_seconds is not None and self._ranks:
            agents = {process.pid for process in self._ranks if process.command.outlets}
            services = {process.pid for process in self._services}
            self._watch = hang.Watch(self._hang_seconds, time.monotonic(), agents, services)

    def _start(self, command: Command) -> Process:
        process = spawn.start(command, self._output)
        self._by_pid[process.pid] = process
        self._streams += (process.stream, *process.rank_streams.values())
        return process

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
            if self._door is not None:
                poll.register(self._door.descriptor, select.POLLIN)
            for descriptor in self._link.descriptors() if self._link is not None else ():
                poll.register(descriptor, select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll(self._milliseconds_left())}
            # Ends first: a rank that was killed must be seen to be gone before its peers' complaints are
            # read.
            signals = self._signals.take()
            self._reap(stopping=not set(STOP).isdisjoint(signals))
            for number in signals:
                self._answer(number)
            self._end_when_due()
            self._kill_when_due()
            self._pump(ready)
            self._output.write()
            self._abort_when_hanging()
            self._go_through(ready)
            self._hear(ready)
            self._advance()

    def _unfinished(self) -> bool:
        """Ranks are running, or services, or somebody is still writing down the stacks of a hang."""
        if not self._ranks_are_over():
            return True
        self._end_services()
        if any(process.running for process in self._services):
            return True
        self._aborted = hang.still_there(self._aborted) if self._aborted else []
        return bool(self._aborted) and self._kill_at != float("inf")

    def _ranks_are_over(self) -> bool:
        """Also those that the leader has, and those that will never be started."""
        if any(process.running for process in self._ranks):
            return False
        if self._link is None or self._link.leads:
            return self._begun or self._kill_at is not None
        failed = self._lost is not None or self._unready is not None
        # Whoever was stopped before it has met the leader need not wait for its word.
        stopped = self._stopped_by is not None and not self._link.connected
        return failed or stopped or self._link.over is not None or self._kill_at == float("inf")

    def _end_services(self) -> None:
        """Once."""
        if self._services_kill_at is None:
            self._services_kill_at = time.monotonic() + _SERVICE_GRACE
            for process in self._services:
                if process.running:
                    process.stopped = True
                    spawn.send(process.pid, signal.SIGTERM)

    def _go_through(self, ready: Set[int]) -> None:
        """The door of a service that has opened, or will not."""
        door = self._door
        if door is None:
            return
        if door.descriptor in ready:
            self._steps.popleft()
        elif time.monotonic() >= door.gives_up and self._kill_at is None:
            self._unready = door
            self._stop_peers()
        elif self._kill_at is None:
            return
        door.close()
        self._door = None

    def _hear(self, ready: Set[int]) -> None:
        """What other hosts say. One that failed stops the leader's ranks; the leader's end is seen to by
        ``_ranks_are_over``.
        """
        link = self._link
        if link is None:
            return
        link.act(ready)
        if link.remark:
            self._output.put("smlaunch: {}\n".format(link.remark).encode())
        told = link.over is not None and self._elsewhere is None
        if told and link.leads and self._stopped_by is None and not self._ranks_are_over():
            self._elsewhere = link.over
            if self._kill_at is None:
                self._stop_peers()

    def _pump(self, ready: Set[int]) -> None:
        services = [process.stream for process in self._services]
        for stream in self._streams:
            if not (stream.open and stream.descriptor in ready and stream.pump()):
                continue
            if self._watch is not None and stream not in services:
                self._watch.heard()

    def _abort_when_hanging(self) -> None:
        if self._watch is None or self._kill_at is not None:
            return
        if self._output.full:
            self._watch.heard()  # ranks wait for whoever reads our output, not for each other
        if self._watch.is_hang(time.monotonic()):
            silent = [process for process in self._ranks if process.running]
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
        for process in self._ranks:
            if process.running:
                spawn.send(process.pid, number)

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

    def _reap(self, stopping: bool) -> None:
        """``stopping``: a stop has just come that has not been answered yet."""
        gone = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            process = self._by_pid.get(pid)
            if process is None:
                continue  # an orphan that came to us as its new parent
            process.status = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            process.ended = time.time()
            gone.append(process)
        if gone and self._kill_at is None:
            self._end_after(gone, stopping)

    def _end_after(self, gone: Sequence[Process], stopping: bool) -> None:
        """Where a service and a rank are gone at the same time, it is the rank that missed the service."""
        lost = [process for process in gone if process.command.service and not process.stopped]
        in_peace = bool(self._ranks) and all(process.status == 0 for process in self._ranks)
        if lost and not in_peace and not stopping:
            self._lost = lost[0]
        failed = any(process.status != 0 for process in gone if not process.command.service)
        if self._lost is not None or failed:
            self._stop_peers()

    def _stop_peers(self) -> None:
        self._kill_within(self._failure_grace)
        for process in self._ranks:
            if process.running:
                process.stopped = True
                spawn.send(process.pid, signal.SIGTERM)

    def _kill_within(self, seconds: float) -> None:
        due = time.monotonic() + seconds
        self._kill_at = due if self._kill_at is None else min(due, self._kill_at)

    def _kill_when_due(self) -> None:
        now = time.monotonic()
        if self._kill_at is not None and now >= self._kill_at:
            for process in self._ranks:
                if process.running:
                    spawn.kill_group(process.pid)
            self._kill_at = float("inf")
        if self._services_kill_at is not None and now >= self._services_kill_at:
            for process in self._services:
                if process.running:
                    spawn.kill_group(process.pid)
            self._services_kill_at = float("inf")

    def _milliseconds_left(self) -> Optional[int]:
        waits = [self._kill_at, self._services_kill_at]
        if self._kill_at is None:
            waits += [source.due for source in (self._watch, self._end) if source is not None]
            waits += [self._door.gives_up] if self._door is not None else []
            waits += [self._link.due] if self._link is not None else []
        due = min((at for at in waits if at is not None), default=float("inf"))
        if due == float("inf"):
            return None
        # poll takes no more than a C int.
        return min(max(0, int((due - time.monotonic()) * 1000) + 1), 86_400_000)

    def _sweep(self) -> None:
        """Kills what is left, then passes on what is still in the pipes: an orphan may hold them open for
        ever.
        """
        if self._door is not None:
            self._door.close()
        for process in self._by_pid.values():
            spawn.kill_group(process.pid)
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
        for process in self._by_pid.values():
            if process.running:
                os.waitpid(process.pid, 0)
                process.status = -signal.SIGKILL

    def _outcome(self) -> Outcome:
        outcome = Outcome(
            tuple(self._ended(process) for process in self._ranks),
            self._stopped_by,
            self._hang,
            self._overstayed,
            None if self._lost is None else self._ended(self._lost),
            None if self._unready is None else (self._unready.step.name, self._unready.problem),
        )
        link = self._link
        if link is None or (outcome.service or outcome.unready) is not None:
            return outcome
        if not link.leads:
            return outcome._replace(elsewhere=link.over)
        news, own = self._elsewhere, outcome.first_failure
        if news is None or (own is not None and news.began is not None and own.began < news.began):
            return outcome
        return outcome._replace(elsewhere=news)

    def _ended(self, process: Process) -> Ended:
        from smlaunch.runtime import tracebacks  # not before the ranks are started: they need not wait for it

        status = process.status if process.status is not None else 0
        tail = process.stream.tail()
        at = process.stream.traceback_at
        began = process.ended
        if status != 0 and at is not None and tracebacks.find(tail) is not None:
            began = min(began, at)
        rank = next(iter(process.command.ranks), None)
        tails = {rank: (stream.tail(), stream.traceback_at) for rank, stream in process.rank_streams.items()}
        service = process.command.service
        return Ended(rank, status, process.ended, began, tail, process.stopped, tails, service)
