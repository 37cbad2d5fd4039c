"""The ranks of an MPI program on this host: what they say, how they are signalled, how they end.

A launcher of somebody else's starts them, by mpi_rank.py, which tells here how each begins and ends.
"""

import json
import os
import signal
import time
from typing import Dict, List, Optional, Set

from smlaunch.runtime import mpi_rank, tracebacks
from smlaunch.runtime.mpi_report import RankEnd
from smlaunch.runtime.streams import Output, Stream

_TAIL = 1 << 14
"""Of a rank's last output, what is told to other hosts."""

_FLUSH_SECONDS = 5.0


class _Rank:
    def __init__(self, number: int, local_rank: int) -> None:
        self.number = number
        self.local_rank = local_rank
        self.pid: Optional[int] = None
        self.status: Optional[int] = None
        self.ended = 0.0
        self.stopped = False
        """Ended by its launcher, or by us because everything else was over."""

    def send(self, number: int) -> None:
        """Its number is its own until its parent has told of its end."""
        if self.pid is None or self.status is not None:
            return
        try:
            os.kill(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return


class Ranks:
    """``first``: the number of this host's first rank where the user's options do not deal them otherwise."""

    def __init__(self, folder: str, host: str, first: int, per_host: int, output: Output) -> None:
        self._host = host
        self._output = output
        self._rest = b""
        self._ranks: Dict[int, _Rank] = {}
        self._signalled: Optional[int] = None
        self._are_ended = False
        # For writing too, as the others: so it never ends before its first writer has come.
        self._events = os.open(os.path.join(folder, mpi_rank.EVENTS), os.O_RDWR | os.O_NONBLOCK)
        self._streams: Dict[int, Stream] = {}
        for local_rank in range(per_host):
            path = os.path.join(folder, mpi_rank.OUTPUT.format(local_rank))
            descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
            self._streams[local_rank] = Stream(descriptor, b"[%d] " % (first + local_rank), output)

    @property
    def settled(self) -> bool:
        """Whoever has begun here has ended."""
        return all(rank.status is not None for rank in self._ranks.values())

    def descriptors(self) -> List[int]:
        output = [] if self._output.full else [stream.descriptor for stream in self._streams.values()]
        return [self._events, *output]

    def pump(self, ready: Set[int]) -> None:
        for stream in self._streams.values():
            if stream.descriptor in ready:
                stream.pump()

    def drain(self) -> None:
        """What is left in the pipes, and all of it out of this process."""
        give_up = time.monotonic() + _FLUSH_SECONDS
        for stream in self._streams.values():
            while time.monotonic() < give_up and stream.pump():
                if self._output.full:
                    self._output.flush(give_up)
        self._output.flush(give_up)

    def hear(self) -> List[RankEnd]:
        """The ends that have been told of since the last call."""
        try:
            while True:
                self._rest += os.read(self._events, 1 << 16)
        except BlockingIOError:
            pass
        lines = self._rest.split(b"\n")
        self._rest = lines.pop()
        told = [self._hear_one(*json.loads(line.decode())) for line in lines]
        return [end for end in told if end is not None]

    def _hear_one(
        self, what: str, number: int, local_rank: int, value: int, at: float, stopped: bool
    ) -> Optional[RankEnd]:
        if what == mpi_rank.BEGINS:
            self._ranks[number] = _Rank(number, local_rank)
            if local_rank in self._streams:
                self._streams[local_rank].prefix = b"[%d] " % number
            return None
        rank = self._ranks[number]
        if what == mpi_rank.STARTED:
            rank.pid = value
            if self._signalled is not None:
                rank.send(self._signalled)
            return None
        rank.status, rank.ended, rank.stopped = value, at, stopped or rank.stopped or self._are_ended
        return RankEnd(number, self._host, value, at, at, "", rank.stopped)

    def signal(self, number: int, also_later: bool) -> None:
        """To each rank, not to its children. ``also_later``: to those too that have not been started yet."""
        if also_later:
            self._signalled = number
        for rank in self._ranks.values():
            rank.send(number)

    def are_ended(self) -> None:
        """By somebody else: whoever ends from now on has not failed by itself."""
        self._are_ended = True

    def kill(self) -> None:
        """What its launcher has left behind."""
        for rank in self._ranks.values():
            if rank.status is None:
                rank.stopped = True
                rank.send(signal.SIGKILL)

    def ends(self) -> List[RankEnd]:
        """All that is known of them, with what they have said last."""
        self.drain()
        return [self._end(rank) for rank in self._ranks.values()]

    def _end(self, rank: _Rank) -> RankEnd:
        stream = self._streams.get(rank.local_rank)
        tail = "" if stream is None else stream.tail()[-_TAIL:]
        ended = began = rank.ended or time.time()
        at = None if stream is None else stream.traceback_at
        if at is not None and rank.status != 0 and tracebacks.find(tail) is not None:
            began = min(began, at)
        return RankEnd(rank.number, self._host, rank.status, ended, began, tail, rank.stopped)
