"""Writing down why this host failed: /opt/ml/output/failure, whose beginning becomes the job's
FailureReason.
"""

import os
import signal
from typing import Optional

from smlaunch.protocol import failure as protocol
from smlaunch.protocol.paths import Paths
from smlaunch.runtime import tracebacks
from smlaunch.runtime.outcome import Ended

_HINTS = {
    "SIGBUS": "often shared memory (/dev/shm) that is full",
    "SIGKILL": "not by smlaunch; often memory that ran out",
}


def describe(host: str, process: Ended, out_of_memory: bool) -> str:
    """``out_of_memory``: the kernel has killed somebody for want of memory since the ranks were started."""
    cause = None if process.status == -signal.SIGKILL else tracebacks.find(process.tail)
    if cause is not None:
        line, traceback = cause.line, cause.traceback
    else:
        line, traceback = _hint(process, out_of_memory), ""
    return protocol.format_failure(
        host, process.rank, process.exit_code, line, traceback, signal=process.signal_name
    )


def _hint(process: Ended, out_of_memory: bool) -> str:
    if process.signal_name is None:
        return tracebacks.last_line(process.tail)
    if process.status == -signal.SIGKILL and out_of_memory:
        return "out of memory: the kernel killed it"
    return _HINTS.get(process.signal_name, "")


def write(paths: Paths, text: str, began: Optional[float] = None) -> None:
    """Keeps a file that the user's program has written itself. Raises OSError.

    ``began`` (seconds since the epoch) becomes the file's time, so that whoever has the files of several
    hosts can tell which failed first, however long each took to end.
    """
    if os.path.exists(paths.failure) and os.path.getsize(paths.failure) > 0:
        return
    os.makedirs(paths.output, exist_ok=True)
    temporary = paths.failure + ".tmp"
    with open(temporary, "w", encoding="utf-8", errors="replace") as file:
        file.write(text)
    if began is not None:
        os.utime(temporary, (began, began))
    os.replace(temporary, paths.failure)
