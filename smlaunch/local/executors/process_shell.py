"""Finds the process of a running host that a shell is opened beside."""

from __future__ import annotations

import math
import sys
from contextlib import suppress
from pathlib import Path

from smlaunch.local.executors.process_cleanup import find_processes_of_owner
from smlaunch.local.executors.supervised_host import SUPERVISOR_SCRIPT


def shell_command(host_owner: str) -> list[str] | None:
    """Return the command of a shell like a child of the host's first rank, or of its first process where no
    rank runs; None where no process of the host does. ``host_owner`` is ENDPOINT_ID/JOB/HOST/."""
    pids = find_processes_of_owner(host_owner)
    if not pids:
        return None
    pid = min(pids, key=lambda pid: (_local_rank_of(pid), pid))
    return [sys.executable, "-I", "-S", str(SUPERVISOR_SCRIPT), "shell", str(pid)]


def _local_rank_of(pid: int) -> float:
    """Return the process's variable LOCAL_RANK; infinity for a process without one, or that has ended."""
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name == b"LOCAL_RANK" and value.isdigit():
                return float(value)
    return math.inf
