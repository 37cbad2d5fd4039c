"""Ways to start a training program on many hosts, one small file each, loaded when named."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from smlaunch.strategy_names import find

if TYPE_CHECKING:
    from smlaunch.strategies.base import Strategy


def load(name: str) -> Strategy:
    """The strategy called ``name``. Raises KeyError for a name that ``strategy_names`` does not know."""
    place = find(name)
    if place is None:
        raise KeyError(name)
    module, _, attribute = place.partition(":")
    strategy: Strategy = getattr(import_module(module), attribute)()
    return strategy
