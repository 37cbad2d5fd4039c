"""Fill hosts with ranges of rows: the two passes over the sizes behind ``split``, whose docstring explains
the method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smlaunch.data.host_assignment import RangeAssignment, even_ranges
from smlaunch.planner import partitioning
from smlaunch.planner.partitioning import Number

MAX_TOTAL_SIZE = 1 << 62
"""Sums are kept in 64 bits."""

_MAX_HEAD_ROWS = 1 << 15
"""Dealing largest first takes a microsecond per row."""

_MIN_HEAD_SHARE = 1e-5
"""Share of a host's load below which a row needs no special treatment."""

_SMOOTHING_ROWS_PER_HOST = (16, 256)
"""Least and most per host. They compensate for one key as large as half of them together; only larger ones
belong to the head. Each of them may move when keys are added."""

_ROWS_PER_SMOOTHING_ROW = 256
"""Rows of a host for each of its smoothing rows, between least and most."""

SizeBlocks = Callable[[], Iterable[Any]]
"""Returns the sizes from the start each time it is called: int64 or float64 arrays, one after the other."""


@dataclass(frozen=True)
class CountLoads:
    """The load of each host in a split by count, for both orders in which keys may be dealt. SageMaker does
    not document which one ShardedByS3Key uses."""

    contiguous: tuple[Number, ...]
    round_robin: tuple[Number, ...]


# ---- the first pass ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SizeScan:
    """The result of the first pass over the sizes."""

    total_size: Number
    largest_size: Number
    by_count: CountLoads
    head: tuple[Any, Any]
    """Rows (ascending) and sizes of the largest keys."""
    smoothing_rows: tuple[Any, Any]
    """Rows (ascending) and sizes of the regular sample, without rows of the head."""


def scan_sizes(blocks: SizeBlocks, count: int, host_count: int) -> SizeScan:
    """Read all sizes once and return what the second pass needs: loads of two simple ways to split, the
    largest rows, and a sample of the others. ``blocks``: returns all sizes in blocks, from the beginning.
    ``count``: number of sizes."""
    range_ends = even_ranges(count, host_count).bounds
    sums_at_ends: list[Number] = [0] * (host_count + 1)
    round_robin_loads: list[Number] = [0] * host_count
    smoothing_rows_per_host = min(
        max(count // host_count // _ROWS_PER_SMOOTHING_ROW, _SMOOTHING_ROWS_PER_HOST[0]),
        _SMOOTHING_ROWS_PER_HOST[1],
    )
    sample_count = min(smoothing_rows_per_host * host_count, count // 8)
    sample_stride = count // sample_count if sample_count else 1
    largest_rows = _LargestRows(_MAX_HEAD_ROWS)
    samples: list[Any] = []
    total: Number = 0
    largest: Number = 0
    start_row = 0
    for block in blocks():
        if not len(block):
            continue
        stop_row = start_row + len(block)
        largest = max(largest, _checked_largest(block, start_row))
        running_sums = np.cumsum(block)
        first_end, last_end = np.searchsorted(range_ends, (start_row + 1, stop_row + 1))
        for end in range(first_end, last_end):
            sums_at_ends[end] = total + running_sums[range_ends[end] - start_row - 1].item()
        _add_round_robin(round_robin_loads, block, start_row)
        largest_rows.add(block, start_row)
        # A copy: a view would keep the whole block in memory.
        samples.append(
            (
                block[(sample_stride // 2 - start_row) % sample_stride :: sample_stride]
                if sample_count
                else block[:0]
            ).copy()
        )
        total += running_sums[-1].item()
        start_row = stop_row
        if total >= MAX_TOTAL_SIZE:
            raise ValueError(
                f"sizes add up to {total} by row {stop_row}: they must be less than 2**62 in all"
            )
    if start_row != count:
        raise ValueError(f"{count} sizes were announced, but {start_row} were read")
    sample = np.concatenate(samples) if samples else np.zeros(0, dtype=np.int64)
    ordinary_sizes = sample[sample <= smoothing_rows_per_host / 2 * total / max(count, 1)]
    head = largest_rows.above(max(ordinary_sizes.sum().item() / 2, _MIN_HEAD_SHARE * total) / host_count)
    sample_rows = (
        np.arange(sample_stride // 2, count, sample_stride) if sample_count else np.zeros(0, dtype=np.int64)
    )
    is_not_in_head = np.isin(sample_rows, head[0], invert=True)
    by_count = CountLoads(
        tuple(sums_at_ends[host + 1] - sums_at_ends[host] for host in range(host_count)),
        tuple(round_robin_loads),
    )
    return SizeScan(total, largest, by_count, head, (sample_rows[is_not_in_head], sample[is_not_in_head]))


def _checked_largest(block: Any, start: int) -> Number:
    """Return the largest size of the block. Raises ValueError for sizes that cannot be used."""
    smallest, largest = block.min().item(), block.max().item()
    if not (smallest >= 0 and largest < float("inf")):
        row = int(np.flatnonzero(~((block >= 0) & (block < float("inf"))))[0])
        raise ValueError(f"row {start + row} has size {block[row]}: sizes are finite and not negative")
    if largest * len(block) >= MAX_TOTAL_SIZE and float(block.sum(dtype=np.float64)) >= MAX_TOTAL_SIZE:
        raise ValueError(f"rows from {start} on add up to 2**62 or more: sizes must be less in all")
    number: Number = largest
    return number


def _add_round_robin(loads: list[Number], block: Any, start: int) -> None:
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
            self._shrink()

    def _shrink(self) -> None:
        rows, sizes = np.concatenate(self._rows), np.concatenate(self._sizes)
        if len(sizes) > self._max_rows:
            threshold = np.partition(sizes, len(sizes) - self._max_rows)[len(sizes) - self._max_rows]
            # Rows equal to the threshold are dropped: either all of them are large or none.
            is_larger = sizes > threshold
            rows, sizes, self._threshold = (
                rows[is_larger],
                sizes[is_larger],
                max(self._threshold, threshold.item()),
            )
        self._rows, self._sizes, self._row_count = [rows], [sizes], len(rows)

    def above(self, size: Number) -> tuple[Any, Any]:
        """Return rows (ascending) and sizes of those larger than ``size``."""
        if not self._rows:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        self._shrink()
        is_larger = self._sizes[0] > size
        return self._rows[0][is_larger], self._sizes[0][is_larger]


# ---- the second pass ---------------------------------------------------------------------------------------


def fill_hosts(
    blocks: SizeBlocks, count: int, scan: SizeScan, initial_loads: Sequence[Number]
) -> tuple[RangeAssignment, list[Number]]:
    """Assign all rows to hosts that already have ``initial_loads``. Return the assignment and each host's
    final load."""
    loads = list(initial_loads)
    head_hosts = deal_largest_first(scan.head[1], loads)
    exception_rows = np.concatenate((scan.head[0], scan.smoothing_rows[0]))
    order = np.argsort(exception_rows, kind="stable")
    remaining_size = scan.total_size - sum(scan.head[1].tolist()) - sum(scan.smoothing_rows[1].tolist())
    if remaining_size > 0:
        bounds, range_loads = _cut_ranges(
            blocks, exception_rows[order], _cumulative_targets(loads, remaining_size), count
        )
    else:
        bounds, range_loads = even_ranges(count, len(loads)).bounds, [0] * len(loads)
    for host, size in enumerate(range_loads):
        loads[host] += size
    exception_hosts = np.concatenate((head_hosts, deal_largest_first(scan.smoothing_rows[1], loads)))
    return RangeAssignment(bounds, exception_rows[order], exception_hosts[order]), loads


def deal_largest_first(sizes: Any, loads: list[Number]) -> Any:
    """Return a host for each size, the largest dealt first; ``loads`` grow accordingly."""
    host_of = partitioning.assign_largest_first(sizes.tolist(), loads)
    for host, size in zip(host_of, sizes.tolist(), strict=True):
        loads[host] += size
    return np.asarray(host_of, dtype=np.uint16)


def _cumulative_targets(loads: Sequence[Number], remaining_size: Number) -> Any:
    """Return how much of ``remaining_size`` all hosts up to each get together, so that those that get some
    end up level."""
    level, ascending_loads = 0.0, sorted(loads)
    load_sum: Number = 0
    for host_count, load in enumerate(ascending_loads, 1):
        load_sum += load
        level = (remaining_size + load_sum) / host_count
        if host_count == len(ascending_loads) or level <= ascending_loads[host_count]:
            break
    return np.cumsum([max(0.0, level - load) for load in loads])


def _cut_ranges(
    blocks: SizeBlocks, exception_rows: Any, targets: Any, count: int
) -> tuple[Any, list[Number]]:
    """Return where the range of each host ends, in key order without the exception rows, and the load of each
    range.

    ``targets``: sum of the sizes at which each range should end. A row that a target falls into goes to the
    side that has more of it.
    """
    host_count = len(targets)
    bounds = np.zeros(host_count + 1, dtype=np.int64)
    bounds[-1] = count
    sums_at_bounds: list[Number] = [0] * (host_count + 1)
    previous_sum: Number = 0
    start, host = 0, 0
    while host < host_count - 1 and targets[host] <= 0:
        host += 1
    for block in blocks():
        stop = start + len(block)
        first_exception, last_exception = np.searchsorted(exception_rows, (start, stop))
        if last_exception > first_exception:
            block = block.copy()
            block[exception_rows[first_exception:last_exception] - start] = 0
        running_sums = np.cumsum(block)
        block_end_sum = previous_sum + running_sums[-1].item() if len(block) else previous_sum
        while host < host_count - 1 and targets[host] <= block_end_sum:
            row = min(int(np.searchsorted(running_sums, targets[host] - previous_sum)), len(block) - 1)
            end_sum, size = previous_sum + running_sums[row].item(), block[row].item()
            includes_row = end_sum - targets[host] <= size / 2
            bounds[host + 1] = max(start + row + includes_row, bounds[host])
            sums_at_bounds[host + 1] = max(end_sum if includes_row else end_sum - size, sums_at_bounds[host])
            host += 1
        previous_sum, start = block_end_sum, stop
    bounds[host + 1 :] = count
    sums_at_bounds[host + 1 :] = [previous_sum] * (host_count - host)
    return bounds, [
        sums_at_bounds[range_index + 1] - sums_at_bounds[range_index] for range_index in range(host_count)
    ]
