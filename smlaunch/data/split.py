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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from smlaunch.data.filling import MOST_TOTAL, Blocks, ByCount, Seen, deal, fill, look
from smlaunch.data.places import InTurn, Places, Ranges, Table, even
from smlaunch.planning import parts
from smlaunch.planning.parts import Number

FILL = "largest first, then in key order"
KEPT = "as before, what is new largest first"

MOST_HOSTS = 65_534
"""Hosts are kept in 16 bits."""

BLOCK = 1 << 20
"""Keys that are looked at together: 8 MB of sizes."""

_EVEN_ENOUGH = 1.0001
"""Below this, rows that have a host are left where they are."""

_DEALT = 1 << 15
"""New rows up to which all go largest first."""

_SEVERAL = 16
"""Rows, about, that what is taken from a host is made of, if it has such."""

_ROUNDS = 6
"""A new large row, once it has its place, may push others out of theirs."""


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
        return tuple(self.places.bounds.tolist()) if isinstance(self.places, Ranges) else None

    @property
    def alone(self) -> int:
        """How many rows are in no range."""
        if isinstance(self.places, Ranges):
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
    if given.dtype.kind == "u" and given.size and int(given.max()) >= MOST_TOTAL:
        raise ValueError(f"a size is {int(given.max())}: sizes must be less than 2**62 in all")
    return given.astype(np.float64 if given.dtype.kind == "f" else np.int64, copy=False)


def split_blocks(blocks: Blocks, count: int, hosts: int) -> Split:
    """As ``split``, for ``count`` rows that come in blocks (``as_sizes``); they are asked for twice."""
    if not 1 <= hosts <= MOST_HOSTS:
        raise ValueError(f"{hosts} hosts: there may be 1 to {MOST_HOSTS}")
    seen = look(blocks, count, hosts)
    if count <= parts.FEW:
        return _few(blocks, hosts, seen)
    places, loads = fill(blocks, count, seen, [0] * hosts)
    by_count = seen.by_count
    tried: list[tuple[str, Sequence[Number], Ranges | InTurn]] = [
        (parts.CONTIGUOUS, by_count.contiguous, even(count, hosts)),
        (parts.ROUND_ROBIN, by_count.round_robin, InTurn(hosts)),
        (FILL, loads, places),
    ]
    method, chosen, where = min(tried, key=lambda one: max(one[1]))
    return Split(method, tuple(chosen), where.counts(count), seen.largest, by_count, where)


def _few(blocks: Blocks, hosts: int, seen: Seen) -> Split:
    sizes = [size for block in blocks() for size in block.tolist()]
    best = parts.best(sizes, hosts)
    places = Table(np.asarray(best.host_of, dtype=np.uint16))
    return Split(best.method, best.loads, best.counts, seen.largest, seen.by_count, places)


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
    return Split(method, tuple(loads), tuple(counts), fresh.largest, fresh.by_count, Table(table), moved)


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
    if len(sizes) <= _DEALT:
        return deal(sizes, loads)

    def blocks() -> Iterator[Any]:
        for start in range(0, len(sizes), BLOCK):
            yield sizes[start : start + BLOCK]

    places, _ = fill(blocks, len(sizes), look(blocks, len(sizes), len(loads)), loads)
    return places.hosts_of(0, len(sizes))
