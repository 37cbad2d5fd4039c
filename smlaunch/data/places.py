"""Which host has which row: ranges with exceptions, in turn, or a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Ranges:
    """Every host a range of rows, but for lone rows (ascending) that go elsewhere."""

    bounds: Any
    lone_rows: Any
    lone_hosts: Any

    def hosts_of(self, start: int, stop: int) -> Any:
        lengths = np.diff(np.clip(self.bounds, start, stop))
        found = np.repeat(np.arange(len(lengths), dtype=np.uint16), lengths)
        first, last = np.searchsorted(self.lone_rows, (start, stop))
        found[self.lone_rows[first:last] - start] = self.lone_hosts[first:last]
        return found

    def counts(self, rows: int) -> tuple[int, ...]:
        hosts = len(self.bounds) - 1
        left = np.searchsorted(self.bounds[1:-1], self.lone_rows, side="right")
        gone, come = (np.bincount(which, minlength=hosts) for which in (left, self.lone_hosts))
        return tuple((np.diff(self.bounds) - gone + come).tolist())


@dataclass(frozen=True)
class InTurn:
    hosts: int

    def hosts_of(self, start: int, stop: int) -> Any:
        return (np.arange(start, stop) % self.hosts).astype(np.uint16)

    def counts(self, rows: int) -> tuple[int, ...]:
        return tuple((rows - host + self.hosts - 1) // self.hosts for host in range(self.hosts))


@dataclass(frozen=True, eq=False)
class Table:
    table: Any

    def hosts_of(self, start: int, stop: int) -> Any:
        return self.table[start:stop]


def even(count: int, hosts: int) -> Ranges:
    none = np.zeros(0, dtype=np.int64)
    return Ranges(np.arange(hosts + 1, dtype=np.int64) * count // hosts, none, none.astype(np.uint16))


Places = Ranges | InTurn | Table
