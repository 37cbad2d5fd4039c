"""The simulator against Daly's closed form, against a slow and obvious one, and against traces by hand."""

from __future__ import annotations

import json
import math
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from smlaunch.chain.chain_simulation import (
    ChainModel,
    SimulatedRun,
    random_failures,
    simulate,
    simulate_run,
)
from smlaunch.contract.checkpoint_interval import daly_interval

HOUR, DAY = 3600.0, 86400.0
MTBF = 72 * HOUR
STEADY = ChainModel(
    work=100, segment=math.inf, start=10, interval=20, stall=1, restart=15, mtbf=math.inf, renewed=False
)


def parts(run: SimulatedRun) -> float:
    return run.work + run.starting + run.saving + run.lost + run.recovering + run.waiting


def test_without_failures() -> None:
    run = simulate_run(STEADY, [])
    assert run.makespan == 10 + 100 + 5 * 1
    assert (run.starting, run.saving, run.lost, run.failures) == (10, 5, 0, 0)
    assert run.goodput == pytest.approx(100 / 115)


def test_a_failure_takes_what_was_not_saved() -> None:
    """At 60 the second save, at 52, is over: 8 seconds are lost; at 70 it fails again while it recovers."""
    run = simulate_run(STEADY, [60, 70])
    assert run.lost == 8
    assert run.recovering == 10 + 15
    assert run.makespan == 60 + 10 + 15 + 60 + 3


def test_a_failure_in_the_midst_of_a_save() -> None:
    run = simulate_run(STEADY, [30.5])
    assert (run.lost, run.saving) == (20.5, 5)


def test_a_segment_ends_with_a_save() -> None:
    """Of 50 seconds, 10 belong to the start and the last one to a save; the save before it is at 20."""
    run = simulate_run(ChainModel(100, 50, 10, 20, 1, 15, math.inf, gap=5), [])
    assert run.segments == 3
    assert run.makespan == 50 + 5 + 50 + 5 + 10 + (100 - 2 * 38) + 2
    assert run.waiting == 10


def test_an_attempt_has_a_segment_before_it() -> None:
    """It fails at 45, with one save of 20 behind it, and trains again from 60 on: until 94, or not at all."""
    renewed = simulate_run(ChainModel(100, 50, 10, 20, 1, 15, math.inf), [45])
    assert (renewed.segments, renewed.failures) == (3, 1)
    assert renewed.makespan == 45 + 5 + 50 + 50 + 10 + (100 - 20 - 38 - 38) + 1
    cut_run = simulate_run(ChainModel(100, 50, 10, 20, 1, 15, math.inf, renewed=False), [45])
    assert cut_run.recovering == 5, "the segment's time is over before it trains again"


def test_nothing_fails_between_two_jobs() -> None:
    assert simulate_run(ChainModel(100, 50, 10, 20, 1, 15, math.inf, gap=5), [52]).failures == 0


def test_a_run_that_never_ends_is_given_up() -> None:
    chain = ChainModel(1000, math.inf, 10, 100, 1, 10, 5.0)
    simulation = simulate(chain, Random(1).random, runs=2)
    assert math.isinf(simulation.makespan)
    assert simulation.goodput == 0
    assert "without an end" in str(simulation)
    assert simulation.to_dict()["makespan"]["mean"] is None
    json.dumps(simulation.to_dict(), allow_nan=False)


@pytest.mark.parametrize("renewed", [False, True])
@pytest.mark.parametrize(
    ("segment", "start"), [(12 * HOUR, 900.0), (DAY, 900.0), (DAY, 2 * HOUR), (28 * DAY, 900.0)]
)
def test_within_one_percent_of_the_closed_form(segment: float, start: float, renewed: bool) -> None:
    chain = ChainModel(
        work=2000 * HOUR,
        segment=segment,
        start=start,
        interval=daly_interval(60, MTBF),
        stall=60,
        restart=start + 300 if renewed else 300,
        mtbf=MTBF,
        renewed=renewed,
    )
    simulation = simulate(chain, Random(7).random)
    # Where attempts have limits of their own, fewer planned ends are met, and fewer starts.
    expected = 1 - start / (2 * MTBF) if renewed else 1
    assert simulation.makespan / simulation.closed_form == pytest.approx(expected, abs=0.005)


def test_one_job_is_daly_s_own_case() -> None:
    """His figure 4: 500 hours of work, a save of 5 minutes, a restart of 10, a failure in 6 hours."""
    chain = ChainModel(500 * HOUR, math.inf, 0, daly_interval(300, 6 * HOUR), 300, 600, 6 * HOUR)
    simulation = simulate(chain, Random(1).random, runs=300)
    assert simulation.makespan / simulation.closed_form == pytest.approx(1, abs=0.01)


def simulate_by_ticks(chain: ChainModel, failures: list[int]) -> int:
    """Simulates the same rules tick by tick, without sums and divisions. All times are whole ticks."""
    now, saved_seconds, trained_seconds, needs, state = 0, 0, 0, int(chain.start), "down"
    end, since, pending = chain.segment, 0, list(failures)
    while True:
        if pending and pending[0] == now:
            pending.pop(0)
            trained_seconds, state, needs = saved_seconds, "down", int(chain.restart)
            if chain.renewed:
                end = now + max(0, int(chain.restart - chain.start)) + chain.segment
        if state == "down" and needs == 0:
            state, since = "train", 0
        if state == "save" and needs == 0:
            saved_seconds, state, since = trained_seconds, "train", 0
            if saved_seconds == chain.work:
                return now
        if now == end:
            if state == "save":  # one that began before the last one was due serves as the last one
                saved_seconds = trained_seconds
            trained_seconds = saved_seconds
            now += int(chain.gap)
            pending = [failure for failure in pending if failure >= now]
            state, needs, end = "down", int(chain.start), now + chain.segment
        if state == "train" and (
            since == chain.interval or trained_seconds == chain.work or now >= end - chain.stall
        ):
            state, needs = "save", int(chain.stall)
        if state == "train":
            trained_seconds, since = trained_seconds + 1, since + 1
        else:
            needs -= 1
        now += 1


small_numbers = st.integers(1, 12)


@given(
    work=st.integers(1, 60),
    start=small_numbers,
    interval=small_numbers,
    stall=st.integers(1, 3),
    restart=small_numbers,
    seconds_between=st.integers(1, 40),
    gap=st.integers(0, 5),
    renewed=st.booleans(),
    failures=st.lists(st.integers(0, 200), max_size=4, unique=True).map(sorted),
)
def test_the_same_as_tick_by_tick(
    work: int,
    start: int,
    interval: int,
    stall: int,
    restart: int,
    seconds_between: int,
    gap: int,
    renewed: bool,
    failures: list[int],
) -> None:
    """Eight ticks a second, and each failure at a fraction of its own. What a failure interrupts may move
    another event to such a fraction: where two things would happen at once, either order is right, and none
    is compared.
    """
    figures = (work, start + stall + seconds_between, start, interval, stall, restart, math.inf, gap)
    chain = ChainModel(*(8 * figure for figure in figures), renewed)
    ticks = [8 * failure + number + 1 for number, failure in enumerate(failures)]
    run = simulate_run(chain, [float(tick) for tick in ticks])
    assert run.makespan == pytest.approx(parts(run))
    earlier, later = (simulate_run(chain, [tick + shift for tick in ticks]) for shift in (-0.25, 0.25))
    assume((earlier.segments, earlier.failures) == (later.segments, later.failures))
    assert run.makespan == simulate_by_ticks(chain, ticks)


def test_the_same_numbers_make_the_same_run() -> None:
    chain = ChainModel(DAY, 12 * HOUR, 60, 600, 5, 120, 4 * HOUR)
    assert simulate(chain, Random(3).random, 5) == simulate(chain, Random(3).random, 5)
    assert simulate(chain, Random(3).random, 5) != simulate(chain, Random(4).random, 5)


def test_failures_at_random_are_so_far_apart() -> None:
    times = random_failures(100.0, Random(1).random)
    last = [next(times) for _ in range(20_000)][-1]
    assert last / 20_000 == pytest.approx(100, rel=0.03)
    assert list(random_failures(math.inf, Random(1).random)) == []


def test_in_words_and_as_a_document() -> None:
    simulation = simulate(ChainModel(60 * DAY, DAY, 900, 1200, 5, 1200, 72 * HOUR), Random(7).random, 50)
    text = str(simulation)
    assert text.startswith("Simulated 50 times: 60.00 d of training take 6")
    assert "lost 0.2" in text
    document = json.loads(json.dumps(simulation.to_dict(), allow_nan=False))
    assert document["goodput"] == pytest.approx(simulation.goodput)
    assert document["assumed"]["segment"] == DAY


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ValueError, match=r"work: .*; interval: .*; stall: "):
        ChainModel(0, DAY, 900, 0, -1, 1200, HOUR)
    with pytest.raises(ValueError, match="leaves no time to train"):
        ChainModel(DAY, 900, 900, 60, 5, 1200, HOUR)
