"""Run: a launched plan, seen from anywhere. It holds no state of its own: the service is asked for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import NamedTuple

from smlaunch.errors import JobError, Problem
from smlaunch.launch.follow import LOG_GROUP, TERMINAL, Event, LogLine, host_count, host_of
from smlaunch.launch.outcome import JobOutcome, RunOutcome, outcome
from smlaunch.launch.retry import refusal, retrying
from smlaunch.launch.target import Target
from smlaunch.launch.watch import Watch
from smlaunch.ports import CallError, JobSummary
from smlaunch.protocol.names import is_run_id, parse_task_name
from smlaunch.suggest import nearest

_LOOKED_THROUGH = 200
"""Jobs that are looked at for a name like the one that does not exist."""


@contextmanager
def answers_of(target: Target) -> Iterator[None]:
    """Turns an answer that ends the command into the error the user sees."""
    try:
        yield
    except CallError as error:
        raise refusal(error, target.where) from error


class Run:
    """``jobs``: names of the run's training jobs, oldest first. ``attached``: it existed before this call."""

    def __init__(self, name: str, target: Target, jobs: Sequence[str], *, attached: bool = False) -> None:
        self.name = name
        self.target = target
        self.jobs = tuple(jobs)
        self.attached = attached

    @classmethod
    def attach(cls, name: str, target: Target | None = None) -> Run:
        """Finds a run by its id, or any training job by its name. Raises JobError when there is none."""
        target = target or Target.region()
        with answers_of(target):
            found = sorted(
                (task, summary.name)
                for summary in (target.control.list(f"{name}-s") if is_run_id(name) else ())
                if (task := parse_task_name(summary.name)) is not None and task.run == name
            )
            if found:
                return cls(name, target, [job for _, job in found], attached=True)
            try:
                target.control.describe(name)
            except CallError as error:
                if error.code not in ("ValidationException", "ResourceNotFound"):
                    raise
                raise _no_run(name, target) from error
            task = parse_task_name(name)
            return cls(task.run if task else name, target, [name], attached=True)

    def describe(self) -> RunOutcome:
        """Where the run is now."""
        with answers_of(self.target):
            describe = self.target.control.describe
            found = [outcome(retrying(partial(describe, job))) for job in self.jobs]
        return RunOutcome(self.name, tuple(found))

    def describe_earlier(self) -> list[JobOutcome]:
        """All jobs but the newest."""
        with answers_of(self.target):
            return [outcome(retrying(partial(self.target.control.describe, job))) for job in self.jobs[:-1]]

    def hosts(self) -> int:
        """How many hosts the newest job has."""
        with answers_of(self.target):
            return host_count(retrying(partial(self.target.control.describe, self.jobs[-1])))

    def watch(self) -> Watch:
        """To follow the run's newest job event by event; raises CallError where ``wait`` raises its error."""
        return Watch(self.target, self.jobs[-1])

    def wait(self, on_event: Callable[[Event], None] | None = None) -> RunOutcome:
        """Follows the run to its end. Raises TrainingFailed, StoppedByUser, LimitReached or ServiceError when
        it did not complete. ``on_event`` hears every state and log line."""
        watch = self.watch()
        with answers_of(self.target):
            for events in watch.rounds():
                for event in events:
                    if on_event is not None:
                        on_event(event)
        result = self.describe()
        error = result.error()
        if error is not None:
            raise error
        return result

    def logs(self) -> Iterator[LogLine]:
        """Every line written so far, host by host as it was read; does not wait for more."""
        logs = self.target.logs
        with answers_of(self.target):
            for job in self.jobs:
                for stream in retrying(partial(logs.streams, LOG_GROUP, job + "/")):
                    token: str | None = None
                    before: str | None = ""
                    while token != before:
                        before = token
                        events, token = retrying(partial(logs.read, LOG_GROUP, stream, token))
                        yield from (LogLine(job, host_of(job, stream), at, text) for at, text in events)

    def stop(self) -> RunOutcome:
        """Asks the run to stop and returns at once; hosts get SIGTERM and 120 seconds. A run that has ended
        is left as it is."""
        now = self.describe()
        if now.status not in TERMINAL:
            with answers_of(self.target):
                try:
                    retrying(lambda: self.target.control.stop(self.jobs[-1]))
                except CallError as error:
                    # It ended between the two calls: what was asked for is the case.
                    if error.code != "ValidationException":
                        raise
            now = self.describe()
        return now


class RunSummary(NamedTuple):
    """One row of ``smlaunch ls``. Times are seconds since the epoch."""

    run: str
    job: str
    status: str
    created: float
    ended: float | None


def list_runs(target: Target, limit: int) -> list[RunSummary]:
    """The newest runs, each by its newest job."""
    rows: dict[str, RunSummary] = {}
    with answers_of(target):
        for summary in target.control.list():
            task = parse_task_name(summary.name)
            name = task.run if task else summary.name
            if name in rows:
                continue
            if len(rows) == limit:
                break
            rows[name] = RunSummary(name, summary.name, summary.status, summary.created, summary.ended)
    return list(rows.values())


def _no_run(name: str, target: Target) -> JobError:
    known: set[str] = set()
    for summary in islice(_listed(target), _LOOKED_THROUGH):
        task = parse_task_name(summary.name)
        known.add(task.run if task else summary.name)
    match = nearest(name, known)
    hint = f", did you mean {match!r}?" if match else "; `smlaunch ls` shows the runs there"
    return JobError([Problem("", f"there is no run {name!r} on {target.where}{hint}")])


def _listed(target: Target) -> Iterator[JobSummary]:
    try:
        yield from target.control.list()
    except CallError:
        return  # only a suggestion depends on it
