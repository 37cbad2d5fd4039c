"""``smlaunch data pull``: objects of a prefix as files of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from smlaunch.cli.bucket_owner import bucket_owner_option, set_bucket_owner
from smlaunch.cli.options import GroupedCommand, connection_options, json_option


@click.command(cls=GroupedCommand, short_help="Download a prefix into a folder.")
@click.argument("src", metavar="SRC")
@click.argument("dst", metavar="DST")
@bucket_owner_option("SRC; default: any account")
@connection_options
@json_option
def pull(src: str, dst: str, as_json: bool, **options: Any) -> int:
    """Download the objects of SRC (s3://bucket/prefix/, or one object) into the folder DST.

    Existing files with the same content are not downloaded again, so the same command continues an
    interrupted one. Every file is compared with the checksum or ETag of its object, and gets its name when it
    is complete. No file is deleted."""
    from smlaunch.cli.transfer_display import transfer_files
    from smlaunch.connection.open_connection import open_connection
    from smlaunch.data.folder_sync import plan_pull
    from smlaunch.runs.call_errors import translate_call_errors

    with open_connection(options) as connection, translate_call_errors(connection.target):
        set_bucket_owner(connection.target, src, options)
        sync_plan = plan_pull(
            connection.target.input_storage, connection.target.input_transfer, src, Path(dst)
        )
        transfer_files(
            connection.target.input_transfer.download_files,
            sync_plan,
            as_json,
            active_verb="downloading",
            past_verb="downloaded",
        )
    return 0
