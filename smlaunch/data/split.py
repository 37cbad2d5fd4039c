"""Split millions of keys over hosts by their sizes, in seconds and in bounded memory.

Dealing all keys largest first gets within a millionth of the optimum for a million keys, but needs a heap
operation for each. Here only a few thousand keys get one. In this order:

1. the *head*, keys many times as large as the mean: largest first; 2. the other keys, in key order: every
host in turn gets a range of keys, as much as it lacks to an equal share. Ranges
   cannot end inside a key, so each is off by up to one key;
3. the *smoothing rows*, a regular sample of keys left out of the ranges: largest first to the hosts that lack
most.

The sizes are read twice, block by block, and never held in memory: what remains is where ranges end, and the
host of each head key and smoothing row. Below ten thousand keys the planner's exact method does it all.

The result is never worse than a split by count: both ways to split by count are computed too, and the best
split is taken. Bound: the fullest host has at most what dealing the head alone gives it, or an equal share
and one key outside the head, whichever is more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from smlaunch.data.bin_packing import (
    MAX_TOTAL_SIZE,
    CountLoads,
    SizeBlocks,
    SizeScan,
    deal_largest_first,
    fill_hosts,
    scan_sizes,
)
from smlaunch.data.host_assignment import (
    HostAssignment,
    RangeAssignment,
    RoundRobinAssignment,
    TableAssignment,
    even_ranges,
)
from smlaunch.planner import partitioning
from smlaunch.planner.partitioning import Number

RANGES_METHOD = "largest first, then in key order"
STABLE_METHOD = "as before, what is new largest first"

MAX_HOSTS = 65_534
"""Hosts are stored in 16 bits."""

BLOCK_ROWS = 1 << 20
"""Keys processed together: 8 MB of sizes."""

_MAX_IMBALANCE = 1.0001
"""Below this, rows keep the host they have."""

_MAX_DEALT_ROWS = 1 << 15
"""Up to this many new rows, all are dealt largest first."""

_ROWS_PER_RELEASE = 16
"""A host releases about this many rows at a time, if it has small enough ones."""

_MAX_ROUNDS = 6
"""A large new row may, once assigned, push other rows from their host."""


@dataclass(frozen=True, eq=False)
class HostSplit:
    """Which host gets which row (key). Rows are numbered in the order of the sizes."""

    method: str
    loads: tuple[Number, ...]
    """The sum of sizes per host."""
    row_counts: tuple[int, ...]
    """The number of rows per host."""
    largest_size: Number
    by_count: CountLoads
    assignment: HostAssignment
    moved: tuple[int, Number] | None = None
    """With a previous split: how many of its rows have another host now, and the sum of their sizes."""

    @property
    def hosts(self) -> int:
        return len(self.loads)

    @property
    def range_bounds(self) -> tuple[int, ...] | None:
        """Where the ranges of ``RANGES_METHOD`` end: ``hosts + 1`` rows from 0; None for other methods."""
        return (
            tuple(self.assignment.bounds.tolist()) if isinstance(self.assignment, RangeAssignment) else None
        )

    @property
    def exception_count(self) -> int:
        """How many rows are in no range."""
        if isinstance(self.assignment, RangeAssignment):
            return len(self.assignment.exception_rows)
        return 0 if self.method == partitioning.CONTIGUOUS else sum(self.row_counts)

    @cached_property
    def imbalance(self) -> float:
        """The fullest host's load relative to the least it can be (equal share or largest key): 1 is the
        optimum."""
        return partitioning.imbalance(self.loads, self.largest_size)

    @property
    def imbalance_by_count(self) -> float:
        """The same for the better of the two splits by count."""
        both_loads = (self.by_count.contiguous, self.by_count.round_robin)
        return min(partitioning.imbalance(loads, self.largest_size) for loads in both_loads)

    def hosts_of(self, start: int, stop: int) -> Any:
        """Return the host of each row from ``start`` up to ``stop``, an array of uint16."""
        return self.assignment.hosts_of(start, stop)


def split(sizes: Any, host_count: int, *, previous: Any = None) -> HostSplit:
    """Split rows with these sizes (anything NumPy converts to an int64 or float64 array) over ``host_count``.

    ``previous``: the host each row had, -1 for a new row; rows then keep their host as far as the loads stay
    equal. Raises ValueError for sizes that are negative, not finite, or 2**62 and more in total, and for a
    number of hosts outside 1 to 65,534.
    """
    size_array = to_size_array(sizes)

    def blocks() -> Iterator[Any]:
        for start in range(0, len(size_array), BLOCK_ROWS):
            yield size_array[start : start + BLOCK_ROWS]

    if previous is None:
        return split_blocks(blocks, len(size_array), host_count)
    return _rebalance(size_array, blocks, host_count, np.asarray(previous))


def to_size_array(values: Any) -> Any:
    """Return a one-dimensional array: int64 for integers, float64 for other numbers. Raises ValueError for
    anything else."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.dtype.kind not in "iuf" and array.size):
        raise ValueError(
            f"sizes must be a one-dimensional array of numbers, not {array.dtype} of shape {array.shape}"
        )
    if array.dtype.kind == "u" and array.size and int(array.max()) >= MAX_TOTAL_SIZE:
        raise ValueError(f"a size is {int(array.max())}: sizes must be less than 2**62 in all")
    return array.astype(np.float64 if array.dtype.kind == "f" else np.int64, copy=False)


def split_blocks(blocks: SizeBlocks, count: int, host_count: int) -> HostSplit:
    """Like ``split``, for ``count`` rows that come in blocks (``to_size_array``), which are read twice."""
    if not 1 <= host_count <= MAX_HOSTS:
        raise ValueError(f"{host_count} hosts: there may be 1 to {MAX_HOSTS}")
    scan = scan_sizes(blocks, count, host_count)
    if count <= partitioning.KARMARKAR_KARP_MAX_ITEMS:
        return _split_exactly(blocks, host_count, scan)
    ranges, loads = fill_hosts(blocks, count, scan, [0] * host_count)
    by_count = scan.by_count
    candidates: list[tuple[str, Sequence[Number], RangeAssignment | RoundRobinAssignment]] = [
        (partitioning.CONTIGUOUS, by_count.contiguous, even_ranges(count, host_count)),
        (partitioning.ROUND_ROBIN, by_count.round_robin, RoundRobinAssignment(host_count)),
        (RANGES_METHOD, loads, ranges),
    ]
    method, host_loads, assignment = min(candidates, key=lambda candidate: max(candidate[1]))
    return HostSplit(
        method, tuple(host_loads), assignment.row_counts(count), scan.largest_size, by_count, assignment
    )


def _split_exactly(blocks: SizeBlocks, host_count: int, scan: SizeScan) -> HostSplit:
    sizes = [size for block in blocks() for size in block.tolist()]
    best = partitioning.best_partition(sizes, host_count)
    assignment = TableAssignment(np.asarray(best.host_by_item, dtype=np.uint16))
    return HostSplit(best.method, best.loads, best.counts, scan.largest_size, scan.by_count, assignment)


# ---- after an earlier split --------------------------------------------------------------------------------


def _rebalance(sizes: Any, blocks: SizeBlocks, host_count: int, previous: Any) -> HostSplit:
    """Split with a previous split: rows keep their host. Only a host's load above an equal share is released,
    and is assigned together with the new rows to hosts with less."""
    if previous.shape != sizes.shape or (previous.size and previous.dtype.kind not in "iu"):
        raise ValueError("previous must be one whole number per size")
    new_split = split_blocks(blocks, len(sizes), host_count)
    host_by_row = np.where((previous >= 0) & (previous < host_count), previous, host_count).astype(np.uint16)
    fair_load = partitioning.lower_bound(sum(new_split.loads), new_split.largest_size, host_count)
    loads = _host_loads(sizes, host_by_row, host_count)
    for round_number in range(_MAX_ROUNDS):
        overloaded_hosts = (
            [host for host in range(host_count) if loads[host] > fair_load * _MAX_IMBALANCE]
            if round_number
            else []
        )
        for host in overloaded_hosts:
            host_by_row[
                _rows_to_release(sizes, np.flatnonzero(host_by_row == host), loads[host] - fair_load)
            ] = host_count
        free_rows = np.flatnonzero(host_by_row == host_count)
        if round_number and not len(free_rows):
            break
        host_by_row[free_rows] = _assign_free_rows(
            sizes[free_rows], _host_loads(sizes, host_by_row, host_count)
        )
        loads = _host_loads(sizes, host_by_row, host_count)
    if partitioning.imbalance(loads, new_split.largest_size) > new_split.imbalance_by_count:
        # A split by count must never be better, not even if it would move fewer rows.
        host_by_row = new_split.hosts_of(0, len(sizes))
        method, loads = new_split.method, list(new_split.loads)
    else:
        method = STABLE_METHOD
    is_moved = (previous >= 0) & (previous != host_by_row)
    moved = (int(np.count_nonzero(is_moved)), sizes[is_moved].sum().item())
    row_counts = np.bincount(host_by_row, minlength=host_count).tolist()
    return HostSplit(
        method,
        tuple(loads),
        tuple(row_counts),
        new_split.largest_size,
        new_split.by_count,
        TableAssignment(host_by_row),
        moved,
    )


def _host_loads(sizes: Any, host_by_row: Any, host_count: int) -> list[Number]:
    """Return the load of each host. Rows without a host have the number after the last host."""
    loads = np.zeros(host_count + 1, dtype=sizes.dtype)
    np.add.at(loads, host_by_row, sizes)
    host_loads: list[Number] = loads[:host_count].tolist()
    return host_loads


def _rows_to_release(sizes: Any, rows: Any, excess_size: Number) -> Any:
    """Return some of a host's rows that hold almost ``excess_size`` and not more. Several small rows rather
    than a large one, which might be too large for another host too."""
    rows = rows[np.argsort(sizes[rows], kind="stable")]
    released = []
    while excess_size > 0:
        ascending_sizes = sizes[rows]
        for max_size in (excess_size / _ROWS_PER_RELEASE, excess_size):
            fitting_count = int(np.searchsorted(ascending_sizes, max_size, side="right"))
            sums = np.cumsum(ascending_sizes[:fitting_count][::-1])
            row_count = int(np.searchsorted(sums, excess_size, side="right"))
            if row_count and sums[row_count - 1]:
                break
        else:
            break
        released.append(rows[fitting_count - row_count : fitting_count])
        rows = np.delete(rows, np.s_[fitting_count - row_count : fitting_count])
        excess_size -= sums[row_count - 1].item()
    return np.concatenate(released) if released else rows[:0]


def _assign_free_rows(sizes: Any, loads: list[Number]) -> Any:
    """Return a host for each row, given the hosts' present ``loads``."""
    if len(sizes) <= _MAX_DEALT_ROWS:
        return deal_largest_first(sizes, loads)

    def blocks() -> Iterator[Any]:
        for start in range(0, len(sizes), BLOCK_ROWS):
            yield sizes[start : start + BLOCK_ROWS]

    assignment, _ = fill_hosts(blocks, len(sizes), scan_sizes(blocks, len(sizes), len(loads)), loads)
    return assignment.hosts_of(0, len(sizes))
