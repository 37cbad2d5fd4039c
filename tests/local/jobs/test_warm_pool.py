"""The warm pool's rule and its statuses, without a clock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smlaunch.local.jobs import job_state, warm_pool
from smlaunch.local.stores.job_store import JobRecord, JobStore

RESOURCES = {"InstanceType": "a", "InstanceCount": 2, "VolumeSizeInGB": 1, "KeepAlivePeriodInSeconds": 60}
REQUEST: dict[str, Any] = {"RoleArn": "role", "ResourceConfig": RESOURCES}


def finished_job(name: str, at: float, request: dict[str, Any] = REQUEST, pool: bool = True) -> JobRecord:
    state = job_state.fail(job_state.initial_state(at - 1), "AlgorithmError", at)
    result = {"WarmPoolStatus": {"Status": "Available"}} if pool else {}
    return JobRecord("training-job", "r", name, f"arn:{name}", "me", request, state, result)


@pytest.mark.parametrize(
    "change",
    [
        {"RoleArn": "another"},
        {"ResourceConfig": {**RESOURCES, "InstanceType": "b"}},
        {"ResourceConfig": {**RESOURCES, "InstanceCount": 3}},
        {"ResourceConfig": {**RESOURCES, "VolumeSizeInGB": 2}},
        {"ResourceConfig": {**RESOURCES, "VolumeKmsKeyId": "key"}},
        {"VpcConfig": {"Subnets": ["s"], "SecurityGroupIds": ["g"]}},
        {"EnableNetworkIsolation": True},
        {"EnableInterContainerTrafficEncryption": True},
    ],
)
def test_what_must_be_the_same(change: dict[str, Any]) -> None:
    assert warm_pool.can_take_over_pool(REQUEST, dict(REQUEST))
    assert not warm_pool.can_take_over_pool(REQUEST, {**REQUEST, **change})


def test_what_may_differ() -> None:
    other = {"ResourceConfig": {**RESOURCES, "KeepAlivePeriodInSeconds": 5}, "EnableNetworkIsolation": False}
    assert warm_pool.can_take_over_pool(REQUEST, {**REQUEST, **other, "HyperParameters": {"a": "b"}})


@given(st.floats(0, 200))
def test_a_pool_ends_after_its_time(age: float) -> None:
    status = warm_pool.pool_status_at(finished_job("job", 100.0), 100.0 + age)
    assert status is not None
    assert status["Status"] == ("Available" if 100.0 + age - 100.0 < 60 else "Terminated")
    assert age - 1e-6 <= status["ResourceRetainedBillableTimeInSeconds"] <= age + 1 or age >= 60
    assert status["ResourceRetainedBillableTimeInSeconds"] <= 60


def test_one_job_takes_a_pool_and_only_one(tmp_path: Path) -> None:
    store = JobStore(tmp_path / "jobs.sqlite")
    store.insert_job(finished_job("first", 100.0))
    store.insert_job(finished_job("other", 100.0, {**REQUEST, "RoleArn": "x"}))
    newcomer = finished_job("next", 120.0, pool=False)
    reused_job = warm_pool.take_matching_pool(store, newcomer, 110.0)
    assert reused_job is not None
    assert reused_job.result["WarmPoolStatus"] == {
        "Status": "Reused",
        "ReusedByJob": "next",
        "ResourceRetainedBillableTimeInSeconds": 10,
    }
    assert warm_pool.take_matching_pool(store, newcomer, 110.0) is None
    store.close()


def test_what_leaves_no_pool(tmp_path: Path) -> None:
    store = JobStore(tmp_path / "jobs.sqlite")
    running = replace(finished_job("job", 100.0, pool=False), state=job_state.initial_state(1.0))
    store.insert_job(running)
    store.insert_job(finished_job("kept", 100.0))
    at_end = {"Status": "Available"}, {"Status": "Terminated"}
    available, terminated = ({"WarmPoolStatus": status} for status in at_end)

    def end(reason: str | None, limit: int | None) -> dict[str, Any]:
        return warm_pool.pool_status_at_job_end(store, "arn:job", reason, limit, 110.0)

    assert end(None, None) == end("AlgorithmError: x", None) == end("ClientError: y", 4) == available
    assert end("InternalServerError: z", None) == end(None, 3) == end(None, 0) == terminated
    store.close()


def test_another_retention() -> None:
    record = finished_job("job", 100.0)
    extended = warm_pool.change_keep_alive(record, 600, 130.0)
    assert extended is not None
    assert warm_pool.pool_status_at(extended, 500.0) == {
        "Status": "Available",
        "ResourceRetainedBillableTimeInSeconds": 400,
    }
    released = warm_pool.change_keep_alive(record, 0, 130.0)
    assert released is not None
    assert warm_pool.pool_status_at(released, 130.0) == {
        "Status": "Terminated",
        "ResourceRetainedBillableTimeInSeconds": 30,
    }
    assert warm_pool.change_keep_alive(record, 600, 200.0) is None
    assert warm_pool.change_keep_alive(finished_job("cold", 100.0, pool=False), 600, 110.0) is None
