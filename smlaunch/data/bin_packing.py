"""Fill hosts with ranges of rows: the two passes over the sizes behind ``split``, whose docstring explains
the method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from smlaunch.data.host_assignment import RangeAssignment, even_ranges
from smlaunch.storage import multiway_partitioning
from smlaunch.storage.multiway_partitioning import Number

MAX_TOTAL_SIZE = 1 << 62
"""Sums are kept in 64 bits."""

_MAX_HEAD_ROWS = 1 << 15
"""Dealing largest first takes a microsecond per row."""

_MIN_HEAD_SHARE = 1e-5
"""Share of a host's load below which a row needs no special treatment."""

_MIN_AND_MAX_SMOOTHING_ROWS_PER_HOST = (16, 256)
"""Least and most per host. They compensate for one key as large as half of them together; only larger ones
belong to the head. Each of them may move when keys are added."""

_ROWS_PER_SMOOTHING_ROW = 256
"""Rows of a host for each of its smoothing rows, between least and most."""

SizeBlocks = Callable[[], Iterable[Any]]
"""Returns the sizes from the start each time it is called: int64 or float64 arrays, one after the other."""


@dataclass(frozen=True)
class RowCountLoads:
    """The load of each host in a split by count, for both orders in which keys may be dealt. SageMaker does
    not document which one ShardedByS3Key uses."""

    contiguous: tuple[Number, ...]
    round_robin: tuple[Number, ...]


# ---- the first pass ----------------------------------------------------------------------------------------


class RowsAndSizes(NamedTuple):
    """Some rows, in ascending order, with their sizes: two arrays."""

    rows: Any
    sizes: Any


@dataclass(frozen=True, eq=False)
class SizeScan:
    """The result of the first pass over the sizes."""

    total_size: Number
    largest_size: Number
    loads_by_row_count: RowCountLoads
    head_rows: RowsAndSizes
    """The largest keys."""
    smoothing_rows: RowsAndSizes
    """The regular sample, without rows of the head."""


def scan_sizes(size_blocks: SizeBlocks, row_count: int, host_count: int) -> SizeScan:
    """Read all sizes once and return what the second pass, which assigns rows to hosts, needs: the hosts'
    loads in the two ways to split by count, the largest rows (the head), and a regular sample of the others,
    whose rows are assigned last, to smooth what the ranges leave unequal.

    ``size_blocks``: returns the sizes of all rows in blocks, from the first row. Raises ValueError for sizes
    that cannot be used, or that are not ``row_count`` in all."""
    scanner = _SizeScanner(row_count, host_count)
    for block in size_blocks():
        if len(block):
            scanner.add_block(block)
    return scanner.result()


class _SizeScanner:
    """Makes a SizeScan from the sizes of all rows, which it gets block by block."""

    def __init__(self, row_count: int, host_count: int) -> None:
        self._row_count = row_count
        self._host_count = host_count
        self._rows_read = 0
        self._total_size: Number = 0
        self._largest_size: Number = 0
        self._even_range_ends = even_ranges(row_count, host_count).bounds
        self._sums_at_range_ends: list[Number] = [0] * (host_count + 1)
        self._round_robin_loads: list[Number] = [0] * host_count
        self._largest_rows = _LargestRows(_MAX_HEAD_ROWS)
        min_smoothing_rows, max_smoothing_rows = _MIN_AND_MAX_SMOOTHING_ROWS_PER_HOST
        smoothing_rows = row_count // host_count // _ROWS_PER_SMOOTHING_ROW
        self._smoothing_rows_per_host = min(max(smoothing_rows, min_smoothing_rows), max_smoothing_rows)
        # At most every eighth row is sampled.
        sample_count = min(self._smoothing_rows_per_host * host_count, row_count // 8)
        self._sample_stride = row_count // sample_count if sample_count else None
        """Distance of sampled rows; None for so few rows that none is sampled."""
        self._sampled_sizes: list[Any] = [np.zeros(0, dtype=np.int64)]

    def add_block(self, block: Any) -> None:
        """Add the sizes of the next rows. Raises ValueError for sizes that cannot be used."""
        start_row, stop_row = self._rows_read, self._rows_read + len(block)
        self._largest_size = max(self._largest_size, _largest_valid_size(block, start_row))
        running_sums = np.cumsum(block)
        self._add_sums_at_range_ends(running_sums, start_row)
        _add_round_robin_loads(self._round_robin_loads, block, start_row)
        self._largest_rows.add(block, start_row)
        if self._sample_stride is not None:
            first_sample = (self._sample_stride // 2 - start_row) % self._sample_stride
            # A copy: a view would keep the whole block in memory.
            self._sampled_sizes.append(block[first_sample :: self._sample_stride].copy())
        self._total_size += running_sums[-1].item()
        self._rows_read = stop_row
        if self._total_size >= MAX_TOTAL_SIZE:
            raise ValueError(
                f"sizes add up to {self._total_size} by row {stop_row}: they must be less than 2**62 in all"
            )

    def _add_sums_at_range_ends(self, running_sums: Any, start_row: int) -> None:
        """Note the sum of all sizes up to each end of an even range that lies in the block."""
        stop_row = start_row + len(running_sums)
        first_end, last_end = np.searchsorted(self._even_range_ends, (start_row + 1, stop_row + 1))
        for end in range(first_end, last_end):
            sum_in_block = running_sums[self._even_range_ends[end] - start_row - 1].item()
            self._sums_at_range_ends[end] = self._total_size + sum_in_block

    def result(self) -> SizeScan:
        """Return the result, after the last block. Raises ValueError if rows are missing or too many."""
        if self._rows_read != self._row_count:
            raise ValueError(f"{self._row_count} sizes were announced, but {self._rows_read} were read")
        sample = self._collect_sample()
        # A row belongs to the head if the sampled rows are too small to make up for it.
        max_ordinary_size = self._smoothing_rows_per_host / 2 * self._total_size / max(self._row_count, 1)
        ordinary_sizes = sample.sizes[sample.sizes <= max_ordinary_size]
        head_rows = self._largest_rows.rows_larger_than(
            max(ordinary_sizes.sum().item() / 2, _MIN_HEAD_SHARE * self._total_size) / self._host_count
        )
        is_not_in_head = np.isin(sample.rows, head_rows.rows, invert=True)
        sums = self._sums_at_range_ends
        contiguous_loads = tuple(sums[host + 1] - sums[host] for host in range(self._host_count))
        return SizeScan(
            total_size=self._total_size,
            largest_size=self._largest_size,
            loads_by_row_count=RowCountLoads(
                contiguous=contiguous_loads, round_robin=tuple(self._round_robin_loads)
            ),
            head_rows=head_rows,
            smoothing_rows=RowsAndSizes(sample.rows[is_not_in_head], sample.sizes[is_not_in_head]),
        )

    def _collect_sample(self) -> RowsAndSizes:
        sampled_rows: Any = []
        if self._sample_stride is not None:
            sampled_rows = np.arange(self._sample_stride // 2, self._row_count, self._sample_stride)
        return RowsAndSizes(np.asarray(sampled_rows, dtype=np.int64), np.concatenate(self._sampled_sizes))


def _largest_valid_size(block: Any, start: int) -> Number:
    """Return the largest size in a block of rows. Raises ValueError for a size that is negative or not
    finite, and for sizes that add up to 2**62 or more. ``start``: number of the block's first row."""
    smallest, largest = block.min().item(), block.max().item()
    if not (smallest >= 0 and largest < float("inf")):
        row = int(np.flatnonzero(~((block >= 0) & (block < float("inf"))))[0])
        raise ValueError(f"row {start + row} has size {block[row]}: sizes are finite and not negative")
    may_overflow = largest * len(block) >= MAX_TOTAL_SIZE  # a quick check that is usually enough
    if may_overflow and float(block.sum(dtype=np.float64)) >= MAX_TOTAL_SIZE:
        raise ValueError(f"rows from {start} on add up to 2**62 or more: sizes must be less in all")
    largest_size: Number = largest
    return largest_size


def _add_round_robin_loads(loads: list[Number], block: Any, start: int) -> None:
    """Add row ``i`` to host ``i % hosts``."""
    hosts = len(loads)
    full_rounds_rows = len(block) // hosts * hosts
    # As a table with a column per host: one pass over the memory instead of one per host.
    column_sums = block[:full_rounds_rows].reshape(-1, hosts).sum(axis=0).tolist()
    for index, size in enumerate(column_sums):
        loads[(start + index) % hosts] += size
    for index, size in enumerate(block[full_rounds_rows:].tolist()):
        loads[(start + full_rounds_rows + index) % hosts] += size


class _LargestRows:
    """The largest rows of a stream, up to a fixed number; the earlier ones of equal rows."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._threshold: Number = 0
        self._rows: list[Any] = []
        self._sizes: list[Any] = []
        self._row_count = 0

    def add(self, block: Any, start: int) -> None:
        candidate_rows = np.flatnonzero(block > self._threshold)
        self._rows.append(candidate_rows + start)
        self._sizes.append(block[candidate_rows])
        self._row_count += len(candidate_rows)
        if self._row_count > 2 * self._max_rows:
            self._drop_small_rows()

    def _drop_small_rows(self) -> None:
        rows, sizes = np.concatenate(self._rows), np.concatenate(self._sizes)
        surplus_count = len(sizes) - self._max_rows
        if surplus_count > 0:
            threshold = np.partition(sizes, surplus_count)[surplus_count]
            # Rows equal to the threshold are dropped: either all of them are large or none.
            is_larger = sizes > threshold
            rows, sizes = rows[is_larger], sizes[is_larger]
            self._threshold = max(self._threshold, threshold.item())
        self._rows, self._sizes, self._row_count = [rows], [sizes], len(rows)

    def rows_larger_than(self, size: Number) -> RowsAndSizes:
        """Return the rows that are larger than ``size``."""
        if not self._rows:
            return RowsAndSizes(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
        self._drop_small_rows()
        is_larger = self._sizes[0] > size
        return RowsAndSizes(self._rows[0][is_larger], self._sizes[0][is_larger])


# ---- the second pass ---------------------------------------------------------------------------------------


def fill_hosts(
    blocks: SizeBlocks, row_count: int, scan: SizeScan, initial_loads: Sequence[Number]
) -> tuple[RangeAssignment, list[Number]]:
    """Assign all rows to hosts that already have ``initial_loads``. Return the assignment and each host's
    final load."""
    loads = list(initial_loads)
    head_hosts = deal_largest_first(scan.head_rows.sizes, loads)
    exception_rows = np.concatenate((scan.head_rows.rows, scan.smoothing_rows.rows))
    order = np.argsort(exception_rows, kind="stable")
    remaining_size = (
        scan.total_size - sum(scan.head_rows.sizes.tolist()) - sum(scan.smoothing_rows.sizes.tolist())
    )
    if remaining_size > 0:
        bounds, range_loads = _cut_into_ranges(
            blocks, exception_rows[order], _cumulative_targets(loads, remaining_size), row_count
        )
    else:
        bounds, range_loads = even_ranges(row_count, len(loads)).bounds, [0] * len(loads)
    for host, size in enumerate(range_loads):
        loads[host] += size
    exception_hosts = np.concatenate((head_hosts, deal_largest_first(scan.smoothing_rows.sizes, loads)))
    return RangeAssignment(bounds, exception_rows[order], exception_hosts[order]), loads


def deal_largest_first(sizes: Any, loads: list[Number]) -> Any:
    """Return a host for each size, the largest dealt first; ``loads`` grow accordingly."""
    host_of = multiway_partitioning.assign_largest_first(sizes.tolist(), loads)
    for host, size in zip(host_of, sizes.tolist(), strict=True):
        loads[host] += size
    return np.asarray(host_of, dtype=np.uint16)


def _cumulative_targets(loads: Sequence[Number], remaining_size: Number) -> Any:
    """Divide ``remaining_size`` among hosts that have ``loads`` already, so that the least loaded ones reach
    the same level and the others get nothing. Return the running sums of what the hosts get: what the first
    host gets, what the first two get together, and so on."""
    level, ascending_loads = 0.0, sorted(loads)
    load_sum: Number = 0
    for host_count, load in enumerate(ascending_loads, 1):
        load_sum += load
        level = (remaining_size + load_sum) / host_count  # if only these least loaded hosts get some
        if host_count == len(ascending_loads) or level <= ascending_loads[host_count]:
            break
    return np.cumsum([max(0.0, level - load) for load in loads])


def _cut_into_ranges(
    size_blocks: SizeBlocks, exception_rows: Any, target_sums: Any, row_count: int
) -> tuple[Any, list[Number]]:
    """Cut the rows, in key order, into one range per host. Return the bounds of the ranges (one more than
    hosts), and the load of each range: the sum of its sizes.

    ``size_blocks`` yields the sizes, an array per block. ``exception_rows`` are assigned elsewhere: their
    sizes do not count. ``target_sums``: by host, the sum of all sizes up to which its range should reach. A
    row that a target falls into goes to the side that has more of it."""
    host_count = len(target_sums)
    bounds = np.zeros(host_count + 1, dtype=np.int64)
    bounds[-1] = row_count
    sums_at_bounds: list[Number] = [0] * (host_count + 1)
    sum_before_block: Number = 0
    block_start, host = 0, 0
    while host < host_count - 1 and target_sums[host] <= 0:
        host += 1  # a host whose range is empty
    for block in size_blocks():
        block_end = block_start + len(block)
        block = _zero_exception_sizes(block, block_start, exception_rows)  # with 0 as their sizes
        running_sums = np.cumsum(block)
        sum_after_block = sum_before_block + running_sums[-1].item() if len(block) else sum_before_block
        while host < host_count - 1 and target_sums[host] <= sum_after_block:  # ranges that end in the block
            rows_in_range, sum_at_bound = _cut_block(block, running_sums, sum_before_block, target_sums[host])
            # The sum of all sizes before the bound. Not before the range's start, if two targets fall into
            # one row.
            bounds[host + 1] = max(block_start + rows_in_range, bounds[host])
            sums_at_bounds[host + 1] = max(sum_at_bound, sums_at_bounds[host])
            host += 1
        sum_before_block, block_start = sum_after_block, block_end
    # The last range, and others whose target the rounded sums do not reach, end after the last row.
    bounds[host + 1 :] = row_count
    sums_at_bounds[host + 1 :] = [sum_before_block] * (host_count - host)
    range_loads = [sums_at_bounds[host + 1] - sums_at_bounds[host] for host in range(host_count)]
    return bounds, range_loads


def _zero_exception_sizes(block: Any, block_start: int, exception_rows: Any) -> Any:
    """Return a block's sizes with 0 for the exceptions, rows that are assigned elsewhere. ``block_start``:
    the block's first row."""
    first, last = np.searchsorted(exception_rows, (block_start, block_start + len(block)))
    if last > first:
        block = block.copy()
        block[exception_rows[first:last] - block_start] = 0
    return block


def _cut_block(
    block: Any, running_sums: Any, sum_before_block: Number, target_sum: Any
) -> tuple[int, Number]:
    """Return how many of the block's rows belong to the range that should end where the sum of all sizes is
    ``target_sum``, and the sum there. ``running_sums``: of the block's sizes."""
    target_row = int(np.searchsorted(running_sums, target_sum - sum_before_block))
    target_row = min(target_row, len(block) - 1)  # rounding of float sizes
    sum_after_row = sum_before_block + running_sums[target_row].item()
    size = block[target_row].item()
    includes_row = sum_after_row - target_sum <= size / 2
    return (target_row + 1, sum_after_row) if includes_row else (target_row, sum_after_row - size)
