"""The metrics that a run's script has reported over time, from its progress lines. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

from smlaunch.contract.progress_line import LINE_PREFIX, METRIC_KIND, PROGRESS_KIND, parse_line
from smlaunch.runs.job_poller import LogLine, host_number
from smlaunch.runs.log_tail import split_rank_prefix
from smlaunch.text.sparkline import sparkline

_MAX_PRINTED_ROWS = 20

NO_METRICS = (
    "no metrics: the script has printed no line such as `smlaunch: progress step=10 steps=100 loss=0.5` "
    "(docs/scripts.md)"
)


class MetricRow(NamedTuple):
    """What one progress line reports."""

    job: str
    at: float
    """Seconds since the epoch."""
    step: int | None
    """Of the whole training, not of the job; None for a line without a step."""
    values: Mapping[str, float]


@dataclass(frozen=True)
class MetricTable:
    """A row for each progress line of the first rank, oldest first. Steps that a later job has repeated, such
    as after a kill, are in it once, as the later job reported them."""

    rows: tuple[MetricRow, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the metrics, in the order of their first report."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row.values))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield each row as a mapping of ``job``, ``at``, ``step`` and the metrics that it has."""
        return ({"job": row.job, "at": row.at, "step": row.step, **row.values} for row in self.rows)

    def __getitem__(self, name: str) -> list[float]:
        """Return all values of a metric, oldest first. Raises KeyError for a name that was never reported."""
        if name not in self.names:
            raise KeyError(f"{name!r} was not reported; reported: {', '.join(self.names) or 'nothing'}")
        return [row.values[name] for row in self.rows if name in row.values]

    def to_columns(self) -> dict[str, list[Any]]:
        """Return columns of one length, with None where a line lacks a metric, as pandas.DataFrame takes."""
        columns: dict[str, list[Any]] = {
            "job": [row.job for row in self.rows],
            "at": [row.at for row in self.rows],
            "step": [row.step for row in self.rows],
        }
        for name in self.names:
            columns[name] = [row.values.get(name) for row in self.rows]
        return columns

    def curves(self, width: int = 40) -> Iterator[str]:
        """Yield a line for each metric: its name, its course, its first and its last value."""
        name_width = max(map(len, self.names), default=0)
        for name in self.names:
            values = self[name]
            course = sparkline(values, width) if len(values) > 1 else ""
            ends = f"{values[0]:.4g} to {values[-1]:.4g}" if len(values) > 1 else f"{values[0]:.4g}"
            yield f"{name:<{name_width}}  {course:<{min(width, len(self.rows))}}  {ends}".rstrip()

    def __str__(self) -> str:
        return "\n".join(self.curves()) or NO_METRICS

    def _repr_html_(self) -> str:
        """Return the newest rows as a table for a notebook's cell."""
        head = "".join(f"<th>{escape(name)}</th>" for name in ("step", *self.names))
        body = "".join(
            "<tr>"
            + "".join(
                f"<td>{_cell(value)}</td>" for value in (row.step, *(row.values.get(n) for n in self.names))
            )
            + "</tr>"
            for row in self.rows[-_MAX_PRINTED_ROWS:]
        )
        omitted = len(self.rows) - _MAX_PRINTED_ROWS
        note = f"<p>the last {_MAX_PRINTED_ROWS} of {len(self.rows)} rows</p>" if omitted > 0 else ""
        return f"<div><table><tr>{head}</tr>{body}</table>{note}</div>"


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def build_metric_table(lines: Iterable[LogLine]) -> MetricTable:
    """Collect the progress lines of each job's first rank. ``lines``: of all jobs, oldest job first."""
    rows_by_writer: dict[tuple[int, int], list[MetricRow]] = {}
    for line in lines:
        writer_and_row = read_metric_row(line)
        if writer_and_row is not None:
            writer, row = writer_and_row
            rows_by_writer.setdefault(writer, []).append(row)
    first_writer = min(rows_by_writer, default=None)
    return MetricTable(tuple(_without_repeated_steps(rows_by_writer[first_writer]) if first_writer else ()))


def read_metric_row(line: LogLine) -> tuple[tuple[int, int], MetricRow] | None:
    """Return what a progress line reports, and which host (its number) and rank has printed it; None for any
    other line."""
    if LINE_PREFIX not in line.text:
        return None
    parsed = parse_line(line.text)
    if parsed is None or parsed.kind not in (PROGRESS_KIND, METRIC_KIND):
        return None
    step = parsed.values.get("step")
    values = {
        name: float(value)
        for name, value in parsed.values.items()
        if name not in ("step", "steps") and not isinstance(value, str)
    }
    rank, _ = split_rank_prefix(line.text)
    row = MetricRow(line.job, line.at / 1000, step if isinstance(step, int) else None, values)
    return (host_number(line.host), rank or 0), row


def _without_repeated_steps(rows: list[MetricRow]) -> list[MetricRow]:
    """Drop rows of steps from which a later job has trained again."""
    first_step_by_job: dict[str, int] = {}  # oldest job first
    for row in rows:
        if row.step is not None:
            first_step_by_job[row.job] = min(row.step, first_step_by_job.get(row.job, row.step))
    first_step_of_later_jobs: dict[str, float] = {}
    lowest = math.inf
    for job, step in reversed(first_step_by_job.items()):
        first_step_of_later_jobs[job] = lowest
        lowest = min(lowest, step)
    return [row for row in rows if row.step is None or row.step < first_step_of_later_jobs[row.job]]
