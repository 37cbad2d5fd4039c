"""Strategies: ways to start a training program on many hosts, one small file each, loaded on use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from smlaunch.catalog.strategies import BUILT_IN_STRATEGIES, find_strategy
from smlaunch.errors import JobError, Problem

if TYPE_CHECKING:
    from smlaunch.strategies.base import Strategy


def load_strategy(name: str) -> Strategy:
    """Return a new strategy by its name, such as ``ddp``: a built-in one, or one that another package
    registers. Raises KeyError for an unknown name, and JobError if what another package registers under it
    cannot be loaded or is not a strategy.
    """
    entry_point = find_strategy(name)  # "module:Class"; None for an unknown name
    if entry_point is None:
        raise KeyError(name)
    if name in BUILT_IN_STRATEGIES:
        return _instantiate(entry_point)
    from smlaunch.strategies.base import Strategy

    try:
        # Code of another package runs here.
        strategy = _instantiate(entry_point)
    except Exception as error:
        raise _make_load_error(name, entry_point, f"{type(error).__name__}: {error}") from error
    if not isinstance(strategy, Strategy):
        raise _make_load_error(name, entry_point, "it is no smlaunch.strategies.base.Strategy")
    return strategy


def _instantiate(entry_point: str) -> Strategy:
    module, _, attribute = entry_point.partition(":")
    strategy: Strategy = getattr(import_module(module), attribute)()
    return strategy


def _make_load_error(name: str, entry_point: str, reason: str) -> JobError:
    message = f"{name!r}, which another package registers as {entry_point}, cannot be loaded ({reason})"
    return JobError(
        [Problem("strategy", f"{message}; repair or uninstall that package, or take another strategy")]
    )
