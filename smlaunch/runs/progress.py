"""Progress lines and their times, turned into how far and how long: pure.

Training scripts print one kind of line (``protocol.progress``); whoever reads the logs feeds them here with
the time each was written, so that a follower that attaches late gets the same answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from smlaunch.protocol.progress import DATA_WAIT, METRIC, PROGRESS, Progress, Value

_WINDOW = 32
"""The rate is that of the last so many lines: few enough to follow a change of pace, enough to be calm."""


@dataclass(frozen=True)
class Standing:
    """Where a run stands. ``eta`` and ``rate`` (steps a second) are None while they cannot be known."""

    step: int | None
    steps: int | None
    rate: float | None
    eta: float | None
    metrics: Mapping[str, float]

    @property
    def share(self) -> float | None:
        """Done so far, between 0 and 1."""
        if self.step is None or not self.steps:
            return None
        return min(1.0, max(0.0, self.step / self.steps))


@dataclass
class Tracker:
    """Feeds on the progress lines of one job; several writers (ranks, hosts) may all print them.

    The bar follows the writer that speaks first in natural order (host, then rank): a bar that jumped between
    ranks would tell nothing. Metrics are the newest of that writer; the wait for data is the longest of all
    writers, since the others wait for that rank.
    """

    _writers: dict[tuple[int, int], _Writer] = field(default_factory=dict)

    def feed(self, writer: tuple[int, int], at: float, line: Progress) -> None:
        """``writer``: host number and rank. ``at``: when the line was written, in seconds."""
        if line.kind not in (PROGRESS, METRIC):
            return
        self._writers.setdefault(writer, _Writer()).feed(at, line.values)

    def standing(self, now: float | None = None) -> Standing | None:
        """``now`` (seconds, the clock of ``at``) lets the estimate run down between two lines."""
        if not self._writers:
            return None
        standing = self._writers[min(self._writers)].standing(now)
        waits = [one.metrics[DATA_WAIT] for one in self._writers.values() if DATA_WAIT in one.metrics]
        if waits:
            standing = replace(standing, metrics={**standing.metrics, DATA_WAIT: max(waits)})
        return standing


@dataclass
class _Writer:
    points: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    steps: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)

    def feed(self, at: float, values: Mapping[str, Value]) -> None:
        step, steps = values.get("step"), values.get("steps")
        if isinstance(steps, int) and steps > 0:
            self.steps = steps
        if isinstance(step, int):
            if self.points and step < self.points[-1][1]:
                self.points.clear()  # a restart from a checkpoint: what was measured before says nothing now
            self.points.append((at, step))
        for key, value in values.items():
            if key not in ("step", "steps") and not isinstance(value, str):
                self.metrics[key] = float(value)

    def standing(self, now: float | None) -> Standing:
        step = self.points[-1][1] if self.points else None
        rate = self._rate()
        eta = None
        if step is not None and self.steps is not None:
            left = max(0, self.steps - step)
            if left == 0:
                eta = 0.0
            elif rate:
                since = max(0.0, now - self.points[-1][0]) if now is not None else 0.0
                eta = max(0.0, left / rate - since)
        return Standing(step, self.steps, rate, eta, dict(self.metrics))

    def _rate(self) -> float | None:
        if len(self.points) < 2:
            return None
        (first_at, first_step), (last_at, last_step) = self.points[0], self.points[-1]
        if last_at <= first_at or last_step <= first_step:
            return None
        return (last_step - first_step) / (last_at - first_at)
