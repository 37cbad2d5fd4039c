"""``smlaunch data inventory | split | pack | push | pull | advise``: one file each, imported when used."""

from __future__ import annotations

from typing import Any

import click

from smlaunch.cli.main import LazyGroup


class _DataGroup(LazyGroup):
    """Says what to install where the extra ``data`` is absent, for every command below it."""

    def invoke(self, ctx: click.Context) -> Any:
        from smlaunch.data import extra

        with extra():
            return super().invoke(ctx)


data = _DataGroup(
    {
        "inventory": ("smlaunch.cli.data_inventory", "inventory", "List a prefix once, into a Parquet file."),
        "split": ("smlaunch.cli.data_split", "split", "Give every host the same share of the bytes."),
        "pack": ("smlaunch.cli.data_pack", "pack", "Pack many small files into tar shards."),
        "push": ("smlaunch.cli.data_push", "push", "Send a folder to a prefix."),
        "pull": ("smlaunch.cli.data_pull", "pull", "Fetch a prefix into a folder."),
        "advise": ("smlaunch.cli.data_advise", "advise", "Say how a job had best read its data, and why."),
    },
    name="data",
    help="""Data before a job: list it, split it by bytes, pack it, move it, choose how it is read.

    Needs the extra: pip install 'smlaunch[data]'.""",
)
