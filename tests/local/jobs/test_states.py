"""The state machine, by table and by property."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smlaunch.local.jobs import job_state
from smlaunch.local.jobs.job_state import IllegalTransition, JobState

ALL_STATUSES = sorted(job_state.STATUS_MESSAGES)
FINAL_STATUSES = {"Completed", "Failed", "Stopped", "MaxRuntimeExceeded", "MaxWaitTimeExceeded"}


def state_after(*steps: str, start: float = 100.0) -> JobState:
    state = job_state.initial_state(start)
    for number, step in enumerate(steps, 1):
        state = job_state.move_to_status(state, step, start + number)
    return state


def test_a_job_that_succeeds() -> None:
    state = job_state.complete_or_stop(state_after("Downloading", "Training", "Uploading"), 110.5)
    assert (state.status, state.secondary) == ("Completed", "Completed")
    assert [step.status for step in state.transitions] == [
        *("Starting", "Downloading", "Training", "Uploading", "Completed")
    ]
    assert (state.training_started, state.training_ended, state.training_seconds) == (101.0, 110.5, 10)
    assert state.failure_reason is None


@pytest.mark.parametrize(
    ("cause", "secondary"),
    [("user", "Stopped"), ("max_runtime", "MaxRuntimeExceeded"), ("max_wait", "MaxWaitTimeExceeded")],
)
def test_the_cause_of_a_stop_decides_how_it_ends(cause: job_state.StopCause, secondary: str) -> None:
    stopping = job_state.request_stop(state_after("Downloading", "Training"), cause, 120.0)
    assert (stopping.status, stopping.secondary) == ("Stopping", "Stopping")
    assert job_state.request_stop(stopping, "user", 121.0) is stopping
    ended = job_state.complete_or_stop(stopping, 130.0)
    assert (ended.status, ended.secondary) == ("Stopped", secondary)


def test_a_job_stopped_before_it_ran_has_no_training_time() -> None:
    state = job_state.complete_or_stop(job_state.request_stop(job_state.initial_state(1.0), "user", 2.0), 3.0)
    assert (state.training_started, state.training_ended, state.training_seconds) == (None, None, None)


def test_the_time_between_two_attempts_is_no_training_time() -> None:
    state = state_after(
        "Downloading", "Training", "Interrupted", "Starting", "Downloading", "Training", "Uploading"
    )
    ended = job_state.complete_or_stop(state, 110.0)  # 101 to 103, and 105 to 110
    assert (ended.training_seconds, ended.billable_seconds) == (7, 7)
    assert replace(ended, billable_share=0.3).billable_seconds == 3


def test_a_stop_belongs_to_what_was_stopped() -> None:
    running = job_state.request_stop(state_after("Downloading", "Training"), "user", 110.0)
    assert job_state.complete_or_stop(running, 120.0).training_seconds == 19
    waiting = job_state.request_stop(state_after("Downloading", "Training", "Interrupted"), "max_wait", 110.0)
    ended = job_state.complete_or_stop(waiting, 120.0)
    assert (ended.secondary, ended.training_seconds) == ("MaxWaitTimeExceeded", 2)


def test_a_message_can_change_while_the_status_stays() -> None:
    state = job_state.with_message(job_state.initial_state(1.0), job_state.NO_CAPACITY_MESSAGE, 2.0)
    assert [(step.status, step.message) for step in state.transitions] == [
        ("Starting", job_state.NO_CAPACITY_MESSAGE)
    ]
    assert state.modified == 2.0


@pytest.mark.parametrize("ended", sorted(FINAL_STATUSES))
def test_nothing_follows_an_end(ended: str) -> None:
    before = {"Completed": "Uploading", "Failed": "Training"}.get(ended)
    state = state_after("Downloading", "Training", *(["Uploading"] if before == "Uploading" else []))
    if before is None:
        state = job_state.request_stop(state, "user", 150.0)
    state = job_state.move_to_status(state, ended, 160.0)
    assert state.has_ended
    for following in ALL_STATUSES:
        with pytest.raises(IllegalTransition):
            job_state.move_to_status(state, following, 170.0)


moves = st.lists(st.tuples(st.sampled_from(ALL_STATUSES), st.floats(-1e6, 1e6)), max_size=25)


@given(moves)
def test_whatever_is_asked_the_record_stays_consistent(requested_moves: list[tuple[str, float]]) -> None:
    state = job_state.initial_state(0.0)
    for secondary, now in requested_moves:
        try:
            state = job_state.move_to_status(state, secondary, now)
        except IllegalTransition:
            continue
    steps = state.transitions
    assert steps[-1].status == state.secondary
    assert state.modified == steps[-1].start
    for earlier, later in pairwise(steps):
        assert earlier.end == later.start
        assert earlier.start <= later.start
        assert earlier.status not in FINAL_STATUSES
    assert (steps[-1].end is not None) == state.has_ended == (state.secondary in FINAL_STATUSES)
    assert (state.training_ended is not None) == (state.has_ended and state.training_started is not None)
    if state.training_seconds is not None:
        assert 0 <= state.training_seconds <= steps[-1].start + 1
        assert state.billable_seconds == state.training_seconds
    assert JobState.from_dict(json.loads(json.dumps(state.to_dict()))) == state


@given(st.text(max_size=3000), st.integers(1, 255))
def test_a_failure_reason_fits_and_keeps_its_exit_code(text: str, code: int) -> None:
    reason = job_state.algorithm_error(text, code)
    assert len(reason) <= 1024
    assert reason.startswith("AlgorithmError: ")
    assert reason.endswith(f", exit code: {code}")
    assert job_state.fail(state_after("Downloading"), reason, 1.0).failure_reason == reason
