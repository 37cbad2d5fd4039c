"""``smlaunch data push``: files of a folder as objects of a prefix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from smlaunch.cli.options import GroupedCommand, json_option, place_options
from smlaunch.cli.owners import bucket_owner_option, name_owner


@click.command(cls=GroupedCommand, short_help="Send a folder to a prefix.")
@click.argument("src", metavar="SRC", type=click.Path(exists=True))
@click.argument("dst", metavar="DST")
@bucket_owner_option("DST; without it, you do")
@place_options
@json_option
def push(src: str, dst: str, as_json: bool, **options: Any) -> int:
    """Send the files of SRC, but for what .smlaunchignore leaves out, below DST (s3://bucket/prefix/).

    What is there with the right content stays; so the same command goes on after a break, also in the middle
    of a large file. S3 checks everything by its SHA-256. Nothing is deleted."""
    from smlaunch.cli.moving import move
    from smlaunch.data.mirror import pushing
    from smlaunch.place import open_place
    from smlaunch.runs.run import answers_of

    with open_place(options) as place, answers_of(place.target):
        name_owner(place.target, dst, options)
        found = pushing(place.target.storage, place.target.transfer, Path(src), dst)
        move(place.target.transfer.put, found, ("sending", "sent"), as_json)
    return 0
