"""``--bucket-owner``: the account that must own the bucket of a command."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from smlaunch.contract.s3_uri import split_s3_uri

if TYPE_CHECKING:
    from smlaunch.runs.launch_target import Target


def bucket_owner_option(address: str) -> Callable[[Any], Any]:
    """``address``: the argument that the option is about, and the default."""
    help_text = f"Account that must own the bucket of {address}."
    return click.option("--bucket-owner", metavar="ACCOUNT", callback=_account_id, help=help_text)


def set_bucket_owner(target: Target, uri: str, options: Mapping[str, Any]) -> None:
    """Require the account of --bucket-owner, where one is given, as the owner of the bucket of ``uri``."""
    bucket_and_key, account = split_s3_uri(uri), options["bucket_owner"]
    if bucket_and_key is not None and account is not None:
        target.bucket_owners.add({bucket_and_key[0]: account})


def _account_id(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and re.fullmatch("[0-9]{12}", value) is None:
        raise click.BadParameter(f"{value!r} is not an AWS account id of twelve digits")
    return value
