"""Ranges of keys: where to cut one so that both sides have something to list, what a listing has still to do.

Pure. A range is ``(after, upto]``, like a listing with StartAfter; ``after`` may be empty, ``upto`` None: no
end. Strings compare as their UTF-8 bytes do, since both go by code point.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

LONGEST_KEY = 1024
"""Bytes of UTF-8 (S3 user guide, object key names)."""


class KeyRange(NamedTuple):
    after: str
    upto: str | None


def between(low: str, high: str | None, letters: Sequence[str]) -> str | None:
    """A string inside the open interval, in the middle as far as keys written with ``letters`` go.

    ``letters``: characters that keys have been seen to use, in order. None when these give no such string,
    or when it would be longer than a key can be. Repeated on one of the halves, it finds the place where keys
    lie in a number of steps that grows with the length they have in common, not with their number.
    """
    position = 0
    if high is not None:
        while position < len(low) and position < len(high) and low[position] == high[position]:
            position += 1
        floor = low[position] if position < len(low) else ""
        inner = [letter for letter in letters if floor < letter < high[position]]
        if inner:
            return _short(high[:position] + inner[len(inner) // 2])
        if len(high) > position + 1:
            return _short(high[: position + 1])
        position += 1
    while position <= len(low):
        floor = low[position] if position < len(low) else ""
        inner = [letter for letter in letters if letter > floor]
        if inner:
            return _short(low[:position] + inner[len(inner) // 2])
        position += 1
    return None


def _short(text: str) -> str | None:
    return text if len(text.encode()) <= LONGEST_KEY else None


def joined(ranges: Iterable[KeyRange]) -> list[KeyRange]:
    """The same keys in as few ranges as there can be, in order."""
    result: list[KeyRange] = []
    for one in sorted(ranges, key=lambda one: one.after):
        if result and (result[-1].upto is None or one.after <= result[-1].upto):
            last = result[-1]
            if last.upto is not None and (one.upto is None or one.upto > last.upto):
                result[-1] = KeyRange(last.after, one.upto)
        else:
            result.append(one)
    return result


def rest(covered: Iterable[KeyRange]) -> list[KeyRange]:
    """What these leave of all keys, in order."""
    left: list[KeyRange] = []
    after = ""
    for one in joined(covered):
        if one.after > after:
            left.append(KeyRange(after, one.after))
        if one.upto is None:
            return left
        after = one.upto
    return [*left, KeyRange(after, None)]
