"""Watching a job: its events, and what they add up to (progress, evidence, outcome)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from smlaunch.protocol.progress import MARK, parse_line
from smlaunch.protocol.segment import FINISHED_LINE, REQUIRED_LINE
from smlaunch.runs.evidence import Evidence, split_rank
from smlaunch.runs.follow import Event, Follower, LogLine, follow, host_number, host_of, log_group
from smlaunch.runs.outcome import JobOutcome, outcome
from smlaunch.runs.progress import Tracker
from smlaunch.runs.retry import retrying
from smlaunch.runs.target import Target

_OF_PIPELINES = (MARK + FINISHED_LINE, MARK + REQUIRED_LINE)
"""Lines that tell a pipeline's conditions, and nothing of the training."""


class Watch:
    """``progress``: that of the run so far, where the job goes on with what an earlier one began."""

    def __init__(self, target: Target, job: str, progress: Tracker | None = None) -> None:
        self.job = job
        self.evidence = Evidence()
        self.progress = Tracker() if progress is None else progress
        self._target = target
        self._follower = Follower(target.control, target.logs, job, target.cadence)

    @property
    def seen(self) -> bool:
        """Whether the service has described the job at all."""
        return bool(self._follower.description)

    @property
    def finished(self) -> bool:
        return self._follower.finished

    def rounds(self, wait: Callable[[float], object] = time.sleep) -> Iterator[Sequence[Event]]:
        """See ``follow``; may be begun again after it was ended early."""
        for events in follow(self._follower, wait):
            for event in events:
                if isinstance(event, LogLine):
                    self._read(event)
            yield events

    def glance(self) -> None:
        """Where the job is now, and the end of its log where the metrics and the failure are: a few requests,
        however long the log and however many the hosts."""
        target, job = self._target, self._follower.job
        self._follower.description = retrying(lambda: target.control.describe(job))
        failure = self.outcome().failure
        group = log_group(self._follower.description)
        streams = {name: host_of(job, name) for name in target.logs.streams(group, job + "/")}
        leader = min(streams.values(), key=host_number, default=None)
        for stream, host in streams.items():
            if host == leader or (failure is not None and host == failure.host):
                for event in target.logs.tail(group, stream):
                    self._read(LogLine(job, host, event.at, event.text))

    def outcome(self) -> JobOutcome:
        """With the first failure's traceback as whole as it can be had, and the last metrics."""
        standing = self.progress.standing()
        metrics = standing.metrics if standing else None
        found = outcome(self._follower.description, metrics, machines=self._target.kind == "aws")
        if found.failure is None:
            return found
        whole = found.failure._replace(traceback=self.evidence.traceback(found.failure))
        return replace(found, failure=whole)

    def _read(self, line: LogLine) -> None:
        self.evidence.feed(line.host, line.text)
        if MARK not in line.text or any(mark in line.text for mark in _OF_PIPELINES):
            return
        progress = parse_line(line.text)
        if progress is not None:
            self.progress.feed(
                (host_number(line.host), split_rank(line.text)[0] or 0), line.at / 1000, progress
            )
