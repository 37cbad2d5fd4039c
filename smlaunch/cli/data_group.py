"""``smlaunch data inventory | split | pack | push | pull | advise``: one file each, imported when used."""

from __future__ import annotations

from typing import Any

import click

from smlaunch.cli.main import LazyGroup


class _DataGroup(LazyGroup):
    """Reports a missing extra ``data`` for all of its commands."""

    def invoke(self, ctx: click.Context) -> Any:
        from smlaunch.data import require_data_extra

        with require_data_extra():
            return super().invoke(ctx)


data = _DataGroup(
    {
        "inventory": ("smlaunch.cli.data_inventory", "inventory", "List a prefix into a Parquet file."),
        "split": ("smlaunch.cli.data_split", "split", "Split keys over hosts by bytes."),
        "pack": ("smlaunch.cli.data_pack", "pack", "Pack many small files into tar shards."),
        "push": ("smlaunch.cli.data_push", "push", "Upload a folder to a prefix."),
        "pull": ("smlaunch.cli.data_pull", "pull", "Download a prefix into a folder."),
        "advise": ("smlaunch.cli.data_advise", "advise", "Recommend how a job should read its data."),
    },
    name="data",
    help="""Prepare data for a job: list, split by bytes, pack, upload and download it; choose an input mode.

    Requires the extra `data`: pip install '.[data]' in a checkout of smlaunch.""",
)
