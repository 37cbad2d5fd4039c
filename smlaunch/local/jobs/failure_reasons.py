"""The job's FailureReason, as a pure function of how all hosts ended."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from smlaunch.contract.failure import format_failure
from smlaunch.errors import disk_full_message
from smlaunch.local.executors.base import HostExit
from smlaunch.local.jobs.states import REASON_LIMIT, algorithm_error

_NO_MESSAGE = "its first process, which left no word; often memory that ran out"

INTERNAL = "InternalServerError: "
"""Prefix of the reasons after which RetryStrategy retries: a host's supervisor died or could not be started,
so that no program has an exit code, or the endpoint itself failed."""


_DISK_FULL_TEXTS = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT), "database or disk is full")


def with_disk_full_message(reason: str | None, state_directory: Path) -> str | None:
    """Return ``reason``, or a ClientError that names the full disk if the endpoint found its own disk full:
    such a job is not wrong, but cannot succeed before there is space."""
    kind, _, message = (reason or "").partition(": ")
    if f"{kind}: " not in ("ClientError: ", INTERNAL) or not any(
        full_text in message for full_text in _DISK_FULL_TEXTS
    ):
        return reason
    return f"ClientError: {disk_full_message(state_directory, message)}"[:REASON_LIMIT]


@dataclass(frozen=True)
class HostReport:
    """How one host ended."""

    name: str
    """Name of the host: algo-1, algo-2, ..."""

    exit: HostExit
    """How it ended."""
    ended: float
    """When it ended, in seconds since the epoch."""

    was_stopped: bool
    """The endpoint had asked the host to stop before it ended."""

    failure: str = ""
    """Text of its failure file."""

    failure_time: float | None = None
    """When its failure began, by the time of its failure file: in seconds since the epoch."""

    @property
    def failed_at(self) -> float:
        """Time of the failure, in seconds since the epoch."""
        return self.ended if self.failure_time is None else min(self.ended, self.failure_time)


def failure_reason(reports: Sequence[HostReport]) -> str | None:
    """Return FailureReason, from the host that failed first; None if all hosts ended with exit code 0.

    The order of failures is that of the failure files, not of the exits: the host that failed first may exit
    later than the others, as it waits for its ranks. A host that was asked to stop is the cause only if
    there is no other.
    """
    failures = [report for report in reports if report.exit.code != 0]
    if not failures:
        return None
    causes = [report for report in failures if not report.was_stopped or report.failure_time is not None]
    first_failure = min(causes or failures, key=lambda report: (report.failed_at, report.name))
    if first_failure.exit.how == "lost":
        return INTERNAL + format_failure(first_failure.name, None, None, first_failure.exit.message)
    if first_failure.exit.how == "not_started":
        if first_failure.exit.code not in (126, 127):
            return INTERNAL + format_failure(first_failure.name, None, None, first_failure.exit.message)
        text = format_failure(first_failure.name, None, first_failure.exit.code, first_failure.exit.message)
        return algorithm_error(text, first_failure.exit.code)
    text = first_failure.failure
    if not text and first_failure.exit.message:
        text = format_failure(first_failure.name, None, first_failure.exit.code, first_failure.exit.message)
    if not text and first_failure.exit.signal:
        # The program could not write a failure file. A plain exit without one gets AWS's text only.
        text = format_failure(first_failure.name, None, None, _NO_MESSAGE, signal=first_failure.exit.signal)
    return algorithm_error(text[:REASON_LIMIT], first_failure.exit.code)
