"""The failure file /opt/ml/output/failure: why this host failed. Its beginning becomes the job's
FailureReason.
"""

import errno
import os
import re
import signal
from typing import Dict, List, Optional, Sequence

from smlaunch.contract.failure_reason import MAX_FAILURE_LENGTH, format_failure
from smlaunch.contract.sagemaker_paths import Paths
from smlaunch.runtime import tracebacks
from smlaunch.runtime.hang_detector import Hang
from smlaunch.runtime.host_outcome import FinishedProcess, HostOutcome

_SIGNAL_HINTS = {
    "SIGBUS": "often shared memory (/dev/shm) that is full",
    "SIGKILL": "not by smlaunch; often memory that ran out",
}

_THREAD_ABORT_MESSAGE = "terminate called without an active exception"
"""What C++ prints when a program ends while one of its threads runs, before SIGABRT."""

_THREAD_ABORT_HINT = (
    _THREAD_ABORT_MESSAGE
    + "; when a rank of PyTorch ends, often gloo's threads: import torch.distributed.nn "
    "before init_process_group, and end with destroy_process_group"
)

_DISK_FULL = re.compile(
    r"\[Errno ({})\]|{}".format(
        "|".join(str(number) for number in (errno.ENOSPC, errno.EDQUOT)),
        "|".join(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT)),
    )
)
_DISK_FULL_HINT = (
    "a disk of this host is full: write less to it, or give it space (in a region: compute.volume_gb)"
)
_SHARED_MEMORY = re.compile(r"/dev/shm|</torch_")  # noqa: S108 - only read
"""The latter is what PyTorch calls a file there."""

_MAX_FRAMES_PER_STACK = 6
"""Innermost frames of each rank's stack that a FailureReason can hold. The log has all frames."""


def describe_failure(host: str, outcome: HostOutcome, oom_kill_happened: bool) -> Optional[str]:
    """Return the text of the failure file of the host ``host``; None when nothing failed.

    ``outcome``: how its processes (ranks, and services beside them) ended. ``peer_exit``: how another host
    ended, with which this one ends too. ``oom_kill_happened``: the kernel's OOM killer has killed a process
    since the ranks were started.
    """
    # What explains most comes first: a hang or another host's failure also ends processes here.
    if outcome.detected_hang is not None:
        return _describe_hang(host, outcome.detected_hang, outcome.processes)
    if outcome.peer_exit is not None:
        return outcome.peer_exit.failure_text or None
    if outcome.unready_service is not None:
        return format_failure(
            host,
            rank=None,
            exit_code=None,
            cause=outcome.unready_service.problem,
            service_name=outcome.unready_service.name,
        )
    failed_process = outcome.failed_service or outcome.first_failure  # the first rank that failed
    was_killed = failed_process is not None and failed_process.status == -signal.SIGKILL
    if outcome.overrun_seconds is not None and (failed_process is None or was_killed):
        # The ranks ran past the planned end of their job, and were stopped or killed for that.
        return None if outcome.exit_code == 0 else _describe_overrun(host, outcome.overrun_seconds)
    if failed_process is None:
        return None
    # Compared with ended_at, not failed_at: peers notice a lost process before it can be waited for.
    ranks_exited_before = [
        process.rank
        for process in outcome.processes
        if process.status == 0 and not process.was_stopped and process.ended_at <= failed_process.ended_at
    ]
    return _describe_process_failure(host, failed_process, ranks_exited_before, oom_kill_happened)


def _describe_process_failure(
    host: str,
    failed_process: FinishedProcess,
    ranks_exited_before: Sequence[Optional[int]],
    oom_kill_happened: bool,
) -> str:
    """Return the text of the failure file for a failed rank or service: its exception, or else what is known
    of its exit. ``ranks_exited_before``: ranks that exited with 0 before; the failed one may have missed
    them.
    """
    output = failed_process.output_tail
    reported = tracebacks.find_reported_rank(output)
    if reported is not None:  # a torchrun of the user's own ends with its own exit code
        failed_process = failed_process._replace(rank=reported.rank, status=reported.status)
    # Its message, "terminate called without an active exception", is that of the C++ runtime.
    is_thread_abort = failed_process.signal_name == "SIGABRT" and _THREAD_ABORT_MESSAGE in output
    if is_thread_abort:
        # A C++ thread ended the process while Python exited; an exception before that explains more.
        output = output.rpartition(_THREAD_ABORT_MESSAGE)[0]
    was_killed = failed_process.status == -signal.SIGKILL  # a traceback in its output is then an older one
    cause = None if was_killed else tracebacks.find_cause(output)  # the last exception printed
    traceback = ""
    if cause is not None:
        cause_line, traceback = cause.error_line, _truncate_traceback(cause)
    elif is_thread_abort:
        cause_line = _THREAD_ABORT_HINT
    else:  # its last line, or what the signal means
        cause_line = _explain_exit(failed_process, oom_kill_happened)
    remarks = [cause_line, _explain_full_disk(cause_line), _describe_exited_ranks(ranks_exited_before)]
    if failed_process.service and failed_process.status == 0:
        remarks.insert(0, "it was to run as long as the ranks do")
    return format_failure(
        host,
        rank=failed_process.rank,
        exit_code=failed_process.exit_code,
        cause="; ".join(filter(None, remarks)),
        traceback=traceback,
        signal_name=failed_process.signal_name,
        service_name=failed_process.service or None,
    )


def _explain_full_disk(cause_line: str) -> str:
    """Return what to do where the cause is that no space is left; empty for any other cause."""
    if not _DISK_FULL.search(cause_line):
        return ""
    return _SIGNAL_HINTS["SIGBUS"] if _SHARED_MEMORY.search(cause_line) else _DISK_FULL_HINT


def _truncate_traceback(cause: tracebacks.FailureCause) -> str:
    """Return the traceback, shortened where cause and traceback together exceed the limit: a long message is
    cut off in the traceback, so that the frames stay.
    """
    if len(cause.error_line) + len(cause.traceback) <= MAX_FAILURE_LENGTH:
        return cause.traceback
    frames, exception_line, _ = cause.traceback.rpartition("\n" + cause.error_line)
    return frames + exception_line[:80] + "..." if exception_line else cause.traceback


def _describe_hang(host: str, hang: Hang, processes: Sequence[FinishedProcess]) -> str:
    """Return the text of the failure file after a hang: the ranks that were silent, and the stacks that they
    printed when they were aborted. Small groups of ranks with the same stack come first: a rank that differs
    from all others is the likely cause.
    """
    ranks_by_stack = _group_silent_ranks_by_stack(hang, processes)
    stacks = [
        "{}:\n{}".format(_format_ranks(ranks), stack)
        for stack, ranks in sorted(ranks_by_stack.items(), key=lambda item: len(item[1]))
    ]
    silent_ranks_text = " by " + _format_ranks(hang.silent_ranks) if hang.silent_ranks else ""
    hang_text = "hang: no output and no CPU use for {:g} s{}".format(hang.silent_seconds, silent_ranks_text)
    exited_ranks = [
        process.rank for process in processes if process.status == 0 and process.rank not in hang.silent_ranks
    ]
    cause_line = "; ".join(filter(None, (hang_text, _describe_exited_ranks(exited_ranks))))
    return format_failure(
        host,
        rank=hang.silent_ranks[0] if len(hang.silent_ranks) == 1 else None,
        exit_code=None,
        cause=cause_line,
        traceback=_truncate_stacks("\n".join(stacks)),
    )


def _group_silent_ranks_by_stack(hang: Hang, processes: Sequence[FinishedProcess]) -> Dict[str, List[int]]:
    """Return the silent ranks by the innermost frames of the stack that each has printed."""
    ranks_by_stack: Dict[str, List[int]] = {}
    for process in processes:
        stack = tracebacks.find_stack(process.output_tail)
        if stack and process.rank in hang.silent_ranks:
            innermost_frames = "\n".join(stack.splitlines()[:_MAX_FRAMES_PER_STACK])
            ranks_by_stack.setdefault(innermost_frames, []).append(process.rank)
    return ranks_by_stack


def _describe_overrun(host: str, seconds: float) -> str:
    line = (
        "the ranks were still there {:.3g} s after the planned end of their segment and had to be stopped; "
        "with smlaunch.train they leave by themselves at a checkpoint, if the segment is longer than a start"
    )
    return format_failure(host, None, None, line.format(seconds))


def _truncate_stacks(stacks: str) -> str:
    """Cut off the last stacks: they are in order of interest."""
    max_length = 700
    return stacks if len(stacks) <= max_length else stacks[: stacks.rfind("\n", 0, max_length)]


def _describe_exited_ranks(ranks: Sequence[Optional[int]]) -> str:
    """Return the ranks that exited with 0 before the failure: their peers may have failed because they were
    gone."""
    numbers = [rank for rank in ranks if rank is not None]
    return _format_ranks(numbers) + " had left with exit code 0" if numbers else ""


def _format_ranks(ranks: Sequence[int]) -> str:
    """Return the ranks as text, such as ``rank 3`` or ``ranks 0, 1 and 5``, with eight numbers at most."""
    numbers = [str(rank) for rank in sorted(ranks)]
    if len(numbers) == 1:
        return "rank " + numbers[0]
    listed = numbers if len(numbers) <= 8 else numbers[:8] + ["{} more".format(len(numbers) - 8)]
    return "ranks {} and {}".format(", ".join(listed[:-1]), listed[-1])


def _explain_exit(process: FinishedProcess, oom_kill_happened: bool) -> str:
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
