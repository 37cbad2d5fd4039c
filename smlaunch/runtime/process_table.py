"""The processes of this machine, from /proc. Outside Linux the list is empty."""

import os
import sys
from typing import Dict, List, NamedTuple


class ProcessInfo(NamedTuple):
    """What /proc says of a process. ``cpu_ticks``: CPU time of the process and of its children that have
    exited and been waited for.
    """

    parent_pid: int
    cpu_ticks: int


def list_processes() -> Dict[int, ProcessInfo]:
    """Return all processes of this machine, without zombies, by their pids; none outside Linux."""
    processes: Dict[int, ProcessInfo] = {}
    if not sys.platform.startswith("linux"):
        return processes
    for pid_text in os.listdir("/proc"):
        if not pid_text.isdigit():
            continue  # not the directory of a process
        try:
            with open("/proc/{}/stat".format(pid_text), "rb") as file:
                # The program's name, in parentheses, may itself hold spaces and parentheses.
                fields = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        # proc(5): state, parent, ... and, as fields 14 to 17, utime, stime, cutime, cstime
        state, parent_pid, cpu_ticks = fields[0], int(fields[1]), sum(map(int, fields[11:15]))
        if state not in (b"Z", b"X"):  # zombie, dead
            processes[int(pid_text)] = ProcessInfo(parent_pid, cpu_ticks)
    return processes


def descendants_of(root_pid: int, processes: Dict[int, ProcessInfo]) -> List[int]:
    """Return the pids of all descendants of ``root_pid``, parents before their children."""
    children: Dict[int, List[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent_pid, []).append(pid)
    descendants: List[int] = []
    generation = children.get(root_pid, [])
    while generation:
        descendants.extend(generation)
        generation = [child for pid in generation for child in children.get(pid, [])]
    return descendants
