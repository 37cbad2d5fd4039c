"""Kills a rank with SIGKILL, so that it can save nothing, as when a machine loses power."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NamedTuple

from smlaunch.contract import segment

_PROC = Path("/proc")


def can_kill() -> bool:
    """Return whether ranks can be found by their environment (Linux)."""
    return (_PROC / "self" / "environ").exists()


def kill_rank(job_name: str, rank: int) -> bool:
    """Kill one rank of a job on this machine by SIGKILL. Returns False when the job has no process left.

    Where ranks have no numbers, as with the strategy custom (a script that starts its processes itself), one
    of the job's processes is killed.
    """
    process_by_pid: dict[int, _JobProcess] = {}
    for pid in _list_pids():
        process = _read_process_of_job(pid, job_name)
        if process is not None:
            process_by_pid[pid] = process
    # DataLoader workers inherit their rank's environment. Their parent is a process of the job, a rank's is
    # not.
    rank_by_pid = {
        pid: process.rank or 0  # None: its ranks have no numbers
        for pid, process in process_by_pid.items()
        if process.parent_pid not in process_by_pid
    }
    if not rank_by_pid:
        return False
    pids = sorted(rank_by_pid, key=lambda pid: (rank_by_pid[pid], pid))
    pids_of_rank = [pid for pid in pids if rank_by_pid[pid] == rank]
    victim_pid = pids_of_rank[0] if pids_of_rank else pids[rank % len(pids)]
    try:
        os.kill(victim_pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


class _JobProcess(NamedTuple):
    parent_pid: int
    rank: int | None


def _list_pids() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]


def _read_process_of_job(pid: int, job_name: str) -> _JobProcess | None:
    """Return parent and rank of a process on this machine, read from /proc; None if it does not belong to the
    job or has ended. The environment of a job's processes contains the job's name."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
        if f"{segment.JOB_VARIABLE}={job_name}".encode() not in environment:
            return None
        # "pid (name) state parent ...": the name may hold anything, also parentheses.
        stat_fields = (_PROC / str(pid) / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    rank_values = [
        variable.removeprefix(b"RANK=") for variable in environment if variable.startswith(b"RANK=")
    ]
    rank_numbers = [int(value) for value in rank_values if value.isdigit()]
    _, parent_pid = stat_fields[:2]  # state and parent
    return _JobProcess(parent_pid=int(parent_pid), rank=rank_numbers[0] if rank_numbers else None)
