"""Sends a task's request, once and only once, whatever happens on the way.

A job's name can be taken only once, so a request may be repeated after any doubt: when the name turns out to
be taken, the job's tag says whether it is this very job (attach to it) or another one (refuse).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from smlaunch.errors import JobError, Problem
from smlaunch.planning.patience import CREATE_PATIENCE, Patience
from smlaunch.planning.plan import Task
from smlaunch.planning.storage import RESERVED_CHANNELS
from smlaunch.ports import CallError, ControlPlane, ObjectStorage
from smlaunch.protocol.addresses import split_s3
from smlaunch.protocol.names import TAG_JOB, parse_task_name
from smlaunch.protocol.segment import owners_in
from smlaunch.request import PROCESSING, operation_of
from smlaunch.runs.retry import is_done_perhaps, retrying


class Submitted(NamedTuple):
    """``attached``: the job was there before it was asked for."""

    name: str
    arn: str
    attached: bool


def submit(
    task: Task,
    job_hash: str,
    control: ControlPlane,
    storage: ObjectStorage,
    *,
    told: Callable[[CallError, float], None] | None = None,
    patience: Patience = CREATE_PATIENCE,
) -> Submitted:
    """Raises JobError when another job has the name; CallError when the request is refused, or for too long
    not answered. ``told`` hears of every wait.

    The service runs what lies in the buckets that the request names, and writes to them, and cannot be told
    whose they have to be: that they are is seen just before."""
    for bucket in buckets_of(task.request):
        retrying(partial(storage.check_owner, bucket))
    doubted = False

    def create() -> str:
        nonlocal doubted
        try:
            return control.create(task.request)
        except CallError as error:
            doubted = doubted or is_done_perhaps(error)
            raise

    try:
        arn = retrying(create, patience, told=told)
    except CallError as error:
        # Whatever the last try was told: an earlier one, or one of botocore's own, may have made the job and
        # its answer been lost. The name says.
        taken = error.code in ("ResourceInUse", "ResourceInUseException") or "already exists" in error.message
        try:
            found = existing(task, job_hash, control)
        except CallError as unseen:
            if taken or doubted:
                raise _unknown(task, unseen) from error
            raise error from None
        if found is None:
            raise
        return found._replace(attached=False)  # nobody had it when this command began: most likely we made it
    return Submitted(task.name, arn, attached=False)


def buckets_of(request: Mapping[str, Any]) -> list[str]:
    """That a job's program comes from, and that its results and checkpoints go to; its inputs may be
    anybody's."""
    if operation_of(request) == PROCESSING:
        outputs = request.get("ProcessingOutputConfig", {}).get("Outputs", [])
        uris = [row["S3Output"]["S3Uri"] for row in outputs if "S3Output" in row]
        inputs = [(row["InputName"], row["S3Input"]["S3Uri"]) for row in request.get("ProcessingInputs", [])]
    else:
        places = (("OutputDataConfig", "S3OutputPath"), ("CheckpointConfig", "S3Uri"))
        uris = [uri for member, key in places if (uri := request.get(member, {}).get(key))]
        inputs = [
            (row["ChannelName"], row["DataSource"]["S3DataSource"]["S3Uri"])
            for row in request.get("InputDataConfig", [])
        ]
    uris += [uri for name, uri in inputs if name in RESERVED_CHANNELS]
    found = {place[0] for uri in uris if (place := split_s3(uri)) is not None}
    return sorted(found | owners_in(request.get("Environment", {})).keys())


def _unknown(task: Task, error: CallError) -> CallError:
    name = parse_task_name(task.name)
    run = task.name if name is None else name.run
    text = (
        f"{error.message}; the job {task.name} may run all the same: `smlaunch show {run}` says whether it "
        f"does, and the same command with --name {run} goes on with it"
    )
    return CallError(error.operation, error.code, text, error.status)


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
