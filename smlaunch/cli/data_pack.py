"""``smlaunch data pack``: many small files into tar shards of one size."""

from __future__ import annotations

import json
import re
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smlaunch.cli.options import GroupedCommand, json_option, option, place_options
from smlaunch.cli.owners import bucket_owner_option, name_owner
from smlaunch.errors import JobError, Problem
from smlaunch.protocol.addresses import split_s3

if TYPE_CHECKING:
    from smlaunch.data.pack import Source, Wanted
    from smlaunch.data.pack_place import Place
    from smlaunch.runs.target import Target

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kKMGT]?i?)B?")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_SMALLEST = 1_000_000

_SHARDS = "Shards"


@click.command(cls=GroupedCommand, short_help="Pack many small files into tar shards.")
@click.argument("src", metavar="SRC")
@click.argument("dst", metavar="DST")
@option(_SHARDS, "--shard-size", metavar="SIZE", help="Of one shard, about; default: 150MB.")
@option(_SHARDS, "--shards", type=click.IntRange(1), metavar="N", help="How many, instead of a size.")
@option(
    _SHARDS,
    "--hosts",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="Make their number a multiple of this: each host gets as many.",
)
@option(
    _SHARDS,
    "--group",
    type=click.Choice(["basename", "none"]),
    default="basename",
    help="What is never parted: files with one name before the first dot, or nothing.",
)
@option("Work", "--resume", is_flag=True, help="Go on with a pack that was killed; finished shards are kept.")
@option(
    "Work", "--follow-links", is_flag=True, help="Pack the file that a link names; else links are refused."
)
@option(
    "Work", "--workers", type=click.IntRange(1), metavar="N", help="Shards at once; default: one per core."
)
@option(
    "Work",
    "--engine",
    type=click.Choice(["python", "tar"]),
    default="python",
    help="Who writes shards from a folder: ours, or GNU tar; the bytes are the same.",
)
@option(
    "Work",
    "--checksum",
    type=click.Choice(["crc32", "sha256"]),
    default="crc32",
    help="Of each shard, in the index: against accidents, or against tampering too, which takes longer.",
)
@bucket_owner_option("DST; without it, you do")
@place_options
@json_option
def pack(src: str, dst: str, as_json: bool, **options: Any) -> int:
    """Pack the files of SRC into tar shards of equal size in DST; each is a directory or an s3:// prefix.

    \b
    DST/index.json          the shards with their checksums, written last
    DST/shards/shard-*.tar  give this folder to a job, split by key: every host gets the same share

    The same files give the same bytes. Samples (the files of a folder with one name before the first dot, as
    WebDataset reads them) are never parted. A file that changes or goes meanwhile is told, and no index is
    written."""
    from smlaunch.data import pack as packing
    from smlaunch.planning.prose import size

    wanted = _wanted(options)
    began = time.monotonic()
    if src.startswith("s3://") or dst.startswith("s3://"):
        from smlaunch.place import open_place
        from smlaunch.runs.run import answers_of

        with open_place(options) as opened, answers_of(opened.target):
            name_owner(opened.target, dst, options)
            source, place = _source(src, options, opened.target), _place(dst, opened.target)
            with _progress(as_json) as heard:
                packed = packing.pack(source, place, wanted, heard)
    else:
        _apart(Path(src), Path(dst))
        with _progress(as_json) as heard:
            packed = packing.pack(_source(src, options, None), _place(dst, None), wanted, heard)
    seconds = time.monotonic() - began
    for note in packed.notes:
        click.echo(f"note: {note}", err=True)
    index = packed.index
    if as_json:
        document = {**index.to_dict(), "destination": dst, "kept": packed.kept, "seconds": round(seconds, 3)}
        click.echo(json.dumps(document, indent=2))
        return 0
    there = f" ({packed.kept} were there)" if packed.kept else ""
    click.echo(
        f"{index.files:,} files, {index.samples:,} samples, {size(index.bytes)} in {len(index.shards)} shards"
        f"{there}: {dst.rstrip('/')}/{index.to_dict()['prefix']}"
    )
    return 0


def parse_size(text: str) -> int:
    """Bytes in ``150MB`` (powers of 1,000) or ``64MiB``. Raises ValueError with what is wrong."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(f"{text!r} is not a size; write a number with its unit, such as 150MB or 1GB")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def _wanted(options: dict[str, Any]) -> Wanted:
    from smlaunch.data.pack import SHARD_SIZE, Wanted

    text, count = options["shard_size"], options["shards"]
    problems = []
    if text is not None and count is not None:
        problems.append(Problem("--shards", "is given and --shard-size too; leave one of them out"))
    try:
        size = SHARD_SIZE if text is None else parse_size(text)
        if size < _SMALLEST:
            problems.append(
                Problem("--shard-size", f"{text} is less than a shard is worth; 1MB is the least")
            )
    except ValueError as error:
        problems.append(Problem("--shard-size", str(error)))
    if problems:
        raise JobError(problems)
    return Wanted(
        size,
        count,
        options["hosts"],
        options["group"],
        options["resume"],
        options["workers"],
        options["checksum"],
    )


def _source(src: str, options: dict[str, Any], target: Target | None) -> Source:
    from smlaunch.data.pack import FolderSource

    if target is None or not src.startswith("s3://"):
        return FolderSource(
            Path(src),
            engine=options["engine"],
            follow_links=options["follow_links"],
            workers=options["workers"],
        )
    from smlaunch.data.pack_s3 import S3Source, quick_fetch
    from smlaunch.data.transfer_obstore import by_obstore

    bucket, prefix = _address(src, "SRC")
    quick = by_obstore(target.s3(anyones=True), target.clients, target.owner_for(anyones=True))
    fetch = quick_fetch(quick, target.inputs, bucket) if quick is not None else None
    return S3Source(target.inputs, bucket, prefix, fetch)


def _place(dst: str, target: Target | None) -> Place:
    if target is None or not dst.startswith("s3://"):
        from smlaunch.data.pack_place import FolderPlace

        return FolderPlace(Path(dst))
    from smlaunch.data.pack_s3 import S3Place

    return S3Place(target.storage, *_address(dst, "DST"), target.transfer)


def _address(uri: str, what: str) -> tuple[str, str]:
    found = split_s3(uri)
    if found is None:
        raise JobError([Problem(what, f"{uri} names no bucket")])
    return found


def _apart(src: Path, dst: Path) -> None:
    inner, outer = dst.resolve(), src.resolve()
    if inner == outer or outer in inner.parents:
        raise JobError([Problem("DST", f"{dst} lies in SRC: the shards would be packed too")])


class _Progress:
    """Shards done: a bar on a terminal, else a line now and then, so that a build log does not fill."""

    def __init__(self) -> None:
        self._began = self._told = time.monotonic()
        self._live = sys.stderr.isatty()

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._live:
            click.echo("\r\x1b[2K", err=True, nl=False)

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._live and now - self._told < _PLAIN_EVERY:
            return
        from smlaunch.cli.display import duration
        from smlaunch.planning.prose import size

        self._told = now
        rate = done / max(now - self._began, 0.001)
        left = f", {duration(round((total - done) / rate))} left" if done < total else ""
        text = f"packing {done / total:.0%}: {size(done)} of {size(total)}, {size(int(rate))}/s{left}"
        click.echo(f"\r\x1b[2K{text}" if self._live else text, err=True, nl=not self._live)


_PLAIN_EVERY = 5.0


def _progress(as_json: bool) -> Any:
    return nullcontext(lambda done, total: None) if as_json else _Progress()
