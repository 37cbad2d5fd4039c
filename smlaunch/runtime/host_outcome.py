"""Outcome of a host's processes: which one failed first, and the exit code that follows. Pure functions of
plain data.
"""

import signal
from typing import Dict, NamedTuple, Optional, Tuple

from smlaunch.runtime.hang_detector import HANG_EXIT_CODE, Hang

MAX_EXIT_DELAY_SECONDS = 5.0
"""Longest time between a rank's exception and its exit; its peers may fail in this time."""

LOST_PEER_RETURNCODE = -signal.SIGABRT
"""A lost peer ends a rank by an exception or by SIGABRT (NCCL's watchdog), by no other signal."""


class FinishedProcess(NamedTuple):
    """A process of this host that has exited."""

    rank: Optional[int]
    """None for a process that is no single rank."""

    status: int
    """An exit code, or minus the number of the signal."""

    ended_at: float
    """When the process exited, in seconds since the epoch."""

    failed_at: float
    """When its failure began, in seconds since the epoch: at its last traceback, where that ended it."""

    output_tail: str
    """The end of its output."""

    was_stopped: bool = False
    """It was sent a signal to exit because another process had failed."""

    rank_outputs: Dict[int, Tuple[str, Optional[float]]] = {}  # noqa: RUF012 - never changed
    """Of a launcher, by rank: the end of the rank's output, and when its last traceback began."""

    service: str = ""
    """Name of the service; empty for a rank."""

    @property
    def exit_code(self) -> int:
        return self.status if self.status >= 0 else 128 - self.status

    @property
    def signal_name(self) -> Optional[str]:
        """Name of the signal that ended the process, such as SIGKILL; None for an exit code."""
        if self.status >= 0:
            return None
        try:
            return signal.Signals(-self.status).name
        except ValueError:  # a real-time signal
            return "SIG{}".format(-self.status)


class HostExitReport(NamedTuple):
    """How another host ended (control_channel.py)."""

    exit_code: int
    failure_text: str = ""
    """For a failure file; empty when nothing failed."""

    failed_at: Optional[float] = None
    """When the failure began, in seconds since the epoch."""


class UnreadyService(NamedTuple):
    """A service that was not ready in time."""

    name: str
    problem: str
    """For a message."""


class HostOutcome(NamedTuple):
    """How all processes of a host ended."""

    processes: Tuple[FinishedProcess, ...]
    """The ranks, in the order of their start."""

    stop_signal: Optional[int] = None
    """The stop signal that the host received."""

    detected_hang: Optional[Hang] = None
    """The hang for which the ranks were ended."""

    overrun_seconds: Optional[float] = None
    """How long the ranks had run past the planned end of the segment when they were stopped."""

    failed_service: Optional[FinishedProcess] = None
    """The service that exited before the ranks."""

    unready_service: Optional[UnreadyService] = None
    """The service that was not ready in time."""

    peer_exit: Optional[HostExitReport] = None
    """How the leader ended, which this host follows; on the leader, the host that failed."""

    @property
    def first_failure(self) -> Optional[FinishedProcess]:
        """The process that failed first; None if none has failed. A rank that died of the stop signal that
        was sent to all has not failed.

        A rank may need time to exit after its exception. Peers that miss it may exit earlier, and the runtime
        then stops the rank itself. Such a rank is the first to fail, by the time of its exception
        (``failed_at``), and gets the status 1, as after any exception.
        """
        failed = [
            process for process in self.processes if process.status != 0 and not self._ended_by_stop(process)
        ]
        first = min(
            (process for process in failed if not process.was_stopped), key=_failure_time, default=None
        )
        if first is None or (first.status < 0 and first.status != LOST_PEER_RETURNCODE):
            return first
        stopped_after_exception = [
            process._replace(status=1)
            for process in failed
            if process.was_stopped
            and first.failed_at - MAX_EXIT_DELAY_SECONDS < process.failed_at < first.failed_at
        ]
        return min([first, *stopped_after_exception], key=_failure_time)

    @property
    def failed_at(self) -> Optional[float]:
        """When the failure of this host began, in seconds since the epoch; None where that is not known:
        after a hang, or without a failure.
        """
        if self.detected_hang is not None:
            return None
        if self.peer_exit is not None:  # this host ended because another one did
            return self.peer_exit.failed_at
        process = self.failed_service or self.first_failure
        return None if process is None else process.failed_at

    @property
    def exit_code(self) -> int:
        """The exit code of this host: that of what explains its end best, a hang first. Without a failure:
        128 + n when a rank ended by the stop signal n, or the signal came before any rank was started;
        otherwise 0. A service, a program beside the ranks, has failed if it exits before them.
        """
        if self.detected_hang is not None:
            return HANG_EXIT_CODE
        if self.peer_exit is not None:  # this host ended because another one did
            return self.peer_exit.exit_code
        if self.failed_service is not None:
            return self.failed_service.exit_code or 1  # to exit with 0 too early is a failure as well
        if self.unready_service is not None:  # it was not ready in time
            return 1
        failure = self.first_failure
        if failure is not None:
            return failure.exit_code
        if self.stop_signal is None:
            return 0
        if self.processes and all(process.status == 0 for process in self.processes):
            return 0
        return 128 + self.stop_signal

    def is_planned_end(self, other_hosts_stopping: bool) -> bool:
        """Return whether the ranks ended because the planned end has passed.

        ``other_hosts_stopping``: it has passed and there are other hosts, whose ranks may have been stopped a
        moment earlier; ranks here then fail because their peers are gone.
        """
        other_causes = (self.detected_hang, self.failed_service, self.unready_service)
        if any(cause is not None for cause in other_causes):
            return False
        if self.overrun_seconds is not None:  # this host has stopped its ranks at the planned end
            return True
        return other_hosts_stopping and self.stop_signal is None and self.peer_exit is None

    def _ended_by_stop(self, process: FinishedProcess) -> bool:
        """Return whether the stop signal ended the process."""
        return self.stop_signal is not None and process.status in (-self.stop_signal, 128 + self.stop_signal)


def _failure_time(process: FinishedProcess) -> Tuple[float, float]:
    return process.failed_at, process.ended_at
