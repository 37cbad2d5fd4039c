"""Kill every process that a rank has left behind.

PID 1 adopts all orphans of its namespace. Elsewhere (on Linux) the runtime becomes a subreaper, which adopts
the orphans below it: a process that left its rank's process group can still be found as a descendant.
"""

import os
import signal
import sys

from smlaunch.runtime import processes

_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Adopt orphaned descendants from now on. Does nothing for PID 1, and outside Linux."""
    if os.getpid() == 1 or not sys.platform.startswith("linux"):
        return
    try:
        import ctypes  # takes milliseconds: imported only where needed, after the ranks have started
    except ImportError:  # a Python without ctypes; ranks' own process groups must suffice
        return
    # Fails only on kernels before 3.4, where ranks' own process groups must suffice.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_descendants() -> None:
    """Send SIGKILL to every descendant of this process until there is none. Does nothing outside Linux."""
    if not sys.platform.startswith("linux"):
        return
    while True:
        pids = processes.descendants_of(os.getpid(), processes.list_processes())
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            except PermissionError:  # it runs as another user now
                return
        if not _reap_children(block=bool(pids)):
            return


def _reap_children(block: bool) -> bool:
    """Wait for exited children, adopted ones too. False when there are no children.

    ``block``: wait for at least one: processes have just been killed, which are children of this process or
    become so when their parents exit.
    """
    try:
        while os.waitpid(-1, 0 if block else os.WNOHANG)[0]:
            block = False
    except ChildProcessError:
        return False
    return True
