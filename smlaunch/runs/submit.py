"""Submits a job's request exactly once, despite lost responses and retries.

A job's name can be used only once, so that a request may be repeated after any doubt: when the name is taken,
the job's tag says whether it is this very job (attach to it) or another one (refuse).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from smlaunch.api.request import CREATE_PROCESSING_JOB, operation_of
from smlaunch.aws.interfaces import CallError, ControlPlane, ObjectStorage
from smlaunch.aws.retry import call_with_retries, may_have_succeeded
from smlaunch.contract.names import TAG_JOB, parse_job_name
from smlaunch.contract.s3_uri import split_s3_uri
from smlaunch.contract.segment import parse_bucket_owners
from smlaunch.errors import JobError, Problem
from smlaunch.planner.input_channels import RESERVED_CHANNELS
from smlaunch.planner.plan import PlannedJob
from smlaunch.planner.retry_policy import CREATE_BACKOFF, BackoffPolicy
from smlaunch.runs.run_format import check_tags


class SubmittedJob(NamedTuple):
    """A job that exists at the service."""

    name: str
    arn: str
    attached: bool
    """The job existed before it was requested."""


def submit(
    planned_job: PlannedJob,
    job_hash: str,
    control: ControlPlane,
    storage: ObjectStorage,
    *,
    on_retry: Callable[[CallError, float], None] | None = None,
    backoff: BackoffPolicy = CREATE_BACKOFF,
) -> SubmittedJob:
    """Create the job, or find it if it exists.

    ``on_retry`` receives each wait. Raises JobError when another job has the name, and CallError when the
    request is refused or not answered for too long.

    The service reads from and writes to the buckets that the request names, and a request cannot state their
    owners. So the owners are checked just before.
    """
    for bucket in buckets_to_verify(planned_job.request):
        call_with_retries(partial(storage.check_owner, bucket))
    job_may_exist = False

    def create_job() -> str:
        nonlocal job_may_exist
        try:
            return control.create(planned_job.request)
        except CallError as error:
            job_may_exist = job_may_exist or may_have_succeeded(error)
            raise

    try:
        arn = call_with_retries(create_job, backoff, on_retry=on_retry)
    except CallError as error:
        # An earlier try, or one of botocore's own, may have created the job and its response been lost,
        # whatever the last error says. A job with this name decides.
        name_is_taken = (
            error.code in ("ResourceInUse", "ResourceInUseException") or "already exists" in error.message
        )
        try:
            existing_job = find_existing_job(planned_job, job_hash, control)
        except CallError as lookup_error:
            if name_is_taken or job_may_exist:
                raise _doubtful_submission_error(planned_job, lookup_error) from error
            raise error from None
        if existing_job is None:
            raise
        return existing_job._replace(
            attached=False
        )  # the name was free when this command began, so that this call created it
    return SubmittedJob(planned_job.name, arn, attached=False)


def buckets_to_verify(request: Mapping[str, Any]) -> list[str]:
    """Return the buckets of a job's program, results and checkpoints. Inputs may be in anybody's bucket."""
    if operation_of(request) == CREATE_PROCESSING_JOB:
        outputs = request.get("ProcessingOutputConfig", {}).get("Outputs", [])
        uris = [row["S3Output"]["S3Uri"] for row in outputs if "S3Output" in row]
        inputs = [(row["InputName"], row["S3Input"]["S3Uri"]) for row in request.get("ProcessingInputs", [])]
    else:
        uri_members = (("OutputDataConfig", "S3OutputPath"), ("CheckpointConfig", "S3Uri"))
        uris = [uri for member, key in uri_members if (uri := request.get(member, {}).get(key))]
        inputs = [
            (row["ChannelName"], row["DataSource"]["S3DataSource"]["S3Uri"])
            for row in request.get("InputDataConfig", [])
        ]
    uris += [uri for name, uri in inputs if name in RESERVED_CHANNELS]
    buckets = {bucket_and_key[0] for uri in uris if (bucket_and_key := split_s3_uri(uri)) is not None}
    return sorted(buckets | parse_bucket_owners(request.get("Environment", {})).keys())


def _doubtful_submission_error(planned_job: PlannedJob, error: CallError) -> CallError:
    name = parse_job_name(planned_job.name)
    run = planned_job.name if name is None else name.run
    text = (
        f"{error.message}; the job {planned_job.name} may run nevertheless: `smlaunch show {run}` shows "
        "whether it "
        f"does, and the same command with --name {run} goes on with it"
    )
    return CallError(error.operation, error.code, text, error.status)


def find_existing_job(planned_job: PlannedJob, job_hash: str, control: ControlPlane) -> SubmittedJob | None:
    """Return the existing job with the same name and job hash; None when the name is free.

    Raises JobError when another job has the name, and FormatError when a run of another release has it.
    """
    try:
        arn = str(call_with_retries(lambda: control.describe(planned_job.name))["TrainingJobArn"])
    except CallError as error:
        if error.code in ("ValidationException", "ResourceNotFound"):
            return None
        raise
    tags = call_with_retries(lambda: control.tags(arn))
    name = parse_job_name(planned_job.name)
    check_tags(tags, planned_job.name if name is None else name.run)
    found_hash = tags.get(TAG_JOB)
    if found_hash == job_hash:
        return SubmittedJob(planned_job.name, arn, attached=True)
    problem = "was made of another job, source or data" if found_hash else "was not made by smlaunch"
    raise JobError(
        [
            Problem(
                "name",
                f"the training job {planned_job.name} exists already and {problem}; take another --name",
            )
        ]
    )


def stop_job(name: str, control: ControlPlane) -> None:
    """Ask a job to stop. Does nothing to a job that has ended."""
    try:
        call_with_retries(lambda: control.stop(name))
    except CallError as error:
        # The job has ended meanwhile.
        if error.code != "ValidationException":
            raise
