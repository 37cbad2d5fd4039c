"""Checks whether a process is writing to a file right now, by the kernel's leases."""

from __future__ import annotations

import signal
import sys


def has_no_writer(descriptor: int) -> bool:
    """Return whether no process writes to the file; also True where that is unknown."""
    return is_closed_for_writing(descriptor) is not False


def is_closed_for_writing(descriptor: int) -> bool | None:
    """Return True if no process has the file open for writing, False if one has, None where that is unknown.
    ``descriptor`` is open for reading. Takes a read lease for a moment, which Linux grants only if nobody has
    the file open for writing."""
    if sys.platform != "linux":
        return None
    import fcntl  # F_SETLEASE exists on Linux only

    try:
        # If a process opens the file for writing while this one holds the lease, the kernel sends a signal.
        # The default, SIGIO, would end this process; SIGURG is ignored.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:  # EAGAIN: the lease is refused, as there is a writer
        return False
    except OSError:
        return None  # another user's file, or a file system without leases
    return True
