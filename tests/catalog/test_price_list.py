"""AWS's price list, as an offer file and as answers of the Price List API: only whole prices of the region
count. The documents are built from the pages that describe them; no list of AWS is among them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from smlaunch.catalog.price_list import read_price_file, read_products
from smlaunch.catalog.region_catalog import RegionCatalog, from_json, to_json
from tests.tables import table

REGION = "eu-west-1"


def product(usage_type: str = "EU-Train:ml.m5.large", region: str = REGION) -> dict[str, Any]:
    attributes = {"servicecode": "AmazonSageMaker", "usagetype": usage_type, "regionCode": region}
    return {"sku": "S", "productFamily": "ML Instance", "attributes": attributes}


def on_demand(price: Any = "0.1290000000", unit: Any = "Hrs", currency: str = "USD", first: Any = "0") -> Any:
    dimension = {"unit": unit, "beginRange": first, "endRange": "Inf", "pricePerUnit": {currency: price}}
    return {"S.T": {"priceDimensions": {"S.T.R": dimension}}}


def offer_file(*products: tuple[dict[str, Any], Any], **changes: Any) -> str:
    document = {
        "formatVersion": "v1.0",
        "offerCode": "AmazonSageMaker",
        "publicationDate": "2026-11-18T20:11:04Z",
        "products": {f"SKU{number}": each for number, (each, _) in enumerate(products)},
        "terms": {"OnDemand": {f"SKU{number}": terms for number, (_, terms) in enumerate(products)}},
    }
    return json.dumps({**document, **changes})


COLUMNS = "SKU,OfferTermCode,RateCode,TermType,StartingRange,Unit,PricePerUnit,Currency,Region Code,usageType"
CSV = f"""\
"FormatVersion","v1.0"
"Disclaimer","This pricing list is for informational purposes only."
"Publication Date","2026-11-18T20:11:04Z"
"Version","20261118201104"
"OfferCode","AmazonSageMaker"
{",".join(f'"{name}"' for name in COLUMNS.split(","))}
"""


def csv_row(term: str = "OnDemand", price: str = "0.1290000000") -> str:
    fields = ("S", "T", "S.T.R", term, "0", "Hrs", price, "USD", REGION, "EU-Train:ml.m5.large")
    return ",".join(f'"{field}"' for field in fields) + "\n"


def test_json_csv_and_answers_of_the_api_say_the_same() -> None:
    text = offer_file(
        (product(), on_demand()), (product("EU-Processing:ml.m5.xlarge"), on_demand("0.2580000000"))
    )
    prices = read_price_file(text, REGION)
    assert (prices.published, prices.training_prices) == ("2026-11-18", {"ml.m5.large": 0.129})
    assert prices.processing_prices == {"ml.m5.xlarge": 0.258}
    rows = read_price_file(CSV + csv_row() + csv_row("Reserved", "0.01"), REGION)
    assert rows == prices._replace(processing_prices={})
    answer = json.dumps(
        {"product": product(), "terms": {"OnDemand": on_demand()}, "publicationDate": "2026-11-18T20:11:04Z"}
    )
    assert read_products(["nonsense", "[]", answer], REGION) == rows


@table(
    ("row", "other_regions", "other_currencies"),
    [
        ((product("EU-Host:ml.m5.large"), on_demand()), set(), set()),
        ((product("EU-TrainSpot:ml.m5.large"), on_demand()), set(), set()),
        ((product("EU-Train:ml.m5.large;rm -r"), on_demand()), set(), set()),
        ((product(region="us-east-1"), on_demand()), {"us-east-1"}, set()),
        ((product(), on_demand(currency="CNY")), set(), {"CNY"}),
        ((product(), on_demand(unit="GB-Mo")), set(), set()),
        ((product(), on_demand(unit=["Hrs"])), set(), set()),
        ((product(), on_demand(first="750")), set(), set()),
        *[
            ((product(), on_demand(price)), set(), set())
            for price in ("-1", "0", "NaN", "Infinity", "1e3", "9" * 400, "999999", "", None, 0.1, ["0.1"])
        ],
        ((product(), "nonsense"), set(), set()),
        ((product(), {"S.T": {"priceDimensions": [1]}}), set(), set()),
        (({"attributes": []}, on_demand()), set(), set()),
        (("nonsense", on_demand()), set(), set()),
    ],
)
def test_what_is_no_price_of_the_region_does_not_count(
    row: Any, other_regions: set[str], other_currencies: set[str]
) -> None:
    good = (product("EU-Train:ml.c5.xlarge"), on_demand("0.23"))
    prices = read_price_file(offer_file(row, good), REGION)
    assert prices.training_prices == {"ml.c5.xlarge": 0.23}
    assert (prices.other_regions, prices.other_currencies) == (other_regions, other_currencies)


def test_a_type_with_two_prices_has_none() -> None:
    text = offer_file(
        (product(), on_demand("0.1")), (product(), on_demand("0.2")), (product(), on_demand("0.1"))
    )
    assert read_price_file(text, REGION).training_prices == {}


@table(
    ("text", "message"),
    [
        ("", "no offer file of AWS"),
        ("a,b\n1,2\n", "no offer file of AWS"),
        ('"SKU","usageType"\n', "it has no columns Region Code, Unit"),
        ("{", "not valid JSON"),
        ('{"a": NaN}', "not valid JSON"),
        ('{"a":' + "[" * 100_000, "not valid JSON"),
        ("{}", "no offer file of AmazonSageMaker"),
        (offer_file(offerCode="AmazonEC2"), "no offer file of AmazonSageMaker"),
        (
            offer_file(*((product(f"EU-Train:ml.m5.a{number}"), on_demand()) for number in range(5001))),
            "more than 5,000 instance types",
        ),
    ],
)
def test_another_file_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_price_file(text, REGION)


@table(
    "changes",
    [
        {"version": 2},
        {"region": "us-east-1"},
        {"training_prices": {"ml.m5.large": -1}},
        {"training_prices": {"ml.m5.large": "0.1"}},
        {"training_prices": []},
        {"quotas": {"a": "b"}},
        {"price_source": None},
        {"more": 1},
    ],
)
def test_a_stored_catalog_with_other_values_counts_as_none(changes: dict[str, Any]) -> None:
    stored = RegionCatalog(REGION, "AWS's price list of 2026-11-18", {"ml.m5.large": 0.129})
    document = json.loads(to_json(stored))
    assert from_json(to_json(stored), REGION) == stored
    assert from_json(json.dumps({**document, **changes}).encode(), REGION) is None
    for content in (b"", b"[]", b"\xff", b'{"version": 1}'):
        assert from_json(content, REGION) is None
