"""How often to save: at a fixed interval, or by what a save costs and how often failures occur, measured as
it runs."""

from typing import Optional

from smlaunch.contract.checkpoint_interval import daly_interval

FIRST_SAVE_SECONDS = 60.0
"""The first save comes this long after the start: until then its cost is unknown."""

MIN_INTERVAL_SECONDS = 5.0
DEFAULT_FAILURE_SECONDS = 24 * 3600.0
"""Time between two failures if the plan does not state it."""

_MIN_REPORTED_RATIO = 1.5
"""A change of the interval by this factor is reported."""
_NEWEST_WEIGHT = 0.3
"""Weight of the newest measurement in a running mean."""


class SaveInterval:
    """The interval between saves. ``fixed_seconds``: None adapts it. ``failure_seconds``: mean time between
    failures. ``now``: the time on the clock that ``is_due`` is called with."""

    def __init__(self, fixed_seconds: Optional[float], failure_seconds: Optional[float], now: float) -> None:
        self._fixed_interval_seconds = fixed_seconds
        self._mtbf_seconds = failure_seconds or DEFAULT_FAILURE_SECONDS
        self._last_save_at = now
        self._mean_save_cost_seconds: Optional[float] = None
        self._mean_write_seconds: float = 0.0
        self._mean_step_seconds: Optional[float] = None
        self._save_slowdown_seconds = 0.0
        self._reported_interval_seconds: Optional[float] = None

    @property
    def interval_seconds(self) -> float:
        """Seconds between the starts of two saves."""
        if self._fixed_interval_seconds is not None:
            return self._fixed_interval_seconds
        if self._mean_save_cost_seconds is None:
            return FIRST_SAVE_SECONDS
        return max(
            MIN_INTERVAL_SECONDS,
            self._mean_write_seconds,
            daly_interval(self._mean_save_cost_seconds, self._mtbf_seconds),
        )

    @property
    def save_seconds(self) -> float:
        """How long a save has recently taken until it was durable."""
        return self._mean_write_seconds

    @property
    def step_seconds(self) -> float:
        return self._mean_step_seconds or 0.0

    def is_due(self, now: float, seconds_left: Optional[float]) -> bool:
        """``seconds_left``: to the planned end, when everything is saved anyway."""
        if now - self._last_save_at < self.interval_seconds:
            return False
        return seconds_left is None or seconds_left > 0.5 * min(self.interval_seconds, self._mtbf_seconds)

    def record_step(self, step_seconds: float, is_saving: bool) -> None:
        """Record how long a training step took. ``is_saving``: a save was running during the step; the extra
        time counts as a cost of the save."""
        if is_saving and self._mean_step_seconds is not None:
            self._save_slowdown_seconds += step_seconds - self._mean_step_seconds
        elif not is_saving:
            self._mean_step_seconds = _update_running_mean(self._mean_step_seconds, step_seconds)

    def record_save_start(self, now: float) -> None:
        self._last_save_at = now
        self._save_slowdown_seconds = 0.0

    def record_save_end(self, stall_seconds: float, write_seconds: float) -> Optional[str]:
        """Record what a save has cost, for adapting the interval between saves. ``stall_seconds``: how long
        the training stood still; ``write_seconds``: until everything was durable. Return a message to print
        if the interval has changed much, else None."""
        # A save costs what it stalls the training, and what it slows down the steps beside it.
        cost_seconds = stall_seconds + max(0.0, self._save_slowdown_seconds)
        self._mean_save_cost_seconds = _update_running_mean(self._mean_save_cost_seconds, cost_seconds)
        # None: not measured yet.
        self._mean_write_seconds = _update_running_mean(self._mean_write_seconds or None, write_seconds)
        if self._fixed_interval_seconds is not None:  # by the user: nothing is adapted
            return None
        # Computed from the costs just recorded and the mean time between failures (MTBF).
        interval_seconds = self.interval_seconds
        if self._reported_interval_seconds is not None:
            change_ratio = interval_seconds / self._reported_interval_seconds
            if 1 / _MIN_REPORTED_RATIO < change_ratio < _MIN_REPORTED_RATIO:  # a change by less than half
                return None
        self._reported_interval_seconds = interval_seconds
        return "saving every {:.0f} s: a save costs {:.2f} s, one failure assumed per {:.1f} h".format(
            interval_seconds, self._mean_save_cost_seconds, self._mtbf_seconds / 3600
        )


def _update_running_mean(mean: Optional[float], newest: float) -> float:
    """Return the mean with one more measurement; ``mean``: None before the first."""
    if mean is None:
        return newest
    return (1 - _NEWEST_WEIGHT) * mean + _NEWEST_WEIGHT * newest
