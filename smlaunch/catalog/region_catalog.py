"""What ``smlaunch catalog update`` has read about a region: prices, and the quotas of an account.

The content comes from files of this machine, and is checked whenever it is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

_MAX_DOLLARS = 100_000.0
"""Of one host and hour: more than any type costs, so that a larger number is no price."""

_VERSION = 1


class RegionCatalog(NamedTuple):
    """Prices of a region in US dollars per host and hour, on demand, and quotas of an account, each with its
    date."""

    region: str
    price_source: str = ""
    """What the prices were read from, with its date: ``AWS's price list of 2026-11-18``; empty if none
    were."""

    training_prices: Mapping[str, float] = {}
    """By instance type."""

    processing_prices: Mapping[str, float] = {}
    account: str = ""
    """Whose quotas they are; empty if none were read."""

    quotas_read_on: str = ""
    quotas: Mapping[str, float] = {}
    """By name, all of SageMaker's."""

    def prices(self, *, trains_model: bool) -> Mapping[str, float]:
        """Prices of training jobs, or those of processing jobs."""
        return self.training_prices if trains_model else self.processing_prices


def is_price(value: object) -> bool:
    """Whether a number may be dollars per hour: positive and finite, and no more than any type costs."""
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and 0 < value <= _MAX_DOLLARS
    )


def to_json(catalog: RegionCatalog) -> bytes:
    """Return the catalog as it is stored."""
    return json.dumps({"version": _VERSION, **catalog._asdict()}).encode()


def from_json(content: bytes, region: str) -> RegionCatalog | None:
    """Return a stored catalog; None for one of another version or region, or with a value of a wrong kind."""
    try:
        document: Any = json.loads(content)
        if document.pop("version") != _VERSION or document["region"] != region:
            return None
        catalog = RegionCatalog(**document)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    texts = (catalog.price_source, catalog.account, catalog.quotas_read_on)
    prices = (catalog.training_prices, catalog.processing_prices)
    mappings = (*prices, catalog.quotas)
    are_kinds_right = all(isinstance(text, str) for text in texts) and all(
        isinstance(mapping, dict) for mapping in mappings
    )
    if not are_kinds_right or not all(is_price(value) for mapping in prices for value in mapping.values()):
        return None
    are_quotas_numbers = all(
        isinstance(value, (int, float)) and math.isfinite(value) for value in catalog.quotas.values()
    )
    return catalog if are_quotas_numbers else None
