"""How fast accelerators are against each other, and what of it several of them keep: rough, and said to be.

accelerators.json is written by hand. Two figures of every accelerator, peak arithmetic and memory bandwidth,
bound what a training may gain on it: a large model in 16 bits follows the first, small kernels the second.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from smlaunch.catalog.data import load
from smlaunch.catalog.instances import InstanceType
from smlaunch.catalog.storage import Figure, network

SLOW, STEADY, FAST = "slow-network", "network", "fast-network"

_STEADY_RATE = 25e9 / 8
_FAST_RATE = 100e9 / 8


class Ratio(NamedTuple):
    """Times as fast, at least and at most."""

    low: float
    high: float

    def times(self, other: Ratio) -> Ratio:
        return Ratio(self.low * other.low, self.high * other.high)

    def by(self, factor: float) -> Ratio:
        return Ratio(self.low * factor, self.high * factor)


def relative_speed(of: InstanceType, to: InstanceType) -> Ratio | None:
    """One accelerator of ``of`` against one of ``to``; None where a figure is missing."""
    if of.accelerator == to.accelerator and of.accelerator_memory_gib == to.accelerator_memory_gib:
        return Ratio(1.0, 1.0)
    one, other = _peaks(of), _peaks(to)
    if one is None or other is None:
        return None
    ratios = [mine / theirs for mine, theirs in zip(one, other, strict=True)]
    return Ratio(min(ratios), max(ratios))


def efficiency(name: str) -> Figure:
    """What of linear speed-up is kept; the names are those of accelerators.json."""
    return _efficiencies()[name]


def inside(instance: InstanceType) -> Figure:
    """Among the accelerators of one instance."""
    if instance.accelerators < 2:
        return efficiency("one-accelerator")
    return efficiency("nvlink" if instance.name.split(".")[1].startswith(("p", "trn")) else "pcie")


def between(instance: InstanceType) -> Figure:
    """Among hosts of this type."""
    known = network(instance.name)
    if known is None or known.burst or known.bytes_per_second < _STEADY_RATE:
        return efficiency(SLOW)
    return efficiency(FAST if known.bytes_per_second >= _FAST_RATE else STEADY)


@cache
def _efficiencies() -> dict[str, Figure]:
    rows = load("accelerators")["efficiency"]
    return {name: Figure(name, unit="share", **row) for name, row in rows.items()}


def _peaks(instance: InstanceType) -> tuple[float, float] | None:
    table = load("accelerators")["accelerators"]
    memory = instance.accelerator_memory_gib or 0
    row = table.get(f"{instance.accelerator} {memory:g} GiB") or table.get(instance.accelerator or "")
    return None if row is None else (row["tflops"], row["gb_per_second"])
