"""``smlaunch data push``: files of a folder as objects of a prefix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from smlaunch.cli.bucket_owner import bucket_owner_option, set_bucket_owner
from smlaunch.cli.options import GroupedCommand, connection_options, json_option


@click.command(cls=GroupedCommand, short_help="Upload a folder to a prefix.")
@click.argument("src", metavar="SRC", type=click.Path(exists=True))
@click.argument("dst", metavar="DST")
@bucket_owner_option("DST; default: your account")
@connection_options
@json_option
def push(src: str, dst: str, as_json: bool, **options: Any) -> int:
    """Upload the files of SRC below DST (s3://bucket/prefix/), except those that .smlaunchignore excludes.

    Existing objects with the same content are not uploaded again, so the same command continues an
    interrupted one, also in the middle of a large file. S3 verifies the SHA-256 of everything. No object is
    deleted."""
    from smlaunch.cli.transfer_display import transfer_files
    from smlaunch.connection.open_connection import open_connection
    from smlaunch.data.folder_sync import plan_push
    from smlaunch.runs.call_errors import translate_call_errors

    with open_connection(options) as connection, translate_call_errors(connection.target):
        set_bucket_owner(connection.target, dst, options)
        sync_plan = plan_push(connection.target.storage, connection.target.transfer, Path(src), dst)
        transfer_files(
            connection.target.transfer.upload_files,
            sync_plan,
            as_json,
            active_verb="uploading",
            past_verb="uploaded",
        )
    return 0
