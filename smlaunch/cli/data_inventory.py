"""``smlaunch data inventory``: list a prefix once, and where the other commands of data get theirs from."""

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

from smlaunch.cli.options import GroupedCommand, json_option, option, place_options
from smlaunch.errors import JobError, Problem
from smlaunch.protocol.addresses import split_s3

if TYPE_CHECKING:
    from smlaunch.data.inventory import Inventory

_PLAIN_EVERY = 5.0
"""Seconds between two progress lines where there is no terminal."""


@click.command(cls=GroupedCommand, short_help="List a prefix once, into a Parquet file.")
@click.argument("where", metavar="S3URI|DIR", required=False)
@option("What", "--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The file.")
@option(
    "What", "--from-s3-inventory", metavar="S3URI", help="Read an S3 Inventory report: its manifest.json."
)
@option("What", "--resume", is_flag=True, help="Go on with what an earlier command has left unfinished.")
@place_options
@json_option
def inventory(
    where: str | None, out: Path, from_s3_inventory: str | None, resume: bool, as_json: bool, **options: Any
) -> int:
    """List what lies below an S3 prefix (or in a folder) once, on several connections, into a Parquet file:
    one row for each object with its key, size, ETag and time, in key order. The other `data` commands take
    the file where they take a prefix.

    `--from-s3-inventory` lists nothing: it reads the report that S3 has made, of the objects below S3URI
    where one is given."""
    began = time.monotonic()
    with _kept_on_interrupt(out, where), Told(as_json) as told:
        if from_s3_inventory is not None:
            facts = _from_report(where, out, from_s3_inventory, resume, options, told)
        elif where is not None:
            facts = _write(where, out, resume, options, told)
        else:
            raise JobError([Problem("S3URI", "say what to list, or give --from-s3-inventory")])
    facts = {"path": str(out), **facts, "seconds": round(time.monotonic() - began, 2)}
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return 0
    from smlaunch.planning.prose import size

    others = f"; left out: {facts['left_out']:,} links and the like" if facts.get("left_out") else ""
    by = f" ({facts['requests']:,} requests)" if facts.get("requests") else ""
    found = f"{facts['objects']:,} objects, {size(facts['bytes'])}"
    click.echo(f"{out}: {found}, in {facts['seconds']:.1f} s{by}{others}")
    if not facts["objects"]:
        click.echo(f"warning: nothing lies below {where or from_s3_inventory}", err=True)
    return 0


@contextmanager
def opened(what: str, options: dict[str, Any]) -> Iterator[Inventory]:
    """The inventory of an S3 prefix or a folder, made for the time of the ``with`` block, or the file itself.

    ``options``: as ``open_place`` takes them. Raises JobError, AccountError and ServiceError.
    """
    from smlaunch.data.inventory import Inventory

    if not what.startswith("s3://") and not Path(what).is_dir():
        if not Path(what).exists():
            raise JobError([Problem(what, "is not there; give an inventory file, a folder or s3://...")])
        yield Inventory(what)
        return
    with TemporaryDirectory(prefix="smlaunch-") as folder:
        out = Path(folder, "keys.parquet")
        with Told(quiet=False) as told:
            _write(what, out, False, options, told)
        yield Inventory(out)


def _write(where: str, out: Path, resume: bool, options: dict[str, Any], told: Told) -> dict[str, Any]:
    if where.startswith("s3://"):
        return _list(where, out, resume, options, told)
    from smlaunch.data.folder import list_folder

    folder = Path(where)
    if not folder.is_dir():
        raise JobError([Problem(where, "is neither s3://bucket/prefix nor a folder")])
    if resume:
        raise JobError([Problem("--resume", "a folder is listed anew; it goes with s3://...")])
    found = list_folder(folder, out)
    return {
        "bucket": "",
        "prefix": str(folder.resolve()),
        "objects": found.objects,
        "bytes": found.bytes,
        "left_out": found.others,
    }


def _list(where: str, out: Path, resume: bool, options: dict[str, Any], told: Told) -> dict[str, Any]:
    from smlaunch.data.listing import Counts, list_prefix
    from smlaunch.place import open_place
    from smlaunch.runs.pages import S3Pages
    from smlaunch.runs.run import answers_of

    bucket, prefix = _address("S3URI", where)

    def heard(counts: Counts) -> None:
        told.say(counts.objects, counts.bytes, None, f"{counts.workers} connections")

    with open_place(options, leaves_no_trace=True) as place, answers_of(place.target):
        pages = S3Pages(place.target.s3(anyones=True))
        counts = list_prefix(pages, bucket, prefix, out, resume=resume, heard=heard, every=Told.EVERY)
    return {
        "bucket": bucket,
        "prefix": prefix,
        "objects": counts.objects,
        "bytes": counts.bytes,
        "requests": counts.requests,
    }


def _from_report(
    where: str | None, out: Path, report: str, resume: bool, options: dict[str, Any], told: Told
) -> dict[str, Any]:
    from smlaunch.data.s3_inventory import Progress, from_report, read_report
    from smlaunch.place import open_place
    from smlaunch.runs.run import answers_of

    bucket, key = _address("--from-s3-inventory", report)
    asked = _address("S3URI", where) if where is not None else None

    def heard(done: Progress) -> None:
        told.say(done.objects, done.bytes, done.read / done.whole if done.whole else None, "")

    with open_place(options, leaves_no_trace=True) as place, answers_of(place.target):
        found = read_report(place.target.inputs, bucket, key)
        if asked is not None and asked[0] != found.source:
            message = f"the report is of the bucket {found.source!r}, not of {asked[0]!r}"
            raise JobError([Problem("--from-s3-inventory", message)])
        prefix = asked[1] if asked is not None else ""
        done = from_report(place.target.inputs, found, prefix, out, resume=resume, heard=heard)
    return {"bucket": found.source, "prefix": prefix, "objects": done.objects, "bytes": done.bytes}


def _address(field: str, uri: str) -> tuple[str, str]:
    found = split_s3(uri)
    if found is None:
        raise JobError([Problem(field, f"{uri!r} is not s3://bucket/prefix")])
    return found


@contextmanager
def _kept_on_interrupt(out: Path, where: str | None) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        if where is None or where.startswith("s3://"):
            click.echo(
                f"what was read is kept beside {out}: the same command with --resume goes on", err=True
            )
        raise


class Told:
    """How far it is, on stderr: a line that moves on a terminal, now and then a line elsewhere."""

    EVERY = 0.2

    def __init__(self, quiet: bool) -> None:
        self._live = sys.stderr.isatty() and not quiet
        self._quiet = quiet
        self._began: tuple[float, int, float | None] | None = None
        self._told_at = time.monotonic()
        self._drawn = False

    def __enter__(self) -> Told:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._drawn:
            click.echo("\r\x1b[2K", err=True, nl=False)

    def say(self, objects: int, size: int, share: float | None, more: str) -> None:
        """``share``: of all there is, where that is known."""
        now = time.monotonic()
        if self._began is None:
            # What a resumed command has not read itself says nothing of its rate.
            self._began = now, objects, share
        if self._quiet or now - self._told_at < (self.EVERY if self._live else _PLAIN_EVERY):
            return
        self._told_at = now
        text = self._text(now, objects, size, share, more)
        if self._live:
            click.echo(f"\r\x1b[2K{text}", err=True, nl=False)
            self._drawn = True
        else:
            click.echo(text, err=True)

    def _text(self, now: float, objects: int, size: int, share: float | None, more: str) -> str:
        from smlaunch.cli.display import duration
        from smlaunch.planning import prose

        began, first, first_share = self._began or (now, objects, share)
        seconds = max(now - began, 1e-9)
        facts = [f"{objects:,} objects", prose.size(size), f"{(objects - first) / seconds:,.0f}/s"]
        if share is not None and first_share is not None:
            facts.append(f"{share:.0%}")
            if share > first_share:
                facts.append(f"{duration(round((1 - share) / (share - first_share) * seconds))} left")
        return "  ".join([*facts, *([more] if more else [])])
