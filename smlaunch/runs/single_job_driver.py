"""The driver of a run that nobody drives: of a single job, which no other follows."""

from __future__ import annotations

from collections.abc import Collection

from smlaunch.errors import JobError, Problem
from smlaunch.runs.job_list import JobList
from smlaunch.runs.launch_target import Target
from smlaunch.runs.run_driver import RunDriver, SleepFunction
from smlaunch.runs.run_outcome import RunOutcome
from smlaunch.runs.submit_job import stop_job


class SingleJobDriver(RunDriver):
    """Describes the job, and submits nothing."""

    def __init__(self, jobs: JobList, target: Target) -> None:
        self._jobs = jobs
        self._target = target

    def observe(self, *, reads_checkpoints: bool = False) -> None:
        self._jobs.describe()

    def wait_for_next_jobs(self, sleep: SleepFunction, followed: Collection[str]) -> tuple[str, ...]:
        return self._jobs.to_follow(followed)

    def resume(self) -> None:
        self._jobs.describe()
        if self._jobs.descriptions[-1]["TrainingJobStatus"] == "Completed":
            return  # there is nothing left to do
        if self._jobs.is_stopping or not self._jobs.is_running:
            state = "is being stopped" if self._jobs.is_stopping else "has ended"
            text = f"{self._jobs.run} is a single job that {state}; launch it again under another name"
            raise JobError([Problem("", text)])

    def stop(self, outcome: RunOutcome) -> None:
        stop_job(outcome.last_job.name, self._target.control_plane)
