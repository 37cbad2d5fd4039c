from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smlaunch.contract.progress_line import ProgressLine, format_line, iter_steps, parse_line
from smlaunch.runs.progress_estimate import ProgressTracker
from tests.tables import table


def add_progress(
    tracker: ProgressTracker, seconds: float, writer: tuple[int, int] = (1, 0), **values: float
) -> None:
    line = parse_line(format_line("progress", **values))
    assert line is not None
    tracker.add_line(writer, seconds, line)


def test_remaining_time_follows_the_last_lines() -> None:
    tracker = ProgressTracker()
    for step in range(5):
        add_progress(tracker, seconds=10.0 + step * 2, step=step * 10, steps=100, loss=1.0 / (step + 1))
    estimate = tracker.estimate()
    assert estimate is not None
    assert (estimate.step, estimate.total_steps, estimate.fraction_done) == (40, 100, 0.4)
    assert estimate.steps_per_second == 5.0
    assert estimate.eta_seconds == 12.0
    assert estimate.metrics == {"loss": 0.2}


def test_the_estimate_decreases_between_lines_to_zero() -> None:
    tracker = ProgressTracker()
    add_progress(tracker, 0.0, step=0, steps=10)
    add_progress(tracker, 5.0, step=5, steps=10)
    assert tracker.estimate(now=7.0).eta_seconds == 3.0  # type: ignore[union-attr]
    assert tracker.estimate(now=99.0).eta_seconds == 0.0  # type: ignore[union-attr]


def test_a_single_line_gives_no_rate() -> None:
    tracker = ProgressTracker()
    assert tracker.estimate() is None
    add_progress(tracker, 1.0, step=3, steps=10)
    estimate = tracker.estimate()
    assert estimate is not None and estimate.steps_per_second is None and estimate.eta_seconds is None


def test_a_restart_from_a_checkpoint_resets_the_rate() -> None:
    tracker = ProgressTracker()
    add_progress(tracker, 0.0, step=0, steps=100)
    add_progress(tracker, 1.0, step=50, steps=100)
    add_progress(tracker, 100.0, step=40, steps=100)
    assert tracker.estimate().steps_per_second is None  # type: ignore[union-attr]
    add_progress(tracker, 110.0, step=50, steps=100)
    assert tracker.estimate().steps_per_second == 1.0  # type: ignore[union-attr]


def test_the_first_host_and_rank_leads_in_natural_order() -> None:
    tracker = ProgressTracker()
    add_progress(tracker, 0.0, (10, 0), step=1)
    add_progress(tracker, 0.0, (2, 5), step=2)
    assert tracker.estimate().step == 2  # type: ignore[union-attr]


def test_other_kinds_and_text_values_are_ignored() -> None:
    tracker = ProgressTracker()
    tracker.add_line((1, 0), 0.0, ProgressLine("outcome", {"step": 1}))
    assert tracker.estimate() is None
    tracker.add_line((1, 0), 0.0, ProgressLine("progress", {"step": 1, "phase": "warm up"}))
    assert tracker.estimate().metrics == {}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text, values, unreadable",
    [
        ("metric val/loss=1 train:loss=2 top@5=3", {"val/loss": 1, "train:loss": 2, "top@5": 3}, ""),
        ("metric smörgås=1 acc%=2 loss(x)=3 5acc=4", {"smörgås": 1, "acc%": 2, "loss(x)": 3, "5acc": 4}, ""),
        ("progress step=3 steps=20 loss<b>x=3", {"step": 3, "steps": 20, "loss<b>x": 3}, ""),
        ("progress step=3 loss 0.5  =7 lr=1", {"step": 3, "lr": 1}, "loss 0.5 =7"),
        ("metric a\x1b[1mb=1 c=2", {"c": 2}, "a\x1b[1mb=1"),
        ("progress step=1 loss=abc acc=0,9 m=tensor(0.5)", {"step": 1}, "loss=abc acc=0,9 m=tensor(0.5)"),
        ("metric on=True gap=-- loss=", {}, "on=True gap=-- loss="),
        ("progress step=1.5 steps=1e3 loss=inf", {"loss": math.inf}, "step=1.5 steps=1e3"),
        ("progress is slow", None, ""),
        ("warning of=1 smlaunch", None, ""),
    ],
)
def test_a_pair_that_cannot_be_read_takes_no_other_with_it(
    text: str, values: dict[str, float] | None, unreadable: str
) -> None:
    line = parse_line(f"[3] smlaunch: {text}\n")
    kind = text.split()[0]
    expected = None if values is None else ProgressLine(kind, dict(values), tuple(unreadable.split()))
    assert line == expected


BAR = "Epoch 1:  50%|#####     | 3/6 [00:01<00:01,  2.91it/s, loss=0.3]"


@table(
    ("before", "counts"),
    [
        ("", True),
        ("[3] ", True),
        ("[rank3]: ", True),
        ("[1,3]<stdout>:", True),
        ("\x1b[32m", True),
        (BAR, True),
        (f"[3] {BAR} ", True),
        (f"\r{BAR}\r{BAR}", True),
        ("│   5 │   print(f'", False),
        ("| 12   ", False),
        ("    ", False),
        ("INFO:root:", False),
    ],
)
def test_a_line_inside_another_line_is_no_report(before: str, counts: bool) -> None:
    line = f"{before}smlaunch: progress step=5 steps=9"
    assert (parse_line(line) is not None) is counts
    assert list(iter_steps(f"before\n{line}\n".encode())) == ([(5, 9)] if counts else [])


def test_a_metric_line_does_not_move_the_bar() -> None:
    tracker = ProgressTracker()
    add_progress(tracker, 0.0, step=10, steps=20)
    line = parse_line("smlaunch: metric step=3 steps=4 accuracy=0.9")
    assert line is not None and line.values["step"] == 3  # the row of the table of metrics
    tracker.add_line((1, 0), 1.0, line)
    estimate = tracker.estimate()
    assert estimate is not None
    assert (estimate.step, estimate.total_steps, estimate.metrics) == (10, 20, {"accuracy": 0.9})


@given(st.lists(st.tuples(st.floats(0, 1e9), st.integers(-10, 10**9), st.integers(-5, 10**9)), max_size=60))
def test_nonsense_never_breaks_it(rows: list[tuple[float, int, int]]) -> None:
    tracker = ProgressTracker()
    for seconds, step, steps in rows:
        tracker.add_line((1, 0), seconds, ProgressLine("progress", {"step": step, "steps": steps}))
    estimate = tracker.estimate(now=0.0)
    if estimate is not None:
        assert estimate.eta_seconds is None or estimate.eta_seconds >= 0
        assert estimate.fraction_done is None or 0 <= estimate.fraction_done <= 1


def test_the_wait_for_data_is_that_of_the_rank_that_waits_longest() -> None:
    tracker = ProgressTracker()
    for rank, share in enumerate((0.1, 0.6, 0.2)):
        tracker.add_line((1, rank), 1.0, ProgressLine("metric", {"data_wait_share": share, "loss": rank}))
    estimate = tracker.estimate()
    assert estimate is not None
    assert estimate.metrics == {"data_wait_share": 0.6, "loss": 0}


def test_a_number_that_no_float_can_hold_is_infinite_and_no_step() -> None:
    line = parse_line(f"smlaunch: progress step={'9' * 400} loss=-{'9' * 400}")
    assert line is not None
    tracker = ProgressTracker()
    tracker.add_line((1, 0), 1.0, line)
    estimate = tracker.estimate()
    assert estimate is not None and estimate.step is None and estimate.metrics["loss"] == -math.inf
