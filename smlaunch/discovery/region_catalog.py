"""Keeps what ``smlaunch catalog update`` has read about a region in the user's cache folder."""

from __future__ import annotations

from smlaunch.catalog import region_catalog
from smlaunch.catalog.region_catalog import RegionCatalog
from smlaunch.user_cache import read_entry, write_entry


def read_region_catalog(region: str) -> RegionCatalog | None:
    """Return what is known about a region; None if nothing was read, or by another user."""
    content = read_entry(_name(region), region)
    return None if content is None else region_catalog.from_json(content, region)


def write_region_catalog(catalog: RegionCatalog) -> bool:
    """Write it; return whether it can be read again."""
    write_entry(_name(catalog.region), catalog.region, region_catalog.to_json(catalog))
    return read_region_catalog(catalog.region) == catalog


def _name(region: str) -> str:
    return f"catalog-{region}"
