"""Whose the buckets of a job are: those that it names another account for, and what its hosts are told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from smlaunch.job import Job
from smlaunch.protocol.addresses import split_s3
from smlaunch.protocol.launch_spec import CheckpointSpec
from smlaunch.protocol.segment import DIRECT


class Stated(NamedTuple):
    """``field``: the one that names the account. ``bucket``: None where that is about no address in S3."""

    field: str
    bucket: str | None
    account: str


def stated(job: Job) -> Iterator[Stated]:
    for name, channel in job.inputs.items():
        if channel.bucket_owner is not None:
            uri = None if channel.is_local else channel.uri
            yield Stated(f"inputs.{name}.bucket_owner", _bucket(uri), channel.bucket_owner)
    kept = job.checkpoints
    if kept is not None and kept.bucket_owner is not None:
        yield Stated("checkpoints.bucket_owner", _bucket(kept.uri), kept.bucket_owner)
    if job.bucket_owner is not None:
        yield Stated("bucket_owner", _bucket(job.output), job.bucket_owner)


def owners_of(job: Job) -> dict[str, str]:
    """Accounts by the names of their buckets."""
    return {row.bucket: row.account for row in stated(job) if row.bucket is not None}


def recorded(job: Job, kept: CheckpointSpec | None, account: str) -> dict[str, str]:
    """What a job's request says of it: to whoever goes on with the run from another machine, and to ranks
    that move their own checkpoints. ``account``: the caller's."""
    written = (job.output, None if kept is None else kept.uri)
    named = owners_of(job)
    found = {bucket: named[bucket] for uri in written if (bucket := _bucket(uri) or "") in named}
    direct = _bucket(kept.uri) if kept is not None and kept.carrier == DIRECT else None
    return found if direct is None else {direct: account, **found}


def _bucket(uri: str | None) -> str | None:
    found = None if uri is None else split_s3(uri)
    return None if found is None else found[0]
