from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smlaunch.errors import EndpointError
from smlaunch.local.fault_injection import (
    AttemptFaults,
    FaultPlan,
    HostLost,
    NoCapacity,
    SpotInterruption,
    Throttle,
    parse_fault_plan,
)

FAULTS = (
    SpotInterruption(after=(1.0, 9.0), jobs="a*", attempts=(1, 3), away=2.0, probability=0.5),
    HostLost(after=1.0, hosts="algo-*", probability=0.5),
    NoCapacity(instance_types="ml.p5.*", seconds=(1.0, 2.0)),
    NoCapacity(instance_types="ml.p4*"),
)


@given(st.integers(), st.text(), st.integers(1, 9))
def test_the_same_seed_gives_the_same_faults(seed: int, job: str, attempt: int) -> None:
    faults = FaultPlan(seed, FAULTS).draw_faults_of_attempt(job, attempt)
    assert faults == FaultPlan(seed, FAULTS).draw_faults_of_attempt(job, attempt)
    if faults.interruption_seconds is not None:
        assert job.startswith("a")
        assert attempt in (1, 3)
        assert 1.0 <= faults.interruption_seconds <= 9.0
        assert faults.retry_delay_seconds == 2.0
    if attempt > 1:
        assert faults.capacity.unavailable_types == faults.lost_hosts == ()


def test_capacity_by_instance_type() -> None:
    capacity = FaultPlan(1, FAULTS).draw_faults_of_attempt("job", 1).capacity
    assert capacity.wait_seconds("ml.m5.large") == 0
    assert capacity.wait_seconds("ml.p4d.24xlarge") is None
    wait = capacity.wait_seconds("ml.p5.48xlarge")
    assert wait is not None
    assert 1.0 <= wait <= 2.0


def test_another_seed_gives_other_faults() -> None:
    interruption_times = {
        FaultPlan(seed, FAULTS).draw_faults_of_attempt("another", 1).interruption_seconds
        for seed in range(20)
    }
    assert None in interruption_times
    assert len(interruption_times) > 5


def test_throttling_is_counted_and_shared() -> None:
    plan = FaultPlan(1, (Throttle("Describe*", share=0.25, first=2),))
    refused = [plan.should_throttle("DescribeTrainingJob", call) for call in range(1, 401)]
    assert refused[:2] == [True, True]
    assert 60 < sum(refused) < 140
    assert not any(plan.should_throttle("CreateTrainingJob", call) for call in range(1, 50))
    chosen = FaultPlan(1, (Throttle("Create*", calls=(2, 5)),))
    assert [call for call in range(1, 9) if chosen.should_throttle("CreateTrainingJob", call)] == [2, 5]


def test_an_empty_plan_does_nothing() -> None:
    assert FaultPlan().draw_faults_of_attempt("job", 1) == AttemptFaults()


def test_a_plan_is_read() -> None:
    text = json.dumps(
        {
            "seed": 7,
            "faults": [
                {"fault": "spot-interruption", "after": [1, 2], "attempts": [1, 2]},
                {"fault": "no-capacity", "seconds": None},
            ],
        }
    )
    plan = parse_fault_plan(text, "here")
    assert plan == FaultPlan(7, (SpotInterruption((1, 2), attempts=(1, 2)), NoCapacity()))


def test_a_fault_plan_round_trips_through_json() -> None:
    plan = FaultPlan(9, (*FAULTS, Throttle("Describe*", share=0.5, first=1, calls=(4,))))
    assert parse_fault_plan(plan.to_json(), "here") == plan


def test_all_mistakes_of_a_fault_plan_are_reported() -> None:
    document = {
        "seed": "x",
        "faults": [
            {"fault": "nothing"},
            {"fault": "host-lost"},
            {"fault": "host-lost", "after": -1, "hots": "algo-1"},
            {"fault": "throttle", "share": 2, "calls": [0]},
            {"fault": "spot-interruption", "after": [5, 1], "attempts": [0]},
        ],
    }
    with pytest.raises(EndpointError) as raised:
        parse_fault_plan(json.dumps(document), "plan.json")
    text = str(raised.value)
    for part in (
        "plan.json is not a valid fault plan: seed: 'x'",
        "faults[0].fault: it must be one of spot-interruption, host-lost",
        "faults[1].after: it is required",
        "faults[2].hots: unknown",
        "faults[2].after: -1 is not a number of seconds",
        "faults[3].share: 2 is not a share",
        "faults[3].calls: [0] is not a list of calls",
        "faults[4].after",
        "faults[4].attempts",
    ):
        assert part in text
    with pytest.raises(EndpointError, match="is not JSON"):
        parse_fault_plan("{", "plan.json")
    with pytest.raises(EndpointError, match="must be an object"):
        parse_fault_plan("[]", "plan.json")
