"""Text layout for a terminal, and sizes in bytes and times in seconds for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

WIDTH = 100


def wrap_bullets(mark: str, sentences: Iterable[str], width: int = WIDTH) -> Iterator[str]:
    """Wrap each sentence behind a bullet."""
    for sentence in sentences:
        yield from wrap_paragraph(sentence, f"  {mark} ", "    ", width)


def wrap_paragraph(text: str, first: str, rest: str, width: int = WIDTH) -> list[str]:
    """Wrap text. ``first`` and ``rest``: prefixes of the first and of the other lines."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=False,
    )


def wrap_words(line: str, width: int, indent: str = "") -> list[str]:
    """Wrap one line between words to ``width`` columns; its own spaces stay. A word that is longer, such as a
    path, stays whole. ``indent``: in front of all lines but the first."""
    if len(line) <= width:
        return [line]
    leading_spaces = line[: len(line) - len(line.lstrip(" "))]
    return wrap_paragraph(line.lstrip(" "), leading_spaces, leading_spaces + indent, width) or [line]


def escape_unprintable(line: str) -> str:
    """Escape unprintable characters: paths and addresses must not control the terminal."""
    if line.isprintable():
        return line
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in line
    )


def list_names(names: Iterable[str], limit: int = 20, where_to_find_all: str = "") -> str:
    """The first names in order, and the number of the others. ``where_to_find_all``: a hint behind that
    number."""
    first_names = sorted(names)
    hidden_count = len(first_names) - limit
    return ", ".join(map(escape_unprintable, first_names[:limit])) + (
        f" and {hidden_count:,} more{where_to_find_all}" if hidden_count > 0 else ""
    )


def format_size(byte_count: int) -> str:
    """Format a number of bytes in powers of 1,000, such as ``999 bytes`` or ``1.3 MB``."""
    if byte_count < 1000:
        return "1 byte" if byte_count == 1 else f"{byte_count:,} bytes"
    amount = byte_count / 1000
    for unit in ("kB", "MB", "GB"):
        if amount < 999.95:  # above, it would be rounded to 1000.0
            return f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def format_elapsed(seconds: float) -> str:
    """Format seconds for people: ``0.4 s``, ``7 s``, ``12:04``, ``3:12:04``, ``2d 3:12:04``."""
    if seconds < 60:
        # From 9.95 s on, one decimal would show 10.0 s.
        return f"{seconds:.1f} s" if seconds < 9.95 and seconds != int(seconds) else f"{seconds:.0f} s"
    total_minutes, clock_seconds = divmod(int(seconds), 60)
    total_hours, clock_minutes = divmod(total_minutes, 60)
    days, clock_hours = divmod(total_hours, 24)
    clock = f"{clock_minutes}:{clock_seconds:02}"
    if total_hours:
        clock = f"{clock_hours}:{clock_minutes:02}:{clock_seconds:02}"
    return f"{days}d {clock}" if days else clock


def format_all_units(seconds: int) -> str:
    """``60d``, ``1d1h``, ``28d1s``: a duration as a job file takes it, exact however long it is."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    counts = zip((days, hours, minutes, rest), "dhms", strict=True)
    return "".join(f"{count}{unit}" for count, unit in counts if count) or "0s"


def format_dollars(amount: float) -> str:
    """``$14.18``; four decimals below one dollar, so that a small price is not shown as zero."""
    return f"${amount:,.2f}" if amount >= 1 or amount == 0 else f"${amount:.4f}"


def format_dollars_apart(first: float | None, second: float | None) -> tuple[str, str]:
    """Format two amounts of US dollars, with as many digits as they need to differ. None: an unknown one."""
    if first is None or second is None:
        return _known_or_unknown(first), _known_or_unknown(second)
    texts = format_dollars(first), format_dollars(second)
    digits = 4
    while first != second and texts[0] == texts[1] and digits <= 12:
        texts = f"${first:,.{digits}f}", f"${second:,.{digits}f}"
        digits += 1
    return texts


def _known_or_unknown(amount: float | None) -> str:
    return "an unknown amount" if amount is None else format_dollars(amount)


def format_dollar_range(dollar_range: tuple[float, float] | None) -> str:
    """Format the lowest and highest amount in US dollars: ``$25 to $67``; ``-`` if they are unknown."""
    if dollar_range is None:
        return "-"
    lowest, highest = (
        f"${amount:,.0f}" if amount >= 10 else format_dollars(amount) for amount in dollar_range
    )
    return highest if lowest == highest else f"{lowest} to {highest}"
