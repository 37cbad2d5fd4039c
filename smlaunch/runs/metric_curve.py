"""The course of each metric of a run, in a memory that does not grow with the run. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from smlaunch.contract.progress_line import DATA_WAIT_METRIC
from smlaunch.runs.job_poller import LogLine
from smlaunch.runs.metric_table import read_metric_row

_MAX_POINTS = 256
_MAX_METRICS = 16


@dataclass
class _Course:
    """The means of equal numbers of values, in the order in which they were reported."""

    points: list[tuple[float, float]] = field(default_factory=list)
    """Step of the first value of each mean, and the mean."""
    values_per_point: int = 1
    has_steps: bool = True
    """Every value was reported with a step. Otherwise reports are counted, from 1."""
    _incomplete_point: tuple[float, float, int] | None = None
    """Step, mean and number of the values that are too few for a point."""

    def add(self, step: int | None, value: float) -> None:
        """Add a value. Without a step, it lies one after the last one. A step that is lower than the last one
        is trained again: what was reported from there on is dropped."""
        last_step = self._last_step()
        if step is None:
            self.has_steps = False
            value_step = 1.0 if last_step is None else last_step + 1
        else:
            value_step = float(step)
        if last_step is not None and value_step < last_step:
            self._incomplete_point = None
            self.points = [point for point in self.points if point[0] < value_step]
        first_step, mean, count = self._incomplete_point or (value_step, 0.0, 0)
        count += 1
        mean = mean * ((count - 1) / count) + value / count  # no sum that overflows
        self._incomplete_point = (first_step, mean, count)
        if count == self.values_per_point:
            self.points.append((first_step, mean))
            self._incomplete_point = None
        if len(self.points) >= _MAX_POINTS:
            self._merge_neighbours()

    def _merge_neighbours(self) -> None:
        """Replace each two points by one, with the mean of their means."""
        self.points = [
            (first_step, first_mean / 2 + second_mean / 2)
            for (first_step, first_mean), (_, second_mean) in zip(
                self.points[::2], self.points[1::2], strict=True
            )
        ]
        self.values_per_point *= 2

    def _last_step(self) -> float | None:
        if self._incomplete_point is not None:
            return self._incomplete_point[0]
        return self.points[-1][0] if self.points else None

    def all_points(self) -> list[tuple[float, float]]:
        return self.points if self._incomplete_point is None else [*self.points, self._incomplete_point[:2]]


class MetricCurves:
    """The courses of the metrics that the first rank reports."""

    def __init__(self) -> None:
        self._course_by_metric: dict[str, _Course] = {}
        self._writer: tuple[int, int] | None = None
        """Host number and rank whose lines are in the courses."""

    def add_lines(self, lines: Iterable[LogLine]) -> None:
        """Add the progress lines among the lines of a job's log."""
        for line in lines:
            writer_and_row = read_metric_row(line)
            if writer_and_row is None:
                continue
            writer, row = writer_and_row
            if self._writer is None or writer < self._writer:
                self._writer, self._course_by_metric = writer, {}
            if writer == self._writer:
                self._add_values(row.step, row.values.items())

    def _add_values(self, step: int | None, values: Iterable[tuple[str, float]]) -> None:
        for metric, value in values:
            if metric == DATA_WAIT_METRIC:  # the wait for data is no result of the training
                continue
            if metric in self._course_by_metric or len(self._course_by_metric) < _MAX_METRICS:
                self._course_by_metric.setdefault(metric, _Course()).add(step, value)

    def main_course(self) -> tuple[str, list[tuple[float, float]], bool] | None:
        """Return the metric that tells most of the training, its loss if it reports one, with its steps and
        values, and whether the steps were reported and not only counted; None if no metric was reported."""
        metrics = list(self._course_by_metric)
        if not metrics:
            return None
        metric = min(metrics, key=lambda name: (name != "loss", "loss" not in name.lower()))
        course = self._course_by_metric[metric]
        return metric, course.all_points(), course.has_steps
