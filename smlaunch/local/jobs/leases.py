"""Whether somebody is writing to a file right now, as the kernel knows it."""

from __future__ import annotations

import signal
import sys


def nobody_writes(descriptor: int) -> bool:
    """True also where that cannot be known."""
    return is_closed(descriptor) is not False


def is_closed(descriptor: int) -> bool | None:
    """``descriptor``: the file, open for reading. A read lease is granted only while no process has it open
    for writing (Linux). None where that cannot be known."""
    if sys.platform != "linux":
        return None
    import fcntl

    try:
        # If a writer comes in the moment we hold the lease, we are told by a signal. The default one, SIGIO,
        # would end this process; SIGURG is ignored.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return False
    except OSError:
        return None  # not our file, or a file system without leases
    return True
