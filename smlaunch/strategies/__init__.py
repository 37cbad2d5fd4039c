"""Strategies: ways to start a training program on many hosts, one small file each, loaded on use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from smlaunch.errors import JobError, Problem
from smlaunch.strategies.registry import BUILT_IN_STRATEGIES, find_strategy

if TYPE_CHECKING:
    from smlaunch.strategies.base import Strategy


def load_strategy(name: str) -> Strategy:
    """The strategy called ``name``. Raises KeyError for an unknown name, and JobError if what another
    package registers under it is not a strategy."""
    entry_point = find_strategy(name)
    if entry_point is None:
        raise KeyError(name)
    if name in BUILT_IN_STRATEGIES:
        return _instantiate(entry_point)
    from smlaunch.strategies.base import Strategy

    try:
        strategy = _instantiate(entry_point)
    except Exception as error:
        raise _unusable_strategy(name, entry_point, f"{type(error).__name__}: {error}") from error
    if not isinstance(strategy, Strategy):
        raise _unusable_strategy(name, entry_point, "it is no smlaunch.strategies.base.Strategy")
    return strategy


def _instantiate(entry_point: str) -> Strategy:
    module, _, attribute = entry_point.partition(":")
    strategy: Strategy = getattr(import_module(module), attribute)()
    return strategy


def _unusable_strategy(name: str, entry_point: str, reason: str) -> JobError:
    message = f"{name!r}, which another package registers as {entry_point}, cannot be loaded ({reason})"
    return JobError(
        [Problem("strategy", f"{message}; repair or uninstall that package, or take another strategy")]
    )
