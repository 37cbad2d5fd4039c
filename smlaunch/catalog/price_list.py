"""Reads AWS's price list of SageMaker: the offer file of a region (JSON or CSV), and answers of the Price
List API, which have one product each.

The content is foreign: only rows that are a whole price count, and a type with two prices has none. Source:
"Reading the service price list file", https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from smlaunch.catalog.region_catalog import is_price

_USAGE_TYPE = re.compile(r"(?:[A-Z0-9]{2,8}-)?(Train|Processing):(ml\.[a-z0-9-]{1,24}\.[a-z0-9-]{1,16})")
"""Such as ``USE1-Train:ml.m5.large``: most rows name the instance type nowhere else."""

_MAX_TYPES = 5_000
"""Many times as many as SageMaker has, and few enough to keep."""

_PUBLICATION_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,12})?")


class PriceRow(NamedTuple):
    """A price of the list. Texts are as they stand there."""

    usage_type: str
    region: str
    unit: str
    currency: str
    price: str
    term: str
    first_hour: str
    """From how many hours on it counts."""


class PriceList(NamedTuple):
    """Prices of one region, in US dollars per host and hour."""

    published: str
    """Date; empty if the list states none."""

    training_prices: dict[str, float]
    processing_prices: dict[str, float]
    other_regions: frozenset[str]
    """Regions of the rows that were left out."""

    other_currencies: frozenset[str]


def read_price_file(text: str, region: str) -> PriceList:
    """Return the prices that an offer file has for a region. Raises ValueError, with what is wrong, for
    content that is no offer file of SageMaker."""
    if text.lstrip()[:1] == "{":
        try:
            document = json.loads(text, parse_constant=_reject_constant)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it is not valid JSON ({str(error)[:80]})") from None
        if _text(document, "offerCode") != "AmazonSageMaker":
            raise ValueError("it is no offer file of AmazonSageMaker (offerCode)")
        products, terms = _mapping(document, "products"), _mapping(_mapping(document, "terms"), "OnDemand")
        rows = (
            row
            for sku, product in products.items()
            if isinstance(product, dict)
            for row in _product_rows(product, terms.get(sku))
        )
        return _collect(rows, region, _text(document, "publicationDate"))
    return _read_csv(text, region)


def read_products(products: Iterable[str], region: str) -> PriceList:
    """Return the prices of a region in answers of the Price List API, each a JSON text with one product.
    Raises ValueError for more types than there are."""
    published: set[str] = set()

    def rows() -> Iterator[PriceRow]:
        for text in products:
            try:
                document = json.loads(text, parse_constant=_reject_constant)
            except (ValueError, TypeError, RecursionError):
                continue
            published.add(_text(document, "publicationDate"))
            on_demand = _mapping(_mapping(document, "terms"), "OnDemand")
            yield from _product_rows(_mapping(document, "product"), on_demand)

    price_list = _collect(rows(), region, "")
    return price_list._replace(published=max(map(_date, published), default=""))


def _collect(rows: Iterable[PriceRow], region: str, published: str) -> PriceList:
    prices: dict[str, dict[str, float | None]] = {"Train": {}, "Processing": {}}
    other_regions: set[str] = set()
    other_currencies: set[str] = set()
    for row in rows:
        usage = _USAGE_TYPE.fullmatch(row.usage_type)
        is_first_hour_on_demand = row.term == "OnDemand" and row.first_hour in ("0", "")
        if usage is None or not is_first_hour_on_demand or row.unit not in ("Hrs", "Hours", "hours"):
            continue
        if row.region != region:
            other_regions.add(row.region[:32])
            continue
        if row.currency != "USD":
            other_currencies.add(row.currency[:8])
            continue
        price = float(row.price) if _NUMBER.fullmatch(row.price) else None
        if not is_price(price):
            continue
        known_prices, instance_type = prices[usage[1]], usage[2]
        is_new = instance_type not in known_prices or known_prices[instance_type] == price
        known_prices[instance_type] = price if is_new else None
        if len(known_prices) > _MAX_TYPES:
            raise ValueError(f"it has more than {_MAX_TYPES:,} instance types, and is no list of AWS")
    training_prices, processing_prices = (
        {name: price for name, price in prices_of_kind.items() if price is not None}
        for prices_of_kind in prices.values()
    )
    return PriceList(
        _date(published),
        training_prices,
        processing_prices,
        frozenset(other_regions),
        frozenset(other_currencies),
    )


def _product_rows(product: Mapping[str, Any], terms: object) -> Iterator[PriceRow]:
    """Yield the on-demand prices of one product. ``terms``: its terms by code."""
    attributes = _mapping(product, "attributes")
    for term in terms.values() if isinstance(terms, dict) else ():
        for dimension in _mapping(term, "priceDimensions").values():
            for currency, price in _mapping(dimension, "pricePerUnit").items():
                yield PriceRow(
                    usage_type=_text(attributes, "usagetype"),
                    region=_text(attributes, "regionCode"),
                    unit=_text(dimension, "unit"),
                    currency=currency,
                    price=price if isinstance(price, str) else "",
                    term="OnDemand",
                    first_hour=_text(dimension, "beginRange"),
                )


_CSV_COLUMNS = {
    "usage_type": "usageType",
    "region": "Region Code",
    "unit": "Unit",
    "currency": "Currency",
    "price": "PricePerUnit",
    "term": "TermType",
    "first_hour": "StartingRange",
}


def _read_csv(text: str, region: str) -> PriceList:
    """Five lines of metadata come first; the sixth has the names of the columns."""
    lines = iter(csv.reader(text.splitlines(), strict=True))
    metadata: dict[str, str] = {}
    names: list[str] = []
    try:
        for fields in lines:
            if "SKU" in fields:
                names = fields
                break
            if len(metadata) > 20:
                break
            metadata.update({fields[0]: fields[1]} if len(fields) == 2 else {})
        missing = [name for name in _CSV_COLUMNS.values() if name not in names]
        if missing:
            raise ValueError(f"it has no columns {', '.join(missing)}: no offer file of AWS, JSON or CSV")
        positions = {field: names.index(name) for field, name in _CSV_COLUMNS.items()}
        rows = (
            PriceRow(**{field: fields[position] for field, position in positions.items()})
            for fields in lines
            if len(fields) == len(names)
        )
        price_list = _collect(rows, region, metadata.get("Publication Date", ""))
    except csv.Error as error:
        raise ValueError(f"it is not valid CSV ({error})") from None
    return price_list


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _mapping(document: object, key: str) -> dict[str, Any]:
    value = document.get(key) if isinstance(document, dict) else None
    return value if isinstance(value, dict) else {}


def _text(document: object, key: str) -> str:
    value = document.get(key) if isinstance(document, dict) else None
    return value if isinstance(value, str) else ""


def _date(text: str) -> str:
    match = _PUBLICATION_DATE.match(text)
    return match[0] if match else ""
