from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from smlaunch.protocol.progress import Progress, format_line, parse_line
from smlaunch.runs.progress import Tracker


def feed(tracker: Tracker, at: float, writer: tuple[int, int] = (1, 0), **values: float) -> None:
    line = parse_line(format_line("progress", **values))
    assert line is not None
    tracker.feed(writer, at, line)


def test_time_left_from_the_pace_of_the_last_lines() -> None:
    tracker = Tracker()
    for step in range(5):
        feed(tracker, at=10.0 + step * 2, step=step * 10, steps=100, loss=1.0 / (step + 1))
    standing = tracker.standing()
    assert standing is not None
    assert (standing.step, standing.steps, standing.share) == (40, 100, 0.4)
    assert standing.rate == 5.0
    assert standing.eta == 12.0
    assert standing.metrics == {"loss": 0.2}


def test_the_estimate_runs_down_between_two_lines_but_never_below_nothing() -> None:
    tracker = Tracker()
    feed(tracker, 0.0, step=0, steps=10)
    feed(tracker, 5.0, step=5, steps=10)
    assert tracker.standing(now=7.0).eta == 3.0  # type: ignore[union-attr]
    assert tracker.standing(now=99.0).eta == 0.0  # type: ignore[union-attr]


def test_one_line_alone_tells_no_pace() -> None:
    tracker = Tracker()
    assert tracker.standing() is None
    feed(tracker, 1.0, step=3, steps=10)
    standing = tracker.standing()
    assert standing is not None and standing.rate is None and standing.eta is None


def test_a_restart_from_a_checkpoint_starts_the_measuring_anew() -> None:
    tracker = Tracker()
    feed(tracker, 0.0, step=0, steps=100)
    feed(tracker, 1.0, step=50, steps=100)
    feed(tracker, 100.0, step=40, steps=100)
    assert tracker.standing().rate is None  # type: ignore[union-attr]
    feed(tracker, 110.0, step=50, steps=100)
    assert tracker.standing().rate == 1.0  # type: ignore[union-attr]


def test_the_first_host_and_rank_leads_in_natural_order() -> None:
    tracker = Tracker()
    feed(tracker, 0.0, (10, 0), step=1)
    feed(tracker, 0.0, (2, 5), step=2)
    assert tracker.standing().step == 2  # type: ignore[union-attr]


def test_other_kinds_and_text_values_are_left_alone() -> None:
    tracker = Tracker()
    tracker.feed((1, 0), 0.0, Progress("outcome", {"step": 1}))
    assert tracker.standing() is None
    tracker.feed((1, 0), 0.0, Progress("progress", {"step": 1, "phase": "warm up"}))
    assert tracker.standing().metrics == {}  # type: ignore[union-attr]


@given(st.lists(st.tuples(st.floats(0, 1e9), st.integers(-10, 10**9), st.integers(-5, 10**9)), max_size=60))
def test_nonsense_never_breaks_it(rows: list[tuple[float, int, int]]) -> None:
    tracker = Tracker()
    for at, step, steps in rows:
        tracker.feed((1, 0), at, Progress("progress", {"step": step, "steps": steps}))
    standing = tracker.standing(now=0.0)
    if standing is not None:
        assert standing.eta is None or standing.eta >= 0
        assert standing.share is None or 0 <= standing.share <= 1


def test_the_wait_for_data_is_that_of_the_rank_that_waits_longest() -> None:
    tracker = Tracker()
    for rank, share in enumerate((0.1, 0.6, 0.2)):
        tracker.feed((1, rank), 1.0, Progress("metric", {"data_wait_share": share, "loss": rank}))
    standing = tracker.standing()
    assert standing is not None
    assert standing.metrics == {"data_wait_share": 0.6, "loss": 0}
