"""Follows a job: its events, and what they add up to (progress, log tail, outcome)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from smlaunch.aws.retry import call_with_retries
from smlaunch.contract.progress import LINE_PREFIX, parse_line
from smlaunch.contract.segment import FINISHED_LINE_PREFIX, REQUIRED_LINE_PREFIX
from smlaunch.runs.job_poller import (
    Event,
    JobPoller,
    LogLine,
    host_number,
    host_of_stream,
    log_group,
    poll_until_finished,
)
from smlaunch.runs.log_tail import LogTail, split_rank_prefix
from smlaunch.runs.outcome import JobOutcome, job_outcome
from smlaunch.runs.progress import ProgressTracker
from smlaunch.runs.target import Target

_PIPELINE_CONDITION_LINES = (LINE_PREFIX + FINISHED_LINE_PREFIX, LINE_PREFIX + REQUIRED_LINE_PREFIX)
"""Lines for a pipeline's conditions, which say nothing about the training."""


class JobFollower:
    """Follows one job. ``progress`` is the run's progress so far, if the job continues an earlier one."""

    def __init__(self, target: Target, job: str, progress: ProgressTracker | None = None) -> None:
        self.job = job
        self.log_tail = LogTail()
        self.progress = ProgressTracker() if progress is None else progress
        self._target = target
        self._poller = JobPoller(target.control, target.logs, job, target.polling)

    @property
    def is_described(self) -> bool:
        """Whether the service has described the job at all."""
        return bool(self._poller.description)

    @property
    def is_finished(self) -> bool:
        return self._poller.is_finished

    def event_batches(self, sleep: Callable[[float], object] = time.sleep) -> Iterator[Sequence[Event]]:
        """Yield batches of events, as ``poll_until_finished`` does. May be called again after an early
        end."""
        for events in poll_until_finished(self._poller, sleep):
            for event in events:
                if isinstance(event, LogLine):
                    self._read_line(event)
            yield events

    def refresh(self) -> None:
        """Read the job's state and the end of the logs that have metrics and the failure.

        Makes a few requests, however long the log is and however many hosts there are.
        """
        target, job = self._target, self._poller.job
        self._poller.description = call_with_retries(lambda: target.control.describe(job))
        failure = self.outcome().failure
        group = log_group(self._poller.description)
        streams = {name: host_of_stream(job, name) for name in target.logs.streams(group, job + "/")}
        leader = min(streams.values(), key=host_number, default=None)
        for stream, host in streams.items():
            if host == leader or (failure is not None and host == failure.host):
                for event in target.logs.tail(group, stream):
                    self._read_line(LogLine(job, host, event.timestamp_ms, event.text))

    def outcome(self) -> JobOutcome:
        """Return the job's outcome with the first failure's traceback, as complete as possible, and the last
        metrics."""
        estimate = self.progress.estimate()
        metrics = estimate.metrics if estimate else None
        job_outcome_ = job_outcome(self._poller.description, metrics, on_instances=self._target.kind == "aws")
        if job_outcome_.failure is None:
            return job_outcome_
        failure = job_outcome_.failure._replace(traceback=self.log_tail.find_traceback(job_outcome_.failure))
        return replace(job_outcome_, failure=failure)

    def _read_line(self, line: LogLine) -> None:
        self.log_tail.add_line(line.host, line.text)
        if LINE_PREFIX not in line.text or any(mark in line.text for mark in _PIPELINE_CONDITION_LINES):
            return
        progress = parse_line(line.text)
        if progress is not None:
            self.progress.add_line(
                (host_number(line.host), split_rank_prefix(line.text)[0] or 0), line.at / 1000, progress
            )
