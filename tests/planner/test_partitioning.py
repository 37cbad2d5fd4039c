"""Items over hosts: every item exactly once, never worse than by count, and as even as the theory says."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smlaunch.storage import multiway_partitioning
from smlaunch.storage.multiway_partitioning import Number, Partition

SIZES = st.one_of(
    st.lists(st.integers(0, 50), max_size=40),
    st.lists(st.integers(0, 5 * 2**40), max_size=40),
    st.lists(st.sampled_from([0, 1, 2**62]), max_size=40),
    st.lists(st.floats(0, 1e12, allow_nan=False), max_size=40),
)
WAYS = (
    multiway_partitioning.best_partition,
    multiway_partitioning.contiguous,
    multiway_partitioning.round_robin,
    multiway_partitioning.largest_first,
    multiway_partitioning.karmarkar_karp,
)


def check(partition: Partition, sizes: list[Number], hosts: int) -> None:
    assert len(partition.host_by_item) == len(sizes)
    assert len(partition.loads) == hosts
    assert set(partition.host_by_item) <= set(range(hosts))
    for host, load in enumerate(partition.loads):
        assert load == pytest.approx(
            sum(size for size, owner in zip(sizes, partition.host_by_item, strict=True) if owner == host)
        )
    assert sum(partition.counts) == len(sizes)


@given(SIZES, st.integers(1, 12))
@settings(max_examples=200, deadline=None)
def test_every_item_is_in_one_part(sizes: list[Number], hosts: int) -> None:
    for way in WAYS:
        check(way(sizes, hosts), sizes, hosts)
    best = multiway_partitioning.best_partition(sizes, hosts)
    assert max(best.loads) <= min(max(way(sizes, hosts).loads) for way in WAYS[1:])


@given(st.lists(st.integers(0, 30), min_size=1, max_size=7), st.integers(2, 3))
@settings(max_examples=60, deadline=None)
def test_largest_first_is_within_its_bound_of_the_optimum(sizes: list[int], hosts: int) -> None:
    def fullest(hosts_of: tuple[int, ...]) -> int:
        return max(
            sum(s for s, owner in zip(sizes, hosts_of, strict=True) if owner == host) for host in range(hosts)
        )

    optimum = min(map(fullest, product(range(hosts), repeat=len(sizes))))
    graham = 4 / 3 - 1 / (3 * hosts)
    assert max(multiway_partitioning.largest_first(sizes, hosts).loads) <= graham * optimum
    assert optimum <= max(multiway_partitioning.best_partition(sizes, hosts).loads) <= graham * optimum


def test_karmarkar_karp_finds_what_largest_first_does_not() -> None:
    """The example of the literature: 8, 7, 6, 5, 4 in two parts: 16 and 14, where largest first gives 17."""
    sizes = [4, 5, 8, 6, 7]
    assert sorted(multiway_partitioning.largest_first(sizes, 2).loads) == [13, 17]
    assert sorted(multiway_partitioning.karmarkar_karp(sizes, 2).loads) == [14, 16]
    assert sorted(multiway_partitioning.karmarkar_karp([3, 3, 2, 2, 2], 2).loads) == [5, 7]
    assert multiway_partitioning.best_partition(sizes, 2).method == multiway_partitioning.KARMARKAR_KARP


def test_three_parts_by_hand() -> None:
    """Differences at each joining: (9) (8) (7) (6) (5) (4) in three parts."""
    partition = multiway_partitioning.karmarkar_karp([9, 8, 7, 6, 5, 4], 3)
    assert partition.loads == (13, 13, 13)


def test_items_of_no_size_are_spread() -> None:
    sizes = [0] * 8 + [10]
    assert sorted(multiway_partitioning.best_partition(sizes, 3).counts) == [3, 3, 3]
    assert sorted(multiway_partitioning.karmarkar_karp(sizes, 3).counts) == [3, 3, 3]
    assert sorted(multiway_partitioning.largest_first(sizes, 3).counts) == [1, 4, 4]


def test_fewer_items_than_hosts_and_one_giant() -> None:
    partition = multiway_partitioning.best_partition([5, 3], 4)
    assert sorted(partition.loads) == [0, 0, 3, 5]
    giant = multiway_partitioning.best_partition([1] * 9 + [1000], 4)
    assert max(giant.loads) == 1000
    assert multiway_partitioning.imbalance(giant.loads, 1000) == 1.0
    assert multiway_partitioning.best_partition([], 3).loads == (0, 0, 0)
    assert multiway_partitioning.imbalance((0, 0, 0), 0) == 1.0


def test_the_same_sizes_give_the_same_parts() -> None:
    sizes = [7, 7, 7, 3, 3, 3, 3, 1, 1]
    for way in WAYS:
        assert way(sizes, 4) == way(list(sizes), 4)


def test_of_equals_the_simplest_is_kept() -> None:
    assert multiway_partitioning.best_partition([4] * 12, 3).method == multiway_partitioning.CONTIGUOUS


@pytest.mark.parametrize("size", [-1, float("nan"), float("inf"), -0.5])
def test_what_is_no_size_is_named(size: float) -> None:
    for way in WAYS:
        with pytest.raises(ValueError, match="item 1 has size"):
            way([1, size], 2)
    with pytest.raises(ValueError, match="0 hosts"):
        multiway_partitioning.best_partition([1], 0)
