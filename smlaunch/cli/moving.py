"""The line that shows how far a transfer is; without a terminal, a plain one now and then."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

import click

from smlaunch.cli.display import duration
from smlaunch.data.tally import Tally

if TYPE_CHECKING:
    from smlaunch.data.mirror import Mirror
    from smlaunch.ports import Parcel

_PLAIN_EVERY = 5.0
"""Seconds between two lines where there is no terminal, as for a run's progress."""

_WORTH_SUMMING_UP = 1.0
"""Seconds. What was over at once needs no last line."""


@dataclass
class Moving:
    """``doing`` and ``done``: ``uploading`` and ``uploaded``."""

    doing: str
    done: str
    err: TextIO = field(default_factory=lambda: sys.stderr)
    _told: float = 0.0

    def show(self, tally: Tally) -> None:
        over = tally.done_files >= tally.files
        live = self.err.isatty()
        if live:
            width = shutil.get_terminal_size().columns - 1
            self.err.write("\r\x1b[2K" + ("" if over else _line(self.doing, tally)[:width]))
        elif not over and tally.elapsed - self._told >= _PLAIN_EVERY:
            self._told = tally.elapsed
            self.err.write(_line(self.doing, tally) + "\n")
        if over and tally.elapsed >= _WORTH_SUMMING_UP:
            what = f"{tally.files:,} files, {megabytes(tally.size)}"
            rate = f"{megabytes(round(tally.size / tally.elapsed))}/s"
            self.err.write(f"{self.done} {what} in {duration(round(tally.elapsed, 1))} ({rate})\n")
        self.err.flush()


def move(
    way: Callable[[str, Sequence[Parcel], Callable[[int, int], None]], None],
    found: Mirror,
    words: tuple[str, str],
    as_json: bool,
) -> None:
    """Moves what is to be moved, shows how far it is, and says in the end what has become of it."""
    if found.parcels:
        watch = None if as_json else Moving(*words).show
        way(found.bucket, found.parcels, Tally(len(found.parcels), found.size, watch).add)
    if as_json:
        facts = {"files": len(found.parcels), "bytes": found.size, "kept": found.kept}
        click.echo(json.dumps(facts, indent=2))
    else:
        kept = f"; {found.kept:,} were there already" if found.kept else ""
        click.echo(f"{words[1]} {len(found.parcels):,} files, {megabytes(found.size)}{kept}")


def _line(doing: str, tally: Tally) -> str:
    facts = [f"{doing} {tally.done_files:,}/{tally.files:,} files"]
    facts.append(f"{tally.done / (1 << 20):,.1f}/{megabytes(tally.size)}")
    if tally.rate > 0:
        facts.append(f"{megabytes(round(tally.rate))}/s")
    left = tally.left
    if left is not None:
        facts.append(f"{duration(round(left))} left")
    return "  ".join(facts)


def megabytes(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MB"
