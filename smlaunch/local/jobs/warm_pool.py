"""Warm pools: the hosts that SageMaker keeps after a job, and the later job that takes them over.

Hosts start at once here, so that a pool is only a record; its statuses, its matching rule and its end are
SageMaker's (developer guide, train-warm-pools; API model, WarmPoolStatus). Pure, except for the functions
that take the store.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from smlaunch.local.job_store import JobQuery, JobRecord, JobStore
from smlaunch.local.jobs.failure_reasons import INTERNAL

_MATCHING_RESOURCE_MEMBERS = (
    "InstanceType",
    "InstanceCount",
    "InstanceGroups",
    "VolumeKmsKeyId",
    "VolumeSizeInGB",
)
_MATCHING_MEMBERS = (
    "RoleArn",
    "VpcConfig",
    "EnableInterContainerTrafficEncryption",
    "EnableNetworkIsolation",
)
_STATUS_MEMBER = "WarmPoolStatus"
_AVAILABLE_TEXT = '"Available"'


def keep_alive_seconds(request: Mapping[str, Any]) -> int:
    """Return KeepAlivePeriodInSeconds; 0 if the request asks for no pool."""
    resources = request.get("ResourceConfig") or {}  # processing jobs have no ResourceConfig and no pool
    return int(resources.get("KeepAlivePeriodInSeconds") or 0)


def matches(pool: Mapping[str, Any], job: Mapping[str, Any]) -> bool:
    """Return whether the hosts of the request ``pool`` can be taken over by the request ``job``."""

    def compared_values(request: Mapping[str, Any]) -> list[Any]:
        resources = request["ResourceConfig"]
        return [
            *(resources.get(name) or None for name in _MATCHING_RESOURCE_MEMBERS),
            *(request.get(name) or None for name in _MATCHING_MEMBERS),
        ]

    return compared_values(pool) == compared_values(job)


def pool_status_at(record: JobRecord, now: float) -> dict[str, Any] | None:
    """Return WarmPoolStatus of a job for Describe and List, at the time ``now`` (seconds since the epoch);
    None for a job that asks for no pool."""
    stored = record.result.get(_STATUS_MEMBER)
    if stored is None:
        return (
            {"Status": "InUse"} if keep_alive_seconds(record.request) and not record.state.has_ended else None
        )
    if stored["Status"] != "Available":
        return dict(stored)
    job_end = record.state.modified  # the state of a job that has ended does not change any more
    idle_seconds, max_idle_seconds = max(0.0, now - job_end), keep_alive_seconds(record.request)
    if idle_seconds < max_idle_seconds:
        return {"Status": "Available", **_retained_time_member(idle_seconds)}
    return {"Status": "Terminated", **_retained_time_member(max_idle_seconds)}


def status_at_job_end(
    store: JobStore, arn: str, reason: str | None, limit: int | None, now: float
) -> dict[str, dict[str, Any]]:
    """Return the part of a job's result that records its pool. ``limit`` is the maximum number of warm hosts
    in a region. A pool does not survive an infrastructure failure."""
    record = store.get_by_arn(arn)
    if record is None or not keep_alive_seconds(record.request):
        return {}
    is_lost = reason is not None and reason.startswith((INTERNAL, "CapacityError"))
    exceeds_limit = (
        limit is not None and _warm_host_count(store, record.region, now) + host_count(record.request) > limit
    )
    return {_STATUS_MEMBER: {"Status": "Terminated"} if is_lost or exceeds_limit else {"Status": "Available"}}


def take_matching_pool(store: JobStore, job: JobRecord, now: float) -> JobRecord | None:
    """Mark the first matching pool as Reused by a new job and return the pool's record; None if no pool
    matches."""

    def mark_reused(record: JobRecord) -> JobRecord | None:
        pool_status = pool_status_at(record, now)
        if pool_status is None or pool_status["Status"] != "Available":
            return None  # another job was faster, or its retention time is over
        reused = {**pool_status, "Status": "Reused", "ReusedByJob": job.name}
        return replace(record, result={**record.result, _STATUS_MEMBER: reused})

    for record in _available_pools(store, job.region, now):
        if matches(record.request, job.request):
            changed = store.change(record.arn, mark_reused)
            if changed is not None:
                return changed
    return None


def change_keep_alive(record: JobRecord, seconds: int, now: float) -> JobRecord | None:
    """Return the record with another retention time; 0 ends the pool. None if the job has no pool to
    change."""
    pool_status = pool_status_at(record, now)
    if pool_status is None or pool_status["Status"] not in ("InUse", "Available"):
        return None
    resources = {**record.request["ResourceConfig"], "KeepAlivePeriodInSeconds": seconds}
    changed_record = replace(record, request={**record.request, "ResourceConfig": resources})
    if pool_status["Status"] == "Available" and pool_status_at(changed_record, now) != pool_status:
        terminated = {**pool_status, "Status": "Terminated"}
        if seconds <= pool_status["ResourceRetainedBillableTimeInSeconds"]:
            return replace(changed_record, result={**record.result, _STATUS_MEMBER: terminated})
    return changed_record


def host_count(request: Mapping[str, Any]) -> int:
    """Return the number of hosts that a request asks for."""
    resources = request["ResourceConfig"]
    groups = resources.get("InstanceGroups") or ()
    return sum(group["InstanceCount"] for group in groups) or int(resources.get("InstanceCount") or 1)


def _warm_host_count(store: JobStore, region: str, now: float) -> int:
    return sum(host_count(record.request) for record in _available_pools(store, region, now))


def _available_pools(store: JobStore, region: str, now: float) -> list[JobRecord]:
    query = JobQuery(result_contains=_AVAILABLE_TEXT, limit=-1)
    return [
        record
        for record in store.query("training-job", region, query)
        if (pool_status_at(record, now) or {}).get("Status") == "Available"
    ]


def _retained_time_member(seconds: float) -> dict[str, int]:
    """Return the member of WarmPoolStatus that says how long the hosts were kept."""
    return {"ResourceRetainedBillableTimeInSeconds": math.ceil(seconds)}
