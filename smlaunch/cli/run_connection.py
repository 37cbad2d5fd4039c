"""The connection of a command about one run, whose errors say where a run of that name is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from smlaunch.connection.open_connection import Connection, open_connection
from smlaunch.errors import AccountError, JobError


@contextmanager
def open_connection_to_run(
    run: str, options: dict[str, Any], *, read_only: bool = False
) -> Iterator[Connection]:
    """Open the target that the options name, as ``open_connection`` does. Where a region cannot be used or
    has no such run, the error says that this machine has one."""
    try:
        with open_connection(options, read_only=read_only) as connection:
            yield connection
    except (AccountError, JobError) as error:
        if options["local"] or not _is_run_of_this_machine(run):
            raise
        hint = f"; a run of this machine has the name {run!r}: add --local"
        if not isinstance(error, JobError):
            raise AccountError(f"{error}{hint}") from error
        if len(error.problems) == 1 and not error.problems[0].path:  # there is no such run
            (problem,) = error.problems
            raise JobError([problem._replace(message=f"{problem.message}{hint}")]) from error
        raise


def _is_run_of_this_machine(name: str) -> bool:
    from smlaunch.local.state_dir import default_root
    from smlaunch.local.stores.job_store import has_job_of_run

    return has_job_of_run(default_root() / "jobs.sqlite", name)
