"""Decisions that need no Airflow: which run belongs to a try, and what the try does about it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smlaunch.airflow.run_ids import MAX_BASE_LENGTH, base_run_id, run_id_of_try, try_of_run, validate_run_id
from smlaunch.airflow.start_action import LatestRun, StartAction, choose_start_action, last_try_before_clear
from smlaunch.contract.run_names import is_run_id, parse_job_name, shard_run_id
from smlaunch.errors import JobError

TEXTS = st.text(max_size=300)


@given(TEXTS, TEXTS, TEXTS, st.integers(-1, 10**6), st.integers(1, 999), st.integers(1, 99))
def test_every_task_instance_has_a_run_id(
    dag: str, task: str, run: str, index: int, number: int, part: int
) -> None:
    base = base_run_id(dag, task, run, index)
    name = run_id_of_try(base, number)
    assert is_run_id(name) and try_of_run(base, name) == number
    assert is_run_id(shard_run_id(name, part))
    assert base != base_run_id(dag, task, run, index + 1)
    assert parse_job_name(f"{name}-s1-a1") is not None


def test_the_try_is_derived_from_the_name() -> None:
    base = base_run_id("nightly", "train", "scheduled__2026-01-01T00:00:00+00:00")
    assert base == "nightly-train-fea422220e"
    assert base_run_id("nightly-train", "", "x") != base_run_id("nightly", "train", "x")
    assert try_of_run(base, "nightly-train") is None
    assert try_of_run(base, f"{base}-t02") is None


@pytest.mark.parametrize("run", ["Upper", "under_score", "x" * (MAX_BASE_LENGTH + 1), ""])
def test_invalid_run_ids_are_refused(run: str) -> None:
    with pytest.raises(JobError, match=r"^run: "):
        validate_run_id(run)


@pytest.mark.parametrize(
    ("newest", "was_cleared", "action"),
    [
        (None, 0, StartAction.LAUNCH),
        (LatestRun(1, None), 0, StartAction.ATTACH),
        (LatestRun(1, None), 1, StartAction.ATTACH),
        (LatestRun(1, None, is_stopping=True), 1, StartAction.AWAIT),
        (LatestRun(1, 0), 0, StartAction.REPORT),
        (LatestRun(1, 0), 1, StartAction.LAUNCH),
        (LatestRun(3, 0), 1, StartAction.REPORT),
        (LatestRun(1, 1, is_resumable=True), 0, StartAction.RESUME),
        (LatestRun(1, 5, is_resumable=True), 1, StartAction.RESUME),
        (LatestRun(1, 1), 0, StartAction.LAUNCH),
    ],
)
def test_the_start_action_of_a_try(newest: LatestRun | None, was_cleared: int, action: StartAction) -> None:
    assert choose_start_action(newest, was_cleared) is action


def test_tries_before_clear() -> None:
    """In Airflow, max_tries is the task's retries, plus the number of its try when it was cleared."""
    assert last_try_before_clear(max_tries=2, retries=2) == 0
    assert last_try_before_clear(max_tries=1 + 2, retries=2) == 1
    assert last_try_before_clear(max_tries=0, retries=2) == 0, "retries that were raised since"
