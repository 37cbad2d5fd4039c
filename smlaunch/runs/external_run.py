"""A run that an orchestrator drives (export), found by its jobs.

Its jobs may have any names and any creator. The run has no folder of its own; the Environment of its jobs
names the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from smlaunch.aws.interfaces import ControlPlane, JobSummary
from smlaunch.aws.retry import call_with_retries
from smlaunch.contract import segment as variables
from smlaunch.contract.names import TAG_RUN, JobName, parse_job_name, pipeline_job_prefix
from smlaunch.errors import JobError, Problem
from smlaunch.planner.external_execution import (
    definite_result,
    describe_driver,
    inferred_result,
    stop_instruction,
)
from smlaunch.planner.reconcile import Finish, ObservedRun
from smlaunch.runs.chain_driver import SleepFunction
from smlaunch.runs.checkpoints import RunCheckpoints
from smlaunch.runs.job_follower import JobFollower
from smlaunch.runs.job_poller import TERMINAL_STATUSES
from smlaunch.runs.outcome import RunOutcome, checkpoints_uri_of, job_outcome
from smlaunch.runs.progress import ProgressTracker
from smlaunch.runs.run import Run, translate_call_errors
from smlaunch.runs.run_format import check_format
from smlaunch.runs.run_state import CheckpointStatus, external_run_name, observe_job, read_checkpoint_status
from smlaunch.runs.submit import stop_job
from smlaunch.runs.target import Target

_CHECKS_BEFORE_MESSAGE = 12
"""Checks for a next job before a message reports the wait."""


def attach_external_run(
    name: str,
    target: Target,
    on_message: Callable[[str], None] | None = None,
    job_names: Sequence[str] | None = None,
) -> ExternalRun | None:
    """Return the orchestrator's run of this name; None where there is none.

    ``job_names`` are its jobs with ordinary names, where they have been listed already. Raises JobError for
    the name of an execution that several runs belong to.
    """
    jobs = ExternalJobs(name, target, job_names)
    jobs.refresh()
    if jobs.descriptions and not job_names:
        check_format(jobs.descriptions[-1], name, target.control)
    if not jobs.descriptions and jobs.sibling_names:
        problem = "is an execution with several runs; name one of them"
        if not any(sibling.startswith(f"{name}-") for sibling in jobs.sibling_names):
            problem = "names no run: that of a cached step is not called after its execution; name the job"
        text = f"{name} {problem}: {', '.join(jobs.sibling_names)}"
        execution = target.orchestrators.describe(jobs.sibling_execution)
        if execution is not None and execution.has_ended and execution.message:
            text += f" (it has ended: {execution.message})"
        raise JobError([Problem("", text)])
    return ExternalRun(name, target, jobs, on_message) if jobs.descriptions else None


# ---- the jobs of a run ------------------------------------------------------------------------------------


def _list_by_task_name(run: str, control: ControlPlane) -> Iterable[JobSummary]:
    for summary in control.list(f"{run}-s"):
        task = parse_job_name(summary.name)
        if task is not None and task.run == run:
            yield summary


def _list_by_pipeline_prefix(run: str, control: ControlPlane) -> Iterable[JobSummary]:
    prefix = pipeline_job_prefix(run)
    return (summary for summary in control.list(prefix) if summary.name.startswith(prefix))


def _list_by_tag(run: str, control: ControlPlane) -> Iterable[JobSummary]:
    return control.list_tagged(TAG_RUN, run)


_LISTINGS = (_list_by_task_name, _list_by_pipeline_prefix, _list_by_tag)
"""Ways to find a run's jobs. None of them lists jobs of other runs. Names can be listed at once, tags some
time later."""


class ExternalJobs:
    """The jobs of one run, oldest first. ``job_names`` are those with ordinary names, if they were just
    listed."""

    def __init__(self, run: str, target: Target, job_names: Sequence[str] | None = None) -> None:
        self.run = run
        self._target = target
        self._unrefreshed_names = list(job_names or ())
        self._listings = _LISTINGS if job_names is None else _LISTINGS[:1] if job_names else _LISTINGS[1:]
        self._description_by_name: dict[str, dict[str, Any]] = {}
        self._run_by_foreign_job: dict[str, str | None] = {}
        self.sibling_execution = ""
        """The execution that created the siblings; empty where none is stated."""

    @property
    def descriptions(self) -> list[dict[str, Any]]:
        """DescribeTrainingJob's responses at the last refresh."""
        return list(self._description_by_name.values())

    @property
    def names(self) -> list[str]:
        return list(self._description_by_name)

    @property
    def sibling_names(self) -> list[str]:
        """Other runs of the same execution, and jobs of cached steps, whose run cannot be listed."""
        run_prefix = f"{self.run}-"
        return sorted(
            {
                run if run.startswith(run_prefix) else job
                for job, run in self._run_by_foreign_job.items()
                if run is not None
            }
        )

    def refresh(self) -> None:
        """Describe all jobs that had not ended before."""
        control = self._target.control
        names, self._unrefreshed_names = self._unrefreshed_names or self._list_names(), []
        for name in dict.fromkeys([*self._description_by_name, *names]):
            description = self._description_by_name.get(name, {})
            if name in self._run_by_foreign_job or description.get("TrainingJobStatus") in TERMINAL_STATUSES:
                continue
            new_description = call_with_retries(partial(control.describe, name))
            run_name = external_run_name(new_description)
            if run_name == self.run:
                self._description_by_name[name] = new_description
            else:  # a job of another step of the same pipeline
                self._run_by_foreign_job[name] = run_name
                self.sibling_execution = new_description.get("Environment", {}).get(
                    variables.DRIVER_VARIABLE, self.sibling_execution
                )
        self._description_by_name = dict(sorted(self._description_by_name.items(), key=_creation_order))

    def task_names(self) -> list[JobName]:
        """Return segment and attempt of each job. A job that states no attempt counts as the next one of its
        segment."""
        task_names: list[JobName] = []
        for name, description in self._description_by_name.items():
            task = parse_job_name(name)
            if task is None:
                segment = int(description["Environment"].get(variables.SEGMENT_VARIABLE, "1"))
                earlier_attempts = sum(earlier.segment == segment for earlier in task_names)
                task = JobName(self.run, segment, earlier_attempts + 1)
            task_names.append(task)
        return task_names

    def _list_names(self) -> list[str]:
        for listing in self._listings:
            names = call_with_retries(partial(self._names_from, listing))
            if names:
                self._listings = (listing,)
                return names
        return []

    def _names_from(self, listing: Callable[[str, ControlPlane], Iterable[JobSummary]]) -> list[str]:
        return [summary.name for summary in listing(self.run, self._target.control)]


def _creation_order(item: tuple[str, Mapping[str, Any]]) -> tuple[float, JobName | None, str]:
    name, description = item
    return description["CreationTime"].timestamp(), parse_job_name(name) or JobName("", 0, 0), name


# ---- the run ----------------------------------------------------------------------------------------------


class ExternalRun(Run):
    """A run that is only observed here. Its orchestrator decides what follows a job's end."""

    def __init__(
        self, name: str, target: Target, jobs: ExternalJobs, on_message: Callable[[str], None] | None = None
    ) -> None:
        super().__init__(name, target, jobs.names, attached=True, on_message=on_message)
        self._chain_is_known = True
        self._external_jobs = jobs
        self._checkpoint_status = CheckpointStatus()
        self._final_result: Finish | None = None

    @property
    def execution(self) -> str:
        """The orchestrator's execution that created the newest job; empty where the job does not state it."""
        return str(self._newest_job["Environment"].get(variables.DRIVER_VARIABLE, ""))

    def describe(self) -> RunOutcome:
        with translate_call_errors(self.target):
            self._refresh_state(reads_checkpoints=True)
        return self._build_outcome()

    def refresh(self) -> RunOutcome:
        with translate_call_errors(self.target):
            self._refresh_state(reads_checkpoints=True)
            follower = JobFollower(self.target, self._jobs[-1])
            follower.refresh()
        return self._build_outcome(follower)

    def outcome_from(self, follower: JobFollower) -> RunOutcome:
        return self._build_outcome(follower)

    def segment_of(self, job: str) -> tuple[JobName, int | None] | None:
        if variables.STOP_AFTER_VARIABLE not in self._newest_job["Environment"]:
            return None
        return dict(zip(self._external_jobs.names, self._external_jobs.task_names(), strict=True))[job], None

    def done(self) -> bool:
        with translate_call_errors(self.target):
            self._refresh_state()
        return self._final_result is not None

    def follow(
        self, sleep: SleepFunction = time.sleep, *, from_first_job: bool = False
    ) -> Iterator[JobFollower]:
        """Yield a follower for each job, as the orchestrator starts it, until the run has ended.
        ``from_first_job``: follow the jobs before the newest one too."""
        progress = ProgressTracker()
        self._refresh_state()
        followed_jobs = set() if from_first_job else set(self._jobs[:-1])
        check_count = 0
        while True:
            for job in [job for job in self._jobs if job not in followed_jobs]:
                check_count = 0
                followed_jobs.add(job)
                yield JobFollower(self.target, job, progress)
            self._refresh_state()
            if self._jobs[-1] not in followed_jobs:
                continue
            was_left_early = self._is_job_running
            if self._final_result is not None or was_left_early:
                return
            check_count += 1
            if check_count == _CHECKS_BEFORE_MESSAGE:
                self._report(
                    f"{self._jobs[-1]} has ended; waiting for {describe_driver(self.execution)} to go on"
                )
            if sleep(self.target.polling.max_seconds) is True:
                return

    def resume(self) -> None:
        if self.describe().exit_code is None:
            text = f"{self.name} is driven by {describe_driver(self.execution)}, which alone can continue it"
        else:
            text = (
                f"{self.name} was driven by {describe_driver(self.execution)}, and has ended; run it again "
                "there, or launch the job by `smlaunch run` with these --checkpoints to continue from them"
            )
        raise JobError([Problem("", text)])

    def stop(self) -> RunOutcome:
        """Stop the running job, which ends the run in every export, or else the execution.

        Between two jobs, or at a job's very end, only the execution can be stopped. Raises JobError where
        that is not possible from here.
        """
        outcome = self.describe()
        if outcome.exit_code is not None:
            return outcome
        execution_text, instruction = describe_driver(self.execution), stop_instruction(self.execution)
        with translate_call_errors(self.target):
            if not outcome.last_job.is_finished:
                stop_job(outcome.last_job.name, self.target.control)
                outcome = self.describe()
            if outcome.last_job.status in ("Stopping", "Stopped"):
                self._report(
                    f"no job of {self.name} should follow the stopped one; if one does: {instruction}"
                )
            elif outcome.exit_code is None:
                if not self.target.orchestrators.stop(self.execution):
                    text = (
                        f"no job of {self.name} runs, and another may follow; to prevent that: {instruction}"
                    )
                    raise JobError([Problem("", text)])
                self._report(f"no job runs; stopped {execution_text}, so that no further job starts")
                outcome = self.describe()
        return outcome

    # ---- state

    def _describe_job(self, job: str) -> Mapping[str, Any]:
        return dict(zip(self._external_jobs.names, self._external_jobs.descriptions, strict=True))[job]

    @property
    def _newest_job(self) -> dict[str, Any]:
        return self._external_jobs.descriptions[-1]

    @property
    def _is_job_running(self) -> bool:
        return self._newest_job["TrainingJobStatus"] not in TERMINAL_STATUSES

    def _refresh_state(self, *, reads_checkpoints: bool = False) -> None:
        """Describe the jobs again and derive the run's final result.

        ``reads_checkpoints`` also reads the state of all checkpoints, which the final result does not depend
        on.
        """
        self._external_jobs.refresh()
        self._jobs = self._external_jobs.names
        self.target.bucket_owners.add_from_environment(self._newest_job.get("Environment", {}))
        uri, storage = checkpoints_uri_of(self._newest_job), self.target.storage
        checkpoints = RunCheckpoints(uri, storage) if uri else None
        if reads_checkpoints:
            self._checkpoint_status = read_checkpoint_status(self.name, checkpoints, storage)
        elif checkpoints is not None and not self._is_job_running:
            outcome = checkpoints.read_outcome(self.name)
            self._checkpoint_status = (
                CheckpointStatus(outcome.step or 0, outcome) if outcome is not None else CheckpointStatus()
            )
        jobs = [
            observe_job(task_name, description)
            for task_name, description in zip(
                self._external_jobs.task_names(), self._external_jobs.descriptions, strict=True
            )
        ]
        time_scale = self.target.polling.time_scale
        observed = ObservedRun(
            time.time(),
            jobs,
            self._checkpoint_status.step,
            self._checkpoint_status.outcome,
            time_scale=time_scale,
        )
        has_planned_end = variables.STOP_AFTER_VARIABLE in self._newest_job["Environment"]
        self._final_result = definite_result(self.name, observed, has_planned_end)
        if self._final_result is None and not self._is_job_running:
            self._final_result = inferred_result(observed, self.target.orchestrators.describe(self.execution))

    def _build_outcome(self, follower: JobFollower | None = None) -> RunOutcome:
        outcomes = [job_outcome(description) for description in self._external_jobs.descriptions]
        if follower is not None and follower.is_described:
            followed_outcome = follower.outcome()
            outcomes = [followed_outcome if job.name == followed_outcome.name else job for job in outcomes]
        step = self._checkpoint_status.step or None
        return RunOutcome(
            self.name,
            tuple(outcomes),
            is_chain=True,
            final_result=self._final_result,
            step=step,
            execution=self.execution,
        )

    def _report(self, text: str) -> None:
        if self._on_message is not None:
            self._on_message(text)
