"""Estimates progress and remaining time from progress lines. Pure.

Training scripts print one kind of line (``contract.progress_line``). Readers of the logs add the lines here
with the times when they were written, so that a follower that attaches late gets the same estimate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from smlaunch.contract.progress_line import (
    DATA_WAIT_METRIC,
    METRIC_KIND,
    PROGRESS_KIND,
    ProgressLine,
)
from smlaunch.text.format import format_elapsed

_RATE_WINDOW_LINES = 32
"""The rate is that of the last lines: few enough to follow a change, enough to be stable."""


class ProgressEstimate(NamedTuple):
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

    _progress_by_writer: dict[tuple[int, int], _WriterProgress] = field(default_factory=dict)

    def add_line(self, writer: tuple[int, int], written_at: float, line: ProgressLine) -> None:
        """Add a progress line. ``writer`` is host number and rank; ``written_at`` is in seconds."""
        if line.kind not in (PROGRESS_KIND, METRIC_KIND):
            return
        self._progress_by_writer.setdefault(writer, _WriterProgress()).add_line(written_at, line)

    def estimate(self, now: float | None = None) -> ProgressEstimate | None:
        """Return step, speed and remaining time of the job whose progress lines this tracker collects; None
        without a line.

        ``now``, in seconds since the epoch, lets the remaining time decrease between two lines.
        """
        if not self._progress_by_writer:
            return None
        first_host_and_rank = min(self._progress_by_writer)
        estimate = self._progress_by_writer[first_host_and_rank].estimate(now)
        data_waits = [
            writer_progress.metrics[DATA_WAIT_METRIC]
            for writer_progress in self._progress_by_writer.values()
            if DATA_WAIT_METRIC in writer_progress.metrics
        ]
        if data_waits:
            estimate = estimate._replace(metrics={**estimate.metrics, DATA_WAIT_METRIC: max(data_waits)})
        return estimate


@dataclass
class _WriterProgress:
    """Progress as one rank has printed it."""

    time_and_step_of_lines: deque[tuple[float, int]] = field(
        default_factory=lambda: deque(maxlen=_RATE_WINDOW_LINES)
    )
    total_steps: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)

    def add_line(self, written_at: float, line: ProgressLine) -> None:
        """Add step, total and metrics of a line. ``written_at``: in seconds since the epoch."""
        step, total_steps = line.progress
        if total_steps is not None and total_steps > 0:
            self.total_steps = total_steps
        if step is not None:
            self._add_step(written_at, step)
        for metric, value in line.values.items():
            if metric not in ("step", "steps") and not isinstance(value, str):
                self.metrics[metric] = float(value)

    def _add_step(self, written_at: float, step: int) -> None:
        if self.time_and_step_of_lines:
            _, last_step = self.time_and_step_of_lines[-1]
            if step < last_step:  # a restart from a checkpoint invalidates earlier measurements
                self.time_and_step_of_lines.clear()
        self.time_and_step_of_lines.append((written_at, step))

    def estimate(self, now: float | None) -> ProgressEstimate:
        """Return step, speed, remaining time and metrics of the rank that printed these progress lines.

        ``now``, in seconds since the epoch, lets the remaining time decrease between two lines; None counts
        it from the last line.
        """
        step = None
        if self.time_and_step_of_lines:
            _, step = self.time_and_step_of_lines[-1]
        return ProgressEstimate(
            step=step,
            total_steps=self.total_steps,
            steps_per_second=self._measure_steps_per_second(),
            eta_seconds=self._estimate_remaining_seconds(now),
            metrics=dict(self.metrics),
        )

    def _estimate_remaining_seconds(self, now: float | None) -> float | None:
        """Return the estimated seconds to the last step; None while that is not known."""
        if not self.time_and_step_of_lines or self.total_steps is None:
            return None
        last_line_at, step = self.time_and_step_of_lines[-1]
        remaining_steps = max(0, self.total_steps - step)
        if remaining_steps == 0:
            return 0.0
        steps_per_second = self._measure_steps_per_second()  # None or 0 while too few lines are known
        if not steps_per_second:
            return None
        seconds_since_line = 0.0 if now is None else max(0.0, now - last_line_at)
        return max(0.0, remaining_steps / steps_per_second - seconds_since_line)

    def _measure_steps_per_second(self) -> float | None:
        """Return the speed over the last progress lines; None where they show none."""
        if len(self.time_and_step_of_lines) < 2:
            return None
        first_line_at, first_step = self.time_and_step_of_lines[0]
        last_line_at, last_step = self.time_and_step_of_lines[-1]
        if last_line_at <= first_line_at or last_step <= first_step:
            return None
        return (last_step - first_step) / (last_line_at - first_line_at)


def describe_progress(estimate: ProgressEstimate, *, with_percent: bool = True) -> list[str]:
    """Return step, speed, metrics and remaining time of a job as short texts, as far as they are known."""
    texts: list[str] = []
    if estimate.step is not None:
        total_text = f"/{estimate.total_steps}" if estimate.total_steps else ""
        fraction = estimate.fraction_done if with_percent else None
        percent = f" ({fraction:.0%})" if fraction is not None else ""
        texts.append(f"step {estimate.step}{total_text}{percent}")
    if estimate.steps_per_second:
        texts.append(
            f"{estimate.steps_per_second:.3g} steps/s"
            if estimate.steps_per_second >= 1
            else f"{1 / estimate.steps_per_second:.3g} s/step"
        )
    texts.extend(f"{metric_name} {value:.4g}" for metric_name, value in estimate.metrics.items())
    if estimate.eta_seconds:
        texts.append(f"{format_elapsed(round(estimate.eta_seconds))} left")
    return texts
