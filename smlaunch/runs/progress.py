"""Estimates progress and remaining time from progress lines. Pure.

Training scripts print one kind of line (``contract.progress``). Readers of the logs add the lines here with
the times when they were written, so that a follower that attaches late gets the same estimate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from smlaunch.contract.progress import DATA_WAIT_METRIC, METRIC_KIND, PROGRESS_KIND, MetricValue, ProgressLine

_RATE_WINDOW_LINES = 32
"""The rate is that of the last lines: few enough to follow a change, enough to be stable."""


@dataclass(frozen=True)
class ProgressEstimate:
    """Progress of a run. Values are None while they are unknown."""

    step: int | None
    total_steps: int | None
    steps_per_second: float | None
    eta_seconds: float | None
    metrics: Mapping[str, float]
    """The newest metrics."""

    @property
    def fraction_done(self) -> float | None:
        """The completed fraction, between 0 and 1."""
        if self.step is None or not self.total_steps:
            return None
        return min(1.0, max(0.0, self.step / self.total_steps))


@dataclass
class ProgressTracker:
    """Collects the progress lines of one job, which several writers (ranks, hosts) may print.

    The estimate follows the first writer in natural order (host, then rank), because values that jump between
    ranks would be meaningless. Metrics are the newest of that writer; the wait for data is the longest of all
    writers, since the other ranks wait for that one.
    """

    _writers: dict[tuple[int, int], _WriterProgress] = field(default_factory=dict)

    def add_line(self, writer: tuple[int, int], written_at: float, line: ProgressLine) -> None:
        """Add a progress line. ``writer`` is host number and rank; ``written_at`` is in seconds."""
        if line.kind not in (PROGRESS_KIND, METRIC_KIND):
            return
        self._writers.setdefault(writer, _WriterProgress()).add_values(written_at, line.values)

    def estimate(self, now: float | None = None) -> ProgressEstimate | None:
        """Return the current estimate; None without a progress line.

        ``now``, on the clock of ``written_at``, lets the remaining time decrease between two lines.
        """
        if not self._writers:
            return None
        estimate = self._writers[min(self._writers)].estimate(now)
        waits = [
            writer.metrics[DATA_WAIT_METRIC]
            for writer in self._writers.values()
            if DATA_WAIT_METRIC in writer.metrics
        ]
        if waits:
            estimate = replace(estimate, metrics={**estimate.metrics, DATA_WAIT_METRIC: max(waits)})
        return estimate


@dataclass
class _WriterProgress:
    points: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_RATE_WINDOW_LINES))
    total_steps: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)

    def add_values(self, written_at: float, values: Mapping[str, MetricValue]) -> None:
        """Add the values of one progress line. ``written_at``: seconds since the epoch."""
        step, total_steps = values.get("step"), values.get("steps")
        if isinstance(total_steps, int) and total_steps > 0:
            self.total_steps = total_steps
        if isinstance(step, int):
            if self.points and step < self.points[-1][1]:
                self.points.clear()  # a restart from a checkpoint invalidates earlier measurements
            self.points.append((written_at, step))
        for key, value in values.items():
            if key not in ("step", "steps") and not isinstance(value, str):
                self.metrics[key] = float(value)

    def estimate(self, now: float | None) -> ProgressEstimate:
        """Return step, speed, remaining time and metrics. ``now``: seconds since the epoch; None counts the
        remaining time from the last line."""
        step = self.points[-1][1] if self.points else None
        steps_per_second = self._steps_per_second()
        eta_seconds = None
        if step is not None and self.total_steps is not None:
            remaining_steps = max(0, self.total_steps - step)
            if remaining_steps == 0:
                eta_seconds = 0.0
            elif steps_per_second:
                seconds_since_line = max(0.0, now - self.points[-1][0]) if now is not None else 0.0
                eta_seconds = max(0.0, remaining_steps / steps_per_second - seconds_since_line)
        return ProgressEstimate(step, self.total_steps, steps_per_second, eta_seconds, dict(self.metrics))

    def _steps_per_second(self) -> float | None:
        if len(self.points) < 2:
            return None
        (first_at, first_step), (last_at, last_step) = self.points[0], self.points[-1]
        if last_at <= first_at or last_step <= first_step:
            return None
        return (last_step - first_step) / (last_at - first_at)
