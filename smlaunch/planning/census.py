"""What data are made of, as far as that decides how to read them: how many files, how large, which kind."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from smlaunch.catalog.storage import figure

TABLES = r"(?i)\.(csv|tsv|json|jsonl|ndjson|log|txt|xml)(\.(gz|bz2|zst|xz))?$"
"""Text that a program has to parse line by line. The expression is one for RE2 too."""

_TABLE = re.compile(TABLES)

_BUCKETS = 64


@dataclass(frozen=True)
class DataFacts:
    """``files`` and ``bytes``; ``at_least``: counting was ended early. ``median``: no more than half of the
    files are larger than that many bytes, rounded up to a power of two; ``small``: files under 50 MB;
    ``tables``: bytes in files of text tables, by their names. None where only the sum is known."""

    files: int
    bytes: int
    at_least: bool = False
    median: int | None = None
    largest: int | None = None
    small: int | None = None
    tables: int | None = None

    @property
    def mean(self) -> float:
        return self.bytes / self.files if self.files else 0.0

    @property
    def are_small(self) -> bool:
        """Half of the files or more are small, as AWS means it; the mean decides where nothing else is
        known."""
        limit = figure("small_file_bytes").low
        if self.small is not None:
            return 2 * self.small >= self.files > 0
        return 0 < self.mean < limit

    def to_dict(self) -> dict[str, Any]:
        return {
            "files": self.files,
            "bytes": self.bytes,
            "at_least": self.at_least,
            "mean": round(self.mean),
            "median": self.median,
            "largest": self.largest,
            "small_files": self.small,
            "table_bytes": self.tables,
        }


@dataclass
class Census:
    """Counts files one by one or by the column; the memory it takes does not grow."""

    files: int = 0
    bytes: int = 0
    largest: int = 0
    small: int = 0
    tables: int = 0
    _buckets: list[int] = field(default_factory=lambda: [0] * _BUCKETS)

    def add(self, name: str, size: int) -> None:
        self.files += 1
        self.bytes += size
        self.largest = max(self.largest, size)
        self._buckets[size.bit_length()] += 1
        if size < figure("small_file_bytes").low:
            self.small += 1
        if _TABLE.search(name):
            self.tables += size

    def add_counted(
        self, buckets: Mapping[int, int], total: int, largest: int, small: int, tables: int
    ) -> None:
        """``buckets``: how many files by the bit length of their size; ``total`` and ``tables`` in bytes."""
        for length, count in buckets.items():
            self._buckets[length] += count
            self.files += count
        self.bytes += total
        self.largest = max(self.largest, largest)
        self.small += small
        self.tables += tables

    def facts(self, at_least: bool = False) -> DataFacts:
        return DataFacts(
            self.files, self.bytes, at_least, self._median(), self.largest, self.small, self.tables
        )

    def _median(self) -> int:
        seen = 0
        for length, count in enumerate(self._buckets):
            seen += count
            if 2 * seen >= self.files:
                return min(self.largest, (1 << length) - 1)
        return self.largest
