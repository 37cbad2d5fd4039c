"""Warm pools: the hosts that SageMaker keeps after a job, and the later job that takes them over.

Hosts start at once here, so that a pool is only a record; its statuses, its matching rule and its end are
SageMaker's (developer guide, train-warm-pools; API model, WarmPoolStatus). Pure, except for the functions
that take the store.
"""

from __future__ import annotations

import math
from dataclasses import replace

from smlaunch.api.job_kinds import TRAINING
from smlaunch.local.jobs.failure_reasons import INTERNAL_ERROR_PREFIX
from smlaunch.local.json_types import JsonMapping, JsonObject
from smlaunch.local.stores.job_store import JobQuery, JobRecord, JobStore

_COMPARED_RESOURCE_FIELDS = (
    "InstanceType",
    "InstanceCount",
    "InstanceGroups",
    "VolumeKmsKeyId",
    "VolumeSizeInGB",
)
_COMPARED_REQUEST_FIELDS = (
    "RoleArn",
    "VpcConfig",
    "EnableInterContainerTrafficEncryption",
    "EnableNetworkIsolation",
)
_WARM_POOL_STATUS_FIELD = "WarmPoolStatus"
_AVAILABLE_TEXT = '"Available"'


def requested_keep_alive_seconds(request: JsonMapping) -> int:
    """Return KeepAlivePeriodInSeconds; 0 if the request asks for no pool."""
    resources = request.get("ResourceConfig") or {}  # processing jobs have no ResourceConfig and no pool
    return int(resources.get("KeepAlivePeriodInSeconds") or 0)


def can_take_over_pool(pool_request: JsonMapping, job_request: JsonMapping) -> bool:
    """Return whether a job with the request ``job_request`` can take over the warm hosts of the ended job
    with the request ``pool_request``: SageMaker compares some fields of the two. A missing field is equal to
    an empty one."""
    pool_resources, job_resources = pool_request["ResourceConfig"], job_request["ResourceConfig"]
    has_equal_resources = all(
        (pool_resources.get(name) or None) == (job_resources.get(name) or None)
        for name in _COMPARED_RESOURCE_FIELDS
    )
    return has_equal_resources and all(
        (pool_request.get(name) or None) == (job_request.get(name) or None)
        for name in _COMPARED_REQUEST_FIELDS
    )


def pool_status_at(record: JobRecord, now: float) -> JsonObject | None:
    """Return the field WarmPoolStatus of a training job at the time ``now`` (seconds since the epoch); None
    for a job that asks for no warm pool. A pool is stored as Available when its job ends; that its time is
    over is computed here."""
    stored_status = record.result.get(_WARM_POOL_STATUS_FIELD)
    if stored_status is None:  # the job runs, or has no pool
        has_pool = requested_keep_alive_seconds(record.request) > 0 and not record.state.has_ended
        return {"Status": "InUse"} if has_pool else None
    if stored_status["Status"] != "Available":
        return dict(stored_status)  # Reused or Terminated: it does not change any more
    job_end_time = record.state.modified  # the state of a job that has ended does not change any more
    idle_seconds = max(0.0, now - job_end_time)
    max_idle_seconds = requested_keep_alive_seconds(record.request)
    if idle_seconds < max_idle_seconds:
        return {"Status": "Available", **_retained_seconds_field(idle_seconds)}
    return {"Status": "Terminated", **_retained_seconds_field(max_idle_seconds)}


def pool_status_at_job_end(
    store: JobStore, arn: str, failure_reason: str | None, max_warm_hosts: int | None, now: float
) -> dict[str, JsonObject]:
    """Return the field WarmPoolStatus for the result of a job that ends; an empty mapping if it asks for no
    warm pool. The pool ends at once after an infrastructure failure, or if the region would have more warm
    hosts than ``max_warm_hosts`` (None: no limit)."""
    record = store.get_job_by_arn(arn)
    if record is None or not requested_keep_alive_seconds(record.request):
        return {}
    is_infrastructure_failure = failure_reason is not None and failure_reason.startswith(
        (INTERNAL_ERROR_PREFIX, "CapacityError")
    )
    warm_hosts = _warm_host_count(store, record.region, now) + requested_host_count(record.request)
    exceeds_limit = max_warm_hosts is not None and warm_hosts > max_warm_hosts
    pool_status = "Terminated" if is_infrastructure_failure or exceeds_limit else "Available"
    return {_WARM_POOL_STATUS_FIELD: {"Status": pool_status}}


def take_matching_pool(job_store: JobStore, new_job: JobRecord, now: float) -> JobRecord | None:
    """Let a new job take over a warm pool, the hosts that SageMaker keeps after a job: mark the first one
    that matches its request as Reused. Return the record of the job that left the pool; None if no pool
    matches. ``now`` is in seconds since the epoch."""

    def mark_reused(record: JobRecord) -> JobRecord | None:
        pool_status = pool_status_at(record, now)
        if pool_status is None or pool_status["Status"] != "Available":
            return None  # another job was faster, or its retention time is over
        reused_status = {**pool_status, "Status": "Reused", "ReusedByJob": new_job.name}
        return replace(record, result={**record.result, _WARM_POOL_STATUS_FIELD: reused_status})

    for record in _available_pools(job_store, new_job.region, now):
        if can_take_over_pool(record.request, new_job.request):
            # In one transaction, as other endpoints may take the pool too; None: it was not changed.
            reused_record = job_store.update_job(record.arn, mark_reused)
            if reused_record is not None:
                return reused_record
    return None


def change_keep_alive(record: JobRecord, keep_alive_seconds: int, now: float) -> JobRecord | None:
    """Return a training job's record with another KeepAlivePeriodInSeconds, for which SageMaker keeps the
    hosts of the job, its warm pool, after its end; 0 ends the pool at once. None if the job has no pool that
    could change. ``now`` is in seconds since the epoch."""
    pool_status = pool_status_at(record, now)
    if pool_status is None or pool_status["Status"] not in ("InUse", "Available"):
        return None
    resources = {**record.request["ResourceConfig"], "KeepAlivePeriodInSeconds": keep_alive_seconds}
    changed_record = replace(record, request={**record.request, "ResourceConfig": resources})
    is_new_period_over = (
        pool_status["Status"] == "Available" and pool_status_at(changed_record, now) != pool_status
    )
    if not is_new_period_over:
        return changed_record
    # The pool ends now, after the seconds for which its hosts were really kept.
    terminated_status = {**pool_status, "Status": "Terminated"}
    return replace(changed_record, result={**record.result, _WARM_POOL_STATUS_FIELD: terminated_status})


def requested_host_count(request: JsonMapping) -> int:
    """Return the number of hosts that a request asks for."""
    resources = request["ResourceConfig"]
    groups = resources.get("InstanceGroups") or ()
    return sum(group["InstanceCount"] for group in groups) or int(resources.get("InstanceCount") or 1)


def _warm_host_count(store: JobStore, region: str, now: float) -> int:
    return sum(requested_host_count(record.request) for record in _available_pools(store, region, now))


def _available_pools(store: JobStore, region: str, now: float) -> list[JobRecord]:
    query = JobQuery(result_contains=_AVAILABLE_TEXT, limit=-1)
    return [
        record
        for record in store.query_jobs(TRAINING.arn_resource, region, query)
        if (pool_status_at(record, now) or {}).get("Status") == "Available"
    ]


def _retained_seconds_field(seconds: float) -> dict[str, int]:
    """Return the field of WarmPoolStatus that says how long the hosts were kept."""
    return {"ResourceRetainedBillableTimeInSeconds": math.ceil(seconds)}
