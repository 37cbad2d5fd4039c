"""How often to save: fixed, or from what a save costs and how often something fails, while it is measured."""

from typing import Optional

from smlaunch.protocol.daly import daly_interval

FIRST_SECONDS = 60.0
"""The first save comes this long after the start: until then nobody knows what one costs."""

LEAST_SECONDS = 5.0
FAILURE_SECONDS = 24 * 3600.0
"""Assumed between two failures where the plan says nothing."""

_TOLD_CHANGE = 1.5
_WEIGHT = 0.3
"""Of the newest measurement in a running mean."""


class Interval:
    """``fixed``: seconds, or None to adapt. ``failure_seconds``: mean time between failures. ``start``: now,
    on the clock that ``due`` is asked with."""

    def __init__(self, fixed: Optional[float], failure_seconds: Optional[float], start: float) -> None:
        self._fixed = fixed
        self._failure_seconds = failure_seconds or FAILURE_SECONDS
        self._last = start
        self._cost: Optional[float] = None
        self._write: float = 0.0
        self._step: Optional[float] = None
        self._extra = 0.0
        self._told: Optional[float] = None

    @property
    def seconds(self) -> float:
        """Between the starts of two saves."""
        if self._fixed is not None:
            return self._fixed
        if self._cost is None:
            return FIRST_SECONDS
        return max(LEAST_SECONDS, self._write, daly_interval(self._cost, self._failure_seconds))

    @property
    def save_seconds(self) -> float:
        """How long a save has taken lately until it was durable."""
        return self._write

    @property
    def step_seconds(self) -> float:
        return self._step or 0.0

    def due(self, now: float, time_left: Optional[float]) -> bool:
        """``time_left``: seconds to the planned end, where all is saved anyway."""
        if now - self._last < self.seconds:
            return False
        return time_left is None or time_left > 0.5 * min(self.seconds, self._failure_seconds)

    def step_taken(self, seconds: float, saving: bool) -> None:
        """``saving``: a save was being written during it; what it took longer is a cost of the save."""
        if saving and self._step is not None:
            self._extra += seconds - self._step
        elif not saving:
            self._step = seconds if self._step is None else _blend(self._step, seconds)

    def save_began(self, now: float) -> None:
        self._last = now
        self._extra = 0.0

    def save_ended(self, stall: float, write: float) -> Optional[str]:
        """``stall``: seconds the training stood still; ``write``: until all was durable. Returns what to tell
        when the interval has become another one."""
        cost = stall + max(0.0, self._extra)
        self._cost = cost if self._cost is None else _blend(self._cost, cost)
        self._write = write if not self._write else _blend(self._write, write)
        if self._fixed is not None:
            return None
        seconds = self.seconds
        if self._told is not None and 1 / _TOLD_CHANGE < seconds / self._told < _TOLD_CHANGE:
            return None
        self._told = seconds
        return "saving every {:.0f} s: a save costs {:.2f} s; reckoned with a failure in {:.1f} h".format(
            seconds, self._cost, self._failure_seconds / 3600
        )


def _blend(mean: float, newest: float) -> float:
    return (1 - _WEIGHT) * mean + _WEIGHT * newest
