"""Ways to start a training program on many hosts, one small file each, loaded when named."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smlaunch.strategies.base import Strategy

REGISTRY = {
    "custom": ("smlaunch.strategies.custom", "Custom"),
    "ddp": ("smlaunch.strategies.ddp", "DDP"),
    "processing": ("smlaunch.strategies.processing", "Processing"),
}
"""Name -> module and class."""


def load(name: str) -> Strategy:
    """The strategy called ``name``. Raises KeyError for a name that is not in REGISTRY."""
    module, attribute = REGISTRY[name]
    strategy: Strategy = getattr(import_module(module), attribute)()
    return strategy
