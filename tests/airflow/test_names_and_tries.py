"""What needs no Airflow: which run is a try's, and what a try does about the one that is there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smlaunch.airflow.names import BASE_LIMIT, base_of, given_base, run_of_try, try_of
from smlaunch.airflow.tries import Begin, Newest, begin, cleared_at
from smlaunch.errors import JobError
from smlaunch.protocol.names import is_run_id, parse_task_name, part_run

TEXTS = st.text(max_size=300)


@given(TEXTS, TEXTS, TEXTS, st.integers(-1, 10**6), st.integers(1, 999), st.integers(1, 99))
def test_every_task_instance_has_a_run_id(
    dag: str, task: str, run: str, index: int, number: int, part: int
) -> None:
    base = base_of(dag, task, run, index)
    name = run_of_try(base, number)
    assert is_run_id(name) and try_of(base, name) == number
    assert is_run_id(part_run(name, part))
    assert base != base_of(dag, task, run, index + 1)
    assert parse_task_name(f"{name}-s1-a1") is not None


def test_a_name_says_whose_it_is() -> None:
    base = base_of("nightly", "train", "scheduled__2026-01-01T00:00:00+00:00")
    assert base == "nightly-train-fea422220e"
    assert base_of("nightly-train", "", "x") != base_of("nightly", "train", "x")
    assert try_of(base, "nightly-train") is None
    assert try_of(base, f"{base}-t02") is None


@pytest.mark.parametrize("run", ["Upper", "under_score", "x" * (BASE_LIMIT + 1), ""])
def test_what_cannot_be_a_run_id_is_refused_by_its_field(run: str) -> None:
    with pytest.raises(JobError, match=r"^run: "):
        given_base(run)


@pytest.mark.parametrize(
    ("newest", "cleared", "action"),
    [
        (None, 0, Begin.LAUNCH),
        (Newest(1, None), 0, Begin.ATTACH),
        (Newest(1, None), 1, Begin.ATTACH),
        (Newest(1, None, stopping=True), 1, Begin.AWAIT),
        (Newest(1, 0), 0, Begin.REPORT),
        (Newest(1, 0), 1, Begin.LAUNCH),
        (Newest(3, 0), 1, Begin.REPORT),
        (Newest(1, 1, resumable=True), 0, Begin.RESUME),
        (Newest(1, 5, resumable=True), 1, Begin.RESUME),
        (Newest(1, 1), 0, Begin.LAUNCH),
    ],
)
def test_what_a_try_does(newest: Newest | None, cleared: int, action: Begin) -> None:
    assert begin(newest, cleared) is action


def test_since_when_tries_count_anew() -> None:
    """Airflow: max_tries is the task's retries, and after a clearing the try it had come to besides."""
    assert cleared_at(max_tries=2, retries=2) == 0
    assert cleared_at(max_tries=1 + 2, retries=2) == 1
    assert cleared_at(max_tries=0, retries=2) == 0, "retries that were raised since"
