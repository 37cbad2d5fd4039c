from __future__ import annotations

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from smlaunch.local.endpoint_settings import ShardingRule
from smlaunch.local.jobs.object_sharding import ChannelSharding, shuffle, split_items_by_host

keys = st.lists(st.text(min_size=1), unique=True, max_size=60)
rules = st.sampled_from(get_args(ShardingRule))


def shares_of(names: list[str], hosts: int, rule: ShardingRule) -> list[list[str]]:
    return split_items_by_host(names, str, hosts, rule)


@given(keys, st.integers(1, 20), rules)
def test_every_key_goes_to_exactly_one_host(names: list[str], hosts: int, rule: ShardingRule) -> None:
    shares = shares_of(names, hosts, rule)
    assert len(shares) == hosts
    assert sorted(key for share in shares for key in share) == sorted(names)
    for share in shares:
        assert [name for name in names if name in set(share)] == share
    if rule != "hash":
        sizes = [len(share) for share in shares]
        assert max(sizes) - min(sizes) <= 1


@given(st.lists(st.sampled_from("abcdef"), max_size=30), st.integers(1, 5), rules)
def test_a_key_that_is_named_twice_stays_on_one_host(
    names: list[str], hosts: int, rule: ShardingRule
) -> None:
    shares = shares_of(names, hosts, rule)
    assert sorted(key for share in shares for key in share) == sorted(names)
    for key in set(names):
        assert sum(key in share for share in shares) == 1


def test_the_rules_differ() -> None:
    names = [f"part-{number}" for number in range(6)]
    assert shares_of(names, 2, "round-robin") == [names[::2], names[1::2]]
    assert shares_of(names, 2, "contiguous") == [names[:3], names[3:]]


@given(keys, st.integers(), st.integers(0, 3))
def test_a_seed_gives_one_order_for_each_epoch(names: list[str], seed: int, epoch: int) -> None:
    assert shuffle(names, seed, epoch) == shuffle(names, seed, epoch)
    assert sorted(shuffle(names, seed, epoch)) == sorted(names)


@given(
    names=keys,
    hosts=st.integers(1, 8),
    rule=rules,
    seed=st.none() | st.integers(),
    reshard=st.booleans(),
    epoch=st.integers(0, 5),
)
def test_in_every_epoch_every_key_is_on_exactly_one_host(
    names: list[str], hosts: int, rule: ShardingRule, seed: int | None, reshard: bool, epoch: int
) -> None:
    order = ChannelSharding(
        host_count=hosts, is_sharded=True, rule=rule, seed=seed, reshards_every_epoch=reshard
    )
    shares = [order.shard_for_host(names, str, host, epoch) for host in range(hosts)]
    assert sorted(key for share in shares for key in share) == sorted(names)
    if not reshard:
        first = [set(order.shard_for_host(names, str, host, 0)) for host in range(hosts)]
        assert [set(share) for share in shares] == first


def test_what_changes_between_epochs() -> None:
    names = [f"part-{number}" for number in range(30)]

    def epochs(seed: int | None, sharded: bool, reshard: bool) -> list[list[str]]:
        order = ChannelSharding(
            host_count=2, is_sharded=sharded, rule="round-robin", seed=seed, reshards_every_epoch=reshard
        )
        return [list(order.shard_for_host(names, str, 0, epoch)) for epoch in (0, 1)]

    first, second = epochs(seed=None, sharded=False, reshard=True)
    assert first == second == names
    first, second = epochs(seed=7, sharded=False, reshard=True)
    assert first != second
    first, second = epochs(seed=7, sharded=True, reshard=True)
    assert set(first) != set(second)
    first, second = epochs(seed=7, sharded=True, reshard=False)
    assert first != second
    assert set(first) == set(second)
