from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smlaunch.errors import EndpointError
from smlaunch.local.jobs import job_state
from smlaunch.local.stores.job_store import JobNameTaken, JobQuery, JobRecord, JobStore, job_sort_key


def record(name: str, created: float = 1.0, kind: str = "training-job", region: str = "r") -> JobRecord:
    state = job_state.initial_state(created)
    return JobRecord(kind, region, name, f"arn:{kind}:{region}:{name}", "owner", {"a": ["b"]}, state)


@pytest.fixture
def store(tmp_path: Path) -> JobStore:
    return JobStore(tmp_path / "jobs.sqlite")


def test_jobs_round_trip_between_processes(store: JobStore, tmp_path: Path) -> None:
    job = replace(record("one"), result={"x": 1}, tags={"k": "v"})
    store.insert_job(job)
    assert JobStore(tmp_path / "jobs.sqlite").get_job("training-job", "r", "one") == job
    assert store.get_job("training-job", "elsewhere", "one") is None
    failed = job_state.fail(job.state, "why", 2.0)
    store.save_job_state(job.arn, failed)
    assert store.get_job_by_arn(job.arn) == replace(job, state=failed)


def test_names_are_unique_per_kind_and_region(store: JobStore) -> None:
    store.insert_job(record("one"))
    store.insert_job(record("one", kind="processing-job"))
    store.insert_job(record("one", region="s"))
    with pytest.raises(JobNameTaken):
        store.insert_job(record("one"))


def test_only_unfinished_jobs_of_an_owner(store: JobStore) -> None:
    for name in ("open", "closed"):
        store.insert_job(record(name))
    store.insert_job(replace(record("other"), endpoint_id="another"))
    store.save_job_state(record("closed").arn, job_state.fail(record("closed").state, "why", 2.0))
    assert [job.name for job in store.unfinished_jobs("owner")] == ["open"]


def test_tags_are_added_to(store: JobStore) -> None:
    store.insert_job(replace(record("one"), tags={"a": "1"}))
    tagged = store.change_tags(record("one").arn, lambda tags: {**tags, "b": "2"})
    assert tagged == store.tags_of(record("one").arn) == {"a": "1", "b": "2"}
    assert store.change_tags("arn:nobody", dict) is None
    assert store.tags_of("arn:nobody") is None


@settings(max_examples=30, deadline=None)  # each example makes a file and waits for the disk
@given(
    st.lists(
        st.tuples(st.text("abc", min_size=1, max_size=4), st.integers(0, 3)), unique_by=lambda job: job[0]
    ),
    st.sampled_from(["Name", "CreationTime", "Status"]),
    st.booleans(),
    st.integers(1, 4),
)
def test_pages_hold_every_job_once_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    jobs: list[tuple[str, int]],
    sort_by: str,
    descending: bool,
    size: int,
) -> None:
    store = JobStore(tmp_path_factory.mktemp("store") / "jobs.sqlite")
    for name, created in jobs:
        store.insert_job(record(name, float(created)))
    query = JobQuery(sort_by=sort_by, descending=descending, limit=size)
    records: list[JobRecord] = []
    while page := store.query_jobs("training-job", "r", query):
        records += page
        query = replace(query, after_key=job_sort_key(page[-1], sort_by))
    keys = [job_sort_key(job, sort_by) for job in records]
    assert keys == sorted(keys, reverse=descending)
    assert sorted(job.name for job in records) == sorted(name for name, _ in jobs)
    store.close()


def test_a_database_of_another_version_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=99")
    with pytest.raises(EndpointError, match="another version"):
        JobStore(path)


def test_a_database_without_a_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    JobStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=0")
    with pytest.raises(EndpointError, match="has tables, but no version"):
        JobStore(path)
