"""Finds and kills processes where no namespace does that. The supervisor loads this module, so it imports
little."""

# ruff: noqa: PTH112, PTH123, PTH208
from __future__ import annotations

import os
import select
import signal
import sys

from smlaunch.local.executors.host_plan import OWNER_VARIABLE

_MAX_KILL_ROUNDS = 20
"""Each round finds the processes that were started during the previous one."""
_MAX_WAIT_MS = 5000
_LINUX = sys.platform == "linux"


def find_descendants(ancestor: int) -> list[int]:
    """Return the pids of all current descendants of ``ancestor``."""
    children: dict[int, list[int]] = {}
    for pid, parent in _pids_with_parents():
        children.setdefault(parent, []).append(pid)
    result: list[int] = []
    unvisited = [ancestor]
    while unvisited:
        child_pids = children.get(unvisited.pop(), [])
        result += child_pids
        unvisited += child_pids
    return result


def find_processes_of_owner(owner_prefix: str) -> list[int]:
    """Return the pids of this user's processes whose OWNER_VARIABLE begins with ``owner_prefix``. Empty
    except on Linux, as other systems do not show another process's environment."""
    entry_prefix = f"{OWNER_VARIABLE}={owner_prefix}".encode()
    return [
        pid
        for pid in _all_pids()
        if any(entry.startswith(entry_prefix) for entry in _read_file(f"/proc/{pid}/environ").split(b"\0"))
    ]


def kill_processes(pids: list[int]) -> int:
    """Send SIGKILL to each process, and return how many of them existed."""
    return sum(_kill_process(pid) for pid in pids)


def kill_processes_of_owner(owner_prefix: str) -> int:
    """Kill this user's processes whose environment has OWNER_VARIABLE (SMLAUNCH_OWNER) with a value that
    begins with ``owner_prefix`` (ENDPOINT_ID/ or ENDPOINT_ID/JOB/), and wait for their ends. Return how many
    were killed. 0 except on Linux, where alone the environment of other processes can be read."""
    killed_count = 0
    # A process may start another one before it is killed: the next round finds that.
    for _ in range(_MAX_KILL_ROUNDS):  # 20
        pids = find_processes_of_owner(owner_prefix)
        if not pids:
            break
        # Opened before the kill, so that the end of each process can be waited for.
        pidfds = [pidfd for pidfd in map(_open_pidfd, pids) if pidfd is not None]
        killed_count += kill_processes(pids)
        for pidfd in pidfds:
            # A pidfd becomes readable when its process ends. The wait is limited: a process may hang in the
            # kernel.
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            poll.poll(_MAX_WAIT_MS)
            os.close(pidfd)
    return killed_count


def _open_pidfd(pid: int) -> int | None:
    """Return a pidfd, the only way to wait for a process that is not a child; None if the process has
    ended."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def kill_descendants() -> None:
    """Kill and reap all descendants of this process.

    A process that was started after the list of descendants was read is found in the next round, since
    orphans become children of this process (``adopt_orphans``).
    """
    while True:
        kill_processes(find_descendants(os.getpid()))
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _kill_process(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _pids_with_parents() -> list[tuple[int, int]]:
    """Return the pid and the parent's pid of each process."""
    if not _LINUX:
        import subprocess

        ps_output = subprocess.run(
            ["ps", "-axo", "pid=,ppid="],  # noqa: S607
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        return [(int(pid), int(parent_pid)) for pid, parent_pid in map(str.split, ps_output.splitlines())]
    pids_with_parents = []
    for pid in _all_pids():
        stat_line = _read_file(f"/proc/{pid}/stat")  # PID (COMMAND) STATE PARENT_PID ...
        if stat_line:  # empty: the process has ended
            # The command may contain any character: read after the last parenthesis.
            _, parent_pid, *_ = stat_line[stat_line.rindex(b")") + 1 :].split()
            pids_with_parents.append((pid, int(parent_pid)))
    return pids_with_parents


def _read_file(path: str) -> bytes:
    """Return the content; empty for a process that has ended, or that belongs to another user."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()] if os.path.isdir("/proc") else []
