"""Owners of a job's buckets: the accounts that the job states, and those recorded in its requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from smlaunch.contract.launch_spec import CheckpointSpec
from smlaunch.contract.s3_uri import split_s3_uri
from smlaunch.contract.segment import DIRECT
from smlaunch.job.model import Job


class BucketOwner(NamedTuple):
    """An account that the job states for a bucket."""

    field: str
    """The job's field that states it."""

    bucket: str | None
    """None if the field is not about an S3 address."""

    account: str


def bucket_owners_in_job(job: Job) -> Iterator[BucketOwner]:
    """Yield the account of each S3 bucket for which the job states the owner, with the job's field that
    states it. The bucket is None if the field is about local data, or the job names no address."""
    for name, channel in job.inputs.items():
        if channel.bucket_owner is not None:
            yield BucketOwner(
                field=f"inputs.{name}.bucket_owner",
                bucket=_bucket_of_uri(channel.uri),
                account=channel.bucket_owner,
            )
    checkpoints = job.checkpoints
    if checkpoints is not None and checkpoints.bucket_owner is not None:
        yield BucketOwner(
            field="checkpoints.bucket_owner",
            bucket=_bucket_of_uri(checkpoints.uri),
            account=checkpoints.bucket_owner,
        )
    if job.bucket_owner is not None:
        output_uri = None if job.output is None else job.output.uri
        yield BucketOwner(field="bucket_owner", bucket=_bucket_of_uri(output_uri), account=job.bucket_owner)


def owner_by_bucket(stated_owners: Iterable[BucketOwner]) -> dict[str, str]:
    """Account by bucket name."""
    return {owner.bucket: owner.account for owner in stated_owners if owner.bucket is not None}


def bucket_owners_for_request(
    stated_owners: Iterable[BucketOwner],
    output_uri: str | None,
    checkpoint_spec: CheckpointSpec | None,
    caller_account: str,
) -> dict[str, str]:
    """Return the owner's account by bucket, for the buckets that the job writes to. The request records them
    for clients that continue the run from another machine, and for ranks that upload their own checkpoints.

    ``stated_owners``: the owners that the job states. ``output_uri``: the output that it states.
    ``checkpoint_spec``: where and how checkpoints are stored; None if the run saves none.
    ``caller_account``: the account that submits the job.
    """
    account_by_bucket: dict[str, str] = {}
    checkpoints_uri = None if checkpoint_spec is None else checkpoint_spec.uri
    output_bucket, checkpoints_bucket = _bucket_of_uri(output_uri), _bucket_of_uri(checkpoints_uri)
    # Ranks that upload directly, instead of the service, check the owner: the caller's own account, unless
    # the job states another one.
    ranks_upload = checkpoint_spec is not None and checkpoint_spec.upload == DIRECT
    if ranks_upload and checkpoints_bucket is not None:
        account_by_bucket[checkpoints_bucket] = caller_account
    stated_account_by_bucket = owner_by_bucket(stated_owners)
    for bucket in (output_bucket, checkpoints_bucket):
        if bucket in stated_account_by_bucket:
            account_by_bucket[bucket] = stated_account_by_bucket[bucket]
    return account_by_bucket


def _bucket_of_uri(uri: str | None) -> str | None:
    """Bucket of an S3 address; None for anything else."""
    address = None if uri is None else split_s3_uri(uri)
    return None if address is None else address[0]
