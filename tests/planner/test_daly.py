"""Daly's closed forms against what he published, and against what must hold for any figures."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smlaunch.contract.checkpoint_interval import (
    chain_makespan,
    daly_interval,
    daly_makespan,
    goodput,
    segment_progress,
)

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
times = st.floats(1e-3, 1e6)


@pytest.mark.parametrize(("mtbf", "published"), [(24 * HOUR, 117), (6 * HOUR, 57), (15 * MINUTE, 9.1)])
def test_the_intervals_that_daly_published(mtbf: float, published: float) -> None:
    """Figures 3 to 5: a save takes 5 minutes, a restart 10."""
    assert daly_interval(5 * MINUTE, mtbf) / MINUTE == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(
    ("mtbf_hours", "stall", "expected"),
    [(3, 1, 0.9594), (3, 300, 0.7610), (24, 10, 0.9814), (168, 60, 0.9855), (720, 300, 0.9847)],
)
def test_goodput_at_the_best_interval(mtbf_hours: float, stall: float, expected: float) -> None:
    mtbf = mtbf_hours * HOUR
    assert goodput(daly_interval(stall, mtbf), stall, 300, mtbf) == pytest.approx(expected, abs=5e-5)


@given(
    stall=st.floats(1e-3, 1e3), ratio=st.floats(10, 1e6), restart=st.floats(0, 1e4), other=st.floats(0.1, 10)
)
def test_no_other_interval_is_much_better(stall: float, ratio: float, restart: float, other: float) -> None:
    """The form is an approximation: where saves are expensive it is a few parts in a thousand below the
    optimum."""
    mtbf = stall * ratio
    best = daly_interval(stall, mtbf)
    makespan = daly_makespan(100 * mtbf, best, stall, restart, mtbf)
    assert makespan <= daly_makespan(100 * mtbf, best * other, stall, restart, mtbf) * 1.005


def test_a_save_dearer_than_two_failures_apart() -> None:
    assert daly_interval(600, 300) == 300


def test_where_nothing_fails() -> None:
    assert daly_interval(1, math.inf) == math.inf
    assert goodput(math.inf, 1, 300, math.inf) == 1
    assert goodput(99, 1, 300, math.inf) == pytest.approx(0.99)
    assert segment_progress(1000, 100, math.inf, 50, 300, math.inf) == pytest.approx(850 * 850 / 900)


def test_where_failures_come_faster_than_saves() -> None:
    assert goodput(1e6, 1, 1, 1e-3) == 0
    assert daly_makespan(1, 1e6, 1, 1, 1e-3) == math.inf


def test_a_save_that_costs_nothing() -> None:
    assert daly_interval(0, HOUR) == 0
    assert goodput(0, 0, 300, HOUR) == pytest.approx(goodput(1e-6, 0, 300, HOUR))
    assert goodput(0, 1, 300, HOUR) == 0


@given(times, times, times, times)
def test_a_share_is_a_share(interval: float, stall: float, restart: float, mtbf: float) -> None:
    assert 0 <= goodput(interval, stall, restart, mtbf) <= 1


@pytest.mark.parametrize(
    ("segment", "start", "expected"),
    [(DAY, 900, 0.9672), (DAY, 2 * HOUR, 0.8963), (28 * DAY, 900, 0.9768), (DAY / 2, 900, 0.9565)],
)
def test_the_share_of_a_segment(segment: float, start: float, expected: float) -> None:
    """Figures of an earlier discrete-event simulation: a save of 60 s, a restart of 5 min, 72 h apart."""
    mtbf = 72 * HOUR
    interval = daly_interval(60, mtbf)
    assert segment_progress(segment, start, interval, 60, 300, mtbf) / segment == pytest.approx(
        expected, abs=1e-3
    )
    makespan = chain_makespan(2000 * HOUR, segment, start, interval, 60, 300, mtbf)
    assert makespan == pytest.approx(2000 * HOUR / expected, rel=2e-3)


def test_the_last_segment_is_as_long_as_its_work() -> None:
    """Two whole segments with 80 of training each, then a start and what is left."""
    assert chain_makespan(200, 100, 20, 80, 0, 0, math.inf) == pytest.approx(100 + 100 + 20 + 40)
    assert chain_makespan(160, 100, 20, 80, 0, 0, math.inf) == pytest.approx(200)


def test_a_segment_that_is_all_start() -> None:
    assert segment_progress(100, 120, 10, 1, 5, HOUR) == 0
    assert chain_makespan(1, 100, 120, 10, 1, 5, HOUR) == math.inf
    assert chain_makespan(0, 100, 20, 10, 1, 5, HOUR) == 0


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ValueError, match=r"interval must not be negative: -1; .*mtbf must be positive: 0"):
        goodput(-1, 1, 1, 0)
    with pytest.raises(ValueError, match="mtbf must be positive: nan"):
        daly_interval(1, math.nan)
