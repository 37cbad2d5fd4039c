"""``smlaunch data inventory``, and the inventories that the other ``data`` commands read."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from smlaunch.cli.options import GroupedCommand, connection_options, grouped_option, json_option
from smlaunch.contract.s3_uri import split_s3_uri
from smlaunch.errors import JobError, Problem

if TYPE_CHECKING:
    from smlaunch.data.inventory import Inventory

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
    with _resume_hint_on_interrupt(out, source), ListingDisplay(as_json) as display:
        if from_s3_inventory is not None:
            summary = _write_from_report(source, out, from_s3_inventory, resume, options, display)
        elif source is not None:
            summary = _write_inventory(source, out, resume, options, display)
        else:
            raise JobError([Problem("S3URI", "give what to list, or --from-s3-inventory")])
    summary = {"path": str(out), **summary, "seconds": round(time.monotonic() - started_at, 2)}
    if as_json:
        click.echo(json.dumps(summary, indent=2))
        return 0
    from smlaunch.text.format import format_size

    skipped_text = (
        f"; skipped: {summary['left_out']:,} links and special files" if summary.get("left_out") else ""
    )
    requests_text = f" ({summary['requests']:,} requests)" if summary.get("requests") else ""
    objects_text = f"{summary['objects']:,} objects, {format_size(summary['bytes'])}"
    click.echo(f"{out}: {objects_text}, in {summary['seconds']:.1f} s{requests_text}{skipped_text}")
    if not summary["objects"]:
        click.echo(f"warning: there are no objects below {source or from_s3_inventory}", err=True)
    return 0


@contextmanager
def open_inventory(what: str, options: dict[str, Any]) -> Iterator[Inventory]:
    """Open an inventory file, or list an S3 prefix or a folder into a temporary one.

    ``options``: those of ``open_connection``. Raises JobError, AccountError and ServiceError.
    """
    from smlaunch.data.inventory import Inventory

    if not what.startswith("s3://") and not Path(what).is_dir():
        if not Path(what).exists():
            raise JobError([Problem(what, "does not exist; give an inventory file, a folder or s3://...")])
        yield Inventory(what)
        return
    with TemporaryDirectory(prefix="smlaunch-") as folder:
        out = Path(folder, "keys.parquet")
        with ListingDisplay(quiet=False) as display:
            _write_inventory(what, out, False, options, display)
        yield Inventory(out)


def _write_inventory(
    source: str, out: Path, resume: bool, options: dict[str, Any], display: ListingDisplay
) -> dict[str, Any]:
    """List an S3 prefix or a folder into the inventory file ``out``, and return the result as members of the
    JSON output. ``resume``: continue an unfinished listing."""
    if source.startswith("s3://"):
        return _list_prefix(source, out, resume, options, display)
    from smlaunch.data.folder_inventory import list_folder

    folder = Path(source)
    if not folder.is_dir():
        raise JobError([Problem(source, "is neither s3://bucket/prefix nor a folder")])
    if resume:
        raise JobError(
            [Problem("--resume", "a folder is always listed from the beginning; --resume is for s3://...")]
        )
    listing = list_folder(folder, out)
    return {
        "bucket": "",
        "prefix": str(folder.resolve()),
        "objects": listing.objects,
        "bytes": listing.bytes,
        "left_out": listing.skipped,
    }


def _list_prefix(
    source: str, out: Path, resume: bool, options: dict[str, Any], display: ListingDisplay
) -> dict[str, Any]:
    from smlaunch.aws.s3_list import S3Pager
    from smlaunch.connection.connect import open_connection
    from smlaunch.data.parallel_listing import ListingProgress, list_prefix
    from smlaunch.runs.run import translate_call_errors

    bucket, prefix = _parse_uri("S3URI", source)

    def on_progress(progress: ListingProgress) -> None:
        display.update(progress.objects, progress.bytes, None, f"{progress.active_workers} connections")

    with open_connection(options, read_only=True) as connection, translate_call_errors(connection.target):
        pager = S3Pager(connection.target.s3(allow_unknown_owner=True))
        progress = list_prefix(
            pager,
            bucket,
            prefix,
            out,
            resume=resume,
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


def _write_from_report(
    source: str | None, out: Path, report: str, resume: bool, options: dict[str, Any], display: ListingDisplay
) -> dict[str, Any]:
    """Convert the S3 Inventory report, by the address of its manifest, into the inventory file ``out``, and
    return the result as members of the JSON output. ``source``: prefix of the wanted objects; None for all.
    """
    from smlaunch.connection.connect import open_connection
    from smlaunch.data.s3_inventory import ReportProgress, inventory_from_report, read_report
    from smlaunch.runs.run import translate_call_errors

    bucket, key = _parse_uri("--from-s3-inventory", report)
    requested = _parse_uri("S3URI", source) if source is not None else None

    def on_progress(report_progress: ReportProgress) -> None:
        display.update(
            report_progress.objects,
            report_progress.bytes,
            report_progress.read_bytes / report_progress.total_bytes if report_progress.total_bytes else None,
            "",
        )

    with open_connection(options, read_only=True) as connection, translate_call_errors(connection.target):
        inventory_report = read_report(connection.target.inputs, bucket, key)
        if requested is not None and requested[0] != inventory_report.source_bucket:
            message = (
                f"the report is of the bucket {inventory_report.source_bucket!r}, not of {requested[0]!r}"
            )
            raise JobError([Problem("--from-s3-inventory", message)])
        prefix = requested[1] if requested is not None else ""
        report_progress = inventory_from_report(
            connection.target.inputs, inventory_report, prefix, out, resume=resume, on_progress=on_progress
        )
    return {
        "bucket": inventory_report.source_bucket,
        "prefix": prefix,
        "objects": report_progress.objects,
        "bytes": report_progress.bytes,
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


class ListingDisplay:
    """Progress of a listing on stderr: one moving line on a terminal, otherwise a line every few seconds."""

    REDRAW_SECONDS = 0.2

    def __init__(self, quiet: bool) -> None:
        self._live = sys.stderr.isatty() and not quiet
        self._quiet = quiet
        self._began: tuple[float, int, float | None] | None = None
        self._last_report_time = time.monotonic()
        self._drawn = False

    def __enter__(self) -> ListingDisplay:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._drawn:
            click.echo("\r\x1b[2K", err=True, nl=False)

    def update(self, objects: int, size_bytes: int, fraction_done: float | None, suffix: str) -> None:
        """``fraction_done``: of all objects; None where their number is unknown."""
        now = time.monotonic()
        if self._began is None:
            # Objects of an earlier, interrupted command do not count for the rate.
            self._began = now, objects, fraction_done
        if self._quiet or now - self._last_report_time < (
            self.REDRAW_SECONDS if self._live else _PLAIN_LINE_SECONDS
        ):
            return
        self._last_report_time = now
        text = self._text(now, objects, size_bytes, fraction_done, suffix)
        if self._live:
            click.echo(f"\r\x1b[2K{text}", err=True, nl=False)
            self._drawn = True
        else:
            click.echo(text, err=True)

    def _text(
        self, now: float, objects: int, size_bytes: int, fraction_done: float | None, suffix: str
    ) -> str:
        """Return the line that shows the progress. ``now``: seconds, on the monotonic clock.
        ``fraction_done``: None if the total is unknown."""
        from smlaunch.cli.display import format_duration
        from smlaunch.text import format

        started_at, first_objects, first_fraction = self._began or (now, objects, fraction_done)
        seconds = max(now - started_at, 1e-9)
        facts = [
            f"{objects:,} objects",
            format.format_size(size_bytes),
            f"{(objects - first_objects) / seconds:,.0f}/s",
        ]
        if fraction_done is not None and first_fraction is not None:
            facts.append(f"{fraction_done:.0%}")
            if fraction_done > first_fraction:
                remaining_seconds = (1 - fraction_done) / (fraction_done - first_fraction) * seconds
                facts.append(f"{format_duration(round(remaining_seconds))} left")
        return "  ".join([*facts, *([suffix] if suffix else [])])
