from __future__ import annotations

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from smlaunch.local.jobs.sharding import shard, shuffled
from smlaunch.local.settings import ShardingRule

keys = st.lists(st.text(min_size=1), unique=True, max_size=60)
rules = st.sampled_from(get_args(ShardingRule))


@given(keys, st.integers(1, 20), rules)
def test_every_key_goes_to_exactly_one_host(names: list[str], hosts: int, rule: ShardingRule) -> None:
    shares = shard(names, hosts, rule)
    assert len(shares) == hosts
    assert sorted(key for share in shares for key in share) == sorted(names)
    for share in shares:
        assert [name for name in names if name in set(share)] == share
    if rule != "hash":
        sizes = [len(share) for share in shares]
        assert max(sizes) - min(sizes) <= 1


def test_the_rules_differ() -> None:
    names = [f"part-{number}" for number in range(6)]
    assert shard(names, 2, "round-robin") == [names[::2], names[1::2]]
    assert shard(names, 2, "contiguous") == [names[:3], names[3:]]


@given(keys, st.integers())
def test_a_seed_gives_one_order(names: list[str], seed: int) -> None:
    assert shuffled(names, seed) == shuffled(names, seed)
    assert sorted(shuffled(names, seed)) == sorted(names)
