"""Reads what plans of a region use: AWS's prices, and the account's quotas, which also tell the types."""

from __future__ import annotations

import math
import os
import stat
from datetime import date
from pathlib import Path
from typing import NamedTuple

from smlaunch.aws.interfaces import CallError
from smlaunch.aws.service_errors import to_user_error
from smlaunch.catalog.price_list import PriceList, read_price_file, read_products
from smlaunch.catalog.region_catalog import RegionCatalog
from smlaunch.catalog.regions import partition_of
from smlaunch.discovery.region_catalog import read_region_catalog, write_region_catalog
from smlaunch.errors import JobError, MachineError, Problem, SmlaunchError
from smlaunch.runs.launch_target import Target

_MAX_FILE_BYTES = 256 << 20
"""Of a price list: AWS's largest one of SageMaker for a region is a fraction of it."""

_MAX_QUOTA_NAME = 200
"""Characters: more than any name has, so that a foreign answer cannot fill the cache."""


class CatalogUpdate(NamedTuple):
    """What a region's catalog has now, and why the rest could not be read."""

    catalog: RegionCatalog
    has_news: bool
    """Prices or quotas were read."""

    problems: tuple[SmlaunchError, ...]


def update_catalog(target: Target, price_file: str | None, today: date) -> CatalogUpdate:
    """Read prices and quotas, and store what could be read; what was stored before stays where nothing new
    was. ``price_file``: AWS's offer file; then nothing is asked of AWS, and no account is needed. Raises
    JobError for a file that has no prices of the region, MachineError if nothing can be stored."""
    region = target.region_name
    catalog = read_region_catalog(region) or RegionCatalog(region)
    stored, problems = catalog, list[SmlaunchError]()
    if price_file is not None:
        catalog = _with_prices(catalog, _read_file(price_file, region), today, f"price list {price_file}")
    else:
        try:
            prices = _ask_for_prices(target)
            catalog = _with_prices(catalog, prices, today, "AWS's answers")
        except CallError as error:
            problems.append(to_user_error(error, target.location, target.credential_source))
        except JobError as error:
            problems.append(error)
        try:
            account, _ = target.identity.get_caller_identity()
            quotas = {
                name: value
                for name, value in target.quotas.all_quota_values().items()
                if math.isfinite(value) and len(name) <= _MAX_QUOTA_NAME
            }
            catalog = catalog._replace(account=account, quotas_read_on=today.isoformat(), quotas=quotas)
        except CallError as error:
            problems.append(to_user_error(error, target.location, target.credential_source))
    has_news = catalog is not stored
    if has_news and not write_region_catalog(catalog):
        raise MachineError(
            "the user's cache folder cannot be written, or others may write in it: $XDG_CACHE_HOME, or "
            "~/.cache, names it"
        )
    # Without credentials both have the same reason.
    return CatalogUpdate(catalog, has_news, tuple({str(each): each for each in problems}.values()))


def _ask_for_prices(target: Target) -> PriceList:
    if partition_of(target.region_name) != "aws":
        text = f"AWS's price list answers no account of {target.region_name}: give --price-list FILE"
        raise JobError([Problem("--region", text)])
    try:
        return read_products(target.product_list.training_products(target.region_name), target.region_name)
    except ValueError as error:
        raise JobError([Problem("", f"AWS's price list cannot be used: {error}")]) from None


def _with_prices(catalog: RegionCatalog, prices: PriceList, today: date, origin: str) -> RegionCatalog:
    """Return the catalog with the prices of the list. Raises JobError if it has none of the region."""
    if not prices.training_prices:
        clauses = [f"{origin} has no price of training in {catalog.region}, in US dollars an hour"]
        if prices.other_regions:
            clauses.append(f"it has those of {', '.join(sorted(prices.other_regions)[:4])}")
        if prices.other_currencies:
            clauses.append(f"its prices are in {', '.join(sorted(prices.other_currencies)[:4])}")
        clauses.append("AWS's offer file of AmazonSageMaker for the region has them")
        raise JobError([Problem("--price-list", "; ".join(clauses))])
    # The list's own date tells how old a price is; the day of reading is the next best.
    listed = f"of {prices.published}" if prices.published else f"read on {today.isoformat()}"
    return catalog._replace(
        price_source=f"AWS's price list {listed}",
        training_prices=prices.training_prices,
        processing_prices=prices.processing_prices,
    )


def _read_file(path: str, region: str) -> PriceList:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise JobError([Problem("--price-list", f"{path} is no regular file")])
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        text = f"{path} cannot be read: {error.strerror}"
        raise JobError([Problem("--price-list", text)]) from error
    if len(content) > _MAX_FILE_BYTES:
        text = f"{path} has more than {_MAX_FILE_BYTES >> 20} MiB: take the file of one region"
        raise JobError([Problem("--price-list", text)])
    try:
        return read_price_file(content.decode("utf-8-sig"), region)
    except UnicodeDecodeError:
        raise JobError([Problem("--price-list", f"{path} is no text (UTF-8)")]) from None
    except ValueError as error:
        raise JobError([Problem("--price-list", f"{Path(path).name}: {error}")]) from None
