"""The table of a run's metrics, and the curves of its text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smlaunch.contract.progress_line import format_line
from smlaunch.runs.job_poller import LogLine
from smlaunch.runs.metric_table import NO_METRICS, build_metric_table
from smlaunch.text.sparkline import sparkline


def line(text: str, job: str = "x-s1-a1", host: str = "algo-1", at: int = 1000) -> LogLine:
    return LogLine(job, host, at, text)


def test_a_row_for_each_progress_line_of_the_first_rank() -> None:
    table = build_metric_table(
        [
            line("[0] smlaunch: progress step=1 steps=3 loss=0.5"),
            line("[1] smlaunch: progress step=1 steps=3 loss=9"),
            line("[0] epoch done"),
            line("smlaunch: progress step=2 loss=0.25 lr=0.1", at=3000),
            line("smlaunch: metric accuracy=0.9 note=good", at=4000),
            line("smlaunch: progress step=2 loss=7", host="algo-2"),
        ]
    )
    assert list(table) == [
        {"job": "x-s1-a1", "at": 1.0, "step": 1, "loss": 0.5},
        {"job": "x-s1-a1", "at": 3.0, "step": 2, "loss": 0.25, "lr": 0.1},
        {"job": "x-s1-a1", "at": 4.0, "step": None, "accuracy": 0.9},
    ]
    assert table.names == ("loss", "lr", "accuracy")
    assert table["loss"] == [0.5, 0.25]
    assert table.to_columns()["lr"] == [None, 0.1, None]
    assert str(table).splitlines()[0].split() == ["loss", "█▁", "0.5", "to", "0.25"]
    with pytest.raises(KeyError, match="'los' was not reported; reported: loss, lr, accuracy"):
        table["los"]


def test_steps_that_a_later_job_repeats_are_in_the_table_once() -> None:
    first = [line(format_line("progress", step=step, loss=step)) for step in (1, 2, 3, 4)]
    second = [line(format_line("progress", step=step, loss=10 * step), "x-s1-a2") for step in (3, 4, 5)]
    assert build_metric_table([*first, *second])["loss"] == [1, 2, 30, 40, 50]


def test_a_script_that_counts_steps_by_epoch_loses_none() -> None:
    lines = [
        line(format_line("progress", step=step, loss=loss)) for step, loss in ((1, 4), (2, 3), (1, 2), (2, 1))
    ]
    assert build_metric_table(lines)["loss"] == [4, 3, 2, 1]


def test_without_metrics() -> None:
    table = build_metric_table([line("hello")])
    assert (len(table), str(table), table.names) == (0, NO_METRICS, ())
    assert "<table>" in table._repr_html_()


def test_hostile_names_are_escaped_in_html() -> None:
    table = build_metric_table([line("smlaunch: progress step=1 a.b-c=1")])
    assert "a.b-c" in table._repr_html_()


@given(st.lists(st.floats(), max_size=200), st.integers(1, 60))
def test_a_sparkline_of_any_values(values: list[float], width: int) -> None:
    text = sparkline(values, width)
    assert len(text) == min(len(values), width)
    assert all(
        (char == "x") == (not math.isfinite(value)) for char, value in zip(text, values, strict=False)
    ) or (len(values) > width)


def test_a_sparkline_rises_and_falls() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([1, float("nan"), 0]) == "█x▁"
    assert sparkline([5, 5]) == "▁▁"
    assert sparkline([0, 0, 8, 8], 2) == "▁█"
