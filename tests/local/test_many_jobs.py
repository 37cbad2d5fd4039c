"""Many jobs on one background endpoint that is killed half way: no job is lost, and none keeps running."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.local.client import EndpointClient
from tests.local.endpoint_harness import endpoint_harness
from tests.local.executors.conftest import eventually

PARALLEL_JOBS = 8
SHORT_SCRIPT = "print('hello', flush=True); time.sleep(0.05)"
CLIENTS = 4


def job_statuses(client: EndpointClient) -> dict[str, str]:
    """Return the status of each job by its name, from all pages."""
    pages = client.sagemaker.get_paginator("list_training_jobs").paginate(MaxResults=100)
    return {
        job["TrainingJobName"]: job["TrainingJobStatus"]
        for page in pages
        for job in page["TrainingJobSummaries"]
    }


def submit(client: EndpointClient, names: Iterable[str]) -> None:
    """Create jobs by several clients at once."""
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(lambda name: client.create(name, SHORT_SCRIPT, hosts=2), names))


def count(client: EndpointClient, *statuses: str) -> int:
    return sum(status in statuses for status in job_statuses(client).values())


@pytest.mark.parametrize(
    ("level", "jobs"),
    [
        ("full", 24),
        pytest.param("full", 200, marks=[pytest.mark.chaos, pytest.mark.timeout(1200)]),
        pytest.param("user", 200, marks=[pytest.mark.chaos, pytest.mark.timeout(1200)]),
        pytest.param("plain", 200, marks=[pytest.mark.chaos, pytest.mark.timeout(1200)]),
    ],
)
def test_no_job_is_lost(level: str, jobs: int) -> None:
    names = [f"job-{number:03}" for number in range(jobs)]
    with endpoint_harness(level, max_parallel_jobs=PARALLEL_JOBS) as harness:
        client = EndpointClient(harness.start("background"))
        began_at = time.monotonic()
        submit(client, names)
        accepted_at = time.monotonic()
        assert set(job_statuses(client)) == set(names)
        assert eventually(lambda: count(client, "Completed") >= jobs // 2, patience=600)
        killed_at = time.monotonic()
        harness.kill()
        assert eventually(harness.has_no_processes)
        client = EndpointClient(harness.start("background"))
        restarted_at = time.monotonic()
        statuses = job_statuses(client)
        assert set(statuses) == set(names)
        assert set(statuses.values()) == {"Completed", "Failed"}
        for name, status in statuses.items():
            if status == "Failed":
                reason = client.describe(name)["FailureReason"]
                assert reason.startswith("InternalServerError: the endpoint that ran this job ended"), reason
            else:
                assert client.printed_lines(name) == {"algo-1": ["hello"], "algo-2": ["hello"]}
        # Failed jobs are run again under new names.
        missing = [f"{name}-again" for name, status in statuses.items() if status == "Failed"]
        submit(client, missing)
        assert eventually(lambda: count(client, "InProgress") == 0, patience=600)
        ended_at = time.monotonic()
        final = job_statuses(client)
        assert all(final[name] == "Completed" for name in missing)
        assert len(final) == jobs + len(missing)
        failed = len(missing)
        print(
            f"{level}: {jobs} jobs of 2 hosts accepted in {accepted_at - began_at:.1f} s; "
            f"{jobs - failed} done "
            f"when it was killed after {killed_at - began_at:.1f} s; "
            f"restart and list {restarted_at - killed_at:.1f} s; "
            f"{failed} told as failed, run again in {ended_at - restarted_at:.1f} s"
        )
