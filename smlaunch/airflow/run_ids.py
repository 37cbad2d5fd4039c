"""Run ids of a task instance. Every worker derives the same ids, so that no try has to store them. Pure."""

from __future__ import annotations

import hashlib
import re

from smlaunch.contract.run_names import MAX_RUN_ID_LENGTH, is_run_id
from smlaunch.errors import JobError, Problem

_TRY_SUFFIX_LENGTH = len("-t999")
_HASH_DIGITS = 10
MAX_BASE_LENGTH = MAX_RUN_ID_LENGTH - _TRY_SUFFIX_LENGTH - len("-p99")
"""Leaves space for the number of a try and that of a shard."""


def base_run_id(dag_id: str, task_id: str, run_id: str, map_index: int = -1) -> str:
    """Return a readable and unique id such as ``nightly-train-3f9c21ab77`` for ``nightly.train`` of one DAG
    run."""
    task_instance = "\0".join((dag_id, task_id, run_id, str(map_index)))
    tail = hashlib.sha256(task_instance.encode()).hexdigest()[:_HASH_DIGITS]
    readable_name = re.sub(r"[^a-z0-9]+", "-", f"{dag_id}-{task_id}".lower()).strip("-")
    head = readable_name[: MAX_BASE_LENGTH - _HASH_DIGITS - 1].rstrip("-")
    return f"{head}-{tail}" if head else tail


def validate_run_id(run: str) -> str:
    """Return a run id that the DAG gives itself. Raises JobError for an invalid one."""
    if is_run_id(run) and len(run) <= MAX_BASE_LENGTH:
        return run
    raise JobError(
        [
            Problem(
                "run",
                f"{run!r} cannot be a task's run id: lower-case letters, digits and single dashes, at most "
                f"{MAX_BASE_LENGTH} characters",
            )
        ]
    )


def run_id_of_try(base: str, try_number: int) -> str:
    """Return the run that this try starts, if it has to start one. ``try_number`` counts from 1."""
    return base if try_number <= 1 else f"{base}-t{try_number}"


def try_of_run(base: str, run: str) -> int | None:
    """Return the number of the try that started the run with the id ``run``: 2 for ``<base>-t2``; None for a
    run of another task instance."""
    if run == base:
        return 1
    base_of_run, separator, number_text = run.rpartition("-t")
    is_number = number_text.isdigit() and not number_text.startswith("0")
    return int(number_text) if separator and base_of_run == base and is_number else None
