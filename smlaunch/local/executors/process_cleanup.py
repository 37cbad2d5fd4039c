"""Finding and ending processes where no namespace does it for us. Loaded by the supervisor: stays light."""

# ruff: noqa: PTH112, PTH123, PTH208
from __future__ import annotations

import os
import select
import signal
import sys

from smlaunch.local.executors.host_plan import OWNER_VARIABLE

_ROUNDS = 20
"""Each finds what was born while the last one killed."""
_PATIENCE_MS = 5000
_LINUX = sys.platform == "linux"


def descendants(ancestor: int) -> list[int]:
    """All processes below ``ancestor``, as of now."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    waiting = [ancestor]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def marked(prefix: str) -> list[int]:
    """Processes of ours whose environment names an owner that begins with ``prefix``. Linux only: elsewhere
    another process's environment cannot be read, and the list is empty."""
    wanted = f"{OWNER_VARIABLE}={prefix}".encode()
    return [
        pid
        for pid in _pids()
        if any(entry.startswith(wanted) for entry in _read(f"/proc/{pid}/environ").split(b"\0"))
    ]


def kill_all(pids: list[int]) -> int:
    """SIGKILL to each; returns how many were still there."""
    return sum(_kill(pid) for pid in pids)


def end_marked(prefix: str) -> int:
    """Kills the processes that ``marked`` finds and waits for their end; returns how many they were."""
    killed = 0
    for _ in range(_ROUNDS):
        pids = marked(prefix)
        if not pids:
            break
        handles = [handle for handle in map(_handle, pids) if handle is not None]
        killed += kill_all(pids)
        for handle in handles:
            # Readable at its end. One that hangs in the kernel is left to it.
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            poll.poll(_PATIENCE_MS)
            os.close(handle)
    return killed


def _handle(pid: int) -> int | None:
    """A pidfd: unlike a child's, another process's end can only be waited for by that."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None  # it has ended


def kill_children() -> None:
    """Ends every descendant of this process and reaps it.

    One that was born between the look and the kill is found at the next turn, since orphans become our
    children (``adopt_orphans``).
    """
    while True:
        kill_all(descendants(os.getpid()))
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _parents() -> list[tuple[int, int]]:
    if _LINUX:
        statuses = ((pid, _read(f"/proc/{pid}/stat")) for pid in _pids())
        # The command stands in parentheses and may hold any character: look behind the last one.
        return [(pid, int(text[text.rindex(b")") + 2 :].split()[1])) for pid, text in statuses if text]
    import subprocess

    listing = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True, check=True)  # noqa: S607
    return [(int(pid), int(parent)) for pid, parent in map(str.split, listing.stdout.splitlines())]


def _read(path: str) -> bytes:
    """Empty for a process that has ended meanwhile, or is another user's."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()] if os.path.isdir("/proc") else []
