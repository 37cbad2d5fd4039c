"""The failure file /opt/ml/output/failure: why this host failed. Its beginning becomes the job's
FailureReason.
"""

import os
import signal
from typing import Dict, List, Optional, Sequence

from smlaunch.contract.failure import MAX_FAILURE_LENGTH, format_failure
from smlaunch.contract.paths import Paths
from smlaunch.runtime import tracebacks
from smlaunch.runtime.hang import Hang
from smlaunch.runtime.host_outcome import FinishedProcess, HostOutcome

_SIGNAL_HINTS = {
    "SIGBUS": "often shared memory (/dev/shm) that is full",
    "SIGKILL": "not by smlaunch; often memory that ran out",
}

_THREAD_ABORT = "terminate called without an active exception"
_THREAD_ABORT_HINT = (
    _THREAD_ABORT + "; when a rank of PyTorch ends, often gloo's threads: import torch.distributed.nn "
    "before init_process_group, and end with destroy_process_group"
)

_MAX_FRAMES = 6
"""Innermost frames of each rank's stack that a FailureReason can hold. The log has all frames."""


def describe_failure(host: str, outcome: HostOutcome, oom_kill_happened: bool) -> Optional[str]:
    """Return the text of the failure file of the host ``host``; None when nothing failed.
    ``oom_kill_happened``: the kernel's OOM killer has killed a process since the ranks were started.
    """
    if outcome.hang is not None:
        return _describe_hang(host, outcome.hang, outcome.processes)
    if outcome.peer_status is not None:
        return outcome.peer_status.failure_text or None
    if outcome.unready_service is not None:
        name, problem = outcome.unready_service
        return format_failure(host, None, None, problem, service=name)
    process = outcome.failed_service or outcome.first_failure
    if outcome.overstayed_seconds is not None and (process is None or process.status == -signal.SIGKILL):
        return None if outcome.exit_code == 0 else _describe_overstay(host, outcome.overstayed_seconds)
    if process is None:
        return None
    # An exception explains more than the abort by a thread that follows it.
    is_thread_abort = process.signal_name == "SIGABRT" and _THREAD_ABORT in process.output_tail
    output = process.output_tail.rpartition(_THREAD_ABORT)[0] if is_thread_abort else process.output_tail
    cause = None if process.status == -signal.SIGKILL else tracebacks.find_cause(output)
    if cause is not None:
        cause_line, traceback = cause.line, _shorten_traceback(cause)
    elif is_thread_abort:
        cause_line, traceback = _THREAD_ABORT_HINT, ""
    else:
        cause_line, traceback = _exit_hint(process, oom_kill_happened), ""
    # Compared with ended_at, not failed_at: peers notice a lost process before it can be waited for.
    exited_ranks = [
        other.rank
        for other in outcome.processes
        if other.status == 0 and not other.was_stopped and other.ended_at <= process.ended_at
    ]
    cause_line = "; ".join(filter(None, (cause_line, _describe_exited_ranks(exited_ranks))))
    if process.service and process.status == 0:
        cause_line = "; ".join(filter(None, ("it was to run as long as the ranks do", cause_line)))
    return format_failure(
        host,
        process.rank,
        process.exit_code,
        cause_line,
        traceback,
        process.signal_name,
        process.service or None,
    )


def _shorten_traceback(cause: tracebacks.FailureCause) -> str:
    """Return the traceback, shortened where cause and traceback together exceed the limit: a long message is
    cut off in the traceback, so that the frames stay.
    """
    if len(cause.line) + len(cause.traceback) <= MAX_FAILURE_LENGTH:
        return cause.traceback
    frames, exception_line, _ = cause.traceback.rpartition("\n" + cause.line)
    return frames + exception_line[:80] + "..." if exception_line else cause.traceback


def _describe_hang(host: str, hang: Hang, processes: Sequence[FinishedProcess]) -> str:
    """Return the text of the failure file after a hang. Ranks with the same stack are listed together, small
    groups first: a rank that differs from all others is the likely cause.
    """
    ranks_by_stack: Dict[str, List[int]] = {}
    for process in processes:
        stack = tracebacks.find_stack(process.output_tail)
        if stack and process.rank in hang.ranks:
            ranks_by_stack.setdefault("\n".join(stack.splitlines()[:_MAX_FRAMES]), []).append(process.rank)
    stacks = [
        "{}:\n{}".format(_format_ranks(ranks), stack)
        for stack, ranks in sorted(ranks_by_stack.items(), key=lambda item: len(item[1]))
    ]
    silent_ranks = " by " + _format_ranks(hang.ranks) if hang.ranks else ""
    cause_line = "hang: no output and no CPU use for {:g} s{}".format(hang.seconds, silent_ranks)
    exited_ranks = [
        process.rank for process in processes if process.status == 0 and process.rank not in hang.ranks
    ]
    cause_line = "; ".join(filter(None, (cause_line, _describe_exited_ranks(exited_ranks))))
    only_rank = hang.ranks[0] if len(hang.ranks) == 1 else None
    return format_failure(host, only_rank, None, cause_line, _shorten_stacks("\n".join(stacks)))


def _describe_overstay(host: str, seconds: float) -> str:
    line = (
        "the ranks were still there {:.3g} s after the planned end of their segment and had to be stopped; "
        "with smlaunch.train they leave by themselves at a checkpoint, if the segment is longer than a start"
    )
    return format_failure(host, None, None, line.format(seconds))


def _shorten_stacks(stacks: str) -> str:
    """Cut off the last stacks: they are in order of interest."""
    max_length = 700
    return stacks if len(stacks) <= max_length else stacks[: stacks.rfind("\n", 0, max_length)]


def _describe_exited_ranks(ranks: Sequence[Optional[int]]) -> str:
    """Return the ranks that exited with 0 before the failure: their peers may have failed because they were
    gone."""
    numbers = [rank for rank in ranks if rank is not None]
    return _format_ranks(numbers) + " had left with exit code 0" if numbers else ""


def _format_ranks(ranks: Sequence[int]) -> str:
    """ "rank 3", or "ranks 0, 1 and 5"; eight numbers at most."""
    numbers = [str(rank) for rank in sorted(ranks)]
    if len(numbers) == 1:
        return "rank " + numbers[0]
    listed = numbers if len(numbers) <= 8 else numbers[:8] + ["{} more".format(len(numbers) - 8)]
    return "ranks {} and {}".format(", ".join(listed[:-1]), listed[-1])


def _exit_hint(process: FinishedProcess, oom_kill_happened: bool) -> str:
    """Return what to say of a process without a traceback."""
    if process.signal_name is None:
        return tracebacks.last_line(process.output_tail)
    if process.status == -signal.SIGKILL and oom_kill_happened:
        return "out of memory: the kernel killed it"
    return _SIGNAL_HINTS.get(process.signal_name, "")


def write_failure_file(paths: Paths, text: str, failed_at: Optional[float] = None) -> None:
    """Write the failure file, unless the user's program has written one. Raises OSError.

    ``failed_at`` (seconds since the epoch) becomes the file's modification time: it shows which of several
    hosts failed first, however long each took to exit.
    """
    if os.path.exists(paths.failure_file) and os.path.getsize(paths.failure_file) > 0:
        return
    os.makedirs(paths.output, exist_ok=True)
    temporary = paths.failure_file + ".tmp"
    with open(temporary, "w", encoding="utf-8", errors="replace") as file:
        file.write(text)
    if failed_at is not None:
        os.utime(temporary, (failed_at, failed_at))
    os.replace(temporary, paths.failure_file)
