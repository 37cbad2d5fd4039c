"""How long a workload takes on some machines and what that costs: ranges, from what the user measured. Pure.

One number comes from the user: what the work takes on one accelerator, or on one host without. Everything
else is in the catalog (catalog/accelerators.json, instances.json, storage.json), each with its source or as
an assumption. A range's slow end is what a plan promises by; its fast end only says what may be hoped for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from smlaunch.catalog.accelerators import Ratio, between, efficiency, inside, relative_speed
from smlaunch.catalog.instances import InstanceType
from smlaunch.planning.io_times import NOTHING, Machine, Range, Share

PRICE_SPREAD: Mapping[str | None, float] = {"high": 0.05, "medium": 0.15, "low": 0.30}
"""How far a real price may lie from the catalog's, by its confidence: an assumption."""

START = Range(60.0, 600.0)
"""Seconds that are billed before training begins, data apart: the image and imports. An assumption."""

MODEL_SHARE = 0.8
"""Of an accelerator's memory that a model may take by the user's figure: the rest is for CUDA itself and for
fragments. An assumption."""


@dataclass(frozen=True)
class Measured:
    """``seconds`` on one accelerator of ``reference``, or on one host of that type where ``accelerated`` is
    False. ``stated``: the job names that type; otherwise it is assumed."""

    seconds: float
    reference: InstanceType
    accelerated: bool
    stated: bool

    def is_of(self, instance: InstanceType) -> bool:
        """Measured on the same kind of accelerator, or on the same host without."""
        if self.accelerated:
            return instance.accelerator == self.reference.accelerator
        return instance.name == self.reference.name


@dataclass(frozen=True)
class Machines:
    """``hosts`` of one type with ``ranks`` each, or as many as they have accelerators. ``talk``: the ranks
    exchange gradients; otherwise they share nothing. ``processors_bound``: the CPUs limit them too."""

    instance: InstanceType
    hosts: int
    ranks: int
    talk: bool = True
    processors_bound: bool = False

    @property
    def accelerators(self) -> int:
        """Those that work, of one host."""
        return min(self.ranks, self.instance.accelerators)


def speed(machines: Machines, measured: Measured) -> Ratio | None:
    """Times as fast as what was measured; None where nobody can compare the two."""
    one = _of_one_host(machines, measured)
    if one is None or machines.hosts == 1:
        return one
    kept = between(machines.instance) if machines.talk else efficiency("share-nothing")
    return one.times(Ratio(kept.low, kept.high)).by(machines.hosts)


def _of_one_host(machines: Machines, measured: Measured) -> Ratio | None:
    processors = machines.instance.vcpu / measured.reference.vcpu
    if not measured.accelerated:
        # Whether a program uses more processors, nobody knows.
        return Ratio(min(1.0, processors), max(1.0, processors))
    each = relative_speed(machines.instance, measured.reference)
    if each is None:
        return None
    kept = inside(machines.instance) if machines.accelerators > 1 else efficiency("one-accelerator")
    together = each.times(Ratio(kept.low, kept.high)).by(machines.accelerators)
    if not machines.processors_bound:
        return together
    return Ratio(min(together.low, processors), min(together.high, processors))


def duration(machines: Machines, measured: Measured, copied: Share) -> Range | None:
    """Seconds from the start of billing to the end. ``copied``: what a host's File channels bring first."""
    times = speed(machines, measured)
    if times is None:
        return None
    work = Range(measured.seconds / times.high, measured.seconds / times.low)
    data = Machine(machines.instance, machines.hosts).download(copied) if copied.bytes else NOTHING
    return work + START + data


def rate(instance: InstanceType, hosts: int) -> Range | None:
    """Dollars per hour, all hosts together; None where nobody knows the price."""
    if instance.usd_per_hour is None:
        return None
    spread = PRICE_SPREAD.get(instance.price_confidence, PRICE_SPREAD["low"])
    price = instance.usd_per_hour * hosts
    return Range(price * (1 - spread), price * (1 + spread))


def price(per_hour: Range, seconds: Range) -> Range:
    """Dollars."""
    return Range(per_hour.low * seconds.low / 3600, per_hour.high * seconds.high / 3600)
