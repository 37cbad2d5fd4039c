"""``--bucket-owner``: the account that a command's bucket belongs to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from smlaunch.protocol.addresses import split_s3

if TYPE_CHECKING:
    from smlaunch.runs.target import Target


def bucket_owner_option(whose: str) -> Callable[[Any], Any]:
    """``whose``: the address that it speaks of, and what is so without the option."""
    told = f"The account that has to own the bucket of {whose}."
    return click.option("--bucket-owner", metavar="ACCOUNT", callback=_account_id, help=told)


def name_owner(target: Target, uri: str, options: Mapping[str, Any]) -> None:
    """The account that the option was given, if any, has to own the bucket of ``uri``, if it is in S3."""
    place, account = split_s3(uri), options["bucket_owner"]
    if place is not None and account is not None:
        target.owners.name(place[0], account)


def _account_id(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and re.fullmatch("[0-9]{12}", value) is None:
        raise click.BadParameter(f"{value!r} is not the id of an AWS account, which has twelve digits")
    return value
