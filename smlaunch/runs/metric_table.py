"""The metrics that a run's script has reported over time, from its progress lines. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any, NamedTuple, overload

from smlaunch.contract.progress_line import LINE_PREFIX, METRIC_KIND, PROGRESS_KIND, parse_line
from smlaunch.contract.run_names import parse_job_name
from smlaunch.runs.job_poller import LogLine, host_number
from smlaunch.runs.log_tail import split_rank_prefix
from smlaunch.text.sparkline import sparkline

_MAX_PRINTED_ROWS = 20

NO_METRICS = (
    "no metrics: the script has printed no line such as `smlaunch: progress step=10 steps=100 loss=0.5` "
    "(docs/scripts.md)"
)


_OWN_COLUMNS = ("job", "at", "step")
_MAX_NAMES_IN_REPR = 8


class MetricRow(NamedTuple):
    """What one progress line reports."""

    job: str
    at: float
    """Seconds since the epoch."""
    step: int | None
    """Of the whole training, not of the job; None for a line without a step."""
    values: Mapping[str, float]
    """A metric that is called like a column of the table is ``job (metric)`` here."""

    def to_dict(self) -> dict[str, Any]:
        return {"job": self.job, "at": self.at, "step": self.step, **self.values}


@dataclass(frozen=True, repr=False)
class MetricTable:
    """A row for each progress line of the first rank, oldest first; of a run with several shards, the rows of
    each shard's first rank, one shard after the other. Steps that a later job has repeated, such as after a
    kill, are in it once, as the later job reported them."""

    rows: tuple[MetricRow, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the metrics, in the order of their first report."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row.values))

    def __repr__(self) -> str:
        """Return one line: a notebook stores it, and its length must not depend on the run's."""
        names = ", ".join(self.names[:_MAX_NAMES_IN_REPR])
        more = (
            f" and {len(self.names) - _MAX_NAMES_IN_REPR} more"
            if len(self.names) > _MAX_NAMES_IN_REPR
            else ""
        )
        return f"MetricTable({len(self):,} rows of {names or 'no metric'}{more})"

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield each row as a mapping of ``job``, ``at``, ``step`` and the metrics that it has."""
        return map(MetricRow.to_dict, self.rows)

    def __contains__(self, name: object) -> bool:
        """Return whether the table has a column of this name."""
        return name in self.names or name in _OWN_COLUMNS

    @overload
    def __getitem__(self, key: str) -> list[Any]: ...

    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...

    def __getitem__(self, key: str | int) -> list[Any] | dict[str, Any]:
        """Return all values of a metric, oldest first; the column ``job``, ``at`` or ``step``; or, for a
        number, that row. Raises KeyError for a name that was never reported, and IndexError."""
        if isinstance(key, int):
            return self.rows[key].to_dict()
        if key in _OWN_COLUMNS:
            return [getattr(row, key) for row in self.rows]
        if key not in self.names:
            raise KeyError(f"{key!r} was not reported; reported: {', '.join(self.names) or 'nothing'}")
        return [row.values[key] for row in self.rows if key in row.values]

    def to_columns(self) -> dict[str, list[Any]]:
        """Return columns of one length, with None where a line lacks a metric, as pandas.DataFrame takes."""
        metrics = {name: [row.values.get(name) for row in self.rows] for name in self.names}
        return {**{column: self[column] for column in _OWN_COLUMNS}, **metrics}

    def curves(self, width: int = 40) -> Iterator[str]:
        """Yield a line for each metric, of each shard if there are several: its name, its course, its first
        and its last value."""
        rows_by_run: dict[str, list[MetricRow]] = {}
        for row in self.rows:
            rows_by_run.setdefault(_run_of_job(row.job), []).append(row)
        values_by_label = {
            f"{name} of {run}" if len(rows_by_run) > 1 else name: values
            for name in self.names
            for run, rows in rows_by_run.items()
            if (values := [row.values[name] for row in rows if name in row.values])
        }
        label_width = max(map(len, values_by_label), default=0)
        course_width = min(width, max(map(len, values_by_label.values()), default=0))
        for label, values in values_by_label.items():
            course = sparkline(values, width) if len(values) > 1 else ""
            ends = f"{values[0]:.4g} to {values[-1]:.4g}" if len(values) > 1 else f"{values[0]:.4g}"
            yield f"{label:<{label_width}}  {course:<{course_width}}  {ends}".rstrip()

    def __str__(self) -> str:
        return "\n".join(self.curves()) or NO_METRICS

    def _repr_html_(self) -> str:
        """Return the newest rows as a table for a notebook's cell."""
        if not self.rows:
            return f"<p>{escape(NO_METRICS)}</p>"
        head = "".join(f"<th>{escape(name)}</th>" for name in ("step", *self.names))
        body = ""
        for row in self.rows[-_MAX_PRINTED_ROWS:]:
            values = (row.step, *(row.values.get(name) for name in self.names))
            body += f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in values)}</tr>"
        omitted = len(self.rows) - _MAX_PRINTED_ROWS
        note = f"<p>the last {_MAX_PRINTED_ROWS} of {len(self.rows)} rows</p>" if omitted > 0 else ""
        return f"<div><table><tr>{head}</tr>{body}</table>{note}</div>"


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def build_metric_table(lines: Iterable[LogLine]) -> MetricTable:
    """Collect the progress lines of each run's first rank, where the runs are one run or its shards.
    ``lines``: of all jobs, oldest job first."""
    rows_by_run_and_writer: dict[str, dict[tuple[int, int], list[MetricRow]]] = {}
    for line in lines:
        writer_and_row = read_metric_row(line)
        if writer_and_row is not None:
            writer, row = writer_and_row
            rows_by_writer = rows_by_run_and_writer.setdefault(_run_of_job(row.job), {})
            rows_by_writer.setdefault(writer, []).append(row)
    return MetricTable(
        tuple(
            row
            for rows_by_writer in rows_by_run_and_writer.values()
            for row in _without_repeated_steps(rows_by_writer[min(rows_by_writer)])
        )
    )


def _run_of_job(job: str) -> str:
    """Return the run, or the shard, that a job is of; empty for a job with a name of the user's own."""
    parsed_name = parse_job_name(job)
    return "" if parsed_name is None else parsed_name.run


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
        f"{name} (metric)" if name in _OWN_COLUMNS else name: float(value)
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
    lowest_later_step_by_job: dict[str, float] = {}  # the lowest step of all later jobs
    lowest_step = math.inf
    for job, first_step in reversed(first_step_by_job.items()):
        lowest_later_step_by_job[job] = lowest_step
        lowest_step = min(lowest_step, first_step)
    return [row for row in rows if row.step is None or row.step < lowest_later_step_by_job[row.job]]
