"""SIGKILL for a rank, from outside: no chance to save anything, as when a machine loses power."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from smlaunch.protocol import segment

_PROC = Path("/proc")


def can_kill() -> bool:
    """Whether ranks can be found by what their environment says (Linux)."""
    return (_PROC / "self" / "environ").exists()


def kill_rank(job: str, rank: int) -> bool:
    """Kills one rank of a job on this machine; where ranks have no numbers, as with the strategy custom, one
    of its processes. False when there is none (any more)."""
    theirs = {pid: found for pid in _pids() if (found := _process_of(pid, job)) is not None}
    # Loader workers have their rank's environment: those above them are the ranks.
    ranks = sorted((found.rank or 0, pid) for pid, found in theirs.items() if found.parent not in theirs)
    numbered = [pid for number, pid in ranks if number == rank]
    chosen = numbered or [pid for _, pid in ranks[rank % len(ranks) :]] if ranks else []
    with suppress(ProcessLookupError):
        for pid in chosen[:1]:
            os.kill(pid, signal.SIGKILL)
            return True
    return False


class _Process(NamedTuple):
    parent: int
    rank: int | None


def _pids() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]


def _process_of(pid: int, job: str) -> _Process | None:
    """None for a process of something else."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
        if f"{segment.JOB}={job}".encode() not in environment:
            return None
        # "pid (name) state parent ...": the name may hold anything, also parentheses.
        stat = (_PROC / str(pid) / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    numbers = [word[5:] for word in environment if word.startswith(b"RANK=") and word[5:].isdigit()]
    return _Process(int(stat[1]), int(numbers[0]) if numbers else None)
