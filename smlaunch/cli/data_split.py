"""``smlaunch data split``: assign keys to hosts so that all hosts read about as many bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from smlaunch.cli.json_output import print_json
from smlaunch.cli.options import GroupedCommand, connection_options, grouped_option, json_option

_MAX_HOST_ROWS = 16
"""Hosts in the printed table; --json has all."""

_SPLIT = "Split"


@click.command(cls=GroupedCommand, short_help="Split keys over hosts by bytes.")
@click.argument("source", metavar="KEYS.parquet|S3URI|DIR")
@grouped_option(
    _SPLIT, "--hosts", metavar="N", type=click.IntRange(1, 65_534), required=True, help="Number of hosts."
)
@grouped_option(
    _SPLIT, "--weight", metavar="COLUMN", default="size", help="Column to balance; default: size in bytes."
)
@grouped_option(
    _SPLIT,
    "--out",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder for the lists and manifests.",
)
@grouped_option(
    _SPLIT,
    "--previous",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of an earlier --out: keys stay on their host where that keeps the balance.",
)
@connection_options
@json_option
def split(
    source: str,
    hosts: int,
    weight: str,
    out: Path | None,
    previous: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Assign the keys of an inventory, a prefix or a folder to hosts, so that each host gets about the same
    number of bytes (or of another column of the inventory, such as samples). Never worse than a split by
    number of keys.

    With --out: lists/ has the keys of each host as JSON lines, manifests/ manifests for SageMaker, and
    split.json the output of --json.
    """
    from smlaunch.cli.data_inventory import open_inventory

    with open_inventory(source, options) as inventory:
        from smlaunch.data.inventory_split import split_inventory
        from smlaunch.data.split_files import add_files_to_summary, write_split

        split_result = split_inventory(inventory, hosts, weight_column=weight, previous_folder=previous)
        summary = split_result.summary
        if out is not None:
            written_files = write_split(split_result.keys, split_result.host_split, out, summary)
            summary = add_files_to_summary(summary, written_files)
    if as_json:
        print_json(summary)
        return 0
    for line in _format_split_summary(summary):
        click.echo(line)
    for warning in summary["warnings"]:
        click.echo(click.style("warning: ", fg="yellow") + warning, err=True)
    return 0


def _format_split_summary(summary: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that describe a split of keys over hosts. ``summary``: the content of split.json;
    ``weight``: the column that is balanced, bytes by default."""
    from smlaunch.cli.runs import align_columns
    from smlaunch.text.format import format_size

    keys_and_bytes_text = f"{summary['keys']:,} keys, {format_size(summary['bytes'])}"
    yield f"{keys_and_bytes_text} over {summary['hosts']} hosts: {summary['method']}"
    # Weight of the largest host divided by that of the ideal split: 1.0 is perfect. "by_count" is the split
    # by number of keys, for comparison.
    byte_imbalance, count_imbalance = summary["imbalance"], summary["by_count"]["imbalance"]
    yield (
        f"largest host: {byte_imbalance:.6f} of the smallest possible maximum (split by number of keys: "
        f"{count_imbalance:.4f})"
    )
    moved_keys = summary["stability"].get("moved_keys")  # missing without --previous
    if moved_keys is not None:
        yield f"{moved_keys:,} keys moved to another host"
    weight = summary["weight"]
    weight_columns = [] if weight == "size" else [weight]  # the size has a column anyway
    table_rows: list[tuple[str, ...]] = [
        ("HOST", "KEYS", "BYTES", *(name.upper() for name in weight_columns))
    ]
    for host_row in summary["shards"][:_MAX_HOST_ROWS]:
        weight_cells = [f"{host_row[name]:,}" for name in weight_columns]
        table_rows.append(
            (str(host_row["host"]), f"{host_row['keys']:,}", format_size(host_row["bytes"]), *weight_cells)
        )
    yield from align_columns(table_rows)
    if len(summary["shards"]) > _MAX_HOST_ROWS:
        yield f"... and {len(summary['shards']) - _MAX_HOST_ROWS} more (--json has all)"
