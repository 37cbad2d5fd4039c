"""The plans of two hundred stored jobs: strategy, requests, segments, shards, cost and problems stay as they
are."""

from __future__ import annotations

import json

import pytest

from tests.planner.plan_corpus import JOBS_FILE, PLANS_FILE, read_rows, result_of
from tests.tables import table

JOBS, PLANS = read_rows(JOBS_FILE), read_rows(PLANS_FILE)


def test_there_are_enough_of_each_kind() -> None:
    assert len(JOBS) == len(PLANS)
    assert sum("problems" not in plan for plan in PLANS) >= 120
    assert len({plan["strategy"] for plan in PLANS if "strategy" in plan}) >= 10
    assert sum(plan.get("segment_count", 0) > 1 for plan in PLANS) >= 10


@table("number", range(len(JOBS)))
def test_its_plan_is_what_it_was(number: int) -> None:
    result = json.loads(json.dumps(result_of(JOBS[number])))
    if result != PLANS[number]:
        pytest.fail(f"job {json.dumps(JOBS[number])}\nwas {PLANS[number]}\nis  {result}")
