"""Runs of an Airflow task: start or find one, submit its due jobs, and read its result. Does not use
Airflow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from smlaunch.airflow.run_ids import run_id_of_try, try_of_run
from smlaunch.airflow.start_action import LatestRun, StartAction, choose_start_action
from smlaunch.api.job_kinds import TERMINAL_STATUSES
from smlaunch.aws.service_errors import call_with_retries
from smlaunch.contract.run_names import parse_job_name
from smlaunch.job.model import Job
from smlaunch.runs.attach_run import attach
from smlaunch.runs.call_errors import translate_call_errors
from smlaunch.runs.job_list import JobList
from smlaunch.runs.job_poller import Event, LogLine, StateChange
from smlaunch.runs.launch_plan import find_earlier_launches, launch
from smlaunch.runs.launch_target import Target
from smlaunch.runs.plan_job import prepare
from smlaunch.runs.run import Run
from smlaunch.runs.run_driver import MessageCallback
from smlaunch.runs.run_outcome import RunOutcome


@dataclass(frozen=True)
class TaskTry:
    """One try of a task instance."""

    base_run_id: str
    try_number: int
    last_try_before_clear: int = 0
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
    """Return the newest run of an Airflow task instance, after the number of the try that started it; None
    without any. The run id of a try is ``base_run_id`` with the try's number (``try_of_run`` reads it).
    ``target``: the region or local endpoint."""
    with translate_call_errors(target):
        job_summaries = call_with_retries(lambda: list(target.control_plane.list_jobs(base_run_id)))
    run_id_by_try: dict[int, str] = {}
    for summary in job_summaries:
        job_name = parse_job_name(summary.name)
        if job_name is None:
            continue  # not a job of smlaunch
        # A job may belong to a shard of the run: then the run's id has a suffix.
        for run_id in (job_name.run, _strip_shard_suffix(job_name.run)):
            try_number = try_of_run(base_run_id, run_id)
            if try_number is not None:  # not a run of another task
                run_id_by_try[try_number] = run_id
    if not run_id_by_try:
        return None
    latest_try = max(run_id_by_try)
    return latest_try, attach(run_id_by_try[latest_try], target, on_message)


def start_or_reattach(
    task_try: TaskTry, load_job: Callable[[], Job], target: Target, on_message: MessageCallback
) -> StartedRun:
    """Return the run of this try of an Airflow task: a new one, or an existing one to attach to, to resume or
    to report. Waits first for a run that is being stopped. ``target``: the region or local endpoint.

    Creates one job at most, under a name that only this try, or another driver (process that submits jobs) of
    the same run, requests. Raises the errors of ``launch``.
    """
    has_reported_wait = False
    while True:
        try_and_run = find_latest_run(task_try.base_run_id, target, on_message)
        if try_and_run is None:
            return _launch_run_of_try(task_try, load_job(), target, on_message)
        started_by_try, run = try_and_run
        if not task_try.has_generated_id:
            # The DAG has named the run: another job may have the name.
            _check_job_unchanged(run, load_job(), target)
        start_action = choose_start_action(
            _describe_latest_run(started_by_try, run), task_try.last_try_before_clear
        )
        if start_action is StartAction.LAUNCH:
            return _launch_run_of_try(task_try, load_job(), target, on_message)
        if start_action is StartAction.RESUME:
            return _resume_run(task_try, run, load_job(), target, on_message)
        if start_action is not StartAction.AWAIT:
            break
        if not has_reported_wait:
            on_message(f"run {run.name} is being stopped; it will be resumed afterwards")
        has_reported_wait = True
        time.sleep(target.polling.max_seconds)
    is_finished = start_action is StartAction.REPORT
    on_message(f"run {run.name} exists already: {'it has completed' if is_finished else 'attached'}")
    enable_submitting_jobs(run)
    return StartedRun(run, is_finished=is_finished)


def _launch_run_of_try(
    task_try: TaskTry, job: Job, target: Target, on_message: MessageCallback
) -> StartedRun:
    """Start a run under this try's own name."""
    run_id = run_id_of_try(task_try.base_run_id, task_try.try_number)
    on_message(f"run {run_id}")
    return StartedRun(launch(prepare(job, target, run_id), on_message=on_message))


def reattach(name: str, target: Target, on_message: MessageCallback, *, resume: bool = False) -> Run:
    """Return a run that this try has started, in another process."""
    run = attach(name, target, on_message)
    if resume:
        run.resume()
    enable_submitting_jobs(run)
    return run


def enable_submitting_jobs(run: Run) -> None:
    """Let this process submit the run's further jobs, and accept how the run has ended."""
    for driver in run.chain_drivers:
        driver.is_driving = True


def submit_due_jobs(run: Run) -> WaitCondition:
    """Submit the run's jobs that are due (next segments of chains: jobs in a row), and return which jobs or
    which time to wait for; an empty WaitCondition means that the run has ended. Does not wait itself: a chain
    driver's pause is recorded instead."""
    with translate_call_errors(run.target):
        if not run.chain_drivers:
            # A single job: nothing follows it.
            job_description = call_with_retries(lambda: run.target.control_plane.describe_job(run.jobs[-1]))
            has_ended = job_description["TrainingJobStatus"] in TERMINAL_STATUSES
            return WaitCondition() if has_ended else WaitCondition(running_jobs=(run.jobs[-1],))
        running_jobs: list[str] = []
        wake_times: list[float] = []
        for chain_driver in run.chain_drivers:
            recorder = _PauseRecorder()
            job_name = chain_driver.wait_for_next_job(recorder.record_pause)
            if job_name is not None:
                running_jobs.append(str(job_name))
            elif chain_driver.final_result is None:  # a pause comes before the next job
                wake_times.append(time.time() + max(recorder.pauses, default=0.0))
        return WaitCondition(running_jobs=tuple(running_jobs), wake_at=min(wake_times, default=None))


class _PauseRecorder:
    """Records for how long a chain driver wants to wait, in seconds. The pause is not made here: the task
    waits for it deferred."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def record_pause(self, seconds: float) -> bool:
        """Record a pause, and let the driver return, as an interrupt would."""
        self.pauses.append(seconds)
        return True


def read_log_lines(job: str, target: Target) -> Iterator[LogLine]:
    """Yield the lines that a job has logged so far."""
    with translate_call_errors(target):
        yield from JobList(job, target, [job]).logs()


def fetch_outcome(name: str, target: Target) -> RunOutcome:
    return attach(name, target).describe(reads_logs=True)


def format_event(event: Event) -> str:
    """Return an event of a job as one line for the Airflow task's log."""
    if isinstance(event, LogLine):
        return f"{event.host}| {event.text}"
    if isinstance(event, StateChange):
        return f"{event.job}: {event.state}" + (f" ({event.message})" if event.message else "")
    return event.message  # a warning


def _describe_latest_run(started_by_try: int, run: Run) -> LatestRun:
    """Return what ``choose_start_action`` has to know about a run. ``started_by_try``: number of the try."""
    outcome = run.describe()
    is_stopping = outcome.status == "Stopping" or any(job.status == "Stopping" for job in outcome.jobs)
    # A chain, of sequential jobs, goes on after its last job; a single job does not.
    is_resumable = bool(run.chain_drivers)
    return LatestRun(started_by_try, outcome.exit_code, is_stopping, is_resumable)


def _resume_run(
    task_try: TaskTry, run: Run, job: Job, target: Target, on_message: MessageCallback
) -> StartedRun:
    """Continue a run that has ended from its newest checkpoint. If the job has changed since, start a run
    under this try's own name instead."""
    prepared_launch = prepare(job, target, run.name)
    workflows = [driver.workflow for driver in run.chain_drivers]
    is_same_job = bool(workflows) and all(
        workflow.is_of_same_job(prepared_launch.plan.workflow) for workflow in workflows
    )
    if not is_same_job and task_try.has_generated_id:
        new_run_id = run_id_of_try(task_try.base_run_id, task_try.try_number)
        on_message(f"{run.name} has ended, and the job has changed since; run {new_run_id}")
        return StartedRun(launch(prepare(job, target, new_run_id), on_message=on_message))
    # Launching an existing run starts nothing; it sets the limits that the job has now.
    resumed_run = launch(prepared_launch, on_message=on_message)
    on_message(f"run {resumed_run.name} is resumed")
    resumed_run.resume()
    return StartedRun(resumed_run, was_resumed=True)


def _check_job_unchanged(run: Run, job: Job, target: Target) -> None:
    """Raise JobError when another job has the name."""
    plan = prepare(job, target, run.name).plan
    with translate_call_errors(target):
        find_earlier_launches(plan, target)


def _strip_shard_suffix(run_id: str) -> str:
    """Return ``nightly`` for ``nightly-p3``, the run of a shard; other ids unchanged."""
    run_id_without_suffix, separator, number_text = run_id.rpartition("-p")
    return run_id_without_suffix if separator and number_text.isdigit() else run_id
