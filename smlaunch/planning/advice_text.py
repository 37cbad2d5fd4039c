"""Advice for people: what to do, why, what else there is, and what the times rest on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from smlaunch.planning.advice import FSX, PIPE, SHARED, TMPDIR, Advice, Way
from smlaunch.planning.prose import bullets, paragraph, size, visible

_INDENT = "    "

_WORDS = {"take": "take", "first": "do first", "works": "works too", "poor": "not here", "cannot": "cannot"}


def as_text(advice: Advice, uri: str) -> str:
    """``uri``: where the data are, in the user's words."""
    blocks = [[_headline(advice, uri)], [f"Take: {_taken(advice)}", *bullets("-", _reasons(advice))]]
    steps = list(_steps(advice, uri))
    if steps:
        blocks.append(["So", *(f"  {step}" for step in steps)])
    blocks.append(["The ways", *_ways(advice)])
    if advice.notes:
        blocks.append(["Watch out", *bullets("!", advice.notes)])
    assumed = (f"{row.what} ({row.kind}: {row.source})" for row in advice.assumed)
    blocks.append(["What this rests on", *bullets("-", assumed)])
    return "\n\n".join("\n".join(visible(line) for line in block) for block in blocks)


def in_a_line(advice: Advice) -> str:
    """For a plan, which has more to say than this."""
    before = f" ({advice.taken.before} before training)" if _waits(advice.taken) else ""
    return f"{_taken(advice)}{before}: {advice.reasons[0]}"


def _taken(advice: Advice) -> str:
    way, mode = advice.taken, advice.mode
    name = way.name if mode in (None, way.name) else f"{way.name}, by mode {mode}"
    return f"pack into tar shards first, then {name}" if advice.pack else name


def _headline(advice: Advice, uri: str) -> str:
    data, needs, machine = advice.data, advice.needs, advice.machine
    more = " or more" if data.at_least else ""
    amount = f"{data.files:,} file{'' if data.files == 1 else 's'}{more}, {size(data.bytes)}"
    if data.files > 1:
        amount += f", {size(round(data.mean))} on average"
        if data.median is not None and data.largest is not None:
            amount += f" (half of them at most {size(data.median)}, the largest {size(data.largest)})"
    often = (
        "" if needs.epochs is None else f", read {'once' if needs.epochs == 1 else f'{needs.epochs} times'}"
    )
    kind = f" x {machine.instance.name}" if machine.instance else ""
    hosts = f", on {machine.hosts} host{'' if machine.hosts == 1 else 's'}{kind}"
    return f"{uri}: {amount}{often}{hosts}"


def _reasons(advice: Advice) -> Iterator[str]:
    yield from (way.because + "." for way in advice.ways if way.verdict == "first")
    yield from advice.reasons


def _steps(advice: Advice, uri: str) -> Iterator[str]:
    where = shlex.quote(uri)
    packed = "s3://BUCKET/packed/" if advice.needs.place != "slurm" else "PACKED"
    if advice.pack:
        yield f"smlaunch data pack {where} {packed} --shard-size 150MB"
        where = packed
    if advice.mode is not None and advice.needs.place == "training":
        split = ",split=bytes" if advice.needs.split else ""
        yield f"smlaunch run train.py --input train={where},mode={advice.mode}{split}"
    elif advice.needs.place == "slurm" and advice.taken.name != SHARED:
        # As in the clusters' own tutorial: unpacked where only this job reads.
        yield 'mkdir "$SLURM_TMPDIR/data"'
        if advice.pack:
            yield f'for shard in {where}/*.tar; do tar -xf "$shard" -C "$SLURM_TMPDIR/data"; done'
        else:
            yield f'cp -r {where} "$SLURM_TMPDIR/data/"'


def _ways(advice: Advice) -> Iterator[str]:
    timed = advice.needs.place != "slurm"
    epochs = advice.needs.epochs
    rows = [("", "", *(("BEFORE TRAINING", "FIRST EPOCH", "EACH EPOCH") if timed else ()))]
    if timed and epochs is not None and epochs > 1:
        rows[0] += (f"ALL {epochs} EPOCHS",)
    for way in advice.ways:
        row: tuple[str, ...] = (way.name, _WORDS[way.verdict])
        if timed:
            row += tuple(
                "-" if span is None else str(span) for span in (way.before, way.first_epoch, way.epoch)
            )
            if epochs is not None and epochs > 1:
                total = way.total(epochs)
                row += ("-" if total is None else str(total),)
        rows.append(row)
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    if timed:
        yield lines[0]
    for line, way in zip(lines[1:], advice.ways, strict=True):
        yield line
        if way.verdict != "first":
            yield from paragraph(way.because, _INDENT, _INDENT)


def _waits(way: Way) -> bool:
    return way.before is not None and way.before.high >= 1 and way.name not in (FSX, PIPE, TMPDIR)
