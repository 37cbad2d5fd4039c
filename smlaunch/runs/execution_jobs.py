"""Finds the jobs of a run that an orchestrator drives (export), by names and tags.

Its jobs may have any names and any creator; their Environment names the run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from smlaunch.aws.service_errors import call_with_retries
from smlaunch.contract import segment as variables
from smlaunch.contract.run_names import TAG_RUN, pipeline_job_prefix
from smlaunch.errors import JobError, Problem
from smlaunch.runs.job_list import list_own_names
from smlaunch.runs.launch_target import Target


def orchestrated_run_name(description: Mapping[str, Any]) -> str | None:
    """Return the run that an orchestrator's job belongs to; None for a job that no orchestrator created
    (export.run_template)."""
    run = description.get("Environment", {}).get(variables.RUN_VARIABLE)
    return None if run is None else str(run)


def _list_by_pipeline_prefix(run: str, target: Target) -> Collection[str]:
    prefix = pipeline_job_prefix(run)
    names = [summary.name for summary in target.control_plane.list_jobs(prefix)]
    return [name for name in names if name.startswith(prefix)]


def _list_by_tag(run: str, target: Target) -> Collection[str]:
    return [summary.name for summary in target.control_plane.list_jobs_with_tag(TAG_RUN, run)]


_Listing = Callable[[str, Target], Collection[str]]
_LISTINGS: Sequence[_Listing] = (list_own_names, _list_by_pipeline_prefix, _list_by_tag)
"""Ways to find a run's jobs. None of them lists jobs of other runs. Names can be listed at once, tags some
time later."""


class ExecutionJobs:
    """Finds the jobs of one run. ``own_names`` are those with ordinary names, if they were just listed."""

    def __init__(self, run: str, target: Target, own_names: Sequence[str] | None = None) -> None:
        self._run = run
        self._target = target
        self._listings = _LISTINGS if own_names is None else _LISTINGS[:1] if own_names else _LISTINGS[1:]
        self._other_run_by_its_job: dict[str, str | None] = {}
        self._execution_of_other_jobs = ""
        """The execution that created them; empty where none is stated."""

    def find_names(self) -> Collection[str]:
        for listing in self._listings:
            names = call_with_retries(partial(listing, self._run, self._target))
            if names:
                self._listings = (listing,)
                return names
        return ()

    def is_own(self, description: Mapping[str, Any]) -> bool:
        run_name = orchestrated_run_name(description)
        if run_name == self._run:
            return True
        # A job of another step of the same pipeline, with a name or tag like this run's.
        self._other_run_by_its_job[str(description["TrainingJobName"])] = run_name
        # DRIVER_VARIABLE holds the orchestrator's execution that created the job.
        self._execution_of_other_jobs = description.get("Environment", {}).get(
            variables.DRIVER_VARIABLE, self._execution_of_other_jobs
        )
        return False

    def raise_if_other_runs(self) -> None:
        """Raise JobError if only other runs of an execution were found, whose name was given in place of a
        run's, or jobs of cached steps: results of earlier executions, whose run cannot be listed."""
        own_prefix = f"{self._run}-"
        other_names = sorted(
            {
                run if run.startswith(own_prefix) else job
                for job, run in self._other_run_by_its_job.items()
                if run is not None
            }
        )
        if not other_names:
            return
        if any(other_name.startswith(own_prefix) for other_name in other_names):
            problem = "is an execution with several runs; name one of them"
        else:
            problem = "names no run: that of a cached step is not called after its execution; name the job"
        message = f"{self._run} {problem}: {', '.join(other_names)}"
        execution = self._target.orchestrators.describe_execution(self._execution_of_other_jobs)
        if execution is not None and execution.has_ended and execution.message:
            message += f" (it has ended: {execution.message})"
        raise JobError([Problem("", message)])
