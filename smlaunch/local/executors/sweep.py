"""Finding and ending processes where no namespace does it for us. Loaded by the supervisor: stays light."""

# ruff: noqa: PTH112, PTH123, PTH208
from __future__ import annotations

import os
import signal
import sys

from smlaunch.local.executors.host_plan import OWNER_VARIABLE

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
