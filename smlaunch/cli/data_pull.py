"""``smlaunch data pull``: objects of a prefix as files of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from smlaunch.cli.options import GroupedCommand, json_option, place_options
from smlaunch.cli.owners import bucket_owner_option, name_owner


@click.command(cls=GroupedCommand, short_help="Fetch a prefix into a folder.")
@click.argument("src", metavar="SRC")
@click.argument("dst", metavar="DST")
@bucket_owner_option("SRC; without it, SRC is read whosever it is")
@place_options
@json_option
def pull(src: str, dst: str, as_json: bool, **options: Any) -> int:
    """Fetch the objects of SRC (s3://bucket/prefix/, or one object) into the folder DST.

    What is there with the right content stays; so the same command goes on after a break. Every file is
    checked by what S3 knows its object by, and appears when it is whole. Nothing is deleted."""
    from smlaunch.cli.moving import move
    from smlaunch.data.mirror import pulling
    from smlaunch.place import open_place
    from smlaunch.runs.run import answers_of

    with open_place(options) as place, answers_of(place.target):
        name_owner(place.target, src, options)
        found = pulling(place.target.inputs, place.target.inputs_transfer, src, Path(dst))
        move(place.target.inputs_transfer.get, found, ("fetching", "fetched"), as_json)
    return 0
