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
    assert NO_METRICS.split("`")[0] in table._repr_html_() and "<table>" not in table._repr_html_()
    assert repr(table) == "MetricTable(0 rows of no metric)"


def test_its_one_line_is_short_however_many_rows_and_metrics_it_has() -> None:
    values = {f"m{number}": 1.0 for number in range(10)}
    table = build_metric_table(line(format_line("progress", step=step, **values)) for step in range(2000))
    assert repr(table) == "MetricTable(2,000 rows of m0, m1, m2, m3, m4, m5, m6, m7 and 2 more)"


def test_names_and_columns_are_found_alike() -> None:
    table = build_metric_table([line("smlaunch: progress step=3 loss=1"), line("smlaunch: metric loss=2")])
    assert [name in table for name in ("loss", "step", "acc", 0)] == [True, True, False, False]
    assert (table["step"], table["at"]) == ([3, None], [1.0, 1.0])
    assert table[0] == {"job": "x-s1-a1", "at": 1.0, "step": 3, "loss": 1} and table[-1]["loss"] == 2
    with pytest.raises(IndexError):
        table[2]


def test_a_metric_that_is_called_like_a_column_leaves_that_alone() -> None:
    table = build_metric_table([line("smlaunch: metric job=7 at=100 loss=1")])
    (row,) = table
    assert row == {
        "job": "x-s1-a1",
        "at": 1.0,
        "step": None,
        "job (metric)": 7,
        "at (metric)": 100,
        "loss": 1,
    }
    assert {name: [value] for name, value in row.items()} == table.to_columns()
    assert all(table[name] == column for name, column in table.to_columns().items())


def test_it_has_the_first_rank_of_each_shard() -> None:
    lines = [
        line(
            f"[{rank}] smlaunch: progress step={step} loss={10 * shard + step}",
            f"x-p{shard}-s1-a1",
            f"p{shard}",
        )
        for shard in (1, 2)
        for rank in (0, 1)
        for step in (1, 2)
    ]
    table = build_metric_table(lines)
    assert [(row.job, row.values["loss"]) for row in table.rows] == [
        ("x-p1-s1-a1", 11), ("x-p1-s1-a1", 12), ("x-p2-s1-a1", 21), ("x-p2-s1-a1", 22),
    ]  # fmt: skip
    assert [curve.split() for curve in table.curves()] == [
        ["loss", "of", "x-p1", "▁█", "11", "to", "12"],
        ["loss", "of", "x-p2", "▁█", "21", "to", "22"],
    ]


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
