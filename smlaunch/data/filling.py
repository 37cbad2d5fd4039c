"""Filling hosts up with ranges of rows: the two readings of the sizes behind ``split``, which says how."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smlaunch.data.places import Ranges, even
from smlaunch.planning import parts
from smlaunch.planning.parts import Number

MOST_TOTAL = 1 << 62
"""Sums are kept in 64 bits."""

_HEAD_KEYS = 1 << 15
"""Largest first takes a microsecond for each."""

_HEAD_FROM_SHARE = 1e-5
"""Of what a host gets: smaller keys need no care."""

_LEVELLERS = (16, 256)
"""For each host, at least and at most. They make up for one key as large as half of them together: only
larger ones belong to the head. Every one of them may move when keys are added."""

_LEVELLER_EVERY = 256
"""Rows of a host for each of its levellers, between least and most."""

Blocks = Callable[[], Iterable[Any]]
"""Gives the sizes from the start, each time it is called: int64 or float64 arrays, one after the other."""


@dataclass(frozen=True)
class ByCount:
    """What each host would get by count, for both orders that keys may be dealt in. SageMaker does not say
    which one ShardedByS3Key takes."""

    contiguous: tuple[Number, ...]
    round_robin: tuple[Number, ...]


# ---- the first look ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Seen:
    """``head``: rows and sizes of the largest, ``levellers``: of every so many-th row that is not among them;
    rows ascending."""

    total: Number
    largest: Number
    by_count: ByCount
    head: tuple[Any, Any]
    levellers: tuple[Any, Any]


def look(blocks: Blocks, count: int, hosts: int) -> Seen:
    """All that one reading of the sizes can give."""
    ends = even(count, hosts).bounds
    at_ends: list[Number] = [0] * (hosts + 1)
    in_turn: list[Number] = [0] * hosts
    per_host = min(max(count // hosts // _LEVELLER_EVERY, _LEVELLERS[0]), _LEVELLERS[1])
    wanted = min(per_host * hosts, count // 8)
    every = count // wanted if wanted else 1
    largest_rows = _Largest(_HEAD_KEYS)
    sampled: list[Any] = []
    total: Number = 0
    largest: Number = 0
    start = 0
    for block in blocks():
        if not len(block):
            continue
        stop = start + len(block)
        largest = max(largest, _checked(block, start))
        sums = np.cumsum(block)
        first, last = np.searchsorted(ends, (start + 1, stop + 1))
        for end in range(first, last):
            at_ends[end] = total + sums[ends[end] - start - 1].item()
        _add_in_turn(in_turn, block, start)
        largest_rows.add(block, start)
        # Copied: a view would hold the whole block.
        sampled.append((block[(every // 2 - start) % every :: every] if wanted else block[:0]).copy())
        total += sums[-1].item()
        start = stop
        if total >= MOST_TOTAL:
            raise ValueError(f"sizes add up to {total} by row {stop}: they must be less than 2**62 in all")
    if start != count:
        raise ValueError(f"{count} sizes were announced and {start} came")
    sample = np.concatenate(sampled) if sampled else np.zeros(0, dtype=np.int64)
    usual = sample[sample <= per_host / 2 * total / max(count, 1)]
    head = largest_rows.above(max(usual.sum().item() / 2, _HEAD_FROM_SHARE * total) / hosts)
    rows = np.arange(every // 2, count, every) if wanted else np.zeros(0, dtype=np.int64)
    others = np.isin(rows, head[0], invert=True)
    by_count = ByCount(
        tuple(at_ends[host + 1] - at_ends[host] for host in range(hosts)),
        tuple(in_turn),
    )
    return Seen(total, largest, by_count, head, (rows[others], sample[others]))


def _checked(block: Any, start: int) -> Number:
    """The largest size of the block."""
    least, largest = block.min().item(), block.max().item()
    if not (least >= 0 and largest < float("inf")):
        row = int(np.flatnonzero(~((block >= 0) & (block < float("inf"))))[0])
        raise ValueError(f"row {start + row} has size {block[row]}: sizes are finite and not negative")
    if largest * len(block) >= MOST_TOTAL and float(block.sum(dtype=np.float64)) >= MOST_TOTAL:
        raise ValueError(f"rows from {start} on add up to 2**62 or more: sizes must be less in all")
    number: Number = largest
    return number


def _add_in_turn(loads: list[Number], block: Any, start: int) -> None:
    """Row ``i`` to host ``i % hosts``."""
    hosts = len(loads)
    whole = len(block) // hosts * hosts
    # Rows of a table with a column per host: one pass over the memory, where strides would make many.
    sums = block[:whole].reshape(-1, hosts).sum(axis=0).tolist()
    for place, size in enumerate(sums):
        loads[(start + place) % hosts] += size
    for place, size in enumerate(block[whole:].tolist()):
        loads[(start + whole + place) % hosts] += size


class _Largest:
    """The largest rows of a stream, a fixed number at most; of those alike the earlier ones."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._above: Number = 0
        self._rows: list[Any] = []
        self._sizes: list[Any] = []
        self._held = 0

    def add(self, block: Any, start: int) -> None:
        found = np.flatnonzero(block > self._above)
        self._rows.append(found + start)
        self._sizes.append(block[found])
        self._held += len(found)
        if self._held > 2 * self._most:
            self._shrink()

    def _shrink(self) -> None:
        rows, sizes = np.concatenate(self._rows), np.concatenate(self._sizes)
        if len(sizes) > self._most:
            edge = np.partition(sizes, len(sizes) - self._most)[len(sizes) - self._most]
            # What is alike at the edge stays out: either all of it is large or none.
            kept = sizes > edge
            rows, sizes, self._above = rows[kept], sizes[kept], max(self._above, edge.item())
        self._rows, self._sizes, self._held = [rows], [sizes], len(rows)

    def above(self, size: Number) -> tuple[Any, Any]:
        """Rows, ascending, and sizes of those larger than ``size``."""
        if not self._rows:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        self._shrink()
        kept = self._sizes[0] > size
        return self._rows[0][kept], self._sizes[0][kept]


# ---- the second look ---------------------------------------------------------------------------------------


def fill(blocks: Blocks, count: int, seen: Seen, base: Sequence[Number]) -> tuple[Ranges, list[Number]]:
    """Onto hosts that have ``base`` already; what each has in the end, ``base`` included."""
    loads = list(base)
    head_hosts = deal(seen.head[1], loads)
    lone_rows = np.concatenate((seen.head[0], seen.levellers[0]))
    order = np.argsort(lone_rows, kind="stable")
    rest = seen.total - sum(seen.head[1].tolist()) - sum(seen.levellers[1].tolist())
    if rest > 0:
        bounds, filled = _cut(blocks, lone_rows[order], _targets(loads, rest), count)
    else:
        bounds, filled = even(count, len(loads)).bounds, [0] * len(loads)
    for host, size in enumerate(filled):
        loads[host] += size
    lone_hosts = np.concatenate((head_hosts, deal(seen.levellers[1], loads)))
    return Ranges(bounds, lone_rows[order], lone_hosts[order]), loads


def deal(sizes: Any, loads: list[Number]) -> Any:
    """Largest first; ``loads`` grow by what was given."""
    host_of = parts.deal(sizes.tolist(), loads)
    for host, size in zip(host_of, sizes.tolist(), strict=True):
        loads[host] += size
    return np.asarray(host_of, dtype=np.uint16)


def _targets(loads: Sequence[Number], rest: Number) -> Any:
    """How much of ``rest`` all hosts up to each get together, when all that get some end up level."""
    level, below = 0.0, sorted(loads)
    held: Number = 0
    for few, load in enumerate(below, 1):
        held += load
        level = (rest + held) / few
        if few == len(below) or level <= below[few]:
            break
    return np.cumsum([max(0.0, level - load) for load in loads])


def _cut(blocks: Blocks, lone_rows: Any, targets: Any, count: int) -> tuple[Any, list[Number]]:
    """Where the range of each host ends, in key order without the lone rows, and what each range holds.

    A row that a target falls into goes to the side that has more of it.
    """
    hosts = len(targets)
    bounds = np.zeros(hosts + 1, dtype=np.int64)
    bounds[-1] = count
    sums_at: list[Number] = [0] * (hosts + 1)
    before: Number = 0
    start, host = 0, 0
    while host < hosts - 1 and targets[host] <= 0:
        host += 1
    for block in blocks():
        stop = start + len(block)
        first, last = np.searchsorted(lone_rows, (start, stop))
        if last > first:
            block = block.copy()
            block[lone_rows[first:last] - start] = 0
        sums = np.cumsum(block)
        upto = before + sums[-1].item() if len(block) else before
        while host < hosts - 1 and targets[host] <= upto:
            row = min(int(np.searchsorted(sums, targets[host] - before)), len(block) - 1)
            end, size = before + sums[row].item(), block[row].item()
            taken = end - targets[host] <= size / 2
            bounds[host + 1] = max(start + row + taken, bounds[host])
            sums_at[host + 1] = max(end if taken else end - size, sums_at[host])
            host += 1
        before, start = upto, stop
    bounds[host + 1 :] = count
    sums_at[host + 1 :] = [before] * (hosts - host)
    return bounds, [sums_at[one + 1] - sums_at[one] for one in range(hosts)]
