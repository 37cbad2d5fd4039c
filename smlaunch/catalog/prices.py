"""What an hour of an instance type costs in a region, and how sure that is.

The catalog has the prices of one region. They stand for no other region: there they only rank types. Those of
other regions are read by ``smlaunch catalog update``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from smlaunch.catalog import instances
from smlaunch.catalog.region_catalog import RegionCatalog

PRICE_ERROR_BY_CONFIDENCE: Mapping[str | None, float] = {"high": 0.05, "medium": 0.15, "low": 0.30}
"""Relative error of the catalog's prices, by confidence: an assumption."""


class HourlyPrice(NamedTuple):
    """US dollars per hour of one host, on demand."""

    dollars: float
    relative_error: float
    """How far it may be off: 0.15 for 15 %."""

    source: str
    """A clause: what price it is, of which region and date."""


class RegionPrices(NamedTuple):
    """What is known about prices in a region: AWS's price list, if ``smlaunch catalog update`` has read it;
    otherwise those of smlaunch's own catalog, in the one region that it has prices of."""

    region: str
    region_catalog: RegionCatalog | None
    trains_model: bool
    """For training jobs; otherwise for processing jobs."""

    @property
    def has_price_list(self) -> bool:
        return self.region_catalog is not None and bool(self.region_catalog.price_source)

    def find(self, instance_type: str) -> HourlyPrice | None:
        """Return the price of an instance type; None where nobody knows it."""
        if self.region_catalog is not None and self.has_price_list:
            dollars = self.region_catalog.prices(trains_model=self.trains_model).get(instance_type)
            source = f"on-demand price of {self.region}, by {self.region_catalog.price_source}"
            return None if dollars is None else HourlyPrice(dollars, relative_error=0.0, source=source)
        return _catalog_price(instance_type) if self.region == instances.price_region() else None

    def find_to_compare(self, instance_type: str) -> HourlyPrice | None:
        """Return the price; in a region whose prices are not known that of another region, which says only
        which type costs more than which."""
        price = self.find(instance_type)
        return price if price is not None or self.has_price_list else _catalog_price(instance_type)

    def unknown_text(self, instance_type: str) -> str:
        """Return a clause about an instance type whose price is not known."""
        if self.region_catalog is not None and self.has_price_list:
            return f"{self.region_catalog.price_source} has no price of {instance_type} in {self.region}"
        has_other = self.region != instances.price_region() and _catalog_price(instance_type) is not None
        other_text = f", only that in {instances.price_region()}" if has_other else ""
        return f"the price of {instance_type} in {self.region} is not known{other_text}"


def _catalog_price(instance_type: str) -> HourlyPrice | None:
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
