"""Multiway number partitioning: assign items with sizes to hosts so that the largest load is smallest.

Exact and in plain Python: for a plan, and for up to some ten thousand items. ``smlaunch.data.split`` does
the same for millions. Sizes are any non-negative numbers: bytes, samples, seconds. Every item goes to
exactly one host; a host may get none. Ties are broken by order, so that equal sizes always give the same
partition.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

Number = int | float

LARGEST_FIRST = "largest first"
KARMARKAR_KARP = "karmarkar-karp"
CONTIGUOUS = "by count, in ranges"
ROUND_ROBIN = "by count, in turn"

KARMARKAR_KARP_MAX_ITEMS = 10_000
"""Number of items up to which ``best_partition`` tries Karmarkar-Karp; beyond it, largest-first is within
1e-4 and only sorts. (2,000 sizes of images on 16 hosts: 1.0000001 against 1.0004; 10,000: 1.00000001
against 1.0001.)"""

KARMARKAR_KARP_MAX_WORK = 2_000_000
"""Items times hosts up to which ``best_partition`` tries Karmarkar-Karp: about a second."""


class Partition(NamedTuple):
    """An assignment of items to hosts."""

    method: str
    host_by_item: tuple[int, ...]
    """Host of each item, from 0."""

    loads: tuple[Number, ...]
    """Sum of sizes of each host."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of items of each host."""
        counted = [0] * len(self.loads)
        for host in self.host_by_item:
            counted[host] += 1
        return tuple(counted)


def lower_bound(total: Number, largest: Number, host_count: int) -> float:
    """Lower bound of the largest load."""
    return max(total / host_count, largest)


def imbalance(loads: Sequence[Number], largest: Number) -> float:
    """Largest load relative to ``lower_bound``; 1 is optimal, also if all sizes are 0."""
    bound = lower_bound(sum(loads), largest, len(loads))
    return max(1.0, max(loads) / bound) if bound else 1.0  # sums of floats may be a bit less


def best_partition(sizes: Sequence[Number], host_count: int) -> Partition:
    """Return the best of Karmarkar-Karp, largest-first and both distributions by count; the simpler one if
    equal.

    Raises ValueError for a size that is negative or not a number, and for less than one host.
    """
    partitions = [
        contiguous(sizes, host_count),
        round_robin(sizes, host_count),
        largest_first(sizes, host_count),
    ]
    if len(sizes) <= KARMARKAR_KARP_MAX_ITEMS and len(sizes) * host_count <= KARMARKAR_KARP_MAX_WORK:
        partitions.append(karmarkar_karp(sizes, host_count))
    return min(partitions, key=lambda parts: max(parts.loads))


def contiguous(sizes: Sequence[Number], host_count: int) -> Partition:
    """Partition items by their number: host ``h`` gets items ``h * n // hosts`` to ``(h + 1) * n // hosts``,
    the latter excluded."""
    _validate_sizes(sizes, host_count)
    host_by_item: list[int] = []
    for host in range(host_count):
        first_item, end_item = host * len(sizes) // host_count, (host + 1) * len(sizes) // host_count
        host_by_item += [host] * (end_item - first_item)
    return _make_partition(CONTIGUOUS, sizes, host_count, host_by_item)


def round_robin(sizes: Sequence[Number], host_count: int) -> Partition:
    """By count: item ``i`` goes to host ``i % hosts``."""
    _validate_sizes(sizes, host_count)
    return _make_partition(ROUND_ROBIN, sizes, host_count, [item % host_count for item in range(len(sizes))])


def largest_first(sizes: Sequence[Number], host_count: int) -> Partition:
    """Assign each item, largest first, to the least loaded host: at most 4/3 of the optimum (Graham,
    "Bounds on Multiprocessing Timing Anomalies", 1969)."""
    _validate_sizes(sizes, host_count)
    return _make_partition(LARGEST_FIRST, sizes, host_count, assign_largest_first(sizes, [0] * host_count))


def assign_largest_first(sizes: Sequence[Number], loads: Sequence[Number]) -> list[int]:
    """Host of each item, assigned largest first to hosts with initial ``loads``.

    Among equally loaded hosts the one with the fewest items is taken, so that items of size 0 are
    distributed too.
    """
    hosts_by_load: list[tuple[Number, int, int]] = [(load, 0, host) for host, load in enumerate(loads)]
    heapify(hosts_by_load)
    host_by_item = [0] * len(sizes)
    for item in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        load, count, host = hosts_by_load[0]
        host_by_item[item] = host
        heapreplace(hosts_by_load, (load + sizes[item], count + 1, host))
    return host_by_item


class _Bundle:
    """Items assigned to the same host: a single item, or two joined bundles."""

    __slots__ = ("item", "left", "right")

    def __init__(self, item: int, left: _Bundle | None = None, right: _Bundle | None = None) -> None:
        self.item, self.left, self.right = item, left, right

    def items(self) -> list[int]:
        """Return the numbers of all items of the bundle."""
        item_numbers, pending_bundles = [], [self]
        while pending_bundles:
            bundle = pending_bundles.pop()
            if bundle.left is None or bundle.right is None:
                item_numbers.append(bundle.item)
            else:
                pending_bundles += (bundle.left, bundle.right)
        return item_numbers


class _HostLoad(NamedTuple):
    """The bundle of one host in a partial solution."""

    size: Number
    """Sum of the bundle's sizes, less what all hosts of the solution have in common."""

    first_item: int
    """Breaks ties."""

    bundle: _Bundle


class _PartialSolution(NamedTuple):
    """An assignment of some items, as an entry of a heap: that with the largest difference is first."""

    negative_difference: Number
    first_item: int
    """Breaks ties."""

    host_loads: list[_HostLoad]
    """Largest first; hosts without items are left out."""


def karmarkar_karp(sizes: Sequence[Number], host_count: int) -> Partition:
    """Partition items by the largest differencing method (Karmarkar and Karp, 1982; for several hosts
    Michiels et al., 2003, "Performance Ratios for the Karmarkar-Karp Differencing Method"). Time: items times
    hosts.

    A partial solution is at most ``host_count`` bundles of items, largest first, reduced by the size common
    to all. It starts with one solution per item. The two solutions with the largest differences between
    their hosts are joined, largest bundles with smallest, until one solution is left.
    """
    _validate_sizes(sizes, host_count)
    # The heap's first entry is the smallest: the difference is negated for the largest to be first.
    solution_heap = [
        # first_item breaks ties; a bundle is a tree of the items of one host.
        _PartialSolution(
            negative_difference=-size,
            first_item=item,
            host_loads=[_HostLoad(size=size, first_item=item, bundle=_Bundle(item))],
        )
        for item, size in enumerate(sizes)
        if size
    ]
    heapify(solution_heap)
    while len(solution_heap) > 1:
        largest_solution = heappop(solution_heap)
        next_solution = solution_heap[0]
        joined_loads = _join_solutions(largest_solution.host_loads, next_solution.host_loads, host_count)
        # Hosts without items are left out of the loads: their size is 0.
        smallest_size = joined_loads[-1].size if len(joined_loads) == host_count else 0
        difference = joined_loads[0].size - smallest_size
        joined_solution = _PartialSolution(
            negative_difference=-difference, first_item=largest_solution.first_item, host_loads=joined_loads
        )
        # Replaces the next solution, which is part of the joined one.
        heapreplace(solution_heap, joined_solution)
    host_by_item = [0] * len(sizes)
    final_loads = solution_heap[0].host_loads if solution_heap else []
    for host, host_load in enumerate(final_loads):
        for item in host_load.bundle.items():
            host_by_item[item] = host
    _assign_empty_items(sizes, host_count, host_by_item)
    # With the name of the method, and the sum of the sizes of each host.
    return _make_partition(KARMARKAR_KARP, sizes, host_count, host_by_item)


def _join_solutions(
    first_loads: list[_HostLoad], second_loads: list[_HostLoad], host_count: int
) -> list[_HostLoad]:
    """Return the loads of the joined solution of two partial ones, largest first, as theirs are. The largest
    loads remain alone on their hosts; the others, for which no host is left, are paired."""
    pair_count = max(0, len(first_loads) + len(second_loads) - host_count)
    first_alone, second_alone = len(first_loads) - pair_count, len(second_loads) - pair_count
    joined_loads = first_loads[:first_alone] + second_loads[:second_alone]
    # The smallest load of one solution goes with the largest of those that are left of the other.
    for load, added_load in zip(
        first_loads[first_alone:], reversed(second_loads[second_alone:]), strict=True
    ):
        joined_bundle = _Bundle(-1, load.bundle, added_load.bundle)
        joined_loads.append(_HostLoad(load.size + added_load.size, load.first_item, joined_bundle))
    joined_loads.sort(key=lambda load: (-load.size, load.first_item))
    if len(joined_loads) < host_count:
        return joined_loads
    common_size = joined_loads[-1].size  # only differences count: the size that all have is left out
    return [load._replace(size=load.size - common_size) for load in joined_loads]


def _assign_empty_items(sizes: Sequence[Number], host_count: int, host_by_item: list[int]) -> None:
    """Assign items of size 0 to the hosts with the fewest items, by changing ``host_by_item``."""
    item_counts = [0] * host_count
    for item, size in enumerate(sizes):
        if size:
            item_counts[host_by_item[item]] += 1
    # Pairs of item count and host, fewest items first.
    hosts_by_item_count = sorted((item_count, host) for host, item_count in enumerate(item_counts))
    empty_items = [item for item, size in enumerate(sizes) if not size]
    for item in empty_items:
        fewest_items, host = hosts_by_item_count.pop(0)
        host_by_item[item] = host
        insort(hosts_by_item_count, (fewest_items + 1, host))


def _validate_sizes(sizes: Sequence[Number], host_count: int) -> None:
    """Raise ValueError for fewer hosts than one, or a size that is negative or not finite."""
    if host_count < 1:
        raise ValueError(f"shards for {host_count} hosts: there must be one at least")
    for item, size in enumerate(sizes):
        if not 0 <= size < float("inf"):
            raise ValueError(f"item {item} has size {size}; sizes are finite and not negative")


def _make_partition(
    method: str, sizes: Sequence[Number], host_count: int, host_by_item: Sequence[int]
) -> Partition:
    """The partition with its loads."""
    loads: list[Number] = [0] * host_count
    for item, host in enumerate(host_by_item):
        loads[host] += sizes[item]
    return Partition(method, tuple(host_by_item), tuple(loads))
