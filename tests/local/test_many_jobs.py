"""Many jobs through one background endpoint that is killed in the middle: none is lost, none runs on."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.local.client import EndpointClient
from tests.local.endpoint_harness import endpoint_harness
from tests.local.executors.conftest import eventually

AT_A_TIME = 8
SHORT = "print('hello', flush=True); time.sleep(0.05)"
CLIENTS = 4


def listed(client: EndpointClient) -> dict[str, str]:
    """Names and statuses of all jobs, page by page."""
    pages = client.sagemaker.get_paginator("list_training_jobs").paginate(MaxResults=100)
    return {
        job["TrainingJobName"]: job["TrainingJobStatus"]
        for page in pages
        for job in page["TrainingJobSummaries"]
    }


def submit(client: EndpointClient, names: Iterable[str]) -> None:
    """By several clients at once."""
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(lambda name: client.create(name, SHORT, hosts=2), names))


def count(client: EndpointClient, *statuses: str) -> int:
    return sum(status in statuses for status in listed(client).values())


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
    with endpoint_harness(level, max_parallel_jobs=AT_A_TIME) as harness:
        client = EndpointClient(harness.start("background"))
        began = time.monotonic()
        submit(client, names)
        accepted = time.monotonic()
        assert set(listed(client)) == set(names)
        assert eventually(lambda: count(client, "Completed") >= jobs // 2, patience=600)
        half = time.monotonic()
        harness.kill()
        assert eventually(harness.has_no_processes)
        client = EndpointClient(harness.start("background"))
        again = time.monotonic()
        found = listed(client)
        assert set(found) == set(names)
        assert set(found.values()) == {"Completed", "Failed"}
        for name, status in found.items():
            if status == "Failed":
                reason = client.describe(name)["FailureReason"]
                assert reason.startswith("InternalServerError: the endpoint that ran this job ended"), reason
            else:
                assert client.printed_lines(name) == {"algo-1": ["hello"], "algo-2": ["hello"]}
        # Whose turn never came is simply run again, under a new name.
        missing = [f"{name}-again" for name, status in found.items() if status == "Failed"]
        submit(client, missing)
        assert eventually(lambda: count(client, "InProgress") == 0, patience=600)
        ended = time.monotonic()
        final = listed(client)
        assert all(final[name] == "Completed" for name in missing)
        assert len(final) == jobs + len(missing)
        failed = len(missing)
        print(
            f"{level}: {jobs} jobs of 2 hosts accepted in {accepted - began:.1f} s; {jobs - failed} done "
            f"when it was killed after {half - began:.1f} s; restart and list {again - half:.1f} s; "
            f"{failed} told as failed, run again in {ended - again:.1f} s"
        )
