"""Load a job from the command line, or report all of its problems: of parsing and of planning."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smlaunch.cli.job_arguments import read_job
from smlaunch.errors import JobError, SmlaunchError

if TYPE_CHECKING:
    from smlaunch.job.model import Job


def load_job(job_path: str | None, options: dict[str, Any], script_arguments: list[str] | None) -> Job:
    """Read a job as ``read_job`` does. Where some fields cannot be parsed, the others are checked too,
    so that all problems are reported at once. Changes nothing."""
    try:
        return read_job(job_path, options, script_arguments)
    except JobError as error:
        raise _add_problems_found_on_target(error, options) from None


def _add_problems_found_on_target(error: JobError, options: dict[str, Any]) -> JobError:
    """Return the error of an invalid job together with the problems that only the target (a region or the
    local endpoint) can show, so that the user sees all at once."""
    # The mapping has the job as it was written, valid or not.
    if error.job_mapping is None:  # nothing of the job could be read
        return error
    from smlaunch.connection.open_connection import open_connection
    from smlaunch.runs.plan_job import add_remaining_problems

    try:
        with open_connection(options, read_only=True) as connection:
            # Fail fast: this is a courtesy, for which nobody waits through retries.
            return add_remaining_problems(error, replace(connection.target, fail_fast=True))
    except JobError as later_error:
        return JobError([*error.problems, *later_error.problems])
    except SmlaunchError:
        return error  # the target cannot be reached
