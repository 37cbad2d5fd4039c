"""What an hour of an instance type costs in a region, and how sure that is.

The catalog has the prices of one region. They stand for no other region: there they only rank types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from smlaunch.catalog import instances

PRICE_ERROR_BY_CONFIDENCE: Mapping[str | None, float] = {"high": 0.05, "medium": 0.15, "low": 0.30}
"""Relative error of the catalog's prices, by confidence: an assumption."""


class HourlyPrice(NamedTuple):
    """US dollars per hour of one host, on demand."""

    dollars: float
    relative_error: float
    """How far it may be off: 0.15 for 15 %."""

    source: str
    """A clause: what price it is, of which region and date."""


def find_price(instance_type: str, region: str) -> HourlyPrice | None:
    """Return the price of an instance type in a region; None where nobody knows it."""
    if region != instances.price_region():
        return None
    return reference_price(instance_type)


def unknown_price_text(instance_type: str, region: str) -> str:
    """Return a clause about an instance type whose price in the region is not known."""
    has_reference = region != instances.price_region() and reference_price(instance_type) is not None
    reference_text = f", only that in {instances.price_region()}" if has_reference else ""
    return f"the price of {instance_type} in {region} is not known{reference_text}"


def reference_price(instance_type: str) -> HourlyPrice | None:
    """Return the price in the region that the catalog has prices of: of another region it says only which
    type costs more than which."""
    entry = instances.find_instance_type(instance_type)
    if entry is None or entry.usd_per_hour is None:
        return None
    return HourlyPrice(
        entry.usd_per_hour,
        # The catalog says how certain each price is; without a word it counts as uncertain.
        PRICE_ERROR_BY_CONFIDENCE.get(entry.price_confidence, PRICE_ERROR_BY_CONFIDENCE["low"]),
        f"an estimate: on-demand price of {instances.price_region()} as of {instances.catalog_month()}, "
        f"{entry.price_confidence} confidence",
    )
