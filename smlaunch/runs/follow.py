"""Following a job: its states and its log lines, in the order they happened, asking no oftener than needed.

``Follower.poll`` makes one round and returns what is new; ``follow`` makes rounds until the job has ended.
Every question has its own pace, which slows down while nothing changes: a hundred quiet hosts are not asked
a hundred times a second because one of them prints.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from smlaunch.ports import CallError, ControlPlane, LogReader
from smlaunch.runs.retry import is_transient

_PAGES_A_ROUND = 16
_NUMBER = re.compile(r"(\d+)$")

LOG_GROUP = "/aws/sagemaker/TrainingJobs"
TERMINAL = frozenset(("Completed", "Failed", "Stopped"))

_TICK = 0.5
"""Seconds: the longest ``follow`` leaves its caller without a word, so that a display shows time passing."""


@dataclass(frozen=True)
class Cadence:
    """How often to ask. Seconds. The wait grows by ``factor`` while nothing changes, and starts anew at news.

    ``settle``: how long the last log lines may still be on their way after a job has ended. ``patience``: how
    long a service may fail to answer before following it is given up. ``pace``: how long capacity, and files
    on their way to S3, are waited for, as a share of the time it takes in a region.
    """

    first: float
    longest: float
    factor: float
    settle: float
    patience: float
    pace: float = 1.0


class StateChange(NamedTuple):
    """A step of the job: DescribeTrainingJob's secondary status, its message, and when (seconds, epoch)."""

    job: str
    state: str
    message: str
    at: float


class LogLine(NamedTuple):
    """``at`` is milliseconds since the epoch. ``host`` is the host's name inside the job."""

    job: str
    host: str
    at: int
    text: str


class Trouble(NamedTuple):
    """Something could not be asked; following goes on."""

    job: str
    message: str


Event: TypeAlias = StateChange | LogLine | Trouble


class _Pace:
    """When to ask again. News resets the wait; silence stretches it, with jitter so that clients spread."""

    def __init__(self, cadence: Cadence) -> None:
        self._cadence = cadence
        self._wait = cadence.first
        self.due = 0.0

    def answered(self, now: float, news: bool) -> None:
        cadence = self._cadence
        self._wait = cadence.first if news else min(self._wait * cadence.factor, cadence.longest)
        self.due = now + self._wait * random.uniform(0.8, 1.0)  # noqa: S311 - spreading load, not a secret


@dataclass
class _Stream:
    host: str
    pace: _Pace
    token: str | None = None


@dataclass
class _Silence:
    """How long a service has not answered; told once, given up after ``patience`` seconds."""

    job: str
    patience: float
    since: float | None = None

    def heard(self, error: CallError, now: float, events: list[Event]) -> None:
        """Raises the error when it is for good, or has been there for too long."""
        if not is_transient(error) or (self.since is not None and now - self.since > self.patience):
            raise error
        if self.since is None:
            self.since = now
            text = f"{error.operation} is not answered ({error.message}); still trying"
            events.append(Trouble(self.job, text))

    def over(self) -> None:
        self.since = None


class Follower:
    """Follows one job, from the start of its log.

    ``description`` is the newest DescribeTrainingJob answer; ``finished`` is true when the job has ended and
    its last lines have been read.
    """

    def __init__(
        self,
        control: ControlPlane,
        logs: LogReader,
        job: str,
        cadence: Cadence,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.job = job
        self.description: dict[str, Any] = {}
        self.finished = False
        self._control = control
        self._logs = logs
        self._cadence = cadence
        self._clock = clock
        self._state_pace = _Pace(cadence)
        self._streams: dict[str, _Stream] = {}
        self._stream_pace = _Pace(cadence)
        self._logs_refused = False
        self._transitions = 0
        self._job_silence = _Silence(job, cadence.patience)
        self._log_silence = _Silence(job, cadence.patience)
        self._quiet_since: float | None = None

    @property
    def due(self) -> float:
        """When the next round is worth making, on this follower's clock."""
        paces = [stream.pace.due for stream in self._streams.values()]
        if not self._ended:
            paces.append(self._state_pace.due)
        if not self._logs_refused:
            paces.append(self._stream_pace.due)
        return min(paces, default=0.0)

    @property
    def _ended(self) -> bool:
        return self.description.get("TrainingJobStatus") in TERMINAL

    def poll(self) -> list[Event]:
        """One round. Raises CallError when the job cannot be asked about, for good or for too long.

        What was learned before a question failed is returned all the same: nothing is told twice or lost.
        """
        events: list[Event] = []
        try:
            self._poll_state(events)
        except CallError as error:
            self._job_silence.heard(error, self._clock(), events)
            self._state_pace.answered(self._clock(), news=False)
        self._poll_logs(events)
        if self._ended:
            self._settle(bool(events))
        return events

    def _poll_state(self, events: list[Event]) -> None:
        if self._ended or self._clock() < self._state_pace.due:
            return
        self.description = self._control.describe(self.job)
        self._job_silence.over()
        fresh = list(_transitions(self.job, self.description))[self._transitions :]
        self._transitions += len(fresh)
        self._state_pace.answered(self._clock(), bool(fresh))
        if fresh:  # a new state may come with new streams (a restart opens its own)
            self._stream_pace.due = 0.0
        events.extend(fresh)

    def _poll_logs(self, events: list[Event]) -> None:
        if self._logs_refused:
            return
        try:
            asked = self._find_streams()
            for name, stream in self._streams.items():
                asked = self._read(name, stream, events) or asked
            if asked:
                self._log_silence.over()
        except CallError as error:
            now = self._clock()
            try:
                self._log_silence.heard(error, now, events)
            except CallError:
                self._logs_refused = True
                self._streams.clear()
                text = f"the log cannot be read ({error.message}); the job is followed without it"
                events.append(Trouble(self.job, text))
            for pace in (self._stream_pace, *(stream.pace for stream in self._streams.values())):
                pace.answered(now, news=False)

    def _find_streams(self) -> bool:
        """Whether the service was asked."""
        now = self._clock()
        if now < self._stream_pace.due and not (self._ended and self._quiet_since is None):
            return False
        before = len(self._streams)
        for name in self._logs.streams(log_group(self.description), self.job + "/"):
            if name not in self._streams:
                self._streams[name] = _Stream(host_of(self.job, name), _Pace(self._cadence))
        news = len(self._streams) > before
        self._stream_pace.answered(self._clock(), news)
        if not news and len(self._streams) >= host_count(self.description):
            self._stream_pace.due = now + self._cadence.longest * 4
        return True

    def _read(self, name: str, stream: _Stream, events: list[Event]) -> bool:
        """Page after page to the end: a page is at most 1 MB, and following must not fall further behind.

        The end is where the token stays the same; an empty page alone is not (CloudWatch Logs API reference,
        GetLogEvents). A stream that outruns us is left after some pages, so that the others get their turn.
        """
        if self._clock() < stream.pace.due and not self._ended:
            return False
        news, pages, moved = False, 0, True
        while moved and (pages < _PAGES_A_ROUND or self._ended):
            found, token = self._logs.read(log_group(self.description), name, stream.token)
            moved, stream.token = token != stream.token, token
            events.extend(LogLine(self.job, stream.host, event.at, event.text) for event in found)
            news = news or bool(found)
            pages += 1
        stream.pace.answered(self._clock(), news)
        return True

    def _settle(self, news: bool) -> None:
        now = self._clock()
        if news or self._quiet_since is None:
            self._quiet_since = now
        quiet = now - self._quiet_since >= self._cadence.settle
        self.finished = self._logs_refused or (quiet and self._log_silence.since is None)


def follow(
    follower: Follower,
    wait: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Sequence[Event]]:
    """Rounds until the job has ended; an empty one when nothing is new. ``wait`` returning True ends it."""
    while True:
        yield follower.poll()
        if follower.finished:
            return
        while (left := follower.due - clock()) > 0:
            if wait(min(left, _TICK)) is True:
                return
            if left > _TICK:
                yield ()


def log_group(description: Mapping[str, Any]) -> str:
    """Where a job's hosts print to; training jobs do not say it, being most of all."""
    return str(description.get("LogGroup", LOG_GROUP))


def host_count(description: Mapping[str, Any]) -> int:
    """How many hosts the job was asked to have."""
    resources = description.get("ResourceConfig", {})
    groups = resources.get("InstanceGroups")
    if groups:
        return sum(int(group["InstanceCount"]) for group in groups)
    return int(resources.get("InstanceCount") or description.get("SelectedInstanceCount") or 1)


def _transitions(job: str, description: Mapping[str, Any]) -> Iterator[StateChange]:
    for row in description.get("SecondaryStatusTransitions", []):
        yield StateChange(job, row["Status"], row.get("StatusMessage", ""), row["StartTime"].timestamp())


def host_of(job: str, stream: str) -> str:
    """``<job>/<host>-<epoch ms>`` -> ``<host>``."""
    name = stream[len(job) + 1 :]
    host, dash, stamp = name.rpartition("-")
    return host if dash and stamp.isdigit() and host else name


def host_number(host: str) -> int:
    """``algo-12`` -> 12, so that algo-2 comes before algo-10."""
    match = _NUMBER.search(host)
    return int(match.group(1)) if match else 0
