"""How fast the ways to data are, and from which size on which one is taken: figures with their sources.

storage.json is written by hand, network.json by tools/generate_catalog.py. A figure is a range, and says
whether it is documented, measured or only assumed: what is computed from it is no better than that.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from smlaunch.catalog.data import load


class Figure(NamedTuple):
    """``low`` and ``high`` bound what is expected, in ``unit``; ``kind``: documented, measured or assumed."""

    name: str
    low: float
    high: float
    unit: str
    kind: str
    what: str
    source: str


class Network(NamedTuple):
    """``bytes_per_second`` is nominal; ``burst``: the type has it for some minutes only."""

    bytes_per_second: float
    burst: bool


@cache
def figures() -> dict[str, Figure]:
    """All figures by name."""
    table = load("storage")["figures"]
    return {name: Figure(name, **row) for name, row in table.items()}


def figure(name: str) -> Figure:
    return figures()[name]


def network(instance_type: str) -> Network | None:
    """None for a type whose network is not known."""
    row = load("network")["types"].get(instance_type)
    return None if row is None else Network(row[0] * 1e9 / 8, row[1])
