"""Load a job from the command line, or report all of its problems: of parsing and of planning."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smlaunch.cli.options import read_job
from smlaunch.errors import JobError, SmlaunchError

if TYPE_CHECKING:
    from smlaunch.job.model import Job


def load_job(job_path: str | None, options: dict[str, Any], script_arguments: list[str] | None) -> Job:
    """Read a job as ``read_job`` does. Where some fields cannot be parsed, the others are checked too,
    so that all problems are reported at once. Changes nothing."""
    try:
        return read_job(job_path, options, script_arguments)
    except JobError as error:
        raise _with_all_problems(error, options) from None


def _with_all_problems(error: JobError, options: dict[str, Any]) -> JobError:
    """Return the error with the problems that only the target can show added to it."""
    if error.job_mapping is None:
        return error
    from smlaunch.connection.connect import open_connection
    from smlaunch.runs.api import add_remaining_problems

    try:
        with open_connection(options, read_only=True) as connection:
            return add_remaining_problems(error, replace(connection.target, fail_fast=True))
    except JobError as later_error:
        return JobError([*error.problems, *later_error.problems])
    except SmlaunchError:
        return error  # the target cannot be reached
