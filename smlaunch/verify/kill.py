"""Kills a rank with SIGKILL, so that it can save nothing, as when a machine loses power."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from smlaunch.contract import segment

_PROC = Path("/proc")


def can_kill() -> bool:
    """Return whether ranks can be found by their environment (Linux)."""
    return (_PROC / "self" / "environ").exists()


def kill_rank(job: str, rank: int) -> bool:
    """Kill one rank of a job on this machine. Returns False when there is no such process.

    Where ranks have no numbers, as with the strategy custom, one of the job's processes is killed.
    """
    process_by_pid = {pid: process for pid in _pids() if (process := _find_process(pid, job)) is not None}
    # Loader workers have their rank's environment; their parents are the ranks.
    ranks = sorted(
        (process.rank or 0, pid)
        for pid, process in process_by_pid.items()
        if process.parent not in process_by_pid
    )
    matching_pids = [pid for found_rank, pid in ranks if found_rank == rank]
    candidate_pids = matching_pids or [pid for _, pid in ranks[rank % len(ranks) :]] if ranks else []
    with suppress(ProcessLookupError):
        for pid in candidate_pids[:1]:
            os.kill(pid, signal.SIGKILL)
            return True
    return False


class _Process(NamedTuple):
    parent: int
    rank: int | None


def _pids() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]


def _find_process(pid: int, job: str) -> _Process | None:
    """Return the process, or None if it does not belong to the job."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
        if f"{segment.JOB_VARIABLE}={job}".encode() not in environment:
            return None
        # "pid (name) state parent ...": the name may hold anything, also parentheses.
        stat_fields = (_PROC / str(pid) / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    rank_numbers = [
        variable[5:] for variable in environment if variable.startswith(b"RANK=") and variable[5:].isdigit()
    ]
    return _Process(int(stat_fields[1]), int(rank_numbers[0]) if rank_numbers else None)
