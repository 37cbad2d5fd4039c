"""Which host gets which row: ranges with exceptions, round robin, or a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class RangeAssignment:
    """Each host gets a range of rows, except for single rows (ascending) that go elsewhere."""

    bounds: Any
    """Where the ranges end: ``hosts + 1`` rows, from 0."""
    exception_rows: Any
    exception_hosts: Any

    def hosts_of(self, start: int, stop: int) -> Any:
        lengths = np.diff(np.clip(self.bounds, start, stop))
        hosts = np.repeat(np.arange(len(lengths), dtype=np.uint16), lengths)
        first, last = np.searchsorted(self.exception_rows, (start, stop))
        hosts[self.exception_rows[first:last] - start] = self.exception_hosts[first:last]
        return hosts

    def row_counts(self, rows: int) -> tuple[int, ...]:
        hosts = len(self.bounds) - 1
        range_hosts = np.searchsorted(self.bounds[1:-1], self.exception_rows, side="right")
        removed, added = (
            np.bincount(host_numbers, minlength=hosts) for host_numbers in (range_hosts, self.exception_hosts)
        )
        return tuple((np.diff(self.bounds) - removed + added).tolist())


@dataclass(frozen=True)
class RoundRobinAssignment:
    hosts: int

    def hosts_of(self, start: int, stop: int) -> Any:
        return (np.arange(start, stop) % self.hosts).astype(np.uint16)

    def row_counts(self, rows: int) -> tuple[int, ...]:
        return tuple((rows - host + self.hosts - 1) // self.hosts for host in range(self.hosts))


@dataclass(frozen=True, eq=False)
class TableAssignment:
    host_by_row: Any

    def hosts_of(self, start: int, stop: int) -> Any:
        return self.host_by_row[start:stop]


def even_ranges(count: int, host_count: int) -> RangeAssignment:
    no_rows = np.zeros(0, dtype=np.int64)
    return RangeAssignment(
        np.arange(host_count + 1, dtype=np.int64) * count // host_count, no_rows, no_rows.astype(np.uint16)
    )


HostAssignment = RangeAssignment | RoundRobinAssignment | TableAssignment
