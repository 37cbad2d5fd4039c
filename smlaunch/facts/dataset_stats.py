"""Statistics of a data set that decide how to read it: number, size and type of its files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from smlaunch.catalog.storage import storage_figure

TABLE_PATTERN = r"(?i)\.(csv|tsv|json|jsonl|ndjson|log|txt|xml)(\.(gz|bz2|zst|xz))?$"
"""Names of text tables, which a program must parse line by line. Valid in RE2 too."""

_TABLE_NAME = re.compile(TABLE_PATTERN)

_BUCKET_COUNT = 64


@dataclass(frozen=True)
class DatasetStats:
    """Number, size and type of the files of a data set. None: only the totals are known."""

    files: int
    bytes: int
    is_truncated: bool = False
    """Counting stopped early: there are at least this many files and bytes."""

    median_bytes: int | None = None
    """Median file size, rounded up to a power of two."""

    largest_bytes: int | None = None
    small_files: int | None = None
    """Number of files under 50 MB."""

    table_bytes: int | None = None
    """Bytes in text tables, by file name."""

    @property
    def mean_bytes(self) -> float:
        return self.bytes / self.files if self.files else 0.0

    @property
    def has_small_files(self) -> bool:
        """Whether at least half of the files are small by AWS's definition; if file sizes are unknown, by
        the mean."""
        limit = storage_figure("small_file_bytes").low
        if self.small_files is not None:
            return 2 * self.small_files >= self.files > 0
        return 0 < self.mean_bytes < limit

    def to_dict(self) -> dict[str, Any]:
        return {
            "files": self.files,
            "bytes": self.bytes,
            "at_least": self.is_truncated,
            "mean": round(self.mean_bytes),
            "median": self.median_bytes,
            "largest": self.largest_bytes,
            "small_files": self.small_files,
            "table_bytes": self.table_bytes,
        }


@dataclass
class DatasetCounter:
    """Counts files one at a time or by column, in constant memory."""

    files: int = 0
    bytes: int = 0
    largest_bytes: int = 0
    small_files: int = 0
    table_bytes: int = 0
    _buckets: list[int] = field(default_factory=lambda: [0] * _BUCKET_COUNT)

    def add(self, name: str, size: int) -> None:
        self.files += 1
        self.bytes += size
        self.largest_bytes = max(self.largest_bytes, size)
        self._buckets[size.bit_length()] += 1
        if size < storage_figure("small_file_bytes").low:
            self.small_files += 1
        if _TABLE_NAME.search(name):
            self.table_bytes += size

    def add_histogram(
        self, buckets: Mapping[int, int], total_seconds: int, largest: int, small: int, table_count: int
    ) -> None:
        """Add files counted elsewhere. ``buckets``: number of files by the bit length of their size;
        ``total`` and ``table_bytes`` in bytes."""
        for length, count in buckets.items():
            self._buckets[length] += count
            self.files += count
        self.bytes += total_seconds
        self.largest_bytes = max(self.largest_bytes, largest)
        self.small_files += small
        self.table_bytes += table_count

    def stats(self, is_truncated: bool = False) -> DatasetStats:
        return DatasetStats(
            self.files,
            self.bytes,
            is_truncated,
            self._median_bytes(),
            self.largest_bytes,
            self.small_files,
            self.table_bytes,
        )

    def _median_bytes(self) -> int:
        """Upper bound of the median file size, a power of two."""
        counted_files = 0
        for length, count in enumerate(self._buckets):
            counted_files += count
            if 2 * counted_files >= self.files:
                return min(self.largest_bytes, (1 << length) - 1)
        return self.largest_bytes
