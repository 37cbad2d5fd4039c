"""Whether somebody is writing to a file right now, as the kernel knows it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path


def nobody_writes(path: Path) -> bool:
    """A read lease is granted only while no process has the file open for writing (Linux; true elsewhere).
    False for a file that is gone."""
    if sys.platform != "linux":
        return True
    import fcntl

    try:
        with path.open("rb", buffering=0) as file:
            # If a writer comes in the moment we hold the lease, we are told by a signal. The default one,
            # SIGIO, would end this process; SIGURG is ignored.
            fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return False
    except OSError:
        return True  # not our file, or a file system without leases: the two scans must do
    return True
