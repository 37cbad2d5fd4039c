"""Ways to start a training program on many hosts, one small file each, loaded when named."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from smlaunch.errors import JobError, Problem
from smlaunch.strategy_names import BUILT_IN, find

if TYPE_CHECKING:
    from smlaunch.strategies.base import Strategy


def load(name: str) -> Strategy:
    """The strategy called ``name``. Raises KeyError for a name that ``strategy_names`` does not know, and
    JobError where another package registers it and what it registers is none."""
    place = find(name)
    if place is None:
        raise KeyError(name)
    if name in BUILT_IN:
        return _made(place)
    from smlaunch.strategies.base import Strategy

    try:
        strategy = _made(place)
    except Exception as error:
        raise _unusable(name, place, f"{type(error).__name__}: {error}") from error
    if not isinstance(strategy, Strategy):
        raise _unusable(name, place, "it is no smlaunch.strategies.base.Strategy")
    return strategy


def _made(place: str) -> Strategy:
    module, _, attribute = place.partition(":")
    strategy: Strategy = getattr(import_module(module), attribute)()
    return strategy


def _unusable(name: str, place: str, why: str) -> JobError:
    told = f"{name!r}, which another package registers as {place}, cannot be loaded ({why})"
    return JobError(
        [Problem("strategy", f"{told}; repair or uninstall that package, or take another strategy")]
    )
