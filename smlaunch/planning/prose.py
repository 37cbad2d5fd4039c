"""Sentences laid out for a terminal, and bytes as people say them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

WIDTH = 100


def bullets(mark: str, sentences: Iterable[str]) -> Iterator[str]:
    """Each sentence behind its mark, wrapped."""
    for sentence in sentences:
        yield from paragraph(sentence, f"  {mark} ", "    ")


def paragraph(text: str, first: str, rest: str) -> list[str]:
    """``first`` and ``rest``: what the lines begin with."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=False,
    )


def visible(line: str) -> str:
    """Paths and addresses may hold anything; a terminal must not act on it."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def some(names: Iterable[str], limit: int = 20, all_of_them: str = "") -> str:
    """The first names, in their order, and how many more there are. ``all_of_them``: where they stand."""
    shown = sorted(names)
    more = len(shown) - limit
    return ", ".join(map(visible, shown[:limit])) + (f" and {more:,} more{all_of_them}" if more > 0 else "")


def size(count: int) -> str:
    """Bytes as people say them, in powers of 1,000: ``1.3 MB``."""
    amount = float(count)
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if amount < 999.95 or unit == "TB":
            return f"{count:,} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1000
    raise AssertionError("TB takes whatever is left")
