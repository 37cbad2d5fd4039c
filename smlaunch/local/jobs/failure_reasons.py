"""The job's FailureReason, as a pure function of how all hosts ended."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from smlaunch.contract.failure_reason import format_failure, parse_failure
from smlaunch.errors import disk_full_message
from smlaunch.local.executors.executor_interface import HostExit
from smlaunch.local.jobs.job_state import MAX_REASON_CHARACTERS, algorithm_error

_KILLED_WITHOUT_MESSAGE = "its first process, which left no word; often memory that ran out"

INTERNAL_ERROR_PREFIX = "InternalServerError: "
"""Prefix of the reasons after which RetryStrategy retries: a host's supervisor died or could not be started,
so that no program has an exit code, or the endpoint itself failed."""


_DISK_FULL_TEXTS = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT), "database or disk is full")


def explain_if_disk_full(failure_reason: str | None, state_directory: Path) -> str | None:
    """Return ``failure_reason``, or in its place a ClientError that names the full disk, if it says that the
    local endpoint found its own disk full: such a job is not wrong, but cannot succeed before there is
    space."""
    if failure_reason is None or not failure_reason.startswith(("ClientError: ", INTERNAL_ERROR_PREFIX)):
        return failure_reason
    message = failure_reason.partition(": ")[2]
    is_disk_full = any(disk_full_text in message for disk_full_text in _DISK_FULL_TEXTS)
    if not is_disk_full:
        return failure_reason
    return f"ClientError: {disk_full_message(state_directory, message)}"[:MAX_REASON_CHARACTERS]


@dataclass(frozen=True)
class HostReport:
    """How one host ended."""

    host_name: str
    """Name of the host: algo-1, algo-2, ..."""

    host_exit: HostExit
    """How it ended."""
    ended_at: float
    """When it ended, in seconds since the epoch."""

    was_asked_to_stop: bool
    """The endpoint had asked the host to stop before it ended."""

    failure_file_text: str = ""
    """Text of its failure file."""

    failure_file_time: float | None = None
    """When its failure began, by the time of its failure file: in seconds since the epoch."""

    @property
    def failed_at(self) -> float:
        """Time of the failure, in seconds since the epoch."""
        return self.ended_at if self.failure_file_time is None else min(self.ended_at, self.failure_file_time)


def choose_failure_reason(reports: Sequence[HostReport]) -> str | None:
    """Return a job's FailureReason, which describes the host that failed first; None if all hosts ended with
    exit code 0. If the host's program failed, it is an AlgorithmError with the text of the failure file
    (/opt/ml/output/failure), or with the exit code if the program wrote none. If the host itself failed, it
    is an InternalServerError."""
    failures = [report for report in reports if report.host_exit.code != 0]
    if not failures:
        return None
    first_failure = _prefer_report_of_lost_host(_find_first_failure(failures), failures)
    host_name, host_exit = first_failure.host_name, first_failure.host_exit
    # A shell exits with 126 for a program that it cannot execute, and with 127 for one that it cannot find.
    is_program_missing = host_exit.kind == "not_started" and host_exit.code in (126, 127)
    if host_exit.kind == "exited":
        failure_text = first_failure.failure_file_text or _describe_exit_without_file(host_name, host_exit)
    elif is_program_missing:
        # rank=None: it is not the failure of one of the host's training processes.
        failure_text = format_failure(host_name, rank=None, exit_code=host_exit.code, cause=host_exit.message)
    else:  # the host was lost, or could not be started by a fault of the endpoint
        return INTERNAL_ERROR_PREFIX + format_failure(
            host_name, rank=None, exit_code=None, cause=host_exit.message
        )
    return algorithm_error(failure_text[:MAX_REASON_CHARACTERS], host_exit.code)


def _find_first_failure(failures: Sequence[HostReport]) -> HostReport:
    """Return the report of the host that failed first.

    The times of the failure files count before those of the exits: the host that failed first may exit later
    than the others, as it waits for its ranks. A host that exited since it was asked to stop is the cause
    only if there is no other.
    """
    unprompted_failures = [
        report for report in failures if not report.was_asked_to_stop or report.failure_file_time is not None
    ]
    return min(unprompted_failures or failures, key=lambda report: (report.failed_at, report.host_name))


def _prefer_report_of_lost_host(report: HostReport, failures: Sequence[HostReport]) -> HostReport:
    """Return the report of the host whose loss the failure file of ``report`` names as the cause, if that
    host failed by itself; otherwise ``report``. A peer that loses its connection to a host may notice that
    before the host's own failure is reported."""
    failure = parse_failure(report.failure_file_text)
    names_ended_process = failure.exit_code is not None or failure.signal is not None
    if names_ended_process:  # the host knows the cause itself
        return report
    for other in failures:
        if other.host_name == failure.host and not other.was_asked_to_stop:
            return other
    return report


def _describe_exit_without_file(host_name: str, host_exit: HostExit) -> str:
    """Return the failure text of a host that wrote no failure file; empty if only its exit code is known,
    as on SageMaker."""
    if host_exit.message:
        return format_failure(host_name, rank=None, exit_code=host_exit.code, cause=host_exit.message)
    if host_exit.signal:
        return format_failure(
            host_name, rank=None, exit_code=None, cause=_KILLED_WITHOUT_MESSAGE, signal_name=host_exit.signal
        )
    return ""
