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

from smlaunch.api.job_kinds import TERMINAL_STATUSES, TRAINING
from smlaunch.aws.interfaces import CallError, ControlPlane, LogReader
from smlaunch.aws.service_errors import is_transient_error

_MAX_PAGES_PER_ROUND = 16
_TRAILING_NUMBER = re.compile(r"(\d+)$")

_MAX_SLEEP_SECONDS = 0.5
"""The longest pause without a yield, so that a display can show the passing time."""

_JITTER = random.Random()  # noqa: S311 - spreads load, no secret
"""Own numbers: the program's generator, which its user may have seeded, is left alone."""


class Polling(NamedTuple):
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
    """Milliseconds since the epoch. Part of the public class and of ``logs --json`` by this name."""
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
        """Set when this timer's next request is due. ``now``: on the poller's clock. ``has_changes``: the
        last response brought something new, so that the interval starts again from its shortest."""
        polling = self._polling
        if has_changes:
            self._interval_seconds = polling.initial_seconds
        else:
            self._interval_seconds = min(self._interval_seconds * polling.backoff_factor, polling.max_seconds)
        jitter = _JITTER.uniform(0.8, 1.0)
        self.next_poll_at = now + self._interval_seconds * jitter


@dataclass
class _LogStream:
    host: str
    timer: _PollTimer
    next_token: str | None = None


@dataclass
class _OutageTracker:
    """How long a service has not responded. Reported once; after ``give_up_seconds`` its error is raised."""

    job: str
    give_up_seconds: float
    started_at: float | None = None

    def warn_or_raise(self, error: CallError, now: float, events: list[Event]) -> None:
        """Handle a failed request to the service that this tracker belongs to.

        Adds a warning to ``events`` if an outage begins with this error. Raises the error if it is permanent,
        or if the outage has lasted for more than ``give_up_seconds``. ``now``: on the clock of
        ``started_at``.
        """
        has_lasted_too_long = self.started_at is not None and now - self.started_at > self.give_up_seconds
        if has_lasted_too_long or not is_transient_error(error):
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
        control_plane: ControlPlane,
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
        self._control_plane = control_plane
        self._logs = logs
        self._polling = polling
        self._clock = clock
        self._state_timer = _PollTimer(polling)
        self._log_stream_by_name: dict[str, _LogStream] = {}
        self._stream_list_timer = _PollTimer(polling)
        self._is_log_unreadable = False
        self._reported_change_count = 0
        self._changes_after_log: list[Event] = []
        """The end of the job, until its log has been read."""
        self._job_outage_tracker = _OutageTracker(job, polling.give_up_seconds)
        self._log_outage_tracker = _OutageTracker(job, polling.give_up_seconds)
        self._log_quiet_since: float | None = None

    @property
    def next_poll_at(self) -> float:
        """When the next round is due, on this poller's clock."""
        poll_times = [stream.timer.next_poll_at for stream in self._log_stream_by_name.values()]
        if not self._has_job_ended:
            poll_times.append(self._state_timer.next_poll_at)
        if not self._is_log_unreadable:
            poll_times.append(self._stream_list_timer.next_poll_at)
        return min(poll_times, default=0.0)

    @property
    def _has_job_ended(self) -> bool:
        return self.description.get("TrainingJobStatus") in TERMINAL_STATUSES

    def poll(self) -> list[Event]:
        """Make one round and return its events. Raises CallError when the job cannot be described.

        Events that were read before a request failed are returned too: none is lost or repeated. The state in
        which the job has ended comes last, after all lines of its log.
        """
        events: list[Event] = []
        try:
            self._poll_state(events)
        except CallError as error:
            self._job_outage_tracker.warn_or_raise(error, self._clock(), events)
            self._state_timer.schedule_next(self._clock(), has_changes=False)
        self._poll_logs(events)
        events.sort(key=_event_time_ms)  # lines of several hosts, and the states between them
        if self._has_job_ended:
            self._update_is_finished(bool(events))
        if self.is_finished:
            events += self._changes_after_log
            self._changes_after_log = []
        return events

    def _poll_state(self, events: list[Event]) -> None:
        """Add the job's new state changes to ``events``, if a request is due."""
        if self._has_job_ended or self._clock() < self._state_timer.next_poll_at:
            return
        self.description = self._control_plane.describe_job(self.job)
        self._job_outage_tracker.clear()
        new_changes = list(_iter_state_changes(self.job, self.description))[self._reported_change_count :]
        self._reported_change_count += len(new_changes)
        self._state_timer.schedule_next(self._clock(), bool(new_changes))
        if new_changes:  # a new state may come with new streams (a restart opens its own)
            self._stream_list_timer.next_poll_at = 0.0
        has_ended = self.description["TrainingJobStatus"] in TERMINAL_STATUSES
        if has_ended and new_changes:  # the last change is the end, which closes the log
            self._changes_after_log = [new_changes[-1]]
            new_changes = new_changes[:-1]
        events.extend(new_changes)

    def _poll_logs(self, events: list[Event]) -> None:
        """Add the job's new log lines to ``events``.

        A log service that fails delays the log. When it has failed for too long, the job is followed without
        its log, and a warning in ``events`` says so.
        """
        if self._is_log_unreadable:  # it was given up earlier
            return
        try:
            has_response = self._find_new_log_streams()
            for stream_name, stream in self._log_stream_by_name.items():
                has_response = self._read_new_log_lines(stream_name, stream, events) or has_response
            if has_response:  # the outage, if there was one, is over
                self._log_outage_tracker.clear()
        except CallError as error:
            self._handle_log_error(error, events)  # decides whether the outage lasts too long

    def _handle_log_error(self, error: CallError, events: list[Event]) -> None:
        """Put off the next requests for the log after a failed one, and add a warning to ``events`` when the
        failures begin. After a permanent error, or failures for too long, the log is not read any more."""
        now = self._clock()
        try:
            self._log_outage_tracker.warn_or_raise(error, now, events)
        except CallError:
            self._is_log_unreadable = True
            self._log_stream_by_name.clear()
            warning = f"the log cannot be read ({error.message}); the job is followed without it"
            events.append(PollWarning(self.job, warning))
        self._stream_list_timer.schedule_next(now, has_changes=False)
        for stream in self._log_stream_by_name.values():
            stream.timer.schedule_next(now, has_changes=False)

    def _find_new_log_streams(self) -> bool:
        """Look for log streams of hosts that were not known yet, if that is due or the job has just ended.
        Return whether a request was made. Each host writes a stream; a restarted one opens another."""
        now = self._clock()
        # _log_quiet_since, from when on the ended job's log had no new lines, is set after this look.
        is_first_look_after_end = self._has_job_ended and self._log_quiet_since is None
        if now < self._stream_list_timer.next_poll_at and not is_first_look_after_end:
            return False
        known_count = len(self._log_stream_by_name)
        for stream_name in self._logs.list_streams(log_group_of(self.description), self.job + "/"):
            if stream_name not in self._log_stream_by_name:
                host = host_of_log_stream(self.job, stream_name)
                # The timer says when the stream is to be read next: less often while it has no new lines.
                self._log_stream_by_name[stream_name] = _LogStream(host, _PollTimer(self._polling))
        has_new_streams = len(self._log_stream_by_name) > known_count
        self._stream_list_timer.schedule_next(self._clock(), has_new_streams)
        has_stream_of_each_host = len(self._log_stream_by_name) >= host_count(self.description)
        if not has_new_streams and has_stream_of_each_host:
            # Only a restarted host opens another one: look less often.
            self._stream_list_timer.next_poll_at = now + self._polling.max_seconds * 4
        return True

    def _read_new_log_lines(self, stream_name: str, stream: _LogStream, events: list[Event]) -> bool:
        """Add the new lines of a host's log stream to ``events``, page by page to its end, if a request is
        due. Return whether one was made.

        A page has at most 1 MB. The end is reached when the token stays the same; an empty page is no sign of
        it (CloudWatch Logs API reference, GetLogEvents). A stream that grows faster than it is read is left
        after some pages, so that the others get their turn.
        """
        if self._clock() < stream.timer.next_poll_at and not self._has_job_ended:
            return False
        has_new_lines, page_count, has_more_pages = False, 0, True
        while has_more_pages and (page_count < _MAX_PAGES_PER_ROUND or self._has_job_ended):
            log_events, next_token = self._logs.read_page(
                log_group_of(self.description), stream_name, stream.next_token
            )
            has_more_pages, stream.next_token = next_token != stream.next_token, next_token
            events.extend(
                LogLine(self.job, stream.host, event.timestamp_ms, event.text) for event in log_events
            )
            has_new_lines = has_new_lines or bool(log_events)
            page_count += 1
        stream.timer.schedule_next(self._clock(), has_new_lines)
        return True

    def _update_is_finished(self, has_changes: bool) -> None:
        """Set ``is_finished`` once the ended job's log has been silent for the settling time.
        ``has_changes``: this round of polling brought an event."""
        now = self._clock()
        if has_changes or self._log_quiet_since is None:
            self._log_quiet_since = now
        is_quiet = now - self._log_quiet_since >= self._polling.settle_seconds
        self.is_finished = self._is_log_unreadable or (
            is_quiet and self._log_outage_tracker.started_at is None
        )


def _event_time_ms(event: Event) -> float:
    """Return when an event happened; 0 for a warning, which is about this client and has no time."""
    if isinstance(event, LogLine):
        return event.at
    return event.timestamp * 1000 if isinstance(event, StateChange) else 0


def poll_until_finished(
    poller: JobPoller,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Sequence[Event]]:
    """Poll a job until it has ended and its log has been read, and yield the events of each round: state
    changes, log lines and warnings. Yields an empty sequence when nothing is new, so that a display can show
    the passing time.

    Ends early when ``sleep`` returns True. ``clock`` is the one that the poller was made with.
    """
    while True:
        yield poller.poll()
        if poller.is_finished:
            return
        # Sleep until the next round is due, in short pieces, with an empty batch after each.
        remaining_seconds = poller.next_poll_at - clock()
        while remaining_seconds > 0:
            if sleep(min(remaining_seconds, _MAX_SLEEP_SECONDS)) is True:
                return
            if remaining_seconds > _MAX_SLEEP_SECONDS:
                yield ()
            remaining_seconds = poller.next_poll_at - clock()


def log_group_of(description: Mapping[str, Any]) -> str:
    """Return the CloudWatch log group of a job. Descriptions of training jobs do not name it."""
    return str(description.get("LogGroup", TRAINING.log_group))


def host_count(description: Mapping[str, Any]) -> int:
    """Return the number of hosts that the job requests."""
    resource_config = description.get("ResourceConfig", {})
    instance_groups = resource_config.get("InstanceGroups")
    if instance_groups:
        return sum(int(group["InstanceCount"]) for group in instance_groups)
    # A job with preferred instance types states the number of the type that it got.
    return int(resource_config.get("InstanceCount") or description.get("SelectedInstanceCount") or 1)


def _iter_state_changes(job: str, description: Mapping[str, Any]) -> Iterator[StateChange]:
    for transition in description.get("SecondaryStatusTransitions", []):
        yield StateChange(
            job,
            transition["Status"],
            transition.get("StatusMessage", ""),
            transition["StartTime"].timestamp(),
        )


def host_of_log_stream(job: str, stream: str) -> str:
    """Return ``<host>`` of a stream named ``<job>/<host>-<epoch ms>``."""
    name = stream[len(job) + 1 :]
    host, dash, stamp = name.rpartition("-")
    return host if dash and stamp.isdigit() and host else name


def host_number(host: str) -> int:
    """Return 12 for ``algo-12``, so that algo-2 sorts before algo-10."""
    match = _TRAILING_NUMBER.search(host)
    return int(match.group(1)) if match else 0
