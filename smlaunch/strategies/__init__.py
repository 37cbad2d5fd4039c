"""Strategies: ways to start a training program on many hosts, one small file each, loaded on use."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from smlaunch.catalog.strategies import STRATEGIES

if TYPE_CHECKING:
    from smlaunch.strategies.base import Strategy


def register_strategy(strategy: type[Strategy]) -> None:
    """Add a strategy for this process, under its ``name``. Raises ValueError if there is one of that name,
    and for one without a name of one word or without a summary."""
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*", strategy.name) is None:
        raise ValueError(f"a strategy's name is one word, not {strategy.name!r}")
    if not getattr(strategy, "summary", ""):
        raise ValueError(f"strategy {strategy.name} has no summary")
    STRATEGIES.register(strategy.name, strategy)


def load_strategy(name: str) -> Strategy:
    """Return a new strategy by its name, such as ``ddp``. Raises KeyError for an unknown name, and JobError
    if what another package registers under it cannot be loaded or is not a strategy."""
    strategy: Strategy = STRATEGIES[name]()
    return strategy
