"""Did you mean ...?: the nearest known word to one that is not known."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word spelled most like ``word``, whatever the case of its letters; None if none is near."""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    matches = get_close_matches(word.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[matches[0]] if matches else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A clause to put behind "X is unknown": the nearest word, or else all words there are.

    >>> did_you_mean("dpp", ["custom", "ddp"])
    ", did you mean 'ddp'?"
    >>> did_you_mean("zzz", ["custom", "ddp"])
    '; known: custom, ddp'
    """
    words = list(known)
    match = nearest(word, words)
    if match is not None:
        return f", did you mean {match!r}?"
    return "; known: " + ", ".join(words)
