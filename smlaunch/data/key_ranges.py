"""Ranges of keys: where to cut a range, and which ranges a listing has not covered yet.

Pure functions. A range is ``(after, up_to]``, like a listing with StartAfter; ``after`` may be empty,
``up_to`` None (no end). Strings compare as their UTF-8 bytes do, since both compare by code point.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

MAX_KEY_BYTES = 1024
"""Bytes of UTF-8 (S3 user guide, object key names)."""


class KeyRange(NamedTuple):
    after: str
    up_to: str | None


def key_between(low: str, high: str | None, alphabet: Sequence[str]) -> str | None:
    """Return a key between ``low`` and ``high`` (both excluded; None: no end), near the middle for keys
    written with ``alphabet``.

    ``alphabet``: characters seen in keys so far, sorted. None if they form no such string, or if it would be
    longer than a key can be. Repeated on one of the halves, it finds where keys lie in a number of steps that
    grows with the length of their common prefix, not with their number.
    """
    position = 0
    if high is not None:
        # After the common prefix, of ``position`` characters, take a character between those of the two keys.
        while position < len(low) and position < len(high) and low[position] == high[position]:
            position += 1
        lower_character = low[position] if position < len(low) else ""
        candidates = [character for character in alphabet if lower_character < character < high[position]]
        if candidates:
            return _none_if_too_long(high[:position] + candidates[len(candidates) // 2])
        if len(high) > position + 1:  # high's own beginning is less than high
            return _none_if_too_long(high[: position + 1])
        position += 1
    # Every string with this beginning of low is below high: take a greater character than the next of low.
    while position <= len(low):
        lower_character = low[position] if position < len(low) else ""
        candidates = [character for character in alphabet if character > lower_character]
        if candidates:
            return _none_if_too_long(low[:position] + candidates[len(candidates) // 2])
        position += 1
    return None


def _none_if_too_long(text: str) -> str | None:
    return text if len(text.encode()) <= MAX_KEY_BYTES else None


def merge_ranges(ranges: Iterable[KeyRange]) -> list[KeyRange]:
    """Return the same keys in as few ranges as possible, in order. A range has the keys after ``after`` up to
    and including ``up_to`` (None: no end)."""
    merged_ranges: list[KeyRange] = []
    for key_range in sorted(ranges, key=lambda unmerged: unmerged.after):
        last_range = merged_ranges[-1] if merged_ranges else None
        if last_range is None or (last_range.up_to is not None and key_range.after > last_range.up_to):
            merged_ranges.append(key_range)
        # They overlap or adjoin: extend the last range if the new one reaches further.
        elif last_range.up_to is not None and (key_range.up_to is None or key_range.up_to > last_range.up_to):
            merged_ranges[-1] = KeyRange(last_range.after, key_range.up_to)
    return merged_ranges


def uncovered_ranges(covered: Iterable[KeyRange]) -> list[KeyRange]:
    """Return the ranges of all possible keys that ``covered`` leaves out, in order. A range has the keys
    after ``after`` up to and including ``up_to`` (None: no end)."""
    uncovered: list[KeyRange] = []
    after = ""
    for key_range in merge_ranges(covered):
        if key_range.after > after:
            uncovered.append(KeyRange(after, key_range.after))
        if key_range.up_to is None:
            return uncovered
        after = key_range.up_to
    return [*uncovered, KeyRange(after, None)]
