"""Kill every process that a rank has left behind.

PID 1 adopts all orphans of its namespace. Elsewhere (on Linux) the runtime becomes a subreaper, which adopts
the orphans below it: a process that left its rank's process group can still be found as a descendant.
"""

import os
import signal
import sys

from smlaunch.runtime import process_table

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
        pids = process_table.descendants_of(os.getpid(), process_table.list_processes())
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            except PermissionError:  # it runs as another user now
                return
        if not _reap_children(wait_for_first=bool(pids)):  # no children are left
            return


def _reap_children(wait_for_first: bool) -> bool:
    """Reap exited children, adopted ones too. Returns False when there are no children left.

    ``wait_for_first``: wait until at least one exits: processes have just been killed, which are children of
    this process or become so when their parents exit.
    """
    try:
        # waitpid returns the pid 0 when children run and none has exited.
        while os.waitpid(-1, 0 if wait_for_first else os.WNOHANG)[0]:
            wait_for_first = False
    except ChildProcessError:
        return False
    return True
