"""``smlaunch data pack``: many small files into tar shards of one size."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smlaunch.cli.bucket_owner import bucket_owner_option, set_bucket_owner
from smlaunch.cli.json_output import print_json
from smlaunch.cli.options import GroupedCommand, connection_options, grouped_option, json_option
from smlaunch.cli.stdio import ERASE_LINE
from smlaunch.contract.s3_uri import split_s3_uri
from smlaunch.errors import JobError, Problem

if TYPE_CHECKING:
    from smlaunch.data.pack import PackOptions, PackSource
    from smlaunch.data.pack_destination import PackDestination
    from smlaunch.runs.launch_target import Target

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kKMGT]?i?)B?")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_MIN_SHARD_BYTES = 1_000_000

_SHARDS = "Shards"


@click.command(cls=GroupedCommand, short_help="Pack many small files into tar shards.")
@click.argument("src", metavar="SRC")
@click.argument("dst", metavar="DST")
@grouped_option(
    _SHARDS, "--shard-size", metavar="SIZE", help="Approximate size of one shard; default: 150MB."
)
@grouped_option(
    _SHARDS, "--shards", type=click.IntRange(1), metavar="N", help="Number of shards, instead of their size."
)
@grouped_option(
    _SHARDS,
    "--hosts",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="Number of hosts: the number of shards becomes a multiple of it.",
)
@grouped_option(
    _SHARDS,
    "--group",
    type=click.Choice(["basename", "none"]),
    default="basename",
    help="Files that stay in one shard: those with the same name before the first dot, or none.",
)
@grouped_option(
    "Packing", "--resume", is_flag=True, help="Continue an interrupted command; finished shards are reused."
)
@grouped_option(
    "Packing", "--follow-links", is_flag=True, help="Pack the target of a link; default: links are an error."
)
@grouped_option(
    "Packing",
    "--workers",
    type=click.IntRange(1),
    metavar="N",
    help="Number of shards written at once; default: one per core.",
)
@grouped_option(
    "Packing",
    "--engine",
    type=click.Choice(["python", "tar"]),
    default="python",
    help="Writer for a folder: Python or GNU tar; both write the same bytes.",
)
@grouped_option(
    "Packing",
    "--checksum",
    type=click.Choice(["crc32", "sha256"]),
    default="crc32",
    help="Checksum of each shard in the index: crc32 detects accidents, sha256 (slower) tampering too.",
)
@bucket_owner_option("DST; default: your account")
@connection_options
@json_option
def pack(src: str, dst: str, as_json: bool, **options: Any) -> int:
    """Pack the files of SRC into tar shards of equal size in DST; each is a directory or an s3:// prefix.

    \b
    DST/index.json          the shards with their checksums, written last
    DST/shards/shard-*.tar  give this folder to a job, split by key: every host gets the same share

    The same files give the same bytes. Samples (the files of a folder with one name before the first dot, as
    WebDataset reads them) stay in one shard. If a file changes or disappears meanwhile, it is reported and no
    index is written."""
    from smlaunch.data import pack as pack_module
    from smlaunch.text.format import format_size

    pack_options = _parse_pack_options(options)
    started_at = time.monotonic()
    if src.startswith("s3://") or dst.startswith("s3://"):
        from smlaunch.connection.open_connection import open_connection
        from smlaunch.runs.call_errors import translate_call_errors

        with open_connection(options) as connection, translate_call_errors(connection.target):
            set_bucket_owner(connection.target, dst, options)
            # The target is the region or the local endpoint: its S3 has the source, the destination or both.
            source = _open_source(src, options, connection.target)
            destination = _open_destination(dst, connection.target)
            with _pack_display(as_json) as on_packed_bytes:
                pack_result = pack_module.pack(source, destination, pack_options, on_packed_bytes)
    else:
        # Two folders need no connection to S3.
        _check_not_nested(Path(src), Path(dst))
        source, destination = _open_source(src, options, None), _open_destination(dst, None)
        with _pack_display(as_json) as on_packed_bytes:
            pack_result = pack_module.pack(source, destination, pack_options, on_packed_bytes)
    seconds = time.monotonic() - started_at
    for pack_note in pack_result.notes:
        click.echo(f"note: {pack_note}", err=True)
    shard_index = pack_result.index
    if as_json:
        document = {
            **shard_index.to_dict(),
            "destination": dst,
            "kept": pack_result.reused_shards,
            "seconds": round(seconds, 3),
        }
        print_json(document)
        return 0
    reused_text = f" ({pack_result.reused_shards} reused)" if pack_result.reused_shards else ""
    click.echo(
        f"{shard_index.files:,} files, {shard_index.samples:,} samples, {format_size(shard_index.bytes)} in "
        f"{len(shard_index.shards)} shards"
        f"{reused_text}: {dst.rstrip('/')}/{shard_index.to_dict()['prefix']}"
    )
    return 0


def parse_size(text: str) -> int:
    """Return the bytes of ``150MB`` (powers of 1,000) or ``64MiB``. Raises ValueError for other texts."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(f"{text!r} is not a size; write a number with its unit, such as 150MB or 1GB")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def _parse_pack_options(options: dict[str, Any]) -> PackOptions:
    """Return the settings for packing from the command line's ``options``. Raises JobError for invalid
    ones."""
    from smlaunch.data.pack import DEFAULT_SHARD_BYTES, PackOptions

    shard_size_text, shard_count = options["shard_size"], options["shards"]
    problems: list[Problem] = []
    if shard_size_text is not None and shard_count is not None:
        problems.append(Problem("--shards", "give either --shards or --shard-size"))
    try:
        shard_bytes = DEFAULT_SHARD_BYTES if shard_size_text is None else parse_size(shard_size_text)
        if shard_bytes < _MIN_SHARD_BYTES:
            problems.append(Problem("--shard-size", f"{shard_size_text} is too small; the minimum is 1MB"))
    except ValueError as error:
        problems.append(Problem("--shard-size", str(error)))
    if problems:
        raise JobError(problems)
    return PackOptions(
        shard_bytes=shard_bytes,
        shard_count=shard_count,
        hosts=options["hosts"],
        grouping=options["group"],
        resume=options["resume"],
        workers=options["workers"],
        checksum=options["checksum"],
    )


def _open_source(src: str, options: dict[str, Any], target: Target | None) -> PackSource:
    from smlaunch.data.pack import FolderSource

    if target is None or not src.startswith("s3://"):
        return FolderSource(
            Path(src),
            engine=options["engine"],
            follow_links=options["follow_links"],
            workers=options["workers"],
        )
    from smlaunch.data.obstore_transfer import open_obstore
    from smlaunch.data.pack_s3 import S3PackSource, obstore_fetch

    bucket, prefix = _parse_uri(src, "SRC")
    obstore = open_obstore(
        target.owner_checked_s3_client(allow_unknown_owner=True),
        target.session,
        target.bucket_owner_check(allow_unknown_owner=True),
    )
    fetch = obstore_fetch(obstore, target.input_storage, bucket) if obstore is not None else None
    return S3PackSource(target.input_storage, bucket, prefix, fetch)


def _open_destination(dst: str, target: Target | None) -> PackDestination:
    if target is None or not dst.startswith("s3://"):
        from smlaunch.data.pack_destination import FolderDestination

        return FolderDestination(Path(dst))
    from smlaunch.data.pack_s3 import S3Destination

    return S3Destination(target.storage, *_parse_uri(dst, "DST"), target.transfer)


def _parse_uri(uri: str, argument: str) -> tuple[str, str]:
    bucket_and_prefix = split_s3_uri(uri)
    if bucket_and_prefix is None:
        raise JobError([Problem(argument, f"{uri} is not s3://bucket/prefix")])
    return bucket_and_prefix


def _check_not_nested(src: Path, dst: Path) -> None:
    inner, outer = dst.resolve(), src.resolve()
    if inner == outer or outer in inner.parents:
        raise JobError([Problem("DST", f"{dst} is inside of SRC: the shards would be packed too")])


class _PackDisplay:
    """Progress of packing on stderr: one moving line on a terminal, otherwise a line every few seconds."""

    def __init__(self) -> None:
        self._started_at = self._last_report_time = time.monotonic()
        self._is_terminal = sys.stderr.isatty()

    def __enter__(self) -> Callable[[int, int], None]:
        return self.show_progress

    def __exit__(self, *raised: object) -> None:
        if self._is_terminal:
            click.echo(ERASE_LINE, err=True, nl=False)

    def show_progress(self, done_bytes: int, total_bytes: int) -> None:
        """Show the progress of packing on stderr: one line that is redrawn on a terminal, otherwise a line
        every few seconds (``_PLAIN_LINE_SECONDS``)."""
        now = time.monotonic()
        if not self._is_terminal and now - self._last_report_time < _PLAIN_LINE_SECONDS:
            return
        from smlaunch.text.format import format_elapsed, format_size

        self._last_report_time = now
        bytes_per_second = done_bytes / max(now - self._started_at, 0.001)
        remaining_text = ""
        if done_bytes < total_bytes:
            remaining_seconds = (total_bytes - done_bytes) / bytes_per_second
            remaining_text = f", {format_elapsed(round(remaining_seconds))} left"
        line_text = (
            f"packing {done_bytes / total_bytes:.0%}: "
            f"{format_size(done_bytes)} of {format_size(total_bytes)}, "
            f"{format_size(int(bytes_per_second))}/s{remaining_text}"
        )
        if self._is_terminal:
            click.echo(ERASE_LINE + line_text, err=True, nl=False)
        else:
            click.echo(line_text, err=True)


_PLAIN_LINE_SECONDS = 5.0


def _pack_display(as_json: bool) -> Any:
    """Return a context with a callback ``(done bytes, total bytes)``; the callback does nothing for JSON."""
    return nullcontext(lambda done, total: None) if as_json else _PackDisplay()
