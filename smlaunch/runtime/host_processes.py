"""All processes that the supervisor has started on this host: their start, output, exits and end. Which of
them has to be stopped, and when, is the supervisor's decision.
"""

import os
import signal
import time
from typing import Dict, List, Sequence, Set

from smlaunch.runtime import child_process, reaper
from smlaunch.runtime.child_process import ChildProcess
from smlaunch.runtime.host_outcome import FinishedProcess
from smlaunch.runtime.log_streams import HostOutput, ProcessOutput
from smlaunch.runtime.process_commands import ProcessCommand

_FLUSH_SECONDS = 5.0
"""How long the host may take to write its remaining output at the end."""

_MAX_FINAL_READ_BYTES = 1 << 20
"""How much is read from each pipe at the end: a writer that was not found and killed may go on writing."""


class HostProcesses:
    """Ranks, launchers of ranks and services alike. ``output``: the host's, which takes theirs."""

    def __init__(self, output: HostOutput) -> None:
        self._host_output = output
        self._process_by_pid: Dict[int, ChildProcess] = {}
        self._outputs: List[ProcessOutput] = []

    def start(self, command: ProcessCommand) -> ChildProcess:
        """Start a process. Raises SetupError."""
        process = child_process.start_process(command, self._host_output)
        self._process_by_pid[process.pid] = process
        self._outputs += (process.output, *process.rank_outputs.values())
        return process

    def open_descriptors(self) -> List[int]:
        """Return the descriptors from which output may come."""
        return [output.descriptor for output in self._outputs if output.is_open]

    def forward_output(self, ready_fds: Set[int]) -> List[ProcessOutput]:
        """Forward one block of each output among ``ready_fds`` to the host's. Return those that had any."""
        return [
            output
            for output in self._outputs
            if output.is_open and output.descriptor in ready_fds and output.forward_block()
        ]

    def reap(self) -> List[ChildProcess]:
        """Record the exits of processes: an exit code, or minus the number of the signal. Return those that
        have exited since the last call.
        """
        exited: List[ChildProcess] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:  # there is no child
                return exited
            if pid == 0:  # none of the children has exited
                return exited
            process = self._process_by_pid.get(pid)
            if process is None:
                continue  # an orphan that came to us as its new parent
            process.status = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            process.ended_at = time.time()
            exited.append(process)

    def end_all(self) -> None:
        """Kill remaining descendants, also those that left their process group, and write what is left in the
        pipes of all processes, at most for ``_FLUSH_SECONDS`` (5).
        """
        for process in self._process_by_pid.values():
            child_process.kill_group(process.pid)
        for process in self._process_by_pid.values():
            if process.is_running:  # after a start that failed half-way
                os.waitpid(process.pid, 0)
                process.status = -signal.SIGKILL
        reaper.kill_descendants()
        deadline = time.monotonic() + _FLUSH_SECONDS
        for output in self._outputs:
            self._forward_remaining_output(output, deadline)
            output.close()
        self._host_output.flush(deadline)

    def _forward_remaining_output(self, output: ProcessOutput, deadline: float) -> None:
        """Forward what is left in a process's pipe, at most ``_MAX_FINAL_READ_BYTES`` (1 MiB): an orphan that
        was not found may go on writing. ``deadline``: on the monotonic clock, for writing.
        """
        remaining_bytes = _MAX_FINAL_READ_BYTES
        while remaining_bytes > 0:
            block_bytes = output.forward_block()
            if not block_bytes:  # the pipe is empty
                return
            remaining_bytes -= block_bytes
            if self._host_output.is_full:
                self._host_output.flush(deadline)


def kill_running_groups(processes: Sequence[ChildProcess]) -> None:
    """Send SIGKILL to the process groups of those that are running."""
    for process in processes:
        if process.is_running:
            child_process.kill_group(process.pid)


def to_finished_process(process: ChildProcess) -> FinishedProcess:
    """Return how a process ended that has exited. A failure counts from the traceback that it printed, if it
    exited because of that exception.
    """
    from smlaunch.runtime import tracebacks  # not before the ranks are started: they need not wait for it

    status = process.status if process.status is not None else 0
    output_tail = process.output.tail()
    traceback_at = process.output.traceback_at
    failed_at = process.ended_at
    if status != 0 and traceback_at is not None and tracebacks.find_cause(output_tail) is not None:
        failed_at = min(failed_at, traceback_at)
    return FinishedProcess(
        rank=next(iter(process.command.ranks), None),
        status=status,
        ended_at=process.ended_at,
        failed_at=failed_at,
        output_tail=output_tail,
        was_stopped=process.was_stopped,
        rank_outputs={
            rank: (output.tail(), output.traceback_at) for rank, output in process.rank_outputs.items()
        },
        service=process.command.service,
    )
