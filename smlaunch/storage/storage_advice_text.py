"""Storage advice as text: the chosen option, the commands, the alternatives and the assumptions."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from smlaunch.storage.read_time_estimates import EstimateRange
from smlaunch.storage.storage_advice import StorageAdvice
from smlaunch.storage.storage_options import FSX, PIPE, SHARED_STORAGE, TMPDIR, StorageOption
from smlaunch.text.format import escape_unprintable, format_size, wrap_bullets, wrap_paragraph

_INDENT = "    "

_VERDICT_TEXT = {
    "take": "take",
    "first": "do first",
    "works": "works too",
    "poor": "not here",
    "cannot": "cannot",
}


def as_text(advice: StorageAdvice, uri: str) -> str:
    """Render the advice for a terminal. ``uri``: the address of the data as the user wrote it."""
    blocks = [
        [_dataset_line(advice, uri)],
        [f"Take: {_chosen_text(advice)}", *wrap_bullets("-", _reason_sentences(advice))],
    ]
    command_lines = list(_shell_commands(advice, uri))
    if command_lines:
        blocks.append(["Commands", *(f"  {step}" for step in command_lines)])
    blocks.append(["Options", *_option_table_lines(advice)])
    if advice.notes:
        blocks.append(["Warnings", *wrap_bullets("!", advice.notes)])
    assumption_lines = (f"{figure.what} ({figure.kind}: {figure.source})" for figure in advice.assumptions)
    blocks.append(["Assumptions", *wrap_bullets("-", assumption_lines)])
    return "\n\n".join("\n".join(escape_unprintable(line) for line in block) for block in blocks)


def format_advice_line(advice: StorageAdvice) -> str:
    """Summarize the advice in one line, for a plan."""
    startup_text = f" ({advice.chosen.startup} before training)" if _has_startup(advice.chosen) else ""
    return f"{_chosen_text(advice)}{startup_text}: {advice.reasons[0]}"


def _chosen_text(advice: StorageAdvice) -> str:
    """The chosen option with its input mode."""
    option, mode = advice.chosen, advice.mode
    option_name = option.name if mode in (None, option.name) else f"{option.name}, by mode {mode}"
    return f"pack into tar shards first, then {option_name}" if advice.pack_first else option_name


def _dataset_line(advice: StorageAdvice, uri: str) -> str:
    """Return a line with the address, size and files of the data, how often it is read and by which hosts."""
    dataset, access, host = advice.dataset, advice.access, advice.host
    more_text = " or more" if dataset.is_truncated else ""
    amount_text = (
        f"{dataset.files:,} file{'' if dataset.files == 1 else 's'}{more_text}, {format_size(dataset.bytes)}"
    )
    if dataset.files > 1:
        amount_text += f", {format_size(round(dataset.mean_bytes))} on average"
        if dataset.median_bytes is not None and dataset.largest_bytes is not None:
            amount_text += (
                f" (half of them at most {format_size(dataset.median_bytes)}, the largest "
                f"{format_size(dataset.largest_bytes)})"
            )
    texts = [amount_text]
    if access.epochs is not None:
        texts.append("read once" if access.epochs == 1 else f"read {access.epochs} times")
    instance_text = f" x {host.instance.name}" if host.instance else ""
    texts.append(f"on {host.hosts} host{'' if host.hosts == 1 else 's'}{instance_text}")
    return f"{uri}: {', '.join(texts)}"


def _reason_sentences(advice: StorageAdvice) -> Iterator[str]:
    yield from (option.explanation + "." for option in advice.options if option.verdict == "first")
    yield from advice.reasons


def _shell_commands(advice: StorageAdvice, uri: str) -> Iterator[str]:
    """Yield the shell commands that follow the advice. ``uri``: address of the data."""
    data_location = shlex.quote(uri)
    packed_location = "s3://BUCKET/packed/" if advice.access.platform != "slurm" else "PACKED"
    if advice.pack_first:
        yield f"smlaunch data pack {data_location} {packed_location} --shard-size 150MB"
        data_location = packed_location
    # mode: input mode of a channel that follows the advice; None for other storage.
    if advice.mode is not None and advice.access.platform == "training":
        split_option = ",split=bytes" if advice.access.is_data_split else ""
        yield f"smlaunch run train.py --input train={data_location},mode={advice.mode}{split_option}"
    elif advice.access.platform == "slurm" and advice.chosen.name != SHARED_STORAGE:
        # As in the clusters' own tutorial: unpacked where only this job reads.
        yield 'mkdir "$SLURM_TMPDIR/data"'
        if advice.pack_first:
            yield f'for shard in {data_location}/*.tar; do tar -xf "$shard" -C "$SLURM_TMPDIR/data"; done'
        else:
            yield f'cp -r {data_location} "$SLURM_TMPDIR/data/"'


def _option_table_lines(advice: StorageAdvice) -> Iterator[str]:
    """Yield the lines of a table of the options with their estimated times, each with its explanation."""
    has_times = advice.access.platform != "slurm"
    epochs = advice.access.epochs or 1  # a total is shown of several
    heading = ["", ""]
    if has_times:
        heading += ["BEFORE TRAINING", "FIRST EPOCH", "EACH EPOCH"]
    if has_times and epochs > 1:
        heading.append(f"ALL {epochs} EPOCHS")
    table_rows = [heading]
    for option in advice.options:
        times: list[EstimateRange | None] = []  # None: unknown
        if has_times:
            times += [option.startup, option.first_epoch, option.later_epoch]
        if has_times and epochs > 1:
            times.append(option.total_time(epochs))
        time_texts = ["-" if time_range is None else str(time_range) for time_range in times]
        table_rows.append([option.name, _VERDICT_TEXT[option.verdict], *time_texts])
    heading_line, *option_lines = _align_columns(table_rows)
    # Without times the table needs no heading.
    if has_times:
        yield heading_line
    for line, option in zip(option_lines, advice.options, strict=True):
        yield line
        # What to do first is explained above the table.
        if option.verdict != "first":
            yield from wrap_paragraph(option.explanation, _INDENT, _INDENT)


def _align_columns(table_rows: list[list[str]]) -> Iterator[str]:
    """Yield the rows as indented lines, with the cells of a column below each other."""
    column_widths = [max(map(len, column_cells)) for column_cells in zip(*table_rows, strict=True)]
    for cells in table_rows:
        padded_cells = (cell.ljust(width) for cell, width in zip(cells, column_widths, strict=True))
        yield "  " + "  ".join(padded_cells).rstrip()


def _has_startup(option: StorageOption) -> bool:
    """Whether training waits noticeably before it begins."""
    return option.startup is not None and option.startup.high >= 1 and option.name not in (FSX, PIPE, TMPDIR)
