"""The run ids of a task instance: the same from whichever worker, so that no try needs to remember. Pure."""

from __future__ import annotations

import hashlib
import re

from smlaunch.errors import JobError, Problem
from smlaunch.protocol.names import RUN_LIMIT, is_run_id

_TRY_ROOM = len("-t999")
_HASH = 10
BASE_LIMIT = RUN_LIMIT - _TRY_ROOM - len("-p99")
"""Leaves room for the number of a try and that of a part."""


def base_of(dag_id: str, task_id: str, run_id: str, map_index: int = -1) -> str:
    """``nightly.train`` of one DAG run -> ``nightly-train-3f9c21ab77``: readable, and nobody else's."""
    exact = "\0".join((dag_id, task_id, run_id, str(map_index)))
    tail = hashlib.sha256(exact.encode()).hexdigest()[:_HASH]
    words = re.sub(r"[^a-z0-9]+", "-", f"{dag_id}-{task_id}".lower()).strip("-")
    head = words[: BASE_LIMIT - _HASH - 1].rstrip("-")
    return f"{head}-{tail}" if head else tail


def given_base(run: str) -> str:
    """A run id that the DAG gives itself. Raises JobError where it cannot be one."""
    if is_run_id(run) and len(run) <= BASE_LIMIT:
        return run
    raise JobError(
        [
            Problem(
                "run",
                f"{run!r} cannot be a task's run id: lower-case letters, digits and single dashes, at most "
                f"{BASE_LIMIT} characters",
            )
        ]
    )


def run_of_try(base: str, number: int) -> str:
    """The run that try ``number`` (from 1) begins, if it has to begin one."""
    return base if number <= 1 else f"{base}-t{number}"


def try_of(base: str, run: str) -> int | None:
    """The try that began ``run``; None where it is no run of this task instance."""
    if run == base:
        return 1
    head, dash, number = run.rpartition("-t")
    digits = number.isdigit() and not number.startswith("0")
    return int(number) if dash and head == base and digits else None
