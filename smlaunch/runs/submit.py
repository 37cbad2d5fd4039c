"""Sends a task's request, once and only once, whatever happens on the way.

A job's name can be taken only once, so a request may be repeated after any doubt: when the name turns out to
be taken, the job's tag says whether it is this very job (attach to it) or another one (refuse).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from smlaunch.errors import JobError, Problem
from smlaunch.planning.patience import CREATE_PATIENCE, Patience
from smlaunch.planning.plan import Task
from smlaunch.ports import CallError, ControlPlane
from smlaunch.protocol.names import TAG_JOB
from smlaunch.runs.retry import retrying


class Submitted(NamedTuple):
    """``attached``: the job was there already, created by an earlier attempt or another client."""

    name: str
    arn: str
    attached: bool


def submit(
    task: Task,
    job_hash: str,
    control: ControlPlane,
    *,
    told: Callable[[CallError, float], None] | None = None,
    patience: Patience = CREATE_PATIENCE,
) -> Submitted:
    """Raises JobError when another job has the name; CallError when the request is refused, or for too long
    not answered. ``told`` hears of every wait."""
    try:
        arn = retrying(lambda: control.create(task.request), patience, told=told)
    except CallError as error:
        if (
            error.code not in ("ResourceInUse", "ResourceInUseException")
            and "already exists" not in error.message
        ):
            raise
        found = existing(task, job_hash, control)
        if found is None:  # taken a moment ago and gone now: the service's own words are the best there are
            raise
        return found
    return Submitted(task.name, arn, attached=False)


def existing(task: Task, job_hash: str, control: ControlPlane) -> Submitted | None:
    """The job that has the task's name already, when it is this very job; None when the name is free.

    Raises JobError when another job has it.
    """
    try:
        arn = str(retrying(lambda: control.describe(task.name))["TrainingJobArn"])
    except CallError as error:
        if error.code in ("ValidationException", "ResourceNotFound"):
            return None
        raise
    found = retrying(lambda: control.tags(arn)).get(TAG_JOB)
    if found == job_hash:
        return Submitted(task.name, arn, attached=True)
    whose = "was made of another job, source or data" if found else "was not made by smlaunch"
    raise JobError(
        [Problem("name", f"the training job {task.name} exists already and {whose}; take another --name")]
    )


def stop(name: str, control: ControlPlane) -> None:
    """Asks a job to stop; one that has ended is left as it is."""
    try:
        retrying(lambda: control.stop(name))
    except CallError as error:
        # It ended meanwhile: what was asked for is the case.
        if error.code != "ValidationException":
            raise
