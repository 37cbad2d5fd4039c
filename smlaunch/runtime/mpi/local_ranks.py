"""The ranks of an MPI program on this host: their output, signals and exits.

The MPI's launcher starts them through rank_wrapper.py, which reports here when each starts and exits.
"""

import json
import os
import signal
import time
from typing import Dict, List, Optional, Set

from smlaunch.runtime import tracebacks
from smlaunch.runtime.log_streams import HostOutput, ProcessOutput
from smlaunch.runtime.mpi import rank_wrapper as mpi_rank
from smlaunch.runtime.mpi.report import RankExit

_TAIL_CHARACTERS = 1 << 14
"""How much of the end of a rank's output goes to other hosts."""

_FLUSH_SECONDS = 5.0


class _LocalRank:
    """A rank of this host."""

    def __init__(self, number: int, local_rank: int) -> None:
        self.rank = number
        self.local_rank = local_rank
        self.pid: Optional[int] = None
        self.status: Optional[int] = None
        self.ended_at = 0.0
        self.was_stopped = False
        """Ended by its launcher, or by us because everything else was over."""

    def send_signal(self, signal_number: int) -> None:
        """Send a signal. The pid is valid until its parent has reported its exit."""
        if self.pid is None or self.status is not None:
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
        self._later_signal: Optional[int] = None
        self._is_stopped = False
        # O_RDWR: without a writer of its own it would be at its end before the first rank opens it.
        self._events = os.open(os.path.join(folder, mpi_rank.EVENTS_FIFO), os.O_RDWR | os.O_NONBLOCK)
        self._outputs: Dict[int, ProcessOutput] = {}
        for local_rank in range(per_host):
            path = os.path.join(folder, mpi_rank.OUTPUT_FIFO.format(local_rank))
            descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
            self._outputs[local_rank] = ProcessOutput(
                descriptor, b"[%d] " % (first_rank + local_rank), output
            )

    @property
    def all_exited(self) -> bool:
        """Every rank that has started has exited."""
        return all(rank.status is not None for rank in self._rank_by_number.values())

    def descriptors(self) -> List[int]:
        output_fds = [] if self._output.is_full else [output.descriptor for output in self._outputs.values()]
        return [self._events, *output_fds]

    def pump(self, ready: Set[int]) -> None:
        for output in self._outputs.values():
            if output.descriptor in ready:
                output.pump()

    def drain(self) -> None:
        """Read what is left in the pipes and write it out."""
        deadline = time.monotonic() + _FLUSH_SECONDS
        for output in self._outputs.values():
            while time.monotonic() < deadline and output.pump():
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
        rank_exits = [self._apply_event(*json.loads(line.decode())) for line in lines]
        return [rank_exit for rank_exit in rank_exits if rank_exit is not None]

    def _apply_event(
        self, event: str, rank_number: int, local_rank: int, value: int, exited_at: float, was_stopped: bool
    ) -> Optional[RankExit]:
        """Note what a rank's parent has reported. Returns how the rank ended, if it did."""
        if event == mpi_rank.EVENT_BEGINS:
            self._rank_by_number[rank_number] = _LocalRank(rank_number, local_rank)
            if local_rank in self._outputs:
                self._outputs[local_rank].prefix = b"[%d] " % rank_number
            return None
        rank = self._rank_by_number[rank_number]
        if event == mpi_rank.EVENT_STARTED:
            rank.pid = value
            if self._later_signal is not None:
                rank.send_signal(self._later_signal)
            return None
        rank.status, rank.ended_at, rank.was_stopped = (
            value,
            exited_at,
            was_stopped or rank.was_stopped or self._is_stopped,
        )
        return RankExit(rank_number, self._host, value, exited_at, exited_at, "", rank.was_stopped)

    def send_signal(self, signal_number: int, include_later: bool) -> None:
        """Signal each rank, not its children. ``include_later``: also ranks that start later."""
        if include_later:
            self._later_signal = signal_number
        for rank in self._rank_by_number.values():
            rank.send_signal(signal_number)

    def mark_stopped(self) -> None:
        """Ranks that exit from now on were stopped by others, and have not failed."""
        self._is_stopped = True

    def kill_remaining(self) -> None:
        """Kill the ranks that the launcher has left running."""
        for rank in self._rank_by_number.values():
            if rank.status is None:
                rank.was_stopped = True
                rank.send_signal(signal.SIGKILL)

    def collect_exits(self) -> List[RankExit]:
        """Return how every rank ended, with the end of its output."""
        self.drain()
        return [self._rank_exit(rank) for rank in self._rank_by_number.values()]

    def _rank_exit(self, rank: _LocalRank) -> RankExit:
        """Return how a rank ended, with the end of its output."""
        output = self._outputs.get(rank.local_rank)
        output_tail = "" if output is None else output.tail()[-_TAIL_CHARACTERS:]
        ended_at = failed_at = rank.ended_at or time.time()
        traceback_at = None if output is None else output.traceback_at
        if traceback_at is not None and rank.status != 0 and tracebacks.find_cause(output_tail) is not None:
            failed_at = min(failed_at, traceback_at)
        return RankExit(
            rank.rank, self._host, rank.status, ended_at, failed_at, output_tail, rank.was_stopped
        )
