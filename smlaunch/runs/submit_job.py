"""Submits a job's request exactly once, despite lost responses and retries.

A job's name can be used only once, so that a request may be repeated after any doubt: when the name is taken,
the job's tag says whether it is this very job (attach to it) or another one (refuse).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from smlaunch.api.job_kinds import get_at_path, job_kind_of
from smlaunch.api.retry_policy import CREATE_BACKOFF, BackoffPolicy
from smlaunch.aws.interfaces import CallError, ControlPlane
from smlaunch.aws.service_errors import call_with_retries, may_have_succeeded
from smlaunch.contract.run_names import TAG_JOB, parse_job_name
from smlaunch.contract.s3_uri import split_s3_uri
from smlaunch.contract.segment import parse_bucket_owners
from smlaunch.errors import JobError, Problem
from smlaunch.facts.team_settings import NO_TEAM, TeamFacts
from smlaunch.planner.input_channels import RESERVED_CHANNELS
from smlaunch.planner.plan import PlannedJob
from smlaunch.runs.launch_target import Target
from smlaunch.runs.run_format import check_tags
from smlaunch.runs.team_defaults import describe_differences

_OUTPUT_FIELDS = ("output", "checkpoints.uri")
"""Fields of a job with addresses that it writes to."""


class OtherJobError(JobError):
    """Another job of smlaunch's has the run's name. A JobError for those who launch."""


class SubmittedJob(NamedTuple):
    """A job that exists at the service."""

    name: str
    arn: str
    attached: bool
    """The job existed before it was requested."""


def submit_job_once(
    planned_job: PlannedJob,
    job_hash: str,
    target: Target,
    *,
    on_retry: Callable[[CallError, float], None] | None = None,
    backoff: BackoffPolicy = CREATE_BACKOFF,
) -> SubmittedJob:
    """Create the training or processing job at the service, or find it if it exists. May be repeated at will:
    a job's name can be used once.

    ``job_hash`` identifies the run's job file, source and data; the job's tag has it. ``on_retry`` receives
    the error and the seconds until the next try. Raises JobError when another job has the name, and CallError
    when the request is refused or not answered for too long.
    """
    # Nobody else's bucket may take a name's place: the service reads from and writes to these buckets, and a
    # request cannot state their owners.
    for bucket in buckets_to_verify(planned_job.request):
        call_with_retries(partial(target.storage.check_bucket_owner, bucket))
    job_may_exist = False

    def create_job() -> str:
        nonlocal job_may_exist
        try:
            return target.control_plane.create_job(planned_job.request)
        except CallError as error:  # such as a timeout: the service may have received the request
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
            existing_job = find_existing_job(planned_job, job_hash, target.control_plane)
        except CallError as lookup_error:
            if name_is_taken or job_may_exist:
                raise _unknown_submission_result_error(planned_job, lookup_error, target) from error
            raise error from None
        if existing_job is None:
            raise
        # The name was free when this command began. Where no request of this call can have created the job,
        # another client has, at the same time.
        is_of_other_client = name_is_taken and not job_may_exist and error.retries == 0
        return existing_job._replace(attached=is_of_other_client)
    return SubmittedJob(planned_job.name, arn, attached=False)


def buckets_to_verify(request: Mapping[str, Any]) -> list[str]:
    """Return the buckets whose owner is checked before a job is created: those of its program, results and
    checkpoints, and those whose owner the job states. Other inputs may be in anybody's bucket.

    ``request``: of a job of any kind.
    """
    kind = job_kind_of(request)
    uris = [
        get_at_path(request, kind.request_path_by_field[field])
        for field in _OUTPUT_FIELDS
        if field in kind.request_path_by_field
    ]
    uri_by_channel = {
        get_at_path(entry, kind.input_path_by_field["name"]): get_at_path(
            entry, kind.input_path_by_field["uri"]
        )
        for entry in get_at_path(request, kind.request_path_by_field["inputs"]) or ()
    }
    # Reserved channels are smlaunch's own: they bring the program to the hosts.
    uris += [uri for channel, uri in uri_by_channel.items() if channel in RESERVED_CHANNELS]
    # By the owners that the job states, which are in a variable of its environment.
    buckets: set[str] = set(parse_bucket_owners(request.get("Environment", {})))
    for uri in uris:
        bucket_and_key = split_s3_uri(uri or "")
        if bucket_and_key is not None:
            bucket, _ = bucket_and_key
            buckets.add(bucket)
    return sorted(buckets)


def _unknown_submission_result_error(planned_job: PlannedJob, error: CallError, target: Target) -> CallError:
    name = parse_job_name(planned_job.name)
    run = planned_job.name if name is None else name.run
    text = (
        f"{error.message}; the job {planned_job.name} may run nevertheless: "
        f"`smlaunch show {run}{target.cli_flag}` shows whether it does, and the same launch under the "
        f"name {run} goes on with it"
    )
    return CallError(error.operation, error.code, text, error.http_status)


def find_existing_job(
    planned_job: PlannedJob, job_hash: str, control_plane: ControlPlane, team: TeamFacts = NO_TEAM
) -> SubmittedJob | None:
    """Return the existing job with the same name and job hash; None when the name is free. The hash
    identifies job file, source and data, and is a tag of the job. ``team``: the defaults of the planned job.

    Raises OtherJobError when another job of smlaunch's has the name, JobError when a job has it that smlaunch
    did not make, and FormatError when a run of another release has it, which
    this one cannot read.
    """
    try:
        description = call_with_retries(lambda: control_plane.describe_job(planned_job.name))
    except CallError as error:
        if error.code in ("ValidationException", "ResourceNotFound"):
            return None
        raise
    arn = str(description["TrainingJobArn"])
    tags = call_with_retries(lambda: control_plane.list_tags(arn))
    job_name = parse_job_name(planned_job.name)
    check_tags(tags, planned_job.name if job_name is None else job_name.run)  # raises FormatError
    existing_hash = tags.get(TAG_JOB)  # None for a job that smlaunch did not make
    if existing_hash == job_hash:
        return SubmittedJob(planned_job.name, arn, attached=True)
    problem = "was made of another job, source or data" if existing_hash else "was not made by smlaunch"
    text = f"the training job {planned_job.name} exists already and {problem}; take another name"
    if existing_hash and planned_job.request.get("HyperParameters"):
        text += " (a hyperparameter that is text, as --hp gives it, is another one than a number)"
    differences = describe_differences(planned_job.request, description, tags, team)
    if existing_hash and differences:
        text += f", or state in the job what differs: {differences}"
    error_class = OtherJobError if existing_hash else JobError
    raise error_class([Problem("name", text)])


def stop_job(name: str, control_plane: ControlPlane) -> None:
    """Ask a job to stop. Does nothing to a job that has ended."""
    try:
        call_with_retries(lambda: control_plane.stop_job(name))
    except CallError as error:
        # The job has ended meanwhile.
        if error.code != "ValidationException":
            raise
