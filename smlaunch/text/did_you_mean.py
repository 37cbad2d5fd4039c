"""Suggests the known word that is most similar to an unknown one."""

from __future__ import annotations

import re
from collections.abc import Iterable


def nearest_match(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the most similar known word, without regard to case; None if none is similar. ``cutoff``: the
    least similarity, between 0 and 1."""
    from difflib import get_close_matches  # a millisecond, and seldom needed

    by_folded = {candidate.casefold(): candidate for candidate in known}
    matches = get_close_matches(word.casefold(), by_folded, n=1, cutoff=cutoff)
    if matches:
        return by_folded[matches[0]]
    parts = re.split(r"[-_. ]", word.casefold())  # pytorch-ddp means ddp
    return next((by_folded[part] for part in parts if len(part) > 2 and part in by_folded), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a clause to put behind "X is unknown": the most similar word, or else all known words.

    >>> did_you_mean("dpp", ["custom", "ddp"])
    ", did you mean 'ddp'?"
    >>> did_you_mean("zzz", ["custom", "ddp"])
    '; known: custom, ddp'
    """
    known_words = list(known)
    match = nearest_match(word, known_words)
    if match is not None:
        return f", did you mean {match!r}?"
    return "; known: " + ", ".join(known_words)
