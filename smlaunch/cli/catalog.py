"""``smlaunch catalog update``: read a region's prices and an account's quotas for later plans."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

import click

from smlaunch.cli.console import echo
from smlaunch.cli.json_output import print_json
from smlaunch.cli.main import LazyGroup
from smlaunch.cli.options import GroupedCommand, grouped_option, json_option

if TYPE_CHECKING:
    from smlaunch.catalog.region_catalog import RegionCatalog

catalog = LazyGroup(
    {"update": ("smlaunch.cli.catalog", "update", "Read prices and quotas of a region.")},
    name="catalog",
    help="What plans know about a region: prices, instance types, quotas.",
)


@click.command(cls=GroupedCommand, short_help="Read prices and quotas of a region.")
@grouped_option("Target", "--region", metavar="REGION", help="AWS region; default: as for plan.")
@grouped_option("Target", "--profile", metavar="NAME", help="AWS profile.")
@grouped_option(
    "Target",
    "--price-list",
    "price_file",
    metavar="FILE",
    type=click.Path(),
    help="AWS's offer file of AmazonSageMaker for the region, JSON or CSV, instead of an account.",
)
@json_option
def update(region: str | None, profile: str | None, price_file: str | None, as_json: bool) -> int:
    """Read the on-demand prices of a region from AWS's price list, and the account's quotas, for later
    plans of the region. Needs pricing:GetProducts and servicequotas:ListServiceQuotas, or a file:

    \b
    smlaunch catalog update --region eu-west-1 --price-list index.json
    """
    from smlaunch.connection.catalog_update import update_catalog
    from smlaunch.connection.open_connection import region_of_command

    result = update_catalog(region_of_command(region, profile), price_file, datetime.now(timezone.utc).date())
    if as_json:
        print_json(_summary(result.catalog))
    elif result.has_news:
        for name, text in _summary(result.catalog).items():
            if text is None:  # a price list from a file is of no account
                continue
            echo(f"{name.replace('_', ' '):20} {text}")
    for problem in result.problems[1:]:
        echo(f"error: {problem}", err=True)
    if result.problems:
        echo("Prices can be read without an account: --price-list FILE.", err=True)
        raise result.problems[0]
    return 0


def _summary(region_catalog: RegionCatalog) -> dict[str, object]:
    return {
        "region": region_catalog.region,
        "prices": region_catalog.price_source or None,
        "training_types": len(region_catalog.training_prices),
        "processing_types": len(region_catalog.processing_prices),
        "account": region_catalog.account or None,
        "quotas": len(region_catalog.quotas),
        "quotas_read_on": region_catalog.quotas_read_on or None,
    }
