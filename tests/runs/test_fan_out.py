"""Shards combined: one status, one exit code, one progress line."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smlaunch.contract.progress_line import parse_line
from smlaunch.contract.run_names import parse_shard_number, shard_run_id
from smlaunch.runs.progress_estimate import ProgressTracker
from smlaunch.runs.run_outcome import JobOutcome, RunOutcome, outcome_from_description, summarize_run
from smlaunch.runs.shard_group import _CombinedProgress
from smlaunch.runs.sharded_outcome import ShardedRunOutcome
from tests.runs.fakes import job_description

ENDINGS = {0: "Completed", 1: "Failed", 2: "Failed", 5: "Stopped", None: "InProgress"}


def part(number: int, code: int | None) -> RunOutcome:
    run = shard_run_id("x", number)
    nothing: dict[str, Any] = dict.fromkeys(
        ("created", "started", "ended", "training_seconds", "billable_seconds", "failure")
    )
    nothing |= dict.fromkeys(("model_artifacts", "output_uri", "checkpoints_uri"))
    status = ENDINGS[code]
    job = JobOutcome(f"{run}-s1-a1", "", status, status, code, failure_reason="", metrics={}, **nothing)
    return RunOutcome(run, (job,))


@given(st.lists(st.sampled_from(list(ENDINGS)), min_size=1, max_size=6))
def test_a_sharded_run_has_one_status(codes: list[int | None]) -> None:
    outcome = ShardedRunOutcome.from_shards(
        "x", [part(number, code) for number, code in enumerate(codes, start=1)]
    )
    assert (
        len(outcome.jobs)
        == len(outcome.individual_outcomes)
        == len(outcome.to_dict()["shards"])
        == len(codes)
    )
    if None in codes:
        assert (outcome.status, outcome.exit_code) == ("InProgress", None)
    elif any(codes):
        first = next(number for number, code in enumerate(codes, start=1) if code)
        assert outcome.exit_code == codes[first - 1] and outcome.last_job.name == f"x-p{first}-s1-a1"
        assert f"x-p{first}: " in summarize_run(outcome)
        assert f"run x: x-p{first}: " in str(outcome.error)
        assert f"{codes.count(0)} of {len(codes)} shards have completed" in summarize_run(outcome)
        assert outcome.error is not None
    else:
        assert (outcome.status, outcome.exit_code) == ("Completed", 0)
        assert outcome.error is None


def test_steps_are_added_once_all_shards_report_theirs() -> None:
    combined = _CombinedProgress(2)
    assert combined.estimate() is None
    for number, (step, steps) in enumerate([(3, 10), (5, 30)], start=1):
        tracker = combined.tracker_by_shard[number] = ProgressTracker()
        line = parse_line(f"smlaunch: progress step={step} steps={steps}")
        assert line is not None
        tracker.add_line((1, 0), 1.0, line)
        estimate = combined.estimate()
        assert estimate is not None
        assert (estimate.step, estimate.total_steps) == ((3, None) if number == 1 else (8, 40))


@pytest.mark.parametrize(
    ("name", "number"),
    [("x-p1", 1), ("x-p12", 12), ("x", None), ("x-p0", None), ("x-p1-p2", None), ("xp1", None)],
)
def test_names_of_shards(name: str, number: int | None) -> None:
    assert parse_shard_number("x", name) == number


def test_the_exception_names_the_shard_whose_host_failed() -> None:
    reason = "AlgorithmError: algo-1 exited with code 3: ValueError: x, exit code: 3"
    failed = outcome_from_description(
        job_description("x-p2-s1-a1", "Failed", ["Failed"], FailureReason=reason)
    )
    outcome = ShardedRunOutcome.from_shards("x", [part(1, 0), RunOutcome("x-p2", (failed,))])
    assert str(outcome.error) == (
        "run x: x-p2: algo-1 exited with code 3: ValueError: x; 1 of 2 shards have completed"
    )
