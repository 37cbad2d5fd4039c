"""Runs as a task drives them: begun or found again, moved on by one step, and told. Knows no Airflow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from smlaunch.airflow.names import run_of_try, try_of
from smlaunch.airflow.tries import Begin, Newest, begin
from smlaunch.job import Job
from smlaunch.protocol.names import parse_task_name
from smlaunch.runs.api import launch, prepare
from smlaunch.runs.chain import Chain
from smlaunch.runs.fan_out import PartsRun
from smlaunch.runs.follow import TERMINAL, Event, LogLine, StateChange
from smlaunch.runs.outcome import RunOutcome
from smlaunch.runs.retry import retrying
from smlaunch.runs.run import Run, answers_of
from smlaunch.runs.submit import existing
from smlaunch.runs.target import Target

Told = Callable[[str], None]
Heard = Callable[[Event], None]


@dataclass(frozen=True)
class Try:
    """One try of a task instance. ``base``: its run id. ``own``: that id is made of the task instance's names
    and nobody else's; one that the DAG gives may be another job's. ``cleared_at``: see ``tries``."""

    base: str
    number: int
    cleared_at: int = 0
    own: bool = True


@dataclass(frozen=True)
class Begun:
    """``resumed``: it had ended, and goes on because this try asks for it. ``over``: there is nothing to
    drive, only to report."""

    run: Run
    resumed: bool = False
    over: bool = False


@dataclass(frozen=True)
class Standing:
    """``jobs``: those that run now. ``wake_at``: when there is something to do whatever they do (seconds
    since the epoch). Neither: the run has ended."""

    jobs: tuple[str, ...] = ()
    wake_at: float | None = None

    @property
    def ended(self) -> bool:
        return not self.jobs and self.wake_at is None


def find(base: str, target: Target, told: Told | None = None) -> tuple[int, Run] | None:
    """The newest run of a task instance, and the try that began it."""
    with answers_of(target):
        summaries = retrying(lambda: list(target.control.list(base)))
    made = {}
    for summary in summaries:
        task = parse_task_name(summary.name)
        if task is not None:
            whole = _without_part(task.run)
            for run in (task.run, whole):
                number = try_of(base, run)
                if number is not None:
                    made[number] = run
    if not made:
        return None
    newest = max(made)
    return newest, Run.attach(made[newest], target, told)


def begin_try(this: Try, job_of: Callable[[], Job], target: Target, told: Told) -> Begun:
    """The run that this try drives. At most one job is created, under a name that only this try, or whoever
    drives the same run, asks for. Raises what launch raises."""
    waits = False
    while True:
        found = find(this.base, target, told)
        if found is not None and not this.own:
            _same_job(found[1], job_of(), target)
        newest = None if found is None else _newest(*found)
        action = begin(newest, this.cleared_at)
        if found is None or action is Begin.LAUNCH:
            name = run_of_try(this.base, this.number)
            told(f"run {name}")
            return Begun(launch(prepare(job_of(), target, name), told=told))
        run = found[1]
        if action is Begin.AWAIT:
            if not waits:
                told(f"run {run.name} is being stopped; it goes on when that is done")
            waits = True
            time.sleep(target.cadence.longest)
            continue
        if action is Begin.RESUME:
            return _resumed(this, run, job_of(), target, told)
        told(
            f"run {run.name} is there already: {'it has completed' if action is Begin.REPORT else 'attached'}"
        )
        drive(run)
        return Begun(run, over=action is Begin.REPORT)


def again(name: str, target: Target, told: Told, *, resuming: bool = False) -> Run:
    """A run that this try has begun, found again by another process."""
    run = Run.attach(name, target, told)
    if resuming:
        run.resume()
    drive(run)
    return run


def drive(run: Run) -> None:
    """Further jobs come from here, and how the run has ended is accepted."""
    for chain in _chains(run):
        chain.drives = True


def advance(run: Run) -> Standing:
    """Submits what is due, and says what to wait for. Waits for nothing itself."""
    with answers_of(run.target):
        if not isinstance(run, PartsRun) and run.chain is None:
            job = run.jobs[-1]
            status = retrying(lambda: run.target.control.describe(job))["TrainingJobStatus"]
            return Standing() if status in TERMINAL else Standing((job,))
        jobs: list[str] = []
        wakes: list[float] = []
        for chain in _chains(run):
            pauses: list[float] = []

            def leave(seconds: float, pauses: list[float] = pauses) -> bool:
                pauses.append(seconds)
                return True

            name = chain.next(leave)
            if name is not None:
                jobs.append(str(name))
            elif chain.verdict is None:
                wakes.append(time.time() + max(pauses, default=0.0))
        return Standing(tuple(jobs), min(wakes, default=None))


def follow(run: Run, heard: Heard) -> None:
    """To the run's end, here and now; drives it if it is driven from here."""
    with answers_of(run.target):
        for watch in run.watches():
            for events in watch.rounds():
                for event in events:
                    heard(event)


def lines_of(job: str, target: Target) -> Iterator[LogLine]:
    """What a job has written so far."""
    with answers_of(target):
        yield from Run(job, target, [job], attached=True).logs()


def result_of(name: str, target: Target) -> RunOutcome:
    return Run.attach(name, target).glance()


def sentence(event: Event) -> str:
    """One line for a task's log."""
    if isinstance(event, LogLine):
        return f"{event.host}| {event.text}"
    if isinstance(event, StateChange):
        return f"{event.job}: {event.state}" + (f" ({event.message})" if event.message else "")
    return event.message


def _newest(number: int, run: Run) -> Newest:
    now = run.describe()
    stopping = now.status == "Stopping" or any(job.status == "Stopping" for job in now.jobs)
    return Newest(number, now.exit_code, stopping, run.resumable)


def _resumed(this: Try, run: Run, job: Job, target: Target, told: Told) -> Begun:
    prepared = prepare(job, target, run.name)
    hashes = {chain.workflow.job_hash for chain in _chains(run)}
    if hashes != {prepared.plan.job_hash} and this.own:
        name = run_of_try(this.base, this.number)
        told(f"{run.name} ended, and the job is another one since; run {name}")
        return Begun(launch(prepare(job, target, name), told=told))
    # Launching what is there starts nothing; it brings the caps that the job has now.
    run = launch(prepared, told=told)
    told(f"run {run.name} goes on")
    run.resume()
    return Begun(run, resumed=True)


def _same_job(run: Run, job: Job, target: Target) -> None:
    """Raises JobError when another job has the name."""
    plan = prepare(job, target, run.name).plan
    with answers_of(target):
        existing(plan.tasks[0], plan.job_hash, target.control)


def _chains(run: Run) -> Iterable[Chain]:
    runs = list(run.parts.values()) if isinstance(run, PartsRun) else [run]
    return [chain for each in runs if (chain := each.chain) is not None]


def _without_part(run: str) -> str:
    head, dash, number = run.rpartition("-p")
    return head if dash and number.isdigit() else run
