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
    """Return a string inside the open interval, near its middle for keys written with ``alphabet``.

    ``alphabet``: characters seen in keys so far, sorted. None if they form no such string, or if it would be
    longer than a key can be. Repeated on one of the halves, it finds where keys lie in a number of steps that
    grows with the length of their common prefix, not with their number.
    """
    position = 0
    if high is not None:
        while position < len(low) and position < len(high) and low[position] == high[position]:
            position += 1
        lower_character = low[position] if position < len(low) else ""
        candidates = [character for character in alphabet if lower_character < character < high[position]]
        if candidates:
            return _if_valid_key(high[:position] + candidates[len(candidates) // 2])
        if len(high) > position + 1:
            return _if_valid_key(high[: position + 1])
        position += 1
    while position <= len(low):
        lower_character = low[position] if position < len(low) else ""
        candidates = [character for character in alphabet if character > lower_character]
        if candidates:
            return _if_valid_key(low[:position] + candidates[len(candidates) // 2])
        position += 1
    return None


def _if_valid_key(text: str) -> str | None:
    return text if len(text.encode()) <= MAX_KEY_BYTES else None


def merge_ranges(ranges: Iterable[KeyRange]) -> list[KeyRange]:
    """Return the same keys in as few ranges as possible, in order."""
    result: list[KeyRange] = []
    for key_range in sorted(ranges, key=lambda covered: covered.after):
        if result and (result[-1].up_to is None or key_range.after <= result[-1].up_to):
            last = result[-1]
            if last.up_to is not None and (key_range.up_to is None or key_range.up_to > last.up_to):
                result[-1] = KeyRange(last.after, key_range.up_to)
        else:
            result.append(key_range)
    return result


def uncovered_ranges(covered: Iterable[KeyRange]) -> list[KeyRange]:
    """Return the ranges of all possible keys that ``covered`` leaves out, in order."""
    uncovered: list[KeyRange] = []
    after = ""
    for key_range in merge_ranges(covered):
        if key_range.after > after:
            uncovered.append(KeyRange(after, key_range.after))
        if key_range.up_to is None:
            return uncovered
        after = key_range.up_to
    return [*uncovered, KeyRange(after, None)]
