"""A curve in one line of text. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

_BARS = "▁▂▃▄▅▆▇█"
_NO_NUMBER = "x"
"""A part of the curve without a finite value: a loss that is NaN should be seen."""


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Return at most ``width`` characters, each the mean of a part of the values. Empty for no values."""
    means = [_mean(part) for part in _equal_parts(values, width)]
    finite = [mean for mean in means if math.isfinite(mean)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    return "".join(_bar(mean, low, high) for mean in means)


def _equal_parts(values: Sequence[float], count: int) -> list[Sequence[float]]:
    count = min(count, len(values))
    bounds = [len(values) * index // count for index in range(count + 1)] if count else []
    return [values[start:end] for start, end in pairwise(bounds)]


def _mean(values: Sequence[float]) -> float:
    return sum(value / len(values) for value in values)  # no sum that overflows


def _bar(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return _NO_NUMBER
    if high == low:
        return _BARS[0]
    share = value / 2 - low / 2, high / 2 - low / 2  # halves: the range of two floats may overflow
    return _BARS[min(len(_BARS) - 1, int(share[0] / share[1] * len(_BARS)))]
