"""An orchestrator as the driver of a run: it decides what follows a job's end, and is only observed here."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import replace

from smlaunch.chain.next_action import FinishRun
from smlaunch.chain.observed_run import ObservedRun
from smlaunch.chain.orchestrator_execution import (
    describe_driver,
    result_by_execution_or_silence,
    result_by_newest_job,
    stop_instruction,
)
from smlaunch.contract import segment as variables
from smlaunch.contract.run_names import JobName
from smlaunch.errors import JobError, Problem
from smlaunch.runs.job_list import JobList
from smlaunch.runs.launch_target import Target
from smlaunch.runs.run_checkpoints import RunCheckpoints
from smlaunch.runs.run_driver import RunDriver, SleepFunction
from smlaunch.runs.run_outcome import RunOutcome, checkpoints_uri_of_job
from smlaunch.runs.run_state import CheckpointStatus, read_checkpoint_status
from smlaunch.runs.submit_job import stop_job

_CHECKS_BEFORE_MESSAGE = 12
"""Checks for a next job before a message reports the wait."""


class OrchestratorDriver(RunDriver):
    """The orchestrator of one run, which has a job at least. ``report`` receives sentences for the user."""

    def __init__(self, jobs: JobList, target: Target, report: Callable[[str], None]) -> None:
        self._jobs = jobs
        self._target = target
        self._report = report
        self._checkpoint_status = CheckpointStatus()
        self._final_result: FinishRun | None = None

    @property
    def execution(self) -> str:
        """The execution that created the newest job; empty where the job does not state it."""
        return str(self._jobs.descriptions[-1]["Environment"].get(variables.DRIVER_VARIABLE, ""))

    def observe(self, *, reads_checkpoints: bool = False) -> None:
        """Describe the run's jobs again, and derive its final result, which is None while the run goes on.

        ``reads_checkpoints`` also reads the state of all checkpoints, which the final result does not depend
        on.
        """
        self._jobs.find()
        environment = self._jobs.descriptions[-1]["Environment"]
        self._target.bucket_owners.add_from_environment(environment)
        self._refresh_checkpoint_status(reads_checkpoints)
        observed_run = ObservedRun(
            now=time.time(),
            jobs=self._jobs.observed(),
            newest_checkpoint_step=self._checkpoint_status.step,
            outcome_file=self._checkpoint_status.outcome,
            wait_time_scale=self._target.polling.time_scale,
        )
        # Only a job of a chain has this variable; another job may follow its end.
        has_planned_end = variables.STOP_AFTER_VARIABLE in environment
        self._final_result = result_by_newest_job(self._jobs.run, observed_run, has_planned_end)
        if self._final_result is None and not self._jobs.is_running:
            # The job's end does not decide it: ask the orchestrator, if it can be asked.
            self._final_result = result_by_execution_or_silence(
                observed_run, self._target.orchestrators.describe_execution(self.execution)
            )

    def add_result(self, outcome: RunOutcome) -> RunOutcome:
        """Return the outcome with the run's result, the newest checkpoint's step and the execution."""
        step = self._checkpoint_status.step or None
        return replace(
            outcome, is_chain=True, final_result=self._final_result, step=step, execution=self.execution
        )

    def segment_of(self, job: str) -> tuple[JobName, int | None] | None:
        """Return a job's segment and attempt; None for a run of a single job."""
        if variables.STOP_AFTER_VARIABLE not in self._jobs.descriptions[-1]["Environment"]:
            return None
        return dict(zip(self._jobs.names, self._jobs.parsed_names(), strict=True))[job], None

    def wait_for_next_jobs(self, sleep: SleepFunction, followed: Collection[str]) -> tuple[str, ...]:
        """Return the next job, once the orchestrator has created it; none when the run has ended or ``sleep``
        returned True."""
        checks_without_new_job = 0
        while True:
            self.observe()  # finds new jobs, and whether the run has ended
            names = self._jobs.to_follow(followed)
            if names or self._final_result is not None or self._jobs.is_running:
                return names
            checks_without_new_job += 1  # the orchestrator has to decide what follows
            if checks_without_new_job == _CHECKS_BEFORE_MESSAGE:
                newest_job, driver_text = self._jobs.names[-1], describe_driver(self.execution)
                self._report(f"{newest_job} has ended; waiting for {driver_text} to go on")
            if sleep(self._target.polling.max_seconds) is True:
                return ()

    def resume(self) -> None:
        self.observe()
        name, driver_text = self._jobs.run, describe_driver(self.execution)
        if self._final_result is None:
            text = f"{name} is driven by {driver_text}, which alone can continue it"
        else:
            text = (
                f"{name} was driven by {driver_text}, and has ended; run it again "
                "there, or launch the job by `smlaunch run` with these --checkpoints to continue from them"
            )
        raise JobError([Problem("", text)])

    def stop(self, outcome: RunOutcome) -> None:
        """Stop the running job, or, where none runs, the orchestrator's execution.

        All orchestrators end the run when one of its jobs was stopped. Between two jobs, or at a job's very
        end, only the execution can be stopped. Raises JobError where that is not possible from here.
        """
        name, how_to_stop_driver = self._jobs.run, stop_instruction(self.execution)  # a command for the user
        if not outcome.last_job.is_finished:
            stop_job(outcome.last_job.name, self._target.control_plane)
            self.observe()
        if self._jobs.descriptions[-1]["TrainingJobStatus"] in ("Stopping", "Stopped"):
            self._report(f"no job of {name} should follow the stopped one; if one does: {how_to_stop_driver}")
        elif self._final_result is not None:  # the job had just ended, and the run with it
            return
        # False: it cannot be stopped from here.
        elif not self._target.orchestrators.stop_execution(self.execution):
            problem = f"no job of {name} runs, and another may follow"
            raise JobError([Problem("", f"{problem}; to prevent that: {how_to_stop_driver}")])
        else:
            stopped_driver = describe_driver(self.execution)
            self._report(f"no job runs; stopped {stopped_driver}, so that no further job starts")

    def _refresh_checkpoint_status(self, reads_all: bool) -> None:
        """Read how the newest job ended, from its outcome file among the checkpoints, once it has ended.
        ``reads_all``: read that at any time, and the state of all checkpoints too."""
        checkpoints_uri = checkpoints_uri_of_job(self._jobs.descriptions[-1])
        run, storage = self._jobs.run, self._target.storage
        checkpoints = RunCheckpoints(checkpoints_uri, storage) if checkpoints_uri else None
        if reads_all:
            self._checkpoint_status = read_checkpoint_status(run, checkpoints, storage)
        elif checkpoints is not None and not self._jobs.is_running:
            # SegmentOutcome: how the job ended, with the step of its newest checkpoint.
            newest_outcome = checkpoints.read_outcome(run)
            self._checkpoint_status = (
                CheckpointStatus(step=newest_outcome.step or 0, outcome=newest_outcome)
                if newest_outcome is not None
                else CheckpointStatus()
            )
