"""Warm pools: whose hosts are kept after a job, and which later job takes them over.

Hosts start at once here with or without one, so that a pool is a record only; its statuses, its matching rule
and its end are SageMaker's (facts: developer guide, train-warm-pools; API model, WarmPoolStatus). Pure, but
for the two functions that take the store.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from smlaunch.local.job_store import JobQuery, JobRecord, JobStore
from smlaunch.local.jobs.failure_reasons import INTERNAL

_SAME_RESOURCES = ("InstanceType", "InstanceCount", "InstanceGroups", "VolumeKmsKeyId", "VolumeSizeInGB")
_SAME = ("RoleArn", "VpcConfig", "EnableInterContainerTrafficEncryption", "EnableNetworkIsolation")
_MEMBER = "WarmPoolStatus"
_MARK = '"Available"'


def keep_alive(request: Mapping[str, Any]) -> int:
    """Seconds; 0 when no pool is asked for."""
    resources = request.get("ResourceConfig") or {}  # only a training job has it, and a pool
    return int(resources.get("KeepAlivePeriodInSeconds") or 0)


def matches(pool: Mapping[str, Any], job: Mapping[str, Any]) -> bool:
    """Whether the hosts of one request can be taken over by another."""

    def key(request: Mapping[str, Any]) -> list[Any]:
        resources = request["ResourceConfig"]
        return [
            *(resources.get(name) or None for name in _SAME_RESOURCES),
            *(request.get(name) or None for name in _SAME),
        ]

    return key(pool) == key(job)


def status(record: JobRecord, now: float) -> dict[str, Any] | None:
    """WarmPoolStatus as Describe and List show it; None for a job that asks for no pool."""
    stored = record.result.get(_MEMBER)
    if stored is None:
        return {"Status": "InUse"} if keep_alive(record.request) and not record.state.ended else None
    if stored["Status"] != "Available":
        return dict(stored)
    idle_seconds, limit = max(0.0, now - record.state.modified), keep_alive(record.request)
    if idle_seconds < limit:
        return {"Status": "Available", **_retained(idle_seconds)}
    return {"Status": "Terminated", **_retained(limit)}


def at_end(
    store: JobStore, arn: str, reason: str | None, limit: int | None, now: float
) -> dict[str, dict[str, Any]]:
    """What to remember of a pool when its job ends. An infrastructure's failure leaves no pool."""
    record = store.get_by_arn(arn)
    if record is None or not keep_alive(record.request):
        return {}
    lost = reason is not None and reason.startswith((INTERNAL, "CapacityError"))
    beyond = limit is not None and _warm_host_count(store, record.region, now) + hosts(record.request) > limit
    return {_MEMBER: {"Status": "Terminated"} if lost or beyond else {"Status": "Available"}}


def take(store: JobStore, job: JobRecord, now: float) -> JobRecord | None:
    """The pool that a new job takes over, if one matches; it says Reused from then on."""

    def taken(record: JobRecord) -> JobRecord | None:
        found = status(record, now)
        if found is None or found["Status"] != "Available":
            return None  # another job was faster, or its time has passed
        reused = {**found, "Status": "Reused", "ReusedByJob": job.name}
        return replace(record, result={**record.result, _MEMBER: reused})

    for record in _available(store, job.region, now):
        if matches(record.request, job.request):
            changed = store.change(record.arn, taken)
            if changed is not None:
                return changed
    return None


def retain(record: JobRecord, seconds: int, now: float) -> JobRecord | None:
    """The record with another retention; 0 ends the pool. None when the job has no pool to change."""
    found = status(record, now)
    if found is None or found["Status"] not in ("InUse", "Available"):
        return None
    resources = {**record.request["ResourceConfig"], "KeepAlivePeriodInSeconds": seconds}
    changed = replace(record, request={**record.request, "ResourceConfig": resources})
    if found["Status"] == "Available" and status(changed, now) != found:
        ended = {**found, "Status": "Terminated"}
        if seconds <= found["ResourceRetainedBillableTimeInSeconds"]:
            return replace(changed, result={**record.result, _MEMBER: ended})
    return changed


def hosts(request: Mapping[str, Any]) -> int:
    resources = request["ResourceConfig"]
    groups = resources.get("InstanceGroups") or ()
    return sum(group["InstanceCount"] for group in groups) or int(resources.get("InstanceCount") or 1)


def _warm_host_count(store: JobStore, region: str, now: float) -> int:
    return sum(hosts(record.request) for record in _available(store, region, now))


def _available(store: JobStore, region: str, now: float) -> list[JobRecord]:
    query = JobQuery(result_contains=_MARK, limit=-1)
    return [
        record
        for record in store.query("training-job", region, query)
        if (status(record, now) or {}).get("Status") == "Available"
    ]


def _retained(seconds: float) -> dict[str, int]:
    return {"ResourceRetainedBillableTimeInSeconds": math.ceil(seconds)}
