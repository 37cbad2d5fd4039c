"""Millions of keys shared out over hosts by their sizes, in seconds and in bounded memory.

Largest first is within a millionth of the best there can be for a million keys, and needs a heap operation
for each. Here only a few thousand keys get one. In this order:

1. the *head*, keys that are many times as large as the mean: largest first;
2. the rest, in the order of the keys: every host in turn gets a range of keys, as much as it lacks to an
   even share. Ranges cannot be cut inside a key, so that each is off by up to one key;
3. the *levellers*, every so many-th key, left out of the ranges: largest first onto what lacks most.

The sizes are read twice, block by block, and never held: what remains is where ranges end, and the host of
each head key and leveller. Below ten thousand keys ``planning.parts`` does it all, exactly.

Nothing is ever worse than by count: both ways to split by count are computed beside it, and the best is kept.
How far from even it can get: the fullest host has at most what largest first of the head alone gives it, or
an even share and one key that is not in the head, whichever is more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from smlaunch.planning import parts
from smlaunch.planning.parts import Number

FILL = "largest first, then in key order"
KEPT = "as before, what is new largest first"

MOST_HOSTS = 65_534
"""Hosts are kept in 16 bits."""

BLOCK = 1 << 20
"""Keys that are looked at together: 8 MB of sizes."""

_HEAD_KEYS = 1 << 15
"""Largest first takes a microsecond for each."""

_HEAD_FROM_SHARE = 1e-5
"""Of what a host gets: smaller keys need no care."""

_LEVELLERS = (16, 256)
"""For each host, at least and at most. They make up for one key as large as half of them together: only
larger ones belong to the head. Every one of them may move when keys are added."""

_LEVELLER_EVERY = 256
_MOST_TOTAL = 1 << 62

_EVEN_ENOUGH = 1.0001
"""Below this, rows that have a host are left where they are."""

_SEVERAL = 16

_ROUNDS = 6
"""A new large row, once it has its place, may push others out of theirs."""

Blocks = Callable[[], Iterable[Any]]
"""Gives the sizes from the start, each time it is called: int64 or float64 arrays, one after the other."""


@dataclass(frozen=True)
class ByCount:
    """What each host would get by count, for both orders that keys may be dealt in. SageMaker does not say
    which one ShardedByS3Key takes."""

    contiguous: tuple[Number, ...]
    round_robin: tuple[Number, ...]


@dataclass(frozen=True, eq=False)
class Split:
    """Which host gets which row (key), rows being numbered in the order of the sizes.

    ``loads``: the sum of sizes each host gets; ``counts``: how many rows. ``bounds``: where the ranges of
    ``FILL`` end, ``hosts + 1`` rows from 0 on, or None. ``moved``: with ``previous``, how many of the rows
    that had a host have another one now, and their sizes' sum.
    """

    method: str
    loads: tuple[Number, ...]
    counts: tuple[int, ...]
    largest: Number
    by_count: ByCount
    places: Places
    moved: tuple[int, Number] | None = None

    @property
    def hosts(self) -> int:
        return len(self.loads)

    @property
    def bounds(self) -> tuple[int, ...] | None:
        return tuple(self.places.bounds.tolist()) if isinstance(self.places, _Ranges) else None

    @property
    def alone(self) -> int:
        """How many rows are in no range."""
        if isinstance(self.places, _Ranges):
            return len(self.places.lone_rows)
        return 0 if self.method == parts.CONTIGUOUS else sum(self.counts)

    @cached_property
    def imbalance(self) -> float:
        """The fullest host's load against the least it can be (even share or largest key): 1 is best."""
        return parts.imbalance(self.loads, self.largest)

    @property
    def imbalance_by_count(self) -> float:
        """The same for the better way by count."""
        ways = (self.by_count.contiguous, self.by_count.round_robin)
        return min(parts.imbalance(loads, self.largest) for loads in ways)

    def hosts_of(self, start: int, stop: int) -> Any:
        """The host of each row from ``start`` up to ``stop``, an array of uint16."""
        return self.places.hosts_of(start, stop)


@dataclass(frozen=True, eq=False)
class _Ranges:
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
class _InTurn:
    hosts: int

    def hosts_of(self, start: int, stop: int) -> Any:
        return (np.arange(start, stop) % self.hosts).astype(np.uint16)

    def counts(self, rows: int) -> tuple[int, ...]:
        return tuple((rows - host + self.hosts - 1) // self.hosts for host in range(self.hosts))


@dataclass(frozen=True, eq=False)
class _Table:
    table: Any

    def hosts_of(self, start: int, stop: int) -> Any:
        return self.table[start:stop]


Places = _Ranges | _InTurn | _Table


def split(sizes: Any, hosts: int, *, previous: Any = None) -> Split:
    """Shares out rows with these sizes (anything NumPy makes an int64 or float64 array of) over ``hosts``.

    ``previous``: for each row the host it had, -1 where it is new; rows then stay where they are as far as
    that is even. Raises ValueError for sizes that are negative, not finite, or 2**62 and more in all, and for
    a number of hosts that is not between 1 and 65,534.
    """
    given = as_sizes(sizes)

    def blocks() -> Iterator[Any]:
        for start in range(0, len(given), BLOCK):
            yield given[start : start + BLOCK]

    if previous is None:
        return split_blocks(blocks, len(given), hosts)
    return _split_again(given, blocks, hosts, np.asarray(previous))


def as_sizes(values: Any) -> Any:
    """One row of numbers: int64 for whole ones, float64 for others. Raises ValueError for anything else."""
    given = np.asarray(values)
    if given.ndim != 1 or (given.dtype.kind not in "iuf" and given.size):
        raise ValueError(f"sizes must be one row of numbers, not {given.dtype} of shape {given.shape}")
    if given.dtype.kind == "u" and given.size and int(given.max()) >= _MOST_TOTAL:
        raise ValueError(f"a size is {int(given.max())}: sizes must be less than 2**62 in all")
    return given.astype(np.float64 if given.dtype.kind == "f" else np.int64, copy=False)


def split_blocks(blocks: Blocks, count: int, hosts: int) -> Split:
    """As ``split``, for ``count`` rows that come in blocks (``as_sizes``); they are asked for twice."""
    if not 1 <= hosts <= MOST_HOSTS:
        raise ValueError(f"{hosts} hosts: there may be 1 to {MOST_HOSTS}")
    seen = _look(blocks, count, hosts)
    if count <= parts.FEW:
        return _few(blocks, hosts, seen)
    places, loads = _fill(blocks, count, seen, [0] * hosts)
    by_count = seen.by_count
    tried: list[tuple[str, Sequence[Number], _Ranges | _InTurn]] = [
        (parts.CONTIGUOUS, by_count.contiguous, _even(count, hosts)),
        (parts.ROUND_ROBIN, by_count.round_robin, _InTurn(hosts)),
        (FILL, loads, places),
    ]
    method, chosen, where = min(tried, key=lambda one: max(one[1]))
    return Split(method, tuple(chosen), where.counts(count), seen.largest, by_count, where)


def _few(blocks: Blocks, hosts: int, seen: _Seen) -> Split:
    sizes = [size for block in blocks() for size in block.tolist()]
    best = parts.best(sizes, hosts)
    places = _Table(np.asarray(best.host_of, dtype=np.uint16))
    return Split(best.method, best.loads, best.counts, seen.largest, seen.by_count, places)


def _even(count: int, hosts: int) -> _Ranges:
    none = np.zeros(0, dtype=np.int64)
    return _Ranges(np.arange(hosts + 1, dtype=np.int64) * count // hosts, none, none.astype(np.uint16))


# ---- the first look ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Seen:
    """``head``: rows and sizes of the largest, ``levellers``: of every so many-th row that is not among them;
    rows ascending."""

    total: Number
    largest: Number
    by_count: ByCount
    head: tuple[Any, Any]
    levellers: tuple[Any, Any]


def _look(blocks: Blocks, count: int, hosts: int) -> _Seen:
    """All that one reading of the sizes can give."""
    ends = _even(count, hosts).bounds
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
        if total >= _MOST_TOTAL:
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
    return _Seen(total, largest, by_count, head, (rows[others], sample[others]))


def _checked(block: Any, start: int) -> Number:
    """The largest size of the block."""
    least, largest = block.min().item(), block.max().item()
    if not (least >= 0 and largest < float("inf")):
        row = int(np.flatnonzero(~((block >= 0) & (block < float("inf"))))[0])
        raise ValueError(f"row {start + row} has size {block[row]}: sizes are finite and not negative")
    if largest * len(block) >= _MOST_TOTAL and float(block.sum(dtype=np.float64)) >= _MOST_TOTAL:
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


def _fill(blocks: Blocks, count: int, seen: _Seen, base: Sequence[Number]) -> tuple[_Ranges, list[Number]]:
    """Onto hosts that have ``base`` already; what each has in the end, ``base`` included."""
    loads = list(base)
    head_hosts = _deal(seen.head[1], loads)
    lone_rows = np.concatenate((seen.head[0], seen.levellers[0]))
    order = np.argsort(lone_rows, kind="stable")
    rest = seen.total - sum(seen.head[1].tolist()) - sum(seen.levellers[1].tolist())
    if rest > 0:
        bounds, filled = _cut(blocks, lone_rows[order], _targets(loads, rest), count)
    else:
        bounds, filled = _even(count, len(loads)).bounds, [0] * len(loads)
    for host, size in enumerate(filled):
        loads[host] += size
    lone_hosts = np.concatenate((head_hosts, _deal(seen.levellers[1], loads)))
    return _Ranges(bounds, lone_rows[order], lone_hosts[order]), loads


def _deal(sizes: Any, loads: list[Number]) -> Any:
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


# ---- after an earlier split --------------------------------------------------------------------------------


def _split_again(sizes: Any, blocks: Blocks, hosts: int, previous: Any) -> Split:
    """Rows stay where they were. Only what a host has above an even share is taken from it, and goes with
    the new rows to those that lack."""
    if previous.shape != sizes.shape or (previous.size and previous.dtype.kind not in "iu"):
        raise ValueError("previous must be one whole number per size")
    fresh = split_blocks(blocks, len(sizes), hosts)
    table = np.where((previous >= 0) & (previous < hosts), previous, hosts).astype(np.uint16)
    most = parts.lower_bound(sum(fresh.loads), fresh.largest, hosts)
    loads = _loads(sizes, table, hosts)
    for turn in range(_ROUNDS):
        full = [host for host in range(hosts) if loads[host] > most * _EVEN_ENOUGH] if turn else []
        for host in full:
            table[_released(sizes, np.flatnonzero(table == host), loads[host] - most)] = hosts
        free = np.flatnonzero(table == hosts)
        if turn and not len(free):
            break
        table[free] = _placed(sizes[free], _loads(sizes, table, hosts))
        loads = _loads(sizes, table, hosts)
    if parts.imbalance(loads, fresh.largest) > fresh.imbalance_by_count:
        # By count is never to be better, not even for the sake of moving less.
        table = fresh.hosts_of(0, len(sizes))
        method, loads = fresh.method, list(fresh.loads)
    else:
        method = KEPT
    changed = (previous >= 0) & (previous != table)
    moved = (int(np.count_nonzero(changed)), sizes[changed].sum().item())
    counts = np.bincount(table, minlength=hosts).tolist()
    return Split(method, tuple(loads), tuple(counts), fresh.largest, fresh.by_count, _Table(table), moved)


def _loads(sizes: Any, table: Any, hosts: int) -> list[Number]:
    """What each host has; rows that have none yet are said to be the host's after the last."""
    loads = np.zeros(hosts + 1, dtype=sizes.dtype)
    np.add.at(loads, table, sizes)
    found: list[Number] = loads[:hosts].tolist()
    return found


def _released(sizes: Any, rows: Any, excess: Number) -> Any:
    """Some of a host's rows that hold almost ``excess`` and not more. Rather several than one: what is to go
    elsewhere must not be too large there."""
    rows = rows[np.argsort(sizes[rows], kind="stable")]
    taken = []
    while excess > 0:
        ordered = sizes[rows]
        for most in (excess / _SEVERAL, excess):
            fitting = int(np.searchsorted(ordered, most, side="right"))
            sums = np.cumsum(ordered[:fitting][::-1])
            some = int(np.searchsorted(sums, excess, side="right"))
            if some and sums[some - 1]:
                break
        else:
            break
        taken.append(rows[fitting - some : fitting])
        rows = np.delete(rows, np.s_[fitting - some : fitting])
        excess -= sums[some - 1].item()
    return np.concatenate(taken) if taken else rows[:0]


def _placed(sizes: Any, loads: list[Number]) -> Any:
    """The host of each, onto hosts that have ``loads``."""
    if len(sizes) <= _HEAD_KEYS:
        return _deal(sizes, loads)

    def blocks() -> Iterator[Any]:
        for start in range(0, len(sizes), BLOCK):
            yield sizes[start : start + BLOCK]

    places, _ = _fill(blocks, len(sizes), _look(blocks, len(sizes), len(loads)), loads)
    return places.hosts_of(0, len(sizes))
