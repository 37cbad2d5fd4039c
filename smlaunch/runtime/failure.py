"""Writing down why this host failed: /opt/ml/output/failure, whose beginning becomes the job's
FailureReason.
"""

import os
import signal
from typing import Dict, List, Optional, Sequence

from smlaunch.protocol import failure as protocol
from smlaunch.protocol.paths import Paths
from smlaunch.runtime import tracebacks
from smlaunch.runtime.hang import Hang
from smlaunch.runtime.outcome import Ended, Outcome

_HINTS = {
    "SIGBUS": "often shared memory (/dev/shm) that is full",
    "SIGKILL": "not by smlaunch; often memory that ran out",
}

_ENDED_BY_A_THREAD = "terminate called without an active exception"
_HELD_GROUP = (
    _ENDED_BY_A_THREAD + "; when a rank of PyTorch ends, often gloo's threads: import torch.distributed.nn "
    "before init_process_group, and end with destroy_process_group"
)

_FRAMES = 6
"""Innermost frames of each rank's stack: what a FailureReason has room for. The log has all."""


def describe(host: str, outcome: Outcome, out_of_memory: bool) -> Optional[str]:
    """What goes into the failure file; None when nothing failed. ``out_of_memory``: the kernel has killed
    somebody for want of memory since the ranks were started.
    """
    if outcome.hang is not None:
        return _describe_hang(host, outcome.hang, outcome.processes)
    if outcome.elsewhere is not None:
        return outcome.elsewhere.text or None
    if outcome.unready is not None:
        name, told = outcome.unready
        return protocol.format_failure(host, None, None, told, service=name)
    process = outcome.service or outcome.first_failure
    if outcome.overstayed is not None and (process is None or process.status == -signal.SIGKILL):
        return None if outcome.exit_code == 0 else _describe_overstay(host, outcome.overstayed)
    if process is None:
        return None
    # An exception that ended the program says more than a thread that aborted it on its way out.
    aborted = process.signal_name == "SIGABRT" and _ENDED_BY_A_THREAD in process.tail
    said = process.tail.rpartition(_ENDED_BY_A_THREAD)[0] if aborted else process.tail
    cause = None if process.status == -signal.SIGKILL else tracebacks.find(said)
    if cause is not None:
        line, traceback = cause.line, _without_repeating(cause)
    elif aborted:
        line, traceback = _HELD_GROUP, ""
    else:
        line, traceback = _hint(process, out_of_memory), ""
    # Before its end, not its beginning: peers miss a process before the kernel tells us that it is gone.
    left = [
        other.rank
        for other in outcome.processes
        if other.status == 0 and not other.stopped and other.ended <= process.ended
    ]
    line = "; ".join(filter(None, (line, _left(left))))
    if process.service and process.status == 0:
        line = "; ".join(filter(None, ("it was to run as long as the ranks do", line)))
    return protocol.format_failure(
        host, process.rank, process.exit_code, line, traceback, process.signal_name, process.service or None
    )


def _without_repeating(cause: tracebacks.Cause) -> str:
    """A message too long to be told twice gives way to the frames, in the traceback where it stands last."""
    if len(cause.line) + len(cause.traceback) <= protocol.ROOM:
        return cause.traceback
    frames, found, _ = cause.traceback.rpartition("\n" + cause.line)
    return frames + found[:80] + "..." if found else cause.traceback


def _describe_hang(host: str, hang: Hang, processes: Sequence[Ended]) -> str:
    """Ranks are shown together when they were in the same place, the lonelier ones first: the odd one out is
    the one to look at.
    """
    places: Dict[str, List[int]] = {}
    for process in processes:
        place = tracebacks.stack(process.tail)
        if place and process.rank in hang.ranks:
            places.setdefault("\n".join(place.splitlines()[:_FRAMES]), []).append(process.rank)
    stacks = [
        "{}:\n{}".format(_named(ranks), place)
        for place, ranks in sorted(places.items(), key=lambda item: len(item[1]))
    ]
    who = " by " + _named(hang.ranks) if hang.ranks else ""
    line = "hang: no output and no CPU use for {:g} s{}".format(hang.seconds, who)
    left = [process.rank for process in processes if process.status == 0 and process.rank not in hang.ranks]
    line = "; ".join(filter(None, (line, _left(left))))
    alone = hang.ranks[0] if len(hang.ranks) == 1 else None
    return protocol.format_failure(host, alone, None, line, _shortened("\n".join(stacks)))


def _describe_overstay(host: str, seconds: float) -> str:
    line = (
        "the ranks were still there {:.3g} s after the planned end of their segment and had to be stopped; "
        "with smlaunch.train they leave by themselves at a checkpoint, if the segment is longer than a start"
    )
    return protocol.format_failure(host, None, None, line.format(seconds))


def _shortened(stacks: str) -> str:
    """From the end: stacks are read from the top."""
    room = 700
    return stacks if len(stacks) <= room else stacks[: stacks.rfind("\n", 0, room)]


def _left(ranks: Sequence[Optional[int]]) -> str:
    """Peers that left in peace before: whoever still needed them may have failed for that."""
    known = [rank for rank in ranks if rank is not None]
    return _named(known) + " had left with exit code 0" if known else ""


def _named(ranks: Sequence[int]) -> str:
    numbers = [str(rank) for rank in sorted(ranks)]
    if len(numbers) == 1:
        return "rank " + numbers[0]
    shown = numbers if len(numbers) <= 8 else numbers[:8] + ["{} more".format(len(numbers) - 8)]
    return "ranks {} and {}".format(", ".join(shown[:-1]), shown[-1])


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
