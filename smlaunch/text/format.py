"""Text layout for a terminal, and sizes in bytes for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

WIDTH = 100


def wrap_bullets(mark: str, sentences: Iterable[str]) -> Iterator[str]:
    """Wrap each sentence behind a bullet."""
    for sentence in sentences:
        yield from wrap_paragraph(sentence, f"  {mark} ", "    ")


def wrap_paragraph(text: str, first: str, rest: str) -> list[str]:
    """Wrap text. ``first`` and ``rest``: prefixes of the first and of the other lines."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=False,
    )


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


def format_size(count: int) -> str:
    """Format bytes in powers of 1,000: ``1.3 MB``."""
    amount = float(count)
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if amount < 999.95 or unit == "TB":
            return f"{count:,} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1000
    raise AssertionError("TB has no upper bound")
