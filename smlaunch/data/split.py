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
from typing import Any, NamedTuple

import numpy as np

from smlaunch.data.bin_packing import (
    MAX_TOTAL_SIZE,
    RowCountLoads,
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
from smlaunch.storage import multiway_partitioning
from smlaunch.storage.multiway_partitioning import Number

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

_MAX_REBALANCE_ROUNDS = 6
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
    loads_by_row_count: RowCountLoads
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
        return 0 if self.method == multiway_partitioning.CONTIGUOUS else sum(self.row_counts)

    @cached_property
    def imbalance(self) -> float:
        """The fullest host's load relative to the least it can be (equal share or largest key): 1 is the
        optimum."""
        return multiway_partitioning.imbalance(self.loads, self.largest_size)

    @property
    def imbalance_by_row_count(self) -> float:
        """The same for the better of the two splits by count."""
        both_loads = (self.loads_by_row_count.contiguous, self.loads_by_row_count.round_robin)
        return min(multiway_partitioning.imbalance(loads, self.largest_size) for loads in both_loads)

    def hosts_of(self, start: int, stop: int) -> Any:
        """Return the host of each row from ``start`` up to ``stop``, an array of uint16."""
        return self.assignment.hosts_of(start, stop)


def split_sizes(sizes: Any, host_count: int, *, previous: Any = None) -> HostSplit:
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
        return split_size_blocks(blocks, len(size_array), host_count)
    return _split_with_previous(size_array, blocks, host_count, np.asarray(previous))


def to_size_array(values: Any) -> Any:
    """Return sizes as a one-dimensional array: int64 for integers, float64 for other numbers. Raises
    ValueError for anything else, and for sizes too large to be added up in 64 bits."""
    array = np.asarray(values)
    # Kinds of NumPy's types: i and u are integers with and without sign, f is float.
    if array.ndim != 1 or (array.dtype.kind not in "iuf" and array.size):
        raise ValueError(
            f"sizes must be a one-dimensional array of numbers, not {array.dtype} of shape {array.shape}"
        )
    if array.dtype.kind == "u" and array.size and int(array.max()) >= MAX_TOTAL_SIZE:
        raise ValueError(f"a size is {int(array.max())}: sizes must be less than 2**62 in all")
    return array.astype(np.float64 if array.dtype.kind == "f" else np.int64, copy=False)


def split_size_blocks(blocks: SizeBlocks, count: int, host_count: int) -> HostSplit:
    """Split ``count`` rows over hosts as ``split_sizes`` does, for sizes that come in blocks
    (``to_size_array``) and are read twice."""
    if not 1 <= host_count <= MAX_HOSTS:
        raise ValueError(f"{host_count} hosts: there may be 1 to {MAX_HOSTS}")
    scan = scan_sizes(blocks, count, host_count)
    if count <= multiway_partitioning.KARMARKAR_KARP_MAX_ITEMS:
        return _split_exactly(blocks, host_count, scan)
    ranges, loads = fill_hosts(blocks, count, scan, [0] * host_count)
    loads_by_count = scan.loads_by_row_count
    contiguous, round_robin = even_ranges(count, host_count), RoundRobinAssignment(host_count)
    candidates = [
        _SplitCandidate(multiway_partitioning.CONTIGUOUS, loads_by_count.contiguous, contiguous),
        _SplitCandidate(multiway_partitioning.ROUND_ROBIN, loads_by_count.round_robin, round_robin),
        _SplitCandidate(RANGES_METHOD, loads, ranges),
    ]
    best = min(candidates, key=lambda candidate: max(candidate.loads))
    return HostSplit(
        method=best.method,
        loads=tuple(best.loads),
        row_counts=best.assignment.row_counts(count),
        largest_size=scan.largest_size,
        loads_by_row_count=loads_by_count,
        assignment=best.assignment,
    )


class _SplitCandidate(NamedTuple):
    method: str
    loads: Sequence[Number]
    assignment: RangeAssignment | RoundRobinAssignment


def _split_exactly(blocks: SizeBlocks, host_count: int, scan: SizeScan) -> HostSplit:
    sizes = [size for block in blocks() for size in block.tolist()]
    best = multiway_partitioning.best_partition(sizes, host_count)
    assignment = TableAssignment(np.asarray(best.host_by_item, dtype=np.uint16))
    return HostSplit(
        method=best.method,
        loads=best.loads,
        row_counts=best.counts,
        largest_size=scan.largest_size,
        loads_by_row_count=scan.loads_by_row_count,
        assignment=assignment,
    )


# ---- after an earlier split --------------------------------------------------------------------------------


def _split_with_previous(
    sizes: Any, size_blocks: SizeBlocks, host_count: int, previous_hosts: Any
) -> HostSplit:
    """Split rows again after an earlier split: they keep their hosts. Only what a host has above an equal
    share of the sizes is released, and is assigned together with the new rows to hosts with less.

    ``size_blocks``: returns ``sizes`` in blocks. ``previous_hosts``: host of each row, negative for new rows.
    If a split by the number of rows would be better, all rows get the hosts of a split from scratch. Raises
    ValueError for ``previous_hosts`` of another shape or type."""
    if previous_hosts.shape != sizes.shape or (previous_hosts.size and previous_hosts.dtype.kind not in "iu"):
        raise ValueError("previous must be one whole number per size")
    fresh_split = split_size_blocks(size_blocks, len(sizes), host_count)
    is_host = (previous_hosts >= 0) & (previous_hosts < host_count)
    no_host = host_count  # stands for rows that still have to be assigned
    host_by_row = np.where(is_host, previous_hosts, no_host).astype(np.uint16)
    # No split's largest load is less than this.
    fair_load = multiway_partitioning.lower_bound(
        sum(fresh_split.loads), fresh_split.largest_size, host_count
    )
    loads = _rebalance(sizes, host_by_row, host_count, fair_load)
    if multiway_partitioning.imbalance(loads, fresh_split.largest_size) > fresh_split.imbalance_by_row_count:
        # A split by count must never be better, not even if it would move fewer rows.
        host_by_row = fresh_split.hosts_of(0, len(sizes))
        method, loads = fresh_split.method, list(fresh_split.loads)
    else:
        method = STABLE_METHOD
    is_moved = (previous_hosts >= 0) & (previous_hosts != host_by_row)
    moved_count_and_size = (int(np.count_nonzero(is_moved)), sizes[is_moved].sum().item())
    row_counts = np.bincount(host_by_row, minlength=host_count).tolist()
    return HostSplit(
        method=method,
        loads=tuple(loads),
        row_counts=tuple(row_counts),
        largest_size=fresh_split.largest_size,
        loads_by_row_count=fresh_split.loads_by_row_count,
        assignment=TableAssignment(host_by_row),
        moved=moved_count_and_size,
    )


def _rebalance(sizes: Any, host_by_row: Any, host_count: int, fair_load: Number) -> list[Number]:
    """Change ``host_by_row`` in place: assign the rows without a host (whose number is ``host_count``); then,
    as long as a host has more than ``fair_load`` (the least that the fullest host can have), release what is
    above it, and assign that too, for a few rounds. Return each host's load, the sum of its rows' sizes."""
    # First the new rows only: they may be enough to make the loads equal.
    loads = _assign_rows_without_host(sizes, host_by_row, host_count)
    for _ in range(_MAX_REBALANCE_ROUNDS - 1):
        for host in range(host_count):
            if loads[host] > fair_load * _MAX_IMBALANCE:  # so little more is equal enough
                rows_of_host = np.flatnonzero(host_by_row == host)
                released_rows = _choose_rows_to_release(sizes, rows_of_host, loads[host] - fair_load)
                host_by_row[released_rows] = host_count
        if not (host_by_row == host_count).any():
            break
        loads = _assign_rows_without_host(sizes, host_by_row, host_count)
    return loads


def _assign_rows_without_host(sizes: Any, host_by_row: Any, host_count: int) -> list[Number]:
    """Give each row without a host (whose number is ``host_count``) one, in place; return the hosts'
    loads."""
    unassigned_rows = np.flatnonzero(host_by_row == host_count)
    host_by_row[unassigned_rows] = _assign_rows_to_hosts(
        sizes[unassigned_rows], _host_loads(sizes, host_by_row, host_count)
    )
    return _host_loads(sizes, host_by_row, host_count)


def _host_loads(sizes: Any, host_by_row: Any, host_count: int) -> list[Number]:
    """Return the load of each host. Rows without a host have the number after the last host."""
    loads = np.zeros(host_count + 1, dtype=sizes.dtype)
    np.add.at(loads, host_by_row, sizes)
    host_loads: list[Number] = loads[:host_count].tolist()
    return host_loads


def _choose_rows_to_release(sizes: Any, rows: Any, excess_size: Number) -> Any:
    """Choose which of a host's ``rows`` to release so that their sizes add up to almost ``excess_size`` and
    not more. Several small rows rather than a large one, which might be too large for another host too.
    ``sizes``: of all rows."""
    rows = rows[np.argsort(sizes[rows], kind="stable")]
    released_rows: list[Any] = []
    while excess_size > 0:
        ascending_sizes = sizes[rows]
        # Small rows first, of at most a 16th of the excess; larger ones only if no small row fits.
        fitting = _find_largest_fitting(ascending_sizes, excess_size / _ROWS_PER_RELEASE, excess_size)
        fitting_sum = ascending_sizes[fitting].sum()
        if not fitting_sum:
            fitting = _find_largest_fitting(ascending_sizes, excess_size, excess_size)
            fitting_sum = ascending_sizes[fitting].sum()
        if not fitting_sum:  # none fits, or only rows of size 0
            break
        released_rows.append(rows[fitting])
        rows = np.delete(rows, fitting)
        excess_size -= fitting_sum.item()
    return np.concatenate(released_rows) if released_rows else rows[:0]


def _find_largest_fitting(ascending_sizes: Any, max_size: Number, max_sum: Number) -> slice:
    """Return the largest of the sizes that are at most ``max_size``, as many as add up to at most
    ``max_sum``."""
    end = int(np.searchsorted(ascending_sizes, max_size, side="right"))
    sums_from_largest = np.cumsum(ascending_sizes[:end][::-1])
    count = int(np.searchsorted(sums_from_largest, max_sum, side="right"))
    return slice(end - count, end)


def _assign_rows_to_hosts(sizes: Any, loads: list[Number]) -> Any:
    """Return a host for each row, given the hosts' present ``loads``."""
    if len(sizes) <= _MAX_DEALT_ROWS:
        return deal_largest_first(sizes, loads)

    def blocks() -> Iterator[Any]:
        for start in range(0, len(sizes), BLOCK_ROWS):
            yield sizes[start : start + BLOCK_ROWS]

    assignment, _ = fill_hosts(blocks, len(sizes), scan_sizes(blocks, len(sizes), len(loads)), loads)
    return assignment.hosts_of(0, len(sizes))
