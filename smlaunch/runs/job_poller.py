"""Polls a job's states and log lines in the order in which they happened.

``JobPoller.poll`` makes one round and returns the new events; ``poll_until_finished`` repeats it until the
job has ended. Each request has its own interval, which grows while nothing changes: a hundred quiet hosts are
not polled a hundred times a second because one of them prints.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from smlaunch.aws.interfaces import CallError, ControlPlane, LogReader
from smlaunch.aws.retry import is_transient

_MAX_PAGES_PER_ROUND = 16
_TRAILING_NUMBER = re.compile(r"(\d+)$")

LOG_GROUP = "/aws/sagemaker/TrainingJobs"
TERMINAL_STATUSES = frozenset(("Completed", "Failed", "Stopped"))

_MAX_SLEEP_SECONDS = 0.5
"""The longest pause without a yield, so that a display can show the passing time."""


@dataclass(frozen=True)
class Polling:
    """How often a service is polled."""

    initial_seconds: float
    """Interval after a change."""
    max_seconds: float
    """Longest interval."""
    backoff_factor: float
    """Growth of the interval with each round that brings no change."""
    settle_seconds: float
    """How long after the job's end its last log lines may arrive."""
    give_up_seconds: float
    """How long a service may fail to respond before following ends with its error."""
    time_scale: float = 1.0
    """Waits for capacity and for files in S3, as a fraction of those in a region."""


class StateChange(NamedTuple):
    """A change of a job's secondary status, as DescribeTrainingJob reports it."""

    job: str
    state: str
    message: str
    timestamp: float
    """Seconds since the epoch."""


class LogLine(NamedTuple):
    """A line of a host's log."""

    job: str
    host: str
    """The host's name inside the job, such as algo-1."""
    at: int
    """Milliseconds since the epoch."""
    text: str


class PollWarning(NamedTuple):
    """A request failed; following continues without its result."""

    job: str
    message: str


Event: TypeAlias = StateChange | LogLine | PollWarning


class _PollTimer:
    """Time of the next request. A change resets the interval; silence extends it, with jitter that spreads
    clients."""

    def __init__(self, polling: Polling) -> None:
        self._polling = polling
        self._interval_seconds = polling.initial_seconds
        self.next_poll_at = 0.0

    def schedule_next(self, now: float, has_changes: bool) -> None:
        """Set the time of the next request. ``now``: on the poller's clock. ``has_changes``: the last
        response brought something new, so that the interval starts again from its shortest."""
        polling = self._polling
        self._interval_seconds = (
            polling.initial_seconds
            if has_changes
            else min(self._interval_seconds * polling.backoff_factor, polling.max_seconds)
        )
        self.next_poll_at = now + self._interval_seconds * random.uniform(0.8, 1.0)  # noqa: S311 - spreading load, not a secret


@dataclass
class _LogStream:
    host: str
    timer: _PollTimer
    token: str | None = None


@dataclass
class _OutageTracker:
    """How long a service has not responded. Reported once; after ``give_up_seconds`` its error is raised."""

    job: str
    give_up_seconds: float
    started_at: float | None = None

    def warn_or_raise(self, error: CallError, now: float, events: list[Event]) -> None:
        """Add a warning to ``events`` if an outage begins with this error. Raise the error if it is
        permanent, or if the outage has lasted too long."""
        if not is_transient(error) or (
            self.started_at is not None and now - self.started_at > self.give_up_seconds
        ):
            raise error
        if self.started_at is None:
            self.started_at = now
            text = f"{error.operation} is not answered ({error.message}); still trying"
            events.append(PollWarning(self.job, text))

    def clear(self) -> None:
        self.started_at = None


class JobPoller:
    """Polls one job, from the beginning of its log."""

    def __init__(
        self,
        control: ControlPlane,
        logs: LogReader,
        job: str,
        polling: Polling,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.job = job
        self.description: dict[str, Any] = {}
        """DescribeTrainingJob's newest response."""
        self.is_finished = False
        """The job has ended and its last log lines have been read."""
        self._control = control
        self._logs = logs
        self._polling = polling
        self._clock = clock
        self._state_timer = _PollTimer(polling)
        self._log_streams_by_name: dict[str, _LogStream] = {}
        self._stream_list_timer = _PollTimer(polling)
        self._is_log_unreadable = False
        self._reported_changes = 0
        self._job_outage_tracker = _OutageTracker(job, polling.give_up_seconds)
        self._log_outage_tracker = _OutageTracker(job, polling.give_up_seconds)
        self._quiet_since: float | None = None

    @property
    def next_poll_at(self) -> float:
        """When the next round is due, on this poller's clock."""
        poll_times = [stream.timer.next_poll_at for stream in self._log_streams_by_name.values()]
        if not self._has_ended:
            poll_times.append(self._state_timer.next_poll_at)
        if not self._is_log_unreadable:
            poll_times.append(self._stream_list_timer.next_poll_at)
        return min(poll_times, default=0.0)

    @property
    def _has_ended(self) -> bool:
        return self.description.get("TrainingJobStatus") in TERMINAL_STATUSES

    def poll(self) -> list[Event]:
        """Make one round and return its events. Raises CallError when the job cannot be described.

        Events that were read before a request failed are returned too: none is lost or repeated.
        """
        events: list[Event] = []
        try:
            self._poll_state(events)
        except CallError as error:
            self._job_outage_tracker.warn_or_raise(error, self._clock(), events)
            self._state_timer.schedule_next(self._clock(), has_changes=False)
        self._poll_logs(events)
        if self._has_ended:
            self._check_finished(bool(events))
        return events

    def _poll_state(self, events: list[Event]) -> None:
        """Add the job's new state changes to ``events``, if a request is due."""
        if self._has_ended or self._clock() < self._state_timer.next_poll_at:
            return
        self.description = self._control.describe(self.job)
        self._job_outage_tracker.clear()
        new_changes = list(_state_changes(self.job, self.description))[self._reported_changes :]
        self._reported_changes += len(new_changes)
        self._state_timer.schedule_next(self._clock(), bool(new_changes))
        if new_changes:  # a new state may come with new streams (a restart opens its own)
            self._stream_list_timer.next_poll_at = 0.0
        events.extend(new_changes)

    def _poll_logs(self, events: list[Event]) -> None:
        """Add the new log lines to ``events``. When the log service has failed for too long, following
        continues without the log, with a warning."""
        if self._is_log_unreadable:
            return
        try:
            was_polled = self._poll_stream_list()
            for name, stream in self._log_streams_by_name.items():
                was_polled = self._poll_stream(name, stream, events) or was_polled
            if was_polled:
                self._log_outage_tracker.clear()
        except CallError as error:
            now = self._clock()
            try:
                self._log_outage_tracker.warn_or_raise(error, now, events)
            except CallError:
                self._is_log_unreadable = True
                self._log_streams_by_name.clear()
                text = f"the log cannot be read ({error.message}); the job is followed without it"
                events.append(PollWarning(self.job, text))
            for timer in (
                self._stream_list_timer,
                *(stream.timer for stream in self._log_streams_by_name.values()),
            ):
                timer.schedule_next(now, has_changes=False)

    def _poll_stream_list(self) -> bool:
        """Return whether a request was made."""
        now = self._clock()
        if now < self._stream_list_timer.next_poll_at and not (self._has_ended and self._quiet_since is None):
            return False
        known_count = len(self._log_streams_by_name)
        for name in self._logs.streams(log_group(self.description), self.job + "/"):
            if name not in self._log_streams_by_name:
                self._log_streams_by_name[name] = _LogStream(
                    host_of_stream(self.job, name), _PollTimer(self._polling)
                )
        has_changes = len(self._log_streams_by_name) > known_count
        self._stream_list_timer.schedule_next(self._clock(), has_changes)
        if not has_changes and len(self._log_streams_by_name) >= host_count(self.description):
            self._stream_list_timer.next_poll_at = now + self._polling.max_seconds * 4
        return True

    def _poll_stream(self, name: str, stream: _LogStream, events: list[Event]) -> bool:
        """Read a stream page by page to its end, and return whether a request was made.

        A page has at most 1 MB. The end is reached when the token stays the same; an empty page is no sign of
        it (CloudWatch Logs API reference, GetLogEvents). A stream that grows faster than it is read is left
        after some pages, so that the others get their turn.
        """
        if self._clock() < stream.timer.next_poll_at and not self._has_ended:
            return False
        has_changes, pages, has_more = False, 0, True
        while has_more and (pages < _MAX_PAGES_PER_ROUND or self._has_ended):
            log_events, token = self._logs.read(log_group(self.description), name, stream.token)
            has_more, stream.token = token != stream.token, token
            events.extend(
                LogLine(self.job, stream.host, event.timestamp_ms, event.text) for event in log_events
            )
            has_changes = has_changes or bool(log_events)
            pages += 1
        stream.timer.schedule_next(self._clock(), has_changes)
        return True

    def _check_finished(self, has_changes: bool) -> None:
        """Set ``is_finished`` once the ended job's log has been silent for the settling time.
        ``has_changes``: this round brought an event."""
        now = self._clock()
        if has_changes or self._quiet_since is None:
            self._quiet_since = now
        is_quiet = now - self._quiet_since >= self._polling.settle_seconds
        self.is_finished = self._is_log_unreadable or (
            is_quiet and self._log_outage_tracker.started_at is None
        )


def poll_until_finished(
    poller: JobPoller,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Sequence[Event]]:
    """Yield the events of each round until the job has ended; an empty sequence when nothing is new.

    Ends early when ``sleep`` returns True.
    """
    while True:
        yield poller.poll()
        if poller.is_finished:
            return
        while (remaining_seconds := poller.next_poll_at - clock()) > 0:
            if sleep(min(remaining_seconds, _MAX_SLEEP_SECONDS)) is True:
                return
            if remaining_seconds > _MAX_SLEEP_SECONDS:
                yield ()


def log_group(description: Mapping[str, Any]) -> str:
    """Return the CloudWatch log group of a job. Descriptions of training jobs do not name it."""
    return str(description.get("LogGroup", LOG_GROUP))


def host_count(description: Mapping[str, Any]) -> int:
    """Return the number of hosts that the job requests."""
    resources = description.get("ResourceConfig", {})
    groups = resources.get("InstanceGroups")
    if groups:
        return sum(int(group["InstanceCount"]) for group in groups)
    return int(resources.get("InstanceCount") or description.get("SelectedInstanceCount") or 1)


def _state_changes(job: str, description: Mapping[str, Any]) -> Iterator[StateChange]:
    for transition in description.get("SecondaryStatusTransitions", []):
        yield StateChange(
            job,
            transition["Status"],
            transition.get("StatusMessage", ""),
            transition["StartTime"].timestamp(),
        )


def host_of_stream(job: str, stream: str) -> str:
    """Return ``<host>`` of a stream named ``<job>/<host>-<epoch ms>``."""
    name = stream[len(job) + 1 :]
    host, dash, stamp = name.rpartition("-")
    return host if dash and stamp.isdigit() and host else name


def host_number(host: str) -> int:
    """Return 12 for ``algo-12``, so that algo-2 sorts before algo-10."""
    match = _TRAILING_NUMBER.search(host)
    return int(match.group(1)) if match else 0
