"""A job from the command line, or all that is wrong with it: what cannot be read and what cannot work."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smlaunch.cli.options import read_job
from smlaunch.errors import JobError, SmlaunchError

if TYPE_CHECKING:
    from smlaunch.job import Job


def whole_job(what: str | None, options: dict[str, Any], script_arguments: list[str] | None) -> Job:
    """As ``read_job``; a job that cannot be read is looked at for everything else that is wrong with it, so
    that it is mended once. Nothing is changed anywhere."""
    try:
        return read_job(what, options, script_arguments)
    except JobError as error:
        raise _with_the_rest(error, options) from None


def _with_the_rest(error: JobError, options: dict[str, Any]) -> JobError:
    if error.mapping is None:
        return error
    from smlaunch.place import open_place
    from smlaunch.runs.api import with_the_rest

    try:
        with open_place(options, leaves_no_trace=True) as place:
            return with_the_rest(error, replace(place.target, hurried=True))
    except JobError as other:
        return JobError([*error.problems, *other.problems])
    except SmlaunchError:
        return error  # there is nowhere to look around
