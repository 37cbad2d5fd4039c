"""Hang detection: for a set time no rank of this host prints anything or uses the CPU.

The time is divided into samples, and the supervisor's loop wakes up for each; that many silent samples in a
row are a hang. A rank that waits busily, as NCCL does, uses the CPU and does not count as hanging; the
library has time-outs of its own for that. CPU use is measured on Linux only; elsewhere only output counts.
"""

import os
import signal
from typing import Collection, Dict, List, NamedTuple, Sequence, Tuple

from smlaunch.runtime import process_table

HANG_EXIT_CODE = 124
"""The exit code of timeout(1)."""

_SAMPLE_COUNT = 8
_IDLE_CPU_SHARE = 0.005
"""Share of one CPU below which a rank counts as idle. Library threads that only wake up and sleep again stay
far below it.
"""


class Hang(NamedTuple):
    """A hang that was detected."""

    silent_seconds: float
    """How long nothing happened."""

    silent_ranks: Tuple[int, ...]
    """The silent ranks; empty for a host without ranks."""


class HangDetector:
    """Detects a hang of this process's children. Times are of time.monotonic."""

    def __init__(
        self, seconds: float, now: float, launchers: Collection[int] = (), services: Collection[int] = ()
    ) -> None:
        """``seconds``: how long a silence counts as a hang. ``launchers``: pids of processes that start ranks
        and are no ranks; a launcher polls its ranks (torchrun ten times a second), so its CPU time does
        not count. ``services``: pids of services; their work, and that of their descendants, is not the
        ranks' work.
        """
        self.timeout_seconds = seconds
        self._launchers = launchers
        self._services = services
        self._sample_seconds = seconds / _SAMPLE_COUNT
        self._sampled_at = now
        self._cpu_seconds_by_child = _read_cpu_seconds_by_child(launchers, services)
        self._had_output = False
        self._silent_samples = 0

    @property
    def next_sample_at(self) -> float:
        """When to call ``detect_hang`` next."""
        return self._sampled_at + self._sample_seconds

    def record_output(self) -> None:
        """Note that a rank has printed something."""
        self._had_output = True

    def detect_hang(self, now: float) -> bool:
        """Take a sample of the ranks' CPU times and output if one is due. Return whether the last
        ``_SAMPLE_COUNT`` (8) samples in a row were silent. Samples are counted, not seconds: a machine that
        was suspended in between was not silent all the time.
        """
        if now < self.next_sample_at:
            return False
        cpu_seconds_by_child = _read_cpu_seconds_by_child(self._launchers, self._services)
        used_cpu = _is_busy(self._cpu_seconds_by_child, cpu_seconds_by_child, now - self._sampled_at)
        self._silent_samples = 0 if self._had_output or used_cpu else self._silent_samples + 1
        self._sampled_at, self._cpu_seconds_by_child, self._had_output = now, cpu_seconds_by_child, False
        return self._silent_samples >= _SAMPLE_COUNT


def abort_processes(pids: Sequence[int]) -> List[int]:
    """Send SIGABRT to these processes; return the pids it was sent to. Python writes the stacks of all
    threads on SIGABRT (PYTHONFAULTHANDLER), then exits.
    """
    aborted_pids = []
    for pid in pids:
        _disable_core_dump(pid)
        try:
            os.kill(pid, signal.SIGABRT)
        except (ProcessLookupError, PermissionError):
            continue
        aborted_pids.append(pid)
    return aborted_pids


def list_living_pids(pids: Sequence[int]) -> List[int]:
    """Return the pids of processes that still exist."""
    processes_by_pid = process_table.list_processes()
    return [pid for pid in pids if pid in processes_by_pid]


def _disable_core_dump(pid: int) -> None:
    """Set the limit of a core dump to 0: that of a training process would fill the disk and take minutes to
    write."""
    try:
        import resource

        prlimit = resource.prlimit
    except (ImportError, AttributeError):  # not Linux
        return
    try:
        prlimit(pid, resource.RLIMIT_CORE, (0, prlimit(pid, resource.RLIMIT_CORE)[1]))
    except (ProcessLookupError, PermissionError):
        return


def _read_cpu_seconds_by_child(launchers: Collection[int], services: Collection[int]) -> Dict[int, float]:
    """Return the CPU time of each child of this process and its descendants, by the child's pid. Of a
    launcher only the descendants count; services are left out. ``launchers``, ``services``: pids.
    """
    processes_by_pid = process_table.list_processes()
    ticks_per_second = os.sysconf("SC_CLK_TCK")
    own_pid = os.getpid()
    cpu_seconds_by_child: Dict[int, float] = {}
    for child, process in processes_by_pid.items():
        if process.parent_pid != own_pid or child in services:
            continue
        cpu_ticks = 0 if child in launchers else process.cpu_ticks
        for descendant in process_table.descendants_of(child, processes_by_pid):
            cpu_ticks += processes_by_pid[descendant].cpu_ticks
        cpu_seconds_by_child[child] = cpu_ticks / ticks_per_second
    return cpu_seconds_by_child


def _is_busy(before: Dict[int, float], after: Dict[int, float], elapsed_seconds: float) -> bool:
    """Return whether any child used the CPU between two samples, or a child started or exited."""
    if before.keys() != after.keys():
        return True
    # abs: the sum becomes smaller when a descendant exits and is not waited for.
    return any(abs(after[child] - before[child]) > _IDLE_CPU_SHARE * elapsed_seconds for child in after)
