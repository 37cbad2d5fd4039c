"""How often to save: at a fixed interval, or by what a save costs and how often failures occur, measured as
it runs."""

from typing import Optional

from smlaunch.contract.daly import daly_interval

FIRST_SAVE_SECONDS = 60.0
"""The first save comes this long after the start: until then its cost is unknown."""

MIN_INTERVAL_SECONDS = 5.0
DEFAULT_FAILURE_SECONDS = 24 * 3600.0
"""Time between two failures if the plan does not state it."""

_REPORTED_RATIO = 1.5
"""A change of the interval by this factor is reported."""
_NEWEST_WEIGHT = 0.3
"""Weight of the newest measurement in a running mean."""


class SaveInterval:
    """The interval between saves. ``fixed_seconds``: None adapts it. ``failure_seconds``: mean time between
    failures. ``now``: the time on the clock that ``is_due`` is called with."""

    def __init__(self, fixed_seconds: Optional[float], failure_seconds: Optional[float], now: float) -> None:
        self._fixed_seconds = fixed_seconds
        self._failure_seconds = failure_seconds or DEFAULT_FAILURE_SECONDS
        self._last_save_at = now
        self._cost_seconds: Optional[float] = None
        self._write_seconds: float = 0.0
        self._step_seconds: Optional[float] = None
        self._slowdown_seconds = 0.0
        self._reported_seconds: Optional[float] = None

    @property
    def seconds(self) -> float:
        """Seconds between the starts of two saves."""
        if self._fixed_seconds is not None:
            return self._fixed_seconds
        if self._cost_seconds is None:
            return FIRST_SAVE_SECONDS
        return max(
            MIN_INTERVAL_SECONDS,
            self._write_seconds,
            daly_interval(self._cost_seconds, self._failure_seconds),
        )

    @property
    def save_seconds(self) -> float:
        """How long a save has recently taken until it was durable."""
        return self._write_seconds

    @property
    def step_seconds(self) -> float:
        return self._step_seconds or 0.0

    def is_due(self, now: float, seconds_left: Optional[float]) -> bool:
        """``seconds_left``: to the planned end, when everything is saved anyway."""
        if now - self._last_save_at < self.seconds:
            return False
        return seconds_left is None or seconds_left > 0.5 * min(self.seconds, self._failure_seconds)

    def record_step(self, seconds: float, is_saving: bool) -> None:
        """Record that a step took so many seconds. ``is_saving``: a save was running during the step; the
        extra time counts as a cost of the save."""
        if is_saving and self._step_seconds is not None:
            self._slowdown_seconds += seconds - self._step_seconds
        elif not is_saving:
            self._step_seconds = (
                seconds if self._step_seconds is None else _blend(self._step_seconds, seconds)
            )

    def record_save_start(self, now: float) -> None:
        self._last_save_at = now
        self._slowdown_seconds = 0.0

    def record_save_end(self, stall_seconds: float, write_seconds: float) -> Optional[str]:
        """Record that a save has ended. ``stall_seconds``: how long the training stood still;
        ``write_seconds``: until everything was durable. Returns a message if the interval has changed
        much."""
        cost_seconds = stall_seconds + max(0.0, self._slowdown_seconds)
        self._cost_seconds = (
            cost_seconds if self._cost_seconds is None else _blend(self._cost_seconds, cost_seconds)
        )
        self._write_seconds = (
            write_seconds if not self._write_seconds else _blend(self._write_seconds, write_seconds)
        )
        if self._fixed_seconds is not None:
            return None
        seconds = self.seconds
        if (
            self._reported_seconds is not None
            and 1 / _REPORTED_RATIO < seconds / self._reported_seconds < _REPORTED_RATIO
        ):
            return None
        self._reported_seconds = seconds
        return "saving every {:.0f} s: a save costs {:.2f} s, one failure assumed per {:.1f} h".format(
            seconds, self._cost_seconds, self._failure_seconds / 3600
        )


def _blend(mean: float, newest: float) -> float:
    return (1 - _NEWEST_WEIGHT) * mean + _NEWEST_WEIGHT * newest
