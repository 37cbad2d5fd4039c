"""A hang: for a set time no rank of this host prints anything, and none uses the CPU.

The time is cut into a few samples, and the supervisor's loop wakes up for each: that many silent ones in a
row are a hang. A rank that waits busily, as NCCL does, uses the CPU and is not taken for one; the library's
own time-outs are for that. CPU use is seen on Linux only; elsewhere output alone counts.
"""

import os
import signal
from typing import Collection, Dict, List, NamedTuple, Sequence, Tuple

from smlaunch.runtime import processes

EXIT_CODE = 124
"""As timeout(1) has it."""

_SAMPLES = 8
_IDLE = 0.005
"""Share of one CPU below which a rank does nothing: the threads of a library that wake up now and then to
find nothing to do stay far below it.
"""


class Hang(NamedTuple):
    """``ranks``: who was silent; empty for a host without ranks. ``seconds``: for how long."""

    seconds: float
    ranks: Tuple[int, ...]


class Watch:
    """Times are of time.monotonic. ``agents``: processes that start ranks and are none themselves; one that
    looks after its ranks ten times a second, as torchrun does, is not at work. ``others``: services; what
    they and those below them do is not the ranks' work.
    """

    def __init__(
        self, seconds: float, now: float, agents: Collection[int] = (), others: Collection[int] = ()
    ) -> None:
        self.seconds = seconds
        self._agents = agents
        self._others = others
        self._step = seconds / _SAMPLES
        self._sampled = now
        self._used = _cpu_seconds(agents, others)
        self._heard = False
        self._silent = 0

    @property
    def due(self) -> float:
        """When to ask next."""
        return self._sampled + self._step

    def heard(self) -> None:
        """Somebody has printed something."""
        self._heard = True

    def is_hang(self, now: float) -> bool:
        """Samples are counted, not seconds: a machine that slept in between has not been silent all the
        time.
        """
        if now < self.due:
            return False
        used = _cpu_seconds(self._agents, self._others)
        if self._heard or _is_busy(self._used, used, now - self._sampled):
            self._silent = 0
        else:
            self._silent += 1
        self._sampled, self._used, self._heard = now, used, False
        return self._silent >= _SAMPLES


def abort(pids: Sequence[int]) -> List[int]:
    """SIGABRT, on which Python writes the stacks of all threads (PYTHONFAULTHANDLER) and ends: for these
    processes first, then for all others below this one. Returns whom it was sent to.
    """
    others = [pid for pid in processes.below(os.getpid(), processes.living()) if pid not in set(pids)]
    sent = []
    for pid in (*pids, *others):
        _leave_no_core(pid)
        try:
            os.kill(pid, signal.SIGABRT)
        except (ProcessLookupError, PermissionError):
            continue
        sent.append(pid)
    return sent


def still_there(pids: Sequence[int]) -> List[int]:
    living = processes.living()
    return [pid for pid in pids if pid in living]


def _leave_no_core(pid: int) -> None:
    """An image of a training process's memory would fill the disk, and take minutes to write."""
    try:
        import resource

        prlimit = resource.prlimit
    except (ImportError, AttributeError):  # not Linux
        return
    try:
        prlimit(pid, resource.RLIMIT_CORE, (0, prlimit(pid, resource.RLIMIT_CORE)[1]))
    except (ProcessLookupError, PermissionError):
        return


def _cpu_seconds(agents: Collection[int], others: Collection[int]) -> Dict[int, float]:
    """What each child of this process has used, with all that is below it; of an agent only what is below, of
    the ``others`` nothing.
    """
    living = processes.living()
    per_second = os.sysconf("SC_CLK_TCK")
    own = os.getpid()
    return {
        child: sum(living[pid].ticks for pid in _at_work(child, agents, living)) / per_second
        for child, seen in living.items()
        if seen.parent == own and child not in others
    }


def _at_work(child: int, agents: Collection[int], living: Dict[int, processes.Seen]) -> List[int]:
    own = [] if child in agents else [child]
    return own + processes.below(child, living)


def _is_busy(before: Dict[int, float], after: Dict[int, float], elapsed: float) -> bool:
    """That a process came or went is something happening as well."""
    if before.keys() != after.keys():
        return True
    # Where a process has ended that nobody waited for, its time is gone from the sum.
    return any(abs(after[child] - before[child]) > _IDLE * elapsed for child in after)
