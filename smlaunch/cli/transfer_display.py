"""Progress of uploads and downloads: one moving line on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

import click

from smlaunch.cli.json_output import print_json
from smlaunch.cli.stdio import ERASE_LINE
from smlaunch.data.transfer_progress import TransferProgress
from smlaunch.text.format import format_elapsed

if TYPE_CHECKING:
    from smlaunch.aws.interfaces import TransferItem
    from smlaunch.data.folder_sync import SyncPlan

_PLAIN_LINE_SECONDS = 5.0
"""Seconds between two progress lines where stderr is not a terminal."""

_MIN_SUMMARY_SECONDS = 1.0
"""A transfer that took less gets no summary line."""


@dataclass
class TransferDisplay:
    """Shows the progress of one transfer on stderr."""

    active_verb: str
    past_verb: str
    err: TextIO = field(default_factory=lambda: sys.stderr)
    _last_line_seconds: float = 0.0

    def show(self, progress: TransferProgress) -> None:
        """Draw the transfer's progress: one line that changes on a terminal, otherwise a line every few
        seconds (``_PLAIN_LINE_SECONDS``). At the end of a transfer that took a while
        (``_MIN_SUMMARY_SECONDS``), a summary takes its place. ``active_verb``, ``past_verb``: such as
        ``uploading`` and ``uploaded``."""
        is_complete = progress.done_files >= progress.total_files
        is_terminal = self.err.isatty()
        if is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self.err.write(
                ERASE_LINE + ("" if is_complete else _progress_line(self.active_verb, progress)[:width])
            )
        elif not is_complete and progress.elapsed_seconds - self._last_line_seconds >= _PLAIN_LINE_SECONDS:
            self._last_line_seconds = progress.elapsed_seconds
            self.err.write(_progress_line(self.active_verb, progress) + "\n")
        if is_complete and progress.elapsed_seconds >= _MIN_SUMMARY_SECONDS:
            total_text = f"{progress.total_files:,} files, {format_megabytes(progress.total_bytes)}"
            elapsed = format_elapsed(round(progress.elapsed_seconds, 1))
            rate = f"{format_megabytes(round(progress.total_bytes / progress.elapsed_seconds))}/s"
            self.err.write(f"{self.past_verb} {total_text} in {elapsed} ({rate})\n")
        self.err.flush()


def transfer_files(
    transfer_items: Callable[[str, Sequence[TransferItem], Callable[[int, int], None]], None],
    sync_plan: SyncPlan,
    as_json: bool,
    *,
    active_verb: str,
    past_verb: str,
) -> None:
    """Transfer the items of a sync plan (files that differ between a folder and S3) with ``transfer_items``
    (bucket, items, callback for the progress), show the progress, and print a summary.

    ``active_verb``, ``past_verb``: such as ``uploading`` and ``uploaded``.
    """
    if sync_plan.items:
        on_progress = None if as_json else TransferDisplay(active_verb, past_verb).show
        transfer_items(
            sync_plan.bucket,
            sync_plan.items,
            TransferProgress(len(sync_plan.items), sync_plan.total_bytes, on_progress).add,
        )
    if as_json:
        summary = {
            "files": len(sync_plan.items),
            "bytes": sync_plan.total_bytes,
            "kept": sync_plan.unchanged_files,
        }
        print_json(summary)
    else:
        unchanged_text = f"; {sync_plan.unchanged_files:,} unchanged" if sync_plan.unchanged_files else ""
        size_text = format_megabytes(sync_plan.total_bytes)
        click.echo(f"{past_verb} {len(sync_plan.items):,} files, {size_text}{unchanged_text}")


def _progress_line(active_verb: str, progress: TransferProgress) -> str:
    facts = [f"{active_verb} {progress.done_files:,}/{progress.total_files:,} files"]
    facts.append(f"{progress.done_bytes / (1 << 20):,.1f}/{format_megabytes(progress.total_bytes)}")
    if progress.bytes_per_second > 0:
        facts.append(f"{format_megabytes(round(progress.bytes_per_second))}/s")
    remaining_seconds = progress.remaining_seconds
    if remaining_seconds is not None:
        facts.append(f"{format_elapsed(round(remaining_seconds))} left")
    return "  ".join(facts)


def format_megabytes(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):,.1f} MB"
