"""Whose failure is the job's: a pure function of how all hosts ended."""

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

_SILENT = "its first process, which left no word; often memory that ran out"

INTERNAL = "InternalServerError: "
"""How the reasons begin that RetryStrategy retries: the host's supervisor died, or could not be started, and
no program of the job has an exit code of its own to tell; or the endpoint itself failed."""


_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT), "database or disk is full")


def machines_own(reason: str | None, home: Path) -> str | None:
    """The reason again, or, where the endpoint itself found its disk full, one that says so: such a job is
    neither wrong as written nor worth trying again before there is room."""
    kind, _, message = (reason or "").partition(": ")
    if f"{kind}: " not in ("ClientError: ", INTERNAL) or not any(words in message for words in _FULL):
        return reason
    return f"ClientError: {disk_full_message(home, message)}"[:REASON_LIMIT]


@dataclass(frozen=True)
class HostReport:
    """How one host ended."""

    label: str
    """Its name."""

    exit: HostExit
    ended: float
    """In seconds since the epoch."""

    was_stopped: bool
    """The endpoint had asked the host to stop before it ended."""

    failure: str = ""
    """Text of its failure file."""

    failure_time: float | None = None
    """When its failure began, by the time of its failure file: in seconds since the epoch."""

    @property
    def failed_at(self) -> float:
        return self.ended if self.failure_time is None else min(self.ended, self.failure_time)


def failure_reason(reports: Sequence[HostReport]) -> str | None:
    """None when all hosts ended with 0; else FailureReason, from the host that failed first.

    First counts by the failure file's time, not by the exit's: a host that waits for its own ranks to leave
    may exit after one that only followed it. A host that left because it was told to is no cause as long as
    there is another.
    """
    failed = [report for report in reports if report.exit.code != 0]
    if not failed:
        return None
    causes = [report for report in failed if not report.was_stopped or report.failure_time is not None]
    first = min(causes or failed, key=lambda report: (report.failed_at, report.label))
    if first.exit.how == "lost":
        return INTERNAL + format_failure(first.label, None, None, first.exit.message)
    if first.exit.how == "not_started":
        if first.exit.code not in (126, 127):
            return INTERNAL + format_failure(first.label, None, None, first.exit.message)
        text = format_failure(first.label, None, first.exit.code, first.exit.message)
        return algorithm_error(text, first.exit.code)
    text = first.failure
    if not text and first.exit.message:
        text = format_failure(first.label, None, first.exit.code, first.exit.message)
    if not text and first.exit.signal:
        # No program was left to say anything; a plain exit without a failure file stays in AWS's words.
        text = format_failure(first.label, None, None, _SILENT, signal=first.exit.signal)
    return algorithm_error(text[:REASON_LIMIT], first.exit.code)
