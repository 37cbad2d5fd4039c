"""Owners of a job's buckets: the accounts that the job states, and those recorded in its requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from smlaunch.contract.launch_spec import CheckpointSpec
from smlaunch.contract.s3_uri import split_s3_uri
from smlaunch.contract.segment import DIRECT
from smlaunch.job.model import Job


class StatedOwner(NamedTuple):
    """An account that the job states for a bucket."""

    field: str
    """The job's field that states it."""

    bucket: str | None
    """None if the field is not about an S3 address."""

    account: str


def stated_owners(job: Job) -> Iterator[StatedOwner]:
    """All bucket owners that the job states."""
    for name, channel in job.inputs.items():
        if channel.bucket_owner is not None:
            uri = None if channel.is_local else channel.uri
            yield StatedOwner(f"inputs.{name}.bucket_owner", _bucket_of(uri), channel.bucket_owner)
    checkpoints = job.checkpoints
    if checkpoints is not None and checkpoints.bucket_owner is not None:
        yield StatedOwner("checkpoints.bucket_owner", _bucket_of(checkpoints.uri), checkpoints.bucket_owner)
    if job.bucket_owner is not None:
        yield StatedOwner("bucket_owner", _bucket_of(job.output), job.bucket_owner)


def owner_by_bucket(job: Job) -> dict[str, str]:
    """Account by bucket name."""
    return {owner.bucket: owner.account for owner in stated_owners(job) if owner.bucket is not None}


def recorded_owners(job: Job, checkpoint_spec: CheckpointSpec | None, account: str) -> dict[str, str]:
    """Bucket owners that the request records, for clients that continue the run from another machine and
    for ranks that upload their own checkpoints. ``account``: the caller's."""
    written_uris = (job.output, None if checkpoint_spec is None else checkpoint_spec.uri)
    owner_by_uri_bucket = owner_by_bucket(job)
    owners = {
        bucket: owner_by_uri_bucket[bucket]
        for uri in written_uris
        if (bucket := _bucket_of(uri) or "") in owner_by_uri_bucket
    }
    direct_bucket = (
        _bucket_of(checkpoint_spec.uri)
        if checkpoint_spec is not None and checkpoint_spec.upload == DIRECT
        else None
    )
    return owners if direct_bucket is None else {direct_bucket: account, **owners}


def _bucket_of(uri: str | None) -> str | None:
    """Bucket of an S3 address; None for anything else."""
    address = None if uri is None else split_s3_uri(uri)
    return None if address is None else address[0]
