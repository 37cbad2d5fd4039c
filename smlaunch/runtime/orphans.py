"""Nothing that a rank left behind may outlive the host.

PID 1 is given all orphans of its namespace. Anywhere else the runtime makes itself the one
that orphans are given to (Linux), so that what left its rank's process group can still be found as a
descendant.
"""

import os
import signal
import sys

from smlaunch.runtime import processes

_PR_SET_CHILD_SUBREAPER = 36


def adopt() -> None:
    """From now on orphans below this process become its children. Nothing to do for PID 1, nor outside
    Linux.
    """
    if os.getpid() == 1 or not sys.platform.startswith("linux"):
        return
    try:
        import ctypes  # takes milliseconds: only where needed, and after the ranks' start
    except ImportError:  # a Python built without it; ranks' own process groups must do
        return
    # Refused only by kernels before 3.4, where ranks' own process groups must do.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_descendants() -> None:
    """SIGKILL for every process below this one, until there is none. Outside Linux none is found."""
    if not sys.platform.startswith("linux"):
        return
    while True:
        found = processes.below(os.getpid(), processes.living())
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            except PermissionError:  # it has become somebody else's: not ours to end
                return
        if not _reap(block=bool(found)):
            return


def _reap(block: bool) -> bool:
    """Takes the ends of our children, those that came to us included. False when there is none to wait for.

    ``block``: some have been killed just now; they are our children, or will be when their parents are gone.
    """
    try:
        while os.waitpid(-1, 0 if block else os.WNOHANG)[0]:
            block = False
    except ChildProcessError:
        return False
    return True
