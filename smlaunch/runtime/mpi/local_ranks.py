"""The ranks of an MPI program on this host: their output, signals and exits.

The MPI's launcher starts them through rank_wrapper.py, which reports here when each starts and exits.
"""

import json
import os
import signal
import time
from typing import Dict, List, Optional, Set

from smlaunch.runtime import hang_detector, process_table, tracebacks
from smlaunch.runtime.log_streams import HostOutput, ProcessOutput
from smlaunch.runtime.mpi import rank_wrapper
from smlaunch.runtime.mpi.report import RankExit

_TAIL_CHARACTERS = 1 << 14
"""How much of the end of a rank's output goes to other hosts."""

_FLUSH_SECONDS = 5.0


class _LocalRank:
    """A rank of this host."""

    def __init__(self, number: int, local_rank: int, parent_pid: int) -> None:
        self.rank = number
        self.local_rank = local_rank
        self.parent_pid = parent_pid
        self.pid: Optional[int] = None
        self.status: Optional[int] = None
        self.ended_at = 0.0
        self.was_stopped = False
        """Ended by its launcher, or by us because everything else was over."""

    def send_signal(self, signal_number: int) -> None:
        """Send the rank a signal if it runs."""
        if self.pid is None or self.status is not None:  # not started yet, or its exit was reported
            return
        try:
            os.kill(self.pid, signal_number)
        except (ProcessLookupError, PermissionError):
            return


class LocalRanks:
    """``first_rank``: number of this host's first rank, unless the user's options distribute
    them otherwise.
    """

    def __init__(self, folder: str, host: str, first_rank: int, per_host: int, output: HostOutput) -> None:
        self._host = host
        self._output = output
        self._partial_event = b""
        self._rank_by_number: Dict[int, _LocalRank] = {}
        self._signal_for_later_ranks: Optional[int] = None
        self._is_stopped = False
        # O_RDWR: without a writer of its own it would be at its end before the first rank opens it.
        self._events = os.open(os.path.join(folder, rank_wrapper.EVENTS_FIFO), os.O_RDWR | os.O_NONBLOCK)
        self._outputs: Dict[int, ProcessOutput] = {}
        for local_rank in range(per_host):
            path = os.path.join(folder, rank_wrapper.OUTPUT_FIFO.format(local_rank))
            descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
            self._outputs[local_rank] = ProcessOutput(
                descriptor, b"[%d] " % (first_rank + local_rank), output
            )

    @property
    def all_exited(self) -> bool:
        """Every rank that has started has exited."""
        return all(rank.status is not None for rank in self._rank_by_number.values())

    def descriptors_to_poll(self) -> List[int]:
        output_fds = [] if self._output.is_full else [output.descriptor for output in self._outputs.values()]
        return [self._events, *output_fds]

    def forward_output(self, ready_fds: Set[int]) -> None:
        for output in self._outputs.values():
            if output.descriptor in ready_fds:
                output.forward_block()

    def forward_remaining_output(self) -> None:
        """Forward what is left in the ranks' pipes to the host's output, within ``_FLUSH_SECONDS`` (5)."""
        deadline = time.monotonic() + _FLUSH_SECONDS
        for output in self._outputs.values():
            while time.monotonic() < deadline and output.forward_block():  # 0 bytes: the pipe is empty
                if self._output.is_full:
                    self._output.flush(deadline)
        self._output.flush(deadline)

    def read_events(self) -> List[RankExit]:
        """Return the exits reported since the last call."""
        try:
            while True:
                self._partial_event += os.read(self._events, 1 << 16)
        except BlockingIOError:
            pass
        lines = self._partial_event.split(b"\n")
        self._partial_event = lines.pop()
        rank_exits = []
        for line in lines:
            event = rank_wrapper.RankEvent(*json.loads(line.decode()))
            if event.kind == rank_wrapper.EVENT_PARENT_STARTED:
                self._add_rank(event)
            elif event.kind == rank_wrapper.EVENT_RANK_STARTED:
                self._record_start(self._rank_by_number[event.rank], pid=event.value)
            else:
                rank_exits.append(self._record_exit(self._rank_by_number[event.rank], event))
        return rank_exits

    def _add_rank(self, event: rank_wrapper.RankEvent) -> None:
        """Add a rank whose parent process has started. Only now it is known which rank writes to the output
        of this local rank, its number on the host.
        """
        self._rank_by_number[event.rank] = _LocalRank(event.rank, event.local_rank, parent_pid=event.value)
        if event.local_rank in self._outputs:
            self._outputs[event.local_rank].prefix = b"[%d] " % event.rank

    def _record_start(self, rank: _LocalRank, pid: int) -> None:
        rank.pid = pid
        if self._signal_for_later_ranks is not None:  # a stop signal that came before this rank had started
            rank.send_signal(self._signal_for_later_ranks)

    def _record_exit(self, rank: _LocalRank, event: rank_wrapper.RankEvent) -> RankExit:
        rank.status, rank.ended_at = event.value, event.time
        rank.was_stopped = event.was_stopped or rank.was_stopped or self._is_stopped
        return RankExit(
            rank=event.rank,
            host=self._host,
            status=event.value,
            ended_at=event.time,
            failed_at=event.time,  # ``collect_exits`` later finds an exception that came before the exit
            output_tail="",
            was_stopped=rank.was_stopped,
        )

    def send_signal(self, signal_number: int, include_later: bool) -> None:
        """Signal each rank, not its children. ``include_later``: also ranks that start later."""
        if include_later:
            self._signal_for_later_ranks = signal_number
        for rank in self._rank_by_number.values():
            rank.send_signal(signal_number)

    def abort(self) -> None:
        """Make every rank print its stacks and exit. Ranks that exit from now on were stopped, and have not
        failed. mpirun, its daemons and the parent of each rank stay: as soon as one of them is gone, mpirun
        kills the other ranks, which may not have printed anything yet.
        """
        self._is_stopped = True
        running_ranks = [rank for rank in self._rank_by_number.values() if rank.status is None]
        # First the parents: from now on they do not tell mpirun that their rank has exited.
        hang_detector.abort_processes([rank.parent_pid for rank in running_ranks])
        rank_pids = [rank.pid for rank in running_ranks if rank.pid is not None]
        processes_by_pid = process_table.list_processes()
        hang_detector.abort_processes(
            rank_pids
            + [pid for rank in rank_pids for pid in process_table.descendants_of(rank, processes_by_pid)]
        )

    def kill_remaining(self) -> None:
        """Kill the ranks that the launcher has left running."""
        for rank in self._rank_by_number.values():
            if rank.status is None:
                rank.was_stopped = True
                rank.send_signal(signal.SIGKILL)

    def collect_exits(self) -> List[RankExit]:
        """Return how every rank ended, with the end of its output."""
        self.forward_remaining_output()
        return [self._describe_exit(rank) for rank in self._rank_by_number.values()]

    def _describe_exit(self, rank: _LocalRank) -> RankExit:
        """Return how a rank ended, with the end of its output. Its failure counts from the time at which its
        last traceback was printed, where that ended it. A rank that has not exited ends now.
        """
        output = self._outputs.get(rank.local_rank)
        output_tail = "" if output is None else output.tail()[-_TAIL_CHARACTERS:]  # the last 16 Ki
        ended_at = failed_at = rank.ended_at or time.time()
        traceback_at = None if output is None else output.traceback_at
        if traceback_at is not None and rank.status != 0 and tracebacks.find_cause(output_tail) is not None:
            failed_at = min(failed_at, traceback_at)
        return RankExit(
            rank=rank.rank,
            host=self._host,
            status=rank.status,
            ended_at=ended_at,
            failed_at=failed_at,
            output_tail=output_tail,
            was_stopped=rank.was_stopped,
        )
