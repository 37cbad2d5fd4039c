"""``smlaunch data inventory``, and the inventories that the other ``data`` commands read."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from smlaunch.cli.json_output import print_json
from smlaunch.cli.options import GroupedCommand, connection_options, grouped_option, json_option
from smlaunch.cli.stdio import ERASE_LINE
from smlaunch.contract.s3_uri import split_s3_uri
from smlaunch.errors import JobError, Problem

if TYPE_CHECKING:
    from smlaunch.data.inventory_file import Inventory

_PLAIN_LINE_SECONDS = 5.0
"""Seconds between two progress lines where stderr is not a terminal."""


@click.command(cls=GroupedCommand, short_help="List a prefix into a Parquet file.")
@click.argument("source", metavar="S3URI|DIR", required=False)
@grouped_option(
    "Listing",
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The Parquet file to write.",
)
@grouped_option(
    "Listing",
    "--from-s3-inventory",
    metavar="S3URI",
    help="Read an S3 Inventory report: the URI of its manifest.json.",
)
@grouped_option("Listing", "--resume", is_flag=True, help="Continue a listing that was interrupted.")
@connection_options
@json_option
def inventory(
    source: str | None, out: Path, from_s3_inventory: str | None, resume: bool, as_json: bool, **options: Any
) -> int:
    """List the objects below an S3 prefix (or the files of a folder) into a Parquet file: one row for each
    object with its key, size, ETag and time, in key order. Uses several connections. The other `data`
    commands accept the file instead of a prefix.

    `--from-s3-inventory` does not list: it reads a report of S3 Inventory. S3URI then limits it to a
    prefix."""
    started_at = time.monotonic()
    with _resume_hint_on_interrupt(out, source), ListingDisplay(as_json) as progress_display:
        if from_s3_inventory is not None:
            summary = _write_inventory_from_s3_report(
                source, out, from_s3_inventory, resume, options, progress_display
            )
        elif source is not None:
            summary = _write_inventory_of_source(source, out, resume, options, progress_display)
        else:
            raise JobError([Problem("S3URI", "give what to list, or --from-s3-inventory")])
    summary = {"path": str(out), **summary, "seconds": round(time.monotonic() - started_at, 2)}
    if as_json:
        print_json(summary)
        return 0
    click.echo(_describe_inventory(summary))
    if not summary["objects"]:
        click.echo(f"warning: there are no objects below {source or from_s3_inventory}", err=True)
    return 0


@contextmanager
def open_inventory(source: str, options: dict[str, Any]) -> Iterator[Inventory]:
    """Open an inventory file, or list an S3 prefix or a folder into a temporary one.

    ``options``: those of ``open_connection``. Raises JobError, AccountError and ServiceError.
    """
    from smlaunch.data.inventory_file import Inventory

    if not source.startswith("s3://") and not Path(source).is_dir():
        if not Path(source).exists():
            raise JobError([Problem(source, "does not exist; give an inventory file, a folder or s3://...")])
        yield Inventory(source)
        return
    with TemporaryDirectory(prefix="smlaunch-") as folder:
        out = Path(folder, "keys.parquet")
        with ListingDisplay(quiet=False) as display:
            _write_inventory_of_source(source, out, False, options, display)
        yield Inventory(out)


def _describe_inventory(summary: Mapping[str, Any]) -> str:
    """Return what was written as one line. ``summary``: the JSON output of the command; ``left_out`` are
    links and special files of a folder, ``requests`` those of a listing in S3."""
    from smlaunch.text.format import format_size

    skipped_text = (
        f"; skipped: {summary['left_out']:,} links and special files" if summary.get("left_out") else ""
    )
    requests_text = f" ({summary['requests']:,} requests)" if summary.get("requests") else ""
    objects_text = f"{summary['objects']:,} objects, {format_size(summary['bytes'])}"
    return f"{summary['path']}: {objects_text}, in {summary['seconds']:.1f} s{requests_text}{skipped_text}"


def _write_inventory_of_source(
    source: str,
    inventory_file: Path,
    continues_unfinished: bool,
    options: dict[str, Any],
    progress_display: ListingDisplay,
) -> dict[str, Any]:
    """List an S3 prefix or a folder into the Parquet file ``inventory_file``, and return the members of the
    JSON output. ``continues_unfinished``: continue an interrupted listing instead of starting again."""
    if source.startswith("s3://"):
        return _write_inventory_of_prefix(
            source, inventory_file, continues_unfinished, options, progress_display
        )
    from smlaunch.data.folder_inventory import list_folder

    folder = Path(source)
    if not folder.is_dir():
        raise JobError([Problem(source, "is neither s3://bucket/prefix nor a folder")])
    if continues_unfinished:
        raise JobError(
            [Problem("--resume", "a folder is always listed from the beginning; --resume is for s3://...")]
        )
    listing = list_folder(folder, inventory_file)
    return {
        "bucket": "",
        "prefix": str(folder.resolve()),
        "objects": listing.objects,
        "bytes": listing.bytes,
        "left_out": listing.skipped,
    }


def _write_inventory_of_prefix(
    source: str,
    inventory_file: Path,
    continues_unfinished: bool,
    options: dict[str, Any],
    progress_display: ListingDisplay,
) -> dict[str, Any]:
    from smlaunch.aws.s3_pager import S3Pager
    from smlaunch.connection.open_connection import open_connection
    from smlaunch.data.parallel_listing import ListingProgress, list_prefix
    from smlaunch.runs.call_errors import translate_call_errors

    bucket, prefix = _parse_uri("S3URI", source)

    def on_progress(progress: ListingProgress) -> None:
        progress_display.show_progress(
            progress.objects, progress.bytes, None, f"{progress.active_workers} connections"
        )

    with open_connection(options, read_only=True) as connection, translate_call_errors(connection.target):
        pager = S3Pager(connection.target.owner_checked_s3_client(allow_unknown_owner=True))
        progress = list_prefix(
            pager,
            bucket,
            prefix,
            inventory_file,
            resume=continues_unfinished,
            on_progress=on_progress,
            interval_seconds=ListingDisplay.REDRAW_SECONDS,
        )
    return {
        "bucket": bucket,
        "prefix": prefix,
        "objects": progress.objects,
        "bytes": progress.bytes,
        "requests": progress.requests,
    }


def _write_inventory_from_s3_report(
    wanted_prefix_uri: str | None,
    inventory_file: Path,
    manifest_uri: str,
    continues_unfinished: bool,
    options: dict[str, Any],
    progress_display: ListingDisplay,
) -> dict[str, Any]:
    """Convert a report of S3 Inventory into the Parquet file ``inventory_file``, and return the members of
    the JSON output. ``manifest_uri``: address of the report's manifest.json. ``wanted_prefix_uri``: prefix of
    the objects to include; None for all. ``continues_unfinished``: continue an interrupted conversion.
    ``options``: of the connection."""
    from smlaunch.connection.open_connection import open_connection
    from smlaunch.data.s3_inventory_report import ReportProgress, inventory_from_report, read_inventory_report
    from smlaunch.runs.call_errors import translate_call_errors

    manifest_bucket, manifest_key = _parse_uri("--from-s3-inventory", manifest_uri)
    wanted_bucket, wanted_prefix = (
        (None, "") if wanted_prefix_uri is None else _parse_uri("S3URI", wanted_prefix_uri)
    )

    def on_progress(progress: ReportProgress) -> None:
        fraction_done = progress.read_bytes / progress.total_bytes if progress.total_bytes else None
        progress_display.show_progress(progress.objects, progress.bytes, fraction_done, note="")

    with open_connection(options, read_only=True) as connection, translate_call_errors(connection.target):
        storage = connection.target.input_storage
        inventory_report = read_inventory_report(storage, manifest_bucket, manifest_key)
        if wanted_bucket not in (None, inventory_report.source_bucket):
            message = (
                f"the report is of the bucket {inventory_report.source_bucket!r}, not of {wanted_bucket!r}"
            )
            raise JobError([Problem("--from-s3-inventory", message)])
        final_progress = inventory_from_report(
            storage,
            inventory_report,
            wanted_prefix,
            inventory_file,
            resume=continues_unfinished,
            on_progress=on_progress,
        )
    return {
        "bucket": inventory_report.source_bucket,
        "prefix": wanted_prefix,
        "objects": final_progress.objects,
        "bytes": final_progress.bytes,
    }


def _parse_uri(field: str, uri: str) -> tuple[str, str]:
    bucket_and_prefix = split_s3_uri(uri)
    if bucket_and_prefix is None:
        raise JobError([Problem(field, f"{uri!r} is not s3://bucket/prefix")])
    return bucket_and_prefix


@contextmanager
def _resume_hint_on_interrupt(out: Path, source: str | None) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        if source is None or source.startswith("s3://"):
            click.echo(
                f"the listing so far is saved beside {out}: the same command with --resume continues it",
                err=True,
            )
        raise


class _ListingReading(NamedTuple):
    """How far a listing had come. ``time``: seconds of the monotonic clock. ``fraction_done``: 0 to 1; None
    where the total is unknown."""

    time: float
    object_count: int
    fraction_done: float | None


class ListingDisplay:
    """Progress of a listing on stderr: one moving line on a terminal, otherwise a line every few seconds."""

    REDRAW_SECONDS = 0.2

    def __init__(self, quiet: bool) -> None:
        self._is_terminal = sys.stderr.isatty() and not quiet
        self._is_quiet = quiet
        self._first_reading: _ListingReading | None = None
        self._last_report_time = time.monotonic()
        self._is_line_drawn = False

    def __enter__(self) -> ListingDisplay:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._is_line_drawn:
            click.echo(ERASE_LINE, err=True, nl=False)

    def show_progress(
        self, object_count: int, size_bytes: int, fraction_done: float | None, note: str
    ) -> None:
        """Show the progress of a listing: one line that is redrawn on a terminal, otherwise a line every few
        seconds; nothing with --json. ``fraction_done``: 0 to 1; None where the number of objects is unknown.
        ``note``: more text for the line."""
        now = time.monotonic()
        reading = _ListingReading(now, object_count, fraction_done)
        if self._first_reading is None:
            # Objects of an earlier, interrupted command do not count for the rate.
            self._first_reading = reading
        seconds_between_lines = self.REDRAW_SECONDS if self._is_terminal else _PLAIN_LINE_SECONDS
        if self._is_quiet or now - self._last_report_time < seconds_between_lines:
            return
        self._last_report_time = now
        line_text = self._progress_line_text(self._first_reading, reading, size_bytes, note)
        if self._is_terminal:
            click.echo(ERASE_LINE + line_text, err=True, nl=False)
            self._is_line_drawn = True
        else:
            click.echo(line_text, err=True)

    @staticmethod
    def _progress_line_text(
        first: _ListingReading, current: _ListingReading, size_bytes: int, note: str
    ) -> str:
        """Return the line that shows the progress of a listing: objects, bytes, rate, and remaining time.
        ``first``: at the start of this command, which may continue an interrupted one. ``fraction_done``:
        None where the total is unknown. ``note``: more text."""
        from smlaunch.text.format import format_elapsed, format_size

        elapsed_seconds = max(current.time - first.time, 1e-9)  # never 0, by which nothing can be divided
        objects_per_second = (current.object_count - first.object_count) / elapsed_seconds
        line_parts = [
            f"{current.object_count:,} objects",
            format_size(size_bytes),
            f"{objects_per_second:,.0f}/s",
        ]
        if current.fraction_done is not None and first.fraction_done is not None:
            line_parts.append(f"{current.fraction_done:.0%}")
            fraction_since_first = current.fraction_done - first.fraction_done
            if fraction_since_first > 0:
                remaining_seconds = (1 - current.fraction_done) / fraction_since_first * elapsed_seconds
                line_parts.append(f"{format_elapsed(round(remaining_seconds))} left")
        if note:
            line_parts.append(note)
        return "  ".join(line_parts)
