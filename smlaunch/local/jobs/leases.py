"""Checks whether a process is writing to a file right now, by the kernel's leases."""

from __future__ import annotations

import signal
import sys


def nobody_writes(descriptor: int) -> bool:
    """Return whether no process writes to the file; also True where that is unknown."""
    return is_closed(descriptor) is not False


def is_closed(descriptor: int) -> bool | None:
    """Return whether no process has the file open for writing; None where that is unknown. ``descriptor`` is
    open for reading: Linux grants a read lease only if nobody has the file open for writing."""
    if sys.platform != "linux":
        return None
    import fcntl

    try:
        # If a process opens the file for writing while we hold the lease, the kernel sends us a signal. The
        # default, SIGIO, would end this process; SIGURG is ignored.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return False
    except OSError:
        return None  # another user's file, or a file system without leases
    return True
