"""``smlaunch data split``: which host gets which keys, so that all have about the same to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from smlaunch.cli.options import GroupedCommand, json_option, option, place_options

_SHOWN = 16
"""Hosts whose parts a person sees."""

_PARTS = "Parts"


@click.command(cls=GroupedCommand, short_help="Give every host the same share of the bytes.")
@click.argument("source", metavar="KEYS.parquet|S3URI|DIR")
@option(_PARTS, "--hosts", metavar="N", type=click.IntRange(1, 65_534), required=True, help="How many parts.")
@option(_PARTS, "--weight", metavar="COLUMN", default="size", help="What is to be even; default: bytes.")
@option(_PARTS, "--out", metavar="DIR", type=click.Path(path_type=Path), help="Write lists and manifests.")
@option(
    _PARTS,
    "--previous",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="An earlier --out: keys stay with their host as far as parts are even.",
)
@place_options
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
    """Share the keys of an inventory, of a prefix or of a folder out over hosts, so that each gets about the
    same number of bytes (or of another column of the inventory, such as samples). Never worse than by count.

    With --out: lists/ has each host's keys as JSON lines, manifests/ a manifest for SageMaker, split.json
    what is printed with --json.
    """
    from smlaunch.cli.data_inventory import opened

    with opened(source, options) as inventory:
        from smlaunch.data.lists import described, write_lists
        from smlaunch.data.parting import part

        found = part(inventory, hosts, weight=weight, previous=previous)
        summary = found.summary
        if out is not None:
            summary = described(summary, write_lists(found.keys, found.split, out, summary))
    if as_json:
        click.echo(json.dumps(summary, indent=2))
        return 0
    for line in _lines(summary):
        click.echo(line)
    for warning in summary["warnings"]:
        click.echo(click.style("warning: ", fg="yellow") + warning, err=True)
    return 0


def _lines(summary: dict[str, Any]) -> Iterator[str]:
    """For a person."""
    from smlaunch.cli.runs import aligned
    from smlaunch.planning.prose import size

    held = f"{summary['keys']:,} keys, {size(summary['bytes'])}"
    yield f"{held} over {summary['hosts']} hosts: {summary['method']}"
    best, by_count = summary["imbalance"], summary["by_count"]["imbalance"]
    yield f"the fullest host has {best:.6f} of the least it can have; by count {by_count:.4f}"
    moved = summary["stability"].get("moved_keys")
    if moved is not None:
        yield f"{moved:,} keys have another host than before"
    weight = summary["weight"]
    others = [] if weight == "size" else [weight]
    table: list[tuple[str, ...]] = [("HOST", "KEYS", "BYTES", *(name.upper() for name in others))]
    for part in summary["parts"][:_SHOWN]:
        numbers = [f"{part[name]:,}" for name in others]
        table.append((str(part["host"]), f"{part['keys']:,}", size(part["bytes"]), *numbers))
    yield from aligned(table)
    if len(summary["parts"]) > _SHOWN:
        yield f"... and {len(summary['parts']) - _SHOWN} more (--json has all)"
