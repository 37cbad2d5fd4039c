"""Follows a job: its events, and what they add up to (progress, log tail, outcome)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from smlaunch.aws.service_errors import call_with_retries
from smlaunch.contract.progress_line import LINE_PREFIX, ProgressLine, parse_line
from smlaunch.contract.segment import FINISHED_LINE_PREFIX, REQUIRED_LINE_PREFIX
from smlaunch.runs.job_poller import (
    Event,
    JobPoller,
    LogLine,
    host_number,
    host_of_log_stream,
    log_group_of,
    poll_until_finished,
)
from smlaunch.runs.launch_target import Target
from smlaunch.runs.log_tail import LogTail, split_rank_prefix, warning_of_host
from smlaunch.runs.progress_estimate import ProgressTracker
from smlaunch.runs.run_outcome import JobOutcome, outcome_from_description

_PIPELINE_CONDITION_LINES = (LINE_PREFIX + FINISHED_LINE_PREFIX, LINE_PREFIX + REQUIRED_LINE_PREFIX)
"""Lines for a pipeline's conditions, which say nothing about the training."""

_MAX_WARNINGS = 20
_MAX_SHOWN_WORDS_LENGTH = 80


class JobFollower:
    """Follows one job. ``progress`` is the run's progress so far, if the job continues an earlier one."""

    def __init__(self, target: Target, job: str, progress: ProgressTracker | None = None) -> None:
        self.job = job
        self.log_tail = LogTail()
        self._warnings: dict[str, None] = {}
        """What hosts have warned of, each once, in the order of the log."""
        self._has_unreadable_words = False

        self.progress = ProgressTracker() if progress is None else progress
        self._target = target
        self._poller = JobPoller(target.control_plane, target.logs, job, target.polling)

    @property
    def is_described(self) -> bool:
        """Whether the service has described the job at all."""
        return bool(self._poller.description)

    @property
    def is_finished(self) -> bool:
        return self._poller.is_finished

    def event_batches(self, sleep: Callable[[float], object] = time.sleep) -> Iterator[Sequence[Event]]:
        """Follow the job to its end, and yield its events in batches: state changes, log lines and warnings.
        A batch is empty when nothing is new. Progress and metrics in the log lines are added to this
        follower's. Ends early when ``sleep`` returns True; a further call then goes on from there."""
        for events in poll_until_finished(self._poller, sleep):
            for event in events:
                if isinstance(event, LogLine):
                    self._collect_from_line(event)  # also keeps lines for a failure's traceback
            yield events

    def refresh(self) -> None:
        """Describe this job, and read the end of the logs that have its metrics and its failure: those of the
        first host and of the failed one.

        Makes a few requests, however long the log is and however many hosts there are: each host has a log
        stream, of which one page is read.
        """
        target, job = self._target, self._poller.job
        self._poller.description = call_with_retries(lambda: target.control_plane.describe_job(job))
        failure = self.outcome().failure  # names the host that failed first; None without a failure
        log_group = log_group_of(self._poller.description)
        host_by_stream = {
            stream: host_of_log_stream(job, stream)
            for stream in target.logs.list_streams(log_group, job + "/")
        }
        first_host = min(host_by_stream.values(), key=host_number, default=None)
        failed_host = None if failure is None else failure.host
        is_silent = failure is not None and failure.is_silent  # any host may have logged why
        for stream, host in host_by_stream.items():
            if is_silent or host in (first_host, failed_host):  # the first host prints the metrics
                for event in target.logs.read_last_page(log_group, stream):
                    self._collect_from_line(LogLine(job, host, event.timestamp_ms, event.text))

    def outcome(self) -> JobOutcome:
        """Return the job's outcome with the first failure's traceback, as complete as possible, and the last
        metrics."""
        estimate = self.progress.estimate()
        outcome = outcome_from_description(
            self._poller.description,
            estimate.metrics if estimate else None,
            on_instances=self._target.kind == "aws",
        )
        outcome = replace(outcome, warnings=tuple(self._warnings))
        if outcome.failure is None:
            return outcome
        failure = outcome.failure
        if failure.is_silent and self.log_tail.unwritten_failure is not None:
            failure = self.log_tail.unwritten_failure
        failure = failure._replace(traceback=self.log_tail.find_traceback(failure))
        return replace(outcome, failure=failure)

    def _collect_from_line(self, line: LogLine) -> None:
        """Keep a line for a failure's traceback or as a warning; add its progress to the job's."""
        self.log_tail.add_line(line.host, line.text)
        warning = warning_of_host(line.text)
        if warning is not None and len(self._warnings) < _MAX_WARNINGS:
            self._warnings.setdefault(warning)
        if LINE_PREFIX not in line.text or any(prefix in line.text for prefix in _PIPELINE_CONDITION_LINES):
            return
        progress_line = parse_line(line.text)
        if progress_line is not None:
            if progress_line.unreadable_words and not self._has_unreadable_words:
                self._has_unreadable_words = True
                self._warnings.setdefault(_unreadable_words_warning(line, progress_line))
            rank, _ = split_rank_prefix(line.text)
            self.progress.add_line((host_number(line.host), rank or 0), line.at / 1000, progress_line)


def _unreadable_words_warning(line: LogLine, progress_line: ProgressLine) -> str:
    """Return a sentence about a progress line, a part of which is lost: about the first one only, because a
    script prints the same again and again."""
    words = " ".join(progress_line.unreadable_words)[:_MAX_SHOWN_WORDS_LENGTH]
    return (
        f"{line.host} has reported {words!r}, which does not count: NAME=NUMBER without spaces is needed, "
        "and whole numbers for step and steps; what else the line reports counts (docs/scripts.md)"
    )
