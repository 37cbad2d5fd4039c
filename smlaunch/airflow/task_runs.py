"""Runs of an Airflow task: start or find one, submit its due jobs, and read its result. Does not use
Airflow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from smlaunch.airflow.run_ids import run_id_of_try, try_of_run
from smlaunch.airflow.start_action import LatestRun, StartAction, choose_start_action
from smlaunch.aws.retry import call_with_retries
from smlaunch.contract.names import parse_job_name
from smlaunch.job.model import Job
from smlaunch.runs.api import launch, prepare
from smlaunch.runs.chain_driver import ChainDriver
from smlaunch.runs.job_poller import TERMINAL_STATUSES, Event, LogLine, StateChange
from smlaunch.runs.outcome import RunOutcome
from smlaunch.runs.run import Run, translate_call_errors
from smlaunch.runs.sharded_run import ShardedRun
from smlaunch.runs.submit import find_existing_job
from smlaunch.runs.target import Target

MessageCallback = Callable[[str], None]
EventCallback = Callable[[Event], None]


@dataclass(frozen=True)
class TaskTry:
    """One try of a task instance."""

    base_run_id: str
    try_number: int
    tries_before_clear: int = 0
    """See ``start_action``."""
    has_generated_id: bool = True
    """The base run id is made from the task instance's names, so that no other job has it. An id that the DAG
    gives may be another job's."""


@dataclass(frozen=True)
class StartedRun:
    """The run that a try drives."""

    run: Run
    was_resumed: bool = False
    """The run had ended and continues because of this try."""
    is_finished: bool = False
    """The run has ended and only needs its report."""


@dataclass(frozen=True)
class WaitCondition:
    """What to wait for before the run needs its driver again. Without a job or a time, the run has ended."""

    running_jobs: tuple[str, ...] = ()
    """Jobs that run now."""
    wake_at: float | None = None
    """When the driver has to act, whatever the jobs do (seconds since the epoch)."""

    @property
    def run_has_ended(self) -> bool:
        return not self.running_jobs and self.wake_at is None


def find_latest_run(
    base_run_id: str, target: Target, on_message: MessageCallback | None = None
) -> tuple[int, Run] | None:
    """Return the newest run of a task instance, and the try that started it; None without any."""
    with translate_call_errors(target):
        summaries = call_with_retries(lambda: list(target.control.list(base_run_id)))
    run_by_try = {}
    for summary in summaries:
        task = parse_job_name(summary.name)
        if task is not None:
            unsharded = _without_shard_suffix(task.run)
            for run in (task.run, unsharded):
                try_number = try_of_run(base_run_id, run)
                if try_number is not None:
                    run_by_try[try_number] = run
    if not run_by_try:
        return None
    latest_try = max(run_by_try)
    return latest_try, Run.attach(run_by_try[latest_try], target, on_message)


def start_or_reattach(
    task_try: TaskTry, load_job: Callable[[], Job], target: Target, on_message: MessageCallback
) -> StartedRun:
    """Start or find the run that this try drives.

    Creates one job at most, under a name that only this try, or another driver of the same run, requests.
    Raises the errors of ``launch``.
    """
    has_reported_wait = False
    while True:
        latest = find_latest_run(task_try.base_run_id, target, on_message)
        if latest is not None and not task_try.has_generated_id:
            _check_same_job(latest[1], load_job(), target)
        state = None if latest is None else _describe_latest_run(*latest)
        action = choose_start_action(state, task_try.tries_before_clear)
        if latest is None or action is StartAction.LAUNCH:
            name = run_id_of_try(task_try.base_run_id, task_try.try_number)
            on_message(f"run {name}")
            return StartedRun(launch(prepare(load_job(), target, name), on_message=on_message))
        run = latest[1]
        if action is StartAction.AWAIT:
            if not has_reported_wait:
                on_message(f"run {run.name} is being stopped; it will be resumed afterwards")
            has_reported_wait = True
            time.sleep(target.polling.max_seconds)
            continue
        if action is StartAction.RESUME:
            return _resume_run(task_try, run, load_job(), target, on_message)
        on_message(
            f"run {run.name} exists already: "
            f"{'it has completed' if action is StartAction.REPORT else 'attached'}"
        )
        enable_driving(run)
        return StartedRun(run, is_finished=action is StartAction.REPORT)


def reattach(name: str, target: Target, on_message: MessageCallback, *, resume: bool = False) -> Run:
    """Return a run that this try has started, in another process."""
    run = Run.attach(name, target, on_message)
    if resume:
        run.resume()
    enable_driving(run)
    return run


def enable_driving(run: Run) -> None:
    """Let this process submit the run's further jobs, and accept how the run has ended."""
    for driver in _chain_drivers(run):
        driver.is_driving = True


def submit_due_jobs(run: Run) -> WaitCondition:
    """Submit the jobs that are due, and return what to wait for. Does not wait itself."""
    with translate_call_errors(run.target):
        if not isinstance(run, ShardedRun) and run.chain_driver is None:
            job = run.jobs[-1]
            status = call_with_retries(lambda: run.target.control.describe(job))["TrainingJobStatus"]
            return WaitCondition() if status in TERMINAL_STATUSES else WaitCondition((job,))
        jobs: list[str] = []
        wake_times: list[float] = []
        for driver in _chain_drivers(run):
            pauses: list[float] = []

            def record_pause(seconds: float, pauses: list[float] = pauses) -> bool:
                pauses.append(seconds)
                return True

            job_name = driver.next_job(record_pause)
            if job_name is not None:
                jobs.append(str(job_name))
            elif driver.final_result is None:
                wake_times.append(time.time() + max(pauses, default=0.0))
        return WaitCondition(tuple(jobs), min(wake_times, default=None))


def follow_run(run: Run, on_event: EventCallback) -> None:
    """Follow the run to its end in this process, and drive it if it is driven from here."""
    with translate_call_errors(run.target):
        for follower in run.follow():
            for events in follower.event_batches():
                for event in events:
                    on_event(event)


def read_log_lines(job: str, target: Target) -> Iterator[LogLine]:
    """Yield the lines that a job has logged so far."""
    with translate_call_errors(target):
        yield from Run(job, target, [job], attached=True).logs()


def fetch_outcome(name: str, target: Target) -> RunOutcome:
    return Run.attach(name, target).refresh()


def format_event(event: Event) -> str:
    """Return one line for a task's log."""
    if isinstance(event, LogLine):
        return f"{event.host}| {event.text}"
    if isinstance(event, StateChange):
        return f"{event.job}: {event.state}" + (f" ({event.message})" if event.message else "")
    return event.message


def _describe_latest_run(try_number: int, run: Run) -> LatestRun:
    outcome = run.describe()
    is_stopping = outcome.status == "Stopping" or any(job.status == "Stopping" for job in outcome.jobs)
    return LatestRun(try_number, outcome.exit_code, is_stopping, run.is_resumable)


def _resume_run(
    task_try: TaskTry, run: Run, job: Job, target: Target, on_message: MessageCallback
) -> StartedRun:
    prepared = prepare(job, target, run.name)
    hashes = {driver.workflow.job_hash for driver in _chain_drivers(run)}
    if hashes != {prepared.plan.job_hash} and task_try.has_generated_id:
        name = run_id_of_try(task_try.base_run_id, task_try.try_number)
        on_message(f"{run.name} has ended, and the job has changed since; run {name}")
        return StartedRun(launch(prepare(job, target, name), on_message=on_message))
    # Launching an existing run starts nothing; it sets the limits that the job has now.
    run = launch(prepared, on_message=on_message)
    on_message(f"run {run.name} is resumed")
    run.resume()
    return StartedRun(run, was_resumed=True)


def _check_same_job(run: Run, job: Job, target: Target) -> None:
    """Raise JobError when another job has the name."""
    plan = prepare(job, target, run.name).plan
    with translate_call_errors(target):
        find_existing_job(plan.planned_jobs[0], plan.job_hash, target.control)


def _chain_drivers(run: Run) -> Iterable[ChainDriver]:
    runs = list(run.shard_runs.values()) if isinstance(run, ShardedRun) else [run]
    return [driver for run in runs if (driver := run.chain_driver) is not None]


def _without_shard_suffix(run: str) -> str:
    head, dash, number = run.rpartition("-p")
    return head if dash and number.isdigit() else run
