"""Millions of sizes over hosts: every row exactly once, never worse than by count, and as even as
reported."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from smlaunch.data import bin_packing  # noqa: E402
from smlaunch.data import split as module  # noqa: E402
from smlaunch.data.split import RANGES_METHOD, STABLE_METHOD, HostSplit, split_size_blocks, split_sizes  # noqa: E402
from smlaunch.storage import multiway_partitioning  # noqa: E402


def distributions(count: int, seed: int = 0) -> Iterator[tuple[str, Any]]:
    """Yields sizes in bytes as data sets have them, by the name of their distribution."""
    draw = np.random.default_rng(seed)
    yield "equal", np.full(count, 1 << 30)
    yield "images", (draw.lognormal(0, 0.6, count) * 110_000).astype(np.int64)
    yield "wide", (draw.lognormal(0, 2.0, count) * 50_000).astype(np.int64)
    yield "pareto", ((draw.pareto(1.2, count) + 1) * 10_000).astype(np.int64)
    yield "zipf", np.minimum(draw.zipf(1.6, count), 10**12) * 100


def check(host_split: HostSplit, sizes: Any, hosts: int) -> None:
    """Checks that every row is in exactly one part, and that every reported number is right."""
    hosts_of = host_split.hosts_of(0, len(sizes))
    assert hosts_of.dtype == np.uint16
    assert len(hosts_of) == len(sizes)
    if len(sizes):
        assert hosts_of.max() < hosts
    assert np.bincount(hosts_of, minlength=hosts).tolist() == list(host_split.row_counts)
    loads = np.zeros(hosts, dtype=sizes.dtype)
    np.add.at(loads, hosts_of, sizes)
    exact = sizes.dtype.kind == "i"
    slack = 1e-9 * sizes.sum()  # of sums of floats, taken in another order
    assert list(host_split.loads) == (loads.tolist() if exact else pytest.approx(loads.tolist(), abs=slack))
    assert host_split.largest_size == (sizes.max() if len(sizes) else 0)
    turns = [sizes[host::hosts].sum().item() for host in range(hosts)]
    ranges = [
        sizes[h * len(sizes) // hosts : (h + 1) * len(sizes) // hosts].sum().item() for h in range(hosts)
    ]
    assert list(host_split.loads_by_row_count.round_robin) == (
        turns if exact else pytest.approx(turns, abs=slack)
    )
    assert list(host_split.loads_by_row_count.contiguous) == (
        ranges if exact else pytest.approx(ranges, abs=slack)
    )
    assert host_split.imbalance <= host_split.imbalance_by_row_count * (1 if exact else 1 + 1e-9)


@pytest.mark.parametrize("hosts", [16, 64])
def test_a_million_keys_are_even(hosts: int) -> None:
    for name, sizes in distributions(1_000_000):
        host_split = split_sizes(sizes, hosts)
        check(host_split, sizes, hosts)
        assert host_split.imbalance <= 1.00001, name


def random_case(draw: Any) -> tuple[Any, int]:
    """Returns sizes of every kind, in numbers around every threshold and in orders that are hard to split."""
    count = int(draw.choice([0, 1, 2, 17, 60, 130, 400, 2500]))
    count = int(draw.integers(0, count + 1))
    hosts = int(draw.choice([1, 2, 3, 7, 16, 64, 200]))
    kind = draw.integers(0, 8)
    if kind == 0:
        sizes = draw.integers(0, 10, count)
    elif kind == 1:
        sizes = draw.integers(0, 5 * 2**40, count)
    elif kind == 2:
        sizes = ((draw.pareto(0.7, count) + 1) * 1000).clip(0, 2**45).astype(np.int64)
    elif kind == 3:
        sizes = np.where(draw.random(count) < 0.95, 0, draw.integers(1, 1000, count))
    elif kind == 4:
        sizes = np.zeros(count, dtype=np.int64)
    elif kind == 5:
        sizes = np.full(count, int(draw.integers(0, 2**40)))
        sizes[: min(count, 1)] = 2**50
    elif kind == 6:
        sizes = draw.random(count) * 10.0 ** draw.integers(-5, 12)
    else:
        sizes = draw.lognormal(10, 3, count).astype(np.int64)
    order = draw.integers(0, 3)
    if order:
        sizes = np.sort(sizes)[:: 1 if order == 1 else -1].copy()
    return sizes, hosts


@pytest.mark.parametrize("cases", [700, pytest.param(60_000, marks=pytest.mark.chaos)])
def test_random_cases(cases: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thresholds are small, so that a few hundred rows take the code paths of millions: heads, ranges,
    smoothing keys, ends of blocks."""
    for seed in range(cases):
        draw = np.random.default_rng(seed)
        monkeypatch.setattr(module, "BLOCK_ROWS", int(draw.choice([1, 3, 64, 1000])) if seed % 3 else 1 << 20)
        monkeypatch.setattr(bin_packing, "_MAX_HEAD_ROWS", int(draw.choice([1, 8, 100])))
        monkeypatch.setattr(
            multiway_partitioning, "KARMARKAR_KARP_MAX_ITEMS", int(draw.choice([0, 0, 0, 50]))
        )
        sizes, hosts = random_case(draw)
        if module.BLOCK_ROWS == 1 and len(sizes) > 200:
            sizes = sizes[:200]
        host_split = split_sizes(sizes, hosts)
        check(host_split, sizes, hosts)
        start = int(draw.integers(0, len(sizes) + 1))
        stop = int(draw.integers(start, len(sizes) + 1))
        assert (
            host_split.hosts_of(start, stop).tolist()
            == host_split.hosts_of(0, len(sizes))[start:stop].tolist()
        )


@pytest.mark.parametrize("cases", [20_000, pytest.param(2_000_000, marks=pytest.mark.chaos)])
def test_small_cases_by_the_thousand(cases: int) -> None:
    """Up to 12 sizes over up to 6 hosts: each exactly once, and never above by count."""
    draw = np.random.default_rng(cases)
    for start in range(0, cases, 10_000):
        del start
        tables = draw.integers(0, draw.choice([2, 10, 10**6], (10_000, 1)), (10_000, 12))
        lengths, hosts = draw.integers(0, 13, 10_000).tolist(), draw.integers(1, 7, 10_000).tolist()
        for row, length, count in zip(tables.tolist(), lengths, hosts, strict=True):
            sizes = row[:length]
            partition = multiway_partitioning.best_partition(sizes, count)
            loads = [0] * count
            for size, host in zip(sizes, partition.host_by_item, strict=True):
                loads[host] += size
            assert loads == list(partition.loads)
            assert len(partition.host_by_item) == length
            turns = max(sum(sizes[host::count]) for host in range(count))
            cuts = [host * length // count for host in range(count + 1)]
            ranges = max(sum(sizes[low:high]) for low, high in pairwise(cuts))
            assert max(loads) <= min(turns, ranges)


@pytest.mark.parametrize("cases", [60, pytest.param(5_000, marks=pytest.mark.chaos)])
def test_the_bound_that_is_told(cases: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest load is at most that of the head, largest first, or an even share and one key outside of
    the head."""
    monkeypatch.setattr(multiway_partitioning, "KARMARKAR_KARP_MAX_ITEMS", 0)
    for seed in range(cases):
        draw = np.random.default_rng(seed)
        sizes, hosts = random_case(draw)
        if sizes.dtype.kind == "f" or not sizes.sum():
            continue
        scanned = bin_packing.scan_sizes(lambda sizes=sizes: [sizes], len(sizes), hosts)
        places, loads = bin_packing.fill_hosts(lambda sizes=sizes: [sizes], len(sizes), scanned, [0] * hosts)
        del places
        head = np.zeros(hosts, dtype=np.int64)
        np.add.at(
            head,
            multiway_partitioning.assign_largest_first(scanned.head_rows[1].tolist(), [0] * hosts),
            scanned.head_rows[1],
        )
        rest_sizes = np.delete(sizes, scanned.head_rows[0])
        assert max(loads) <= max(
            head.max(), sizes.sum() / hosts + (rest_sizes.max() if len(rest_sizes) else 0) + 1
        )


def test_blocks_of_any_length_give_the_same() -> None:
    sizes = next(sizes for name, sizes in distributions(50_000, 3) if name == "wide")
    whole_split = split_sizes(sizes, 13)
    for length in (1777, 50_000, 49_999):
        cut = [sizes[start : start + length] for start in range(0, len(sizes), length)]
        split_again = split_size_blocks(lambda cut=cut: [cut[0][:0], *cut], len(sizes), 13)
        assert (split_again.hosts_of(0, 50_000) == whole_split.hosts_of(0, 50_000)).all()
        assert split_again.loads == whole_split.loads
    assert whole_split.method == RANGES_METHOD
    assert (
        whole_split.range_bounds is not None
        and whole_split.range_bounds[0] == 0
        and whole_split.range_bounds[-1] == 50_000
    )


def test_memory_does_not_grow_with_the_keys() -> None:
    """Blocks are generated as they are read: 4 million keys (32 MB of sizes) need the memory of one block and
    its work."""

    def blocks() -> Iterator[Any]:
        for start in range(16):
            yield np.random.default_rng(start).integers(1, 1000, 1 << 18)

    tracemalloc.start()
    host_split = split_size_blocks(blocks, 16 << 18, 64)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert host_split.imbalance < 1.0001
    assert peak < 24e6


def test_edges() -> None:
    assert split_sizes([], 3).loads == (0, 0, 0)
    assert split_sizes([], 3).imbalance == 1.0
    few_keys = split_sizes([5, 0, 3], 8)
    assert few_keys.row_counts.count(0) == 5
    giant = split_sizes(np.r_[np.ones(200_000, dtype=np.int64), 10**9], 16)
    assert giant.imbalance == 1.0
    assert sorted(giant.row_counts)[1] > 10_000
    nothing = split_sizes(np.zeros(100_000, dtype=np.int64), 16)
    assert set(nothing.row_counts) == {6250}
    samples = split_sizes(np.full(20_000, 0.1), 7)
    assert samples.imbalance < 1.001
    lone = split_sizes(np.r_[10**9, np.zeros(99_999, dtype=np.int64)], 16)
    assert max(lone.loads) == 10**9


@pytest.mark.parametrize(
    ("sizes", "hosts", "message"),
    [
        ([1, -1], 2, "row 1 has size -1"),
        ([1.0, float("nan")], 2, "row 1 has size nan"),
        ([float("inf")], 2, "row 0 has size inf"),
        ([2**61, 2**61], 2, r"2\*\*62"),
        ([2**62] * 5, 2, r"2\*\*62"),
        ([1], 0, "0 hosts"),
        ([1], 65_535, "65535 hosts"),
        (["a"], 2, "one-dimensional array of numbers"),
        ([[1, 2]], 2, "one-dimensional array of numbers"),
        (np.array([2**63], dtype=np.uint64), 2, r"2\*\*62"),
    ],
)
def test_what_cannot_be_split_is_named(sizes: Any, hosts: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_sizes(sizes, hosts)


def test_a_stream_that_ends_early_is_noticed() -> None:
    with pytest.raises(ValueError, match="20000 sizes were announced, but 5 were read"):
        split_size_blocks(lambda: [np.ones(5, dtype=np.int64)], 20_000, 2)


# ---- keys are added ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["images", "pareto"])
def test_keys_added_all_over_move_few(name: str) -> None:
    """The order stays, and every hundredth key is new. Ranges of 16 hosts end about where they did."""
    all_sizes = dict(distributions(200_000, 5))[name]
    is_old = np.random.default_rng(6).random(len(all_sizes)) >= 0.01
    split_before, split_now = split_sizes(all_sizes[is_old], 16), split_sizes(all_sizes, 16)
    assert split_before.method == split_now.method == RANGES_METHOD
    is_same_host = (
        split_before.hosts_of(0, int(is_old.sum())) == split_now.hosts_of(0, len(all_sizes))[is_old]
    )
    assert 1 - is_same_host.mean() < 0.06


def test_previous_moves_nothing_that_need_not() -> None:
    for name, all_sizes in distributions(100_000, 7):
        split_before = split_sizes(all_sizes[:-1000], 16)
        previous = np.r_[split_before.hosts_of(0, len(all_sizes) - 1000), np.full(1000, -1)].astype(np.int64)
        split_now = split_sizes(all_sizes, 16, previous=previous)
        check(split_now, all_sizes, 16)
        assert split_now.method == STABLE_METHOD, name
        assert split_now.moved is not None
        # Nothing has to move, unless a new key is so large that what its host has must make room for it.
        assert split_now.moved[0] <= 300, name
        assert split_now.moved[1] <= all_sizes.sum() * 0.005, name
        assert split_now.imbalance <= 1.0002, name


def test_previous_with_fewer_and_with_more_hosts() -> None:
    sizes = dict(distributions(100_000, 8))["images"]
    hosts_before = split_sizes(sizes, 16).hosts_of(0, len(sizes))
    fewer_hosts = split_sizes(sizes, 12, previous=hosts_before)
    check(fewer_hosts, sizes, 12)
    assert fewer_hosts.imbalance < 1.0001
    assert (
        fewer_hosts.moved is not None and fewer_hosts.moved[1] < sizes.sum() * 0.26
    )  # what the last four hosts had
    more_hosts = split_sizes(sizes, 20, previous=hosts_before)
    check(more_hosts, sizes, 20)
    assert more_hosts.imbalance < 1.0001
    assert (
        more_hosts.moved is not None and more_hosts.moved[1] < sizes.sum() * 0.21
    )  # what four new hosts are to have


@pytest.mark.parametrize("cases", [250, pytest.param(20_000, marks=pytest.mark.chaos)])
def test_previous_random_cases(cases: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(cases):
        draw = np.random.default_rng(seed)
        monkeypatch.setattr(bin_packing, "_MAX_HEAD_ROWS", int(draw.choice([1, 8, 100])))
        monkeypatch.setattr(module, "_MAX_DEALT_ROWS", int(draw.choice([0, 100])))
        monkeypatch.setattr(multiway_partitioning, "KARMARKAR_KARP_MAX_ITEMS", int(draw.choice([0, 50])))
        sizes, hosts = random_case(draw)
        previous = draw.integers(-1, hosts + 2, len(sizes))
        check(split_sizes(sizes, hosts, previous=previous), sizes, hosts)
    with pytest.raises(ValueError, match="one whole number per size"):
        split_sizes([1, 2, 3], 2, previous=[0, 1])
