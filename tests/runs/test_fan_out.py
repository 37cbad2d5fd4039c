"""What parts add up to: one status, one exit code, one progress line."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smlaunch.protocol.names import part_of, part_run
from smlaunch.protocol.progress import parse_line
from smlaunch.runs.fan_out import PartsOutcome, _Together
from smlaunch.runs.outcome import JobOutcome, RunOutcome, headline_of
from smlaunch.runs.progress import Tracker

ENDINGS = {0: "Completed", 1: "Failed", 2: "Failed", 5: "Stopped", None: "InProgress"}


def part(number: int, code: int | None) -> RunOutcome:
    run = part_run("x", number)
    nothing: dict[str, Any] = dict.fromkeys(
        ("created", "started", "ended", "training_seconds", "billable_seconds", "failure")
    )
    nothing |= dict.fromkeys(("model_artifacts", "output", "checkpoints"))
    status = ENDINGS[code]
    job = JobOutcome(f"{run}-s1-a1", "", status, status, code, failure_reason="", metrics={}, **nothing)
    return RunOutcome(run, (job,))


@given(st.lists(st.sampled_from(list(ENDINGS)), min_size=1, max_size=6))
def test_one_status_for_all(codes: list[int | None]) -> None:
    whole = PartsOutcome.of("x", [part(number, code) for number, code in enumerate(codes, start=1)])
    assert len(whole.jobs) == len(whole.each) == len(whole.to_dict()["parts"]) == len(codes)
    if None in codes:
        assert (whole.status, whole.exit_code) == ("InProgress", None)
    elif any(codes):
        first = next(number for number, code in enumerate(codes, start=1) if code)
        assert whole.exit_code == codes[first - 1] and whole.last.name == f"x-p{first}-s1-a1"
        assert f"x-p{first}: " in headline_of(whole)
        assert f"{codes.count(0)} of {len(codes)} parts have completed" in headline_of(whole)
        assert whole.error() is not None
    else:
        assert (whole.status, whole.exit_code) == ("Completed", 0)
        assert whole.error() is None


def test_steps_are_added_up_once_all_parts_have_told_theirs() -> None:
    together = _Together(2)
    assert together.standing() is None
    for number, (step, steps) in enumerate([(3, 10), (5, 30)], start=1):
        tracker = together.parts[number] = Tracker()
        line = parse_line(f"smlaunch: progress step={step} steps={steps}")
        assert line is not None
        tracker.feed((1, 0), 1.0, line)
        standing = together.standing()
        assert standing is not None
        assert (standing.step, standing.steps) == ((3, None) if number == 1 else (8, 40))


@pytest.mark.parametrize(
    ("name", "number"),
    [("x-p1", 1), ("x-p12", 12), ("x", None), ("x-p0", None), ("x-p1-p2", None), ("xp1", None)],
)
def test_names_of_parts(name: str, number: int | None) -> None:
    assert part_of("x", name) == number
