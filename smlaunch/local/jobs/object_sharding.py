"""Chooses which objects of a channel go to which host, and in which order. Pure.

AWS documents only that n hosts get about 1/n of the objects each, so the rule is a setting. With every rule,
each key goes to exactly one host; except with ``hash``, the numbers of keys per host differ by at most one.
A key that a manifest names twice stays on one host.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from smlaunch.local.endpoint_settings import ShardingRule

_ShardedItem = TypeVar("_ShardedItem")


def assign_keys_to_hosts(keys: Sequence[str], host_count: int, rule: ShardingRule) -> dict[str, int]:
    """Return the number of the host, from 0, that gets each object key of a ShardedByS3Key channel. ``rule``
    "contiguous" gives each host a run of successive keys, "round-robin" each next key to the next host,
    "hash" each key to the host of its hash. A repeated key stays on one host."""
    distinct_keys = list(dict.fromkeys(keys))
    if rule == "hash":
        return {key: _hash_key(key) % host_count for key in distinct_keys}
    if rule == "round-robin":
        return {key: key_number % host_count for key_number, key in enumerate(distinct_keys)}
    first_key_number_by_host = [
        len(distinct_keys) * host_number // host_count for host_number in range(host_count + 1)
    ]
    return {
        key: host_number
        for host_number, (start, end) in enumerate(itertools.pairwise(first_key_number_by_host))
        for key in distinct_keys[start:end]
    }


def _hash_key(key: str) -> int:
    """Return a hash of an object key that is the same in every process."""
    digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big")


def split_items_by_host(
    items: Sequence[_ShardedItem], key_of: Callable[[_ShardedItem], str], host_count: int, rule: ShardingRule
) -> list[list[_ShardedItem]]:
    """Return one list per host, each in the order of ``items``. ``key_of`` returns an item's key."""
    host_number_by_key = assign_keys_to_hosts([key_of(item) for item in items], host_count, rule)
    shards: list[list[_ShardedItem]] = [[] for _ in range(host_count)]
    for item in items:
        shards[host_number_by_key[key_of(item)]].append(item)
    return shards


def shuffle(items: Sequence[_ShardedItem], seed: int, epoch: int = 0) -> list[_ShardedItem]:
    """Return the items in the order of ShuffleConfig, which depends on seed and epoch only."""
    shuffled_items = list(items)
    random.Random(f"{seed} {epoch}").shuffle(shuffled_items)  # noqa: S311 - an order, not a secret
    return shuffled_items


class ChannelSharding:
    """What each host of a channel gets in each epoch."""

    def __init__(
        self,
        *,
        host_count: int,
        is_sharded: bool,
        rule: ShardingRule,
        seed: int | None,
        reshards_every_epoch: bool,
    ) -> None:
        """``seed`` None means the listing's order. ``reshards_every_epoch``: whether every epoch's shuffle
        also assigns the items to hosts anew, as the API reference says it may (ShuffleConfig); otherwise
        only the first epoch's does."""
        self._host_count = host_count
        self._is_sharded = is_sharded
        self._rule = rule
        self._seed = seed
        self._reshards_every_epoch = reshards_every_epoch

    def shard_for_host(
        self,
        items: Sequence[_ShardedItem],
        key_of: Callable[[_ShardedItem], str],
        host_number: int,
        epoch: int = 0,
    ) -> Sequence[_ShardedItem]:
        """Return the items (objects or records) of the channel that a host gets in an epoch, in their order;
        hosts and epochs are counted from 0. ``key_of`` returns an item's key. Without ShardedByS3Key a host
        gets all items; with ShuffleConfig, in an order that depends on its seed and on the epoch."""
        seed = self._seed  # None: no ShuffleConfig
        if seed is None:
            return self._shard_of(items, key_of, host_number) if self._is_sharded else items
        if not self._is_sharded:
            return shuffle(items, seed, epoch)
        if self._reshards_every_epoch or epoch == 0:
            # Shuffled before it is split: the host gets other items in every epoch.
            return self._shard_of(shuffle(items, seed, epoch), key_of, host_number)
        # The host keeps the items of the first epoch, in another order.
        first_shard = self._shard_of(shuffle(items, seed, epoch=0), key_of, host_number)
        return shuffle(first_shard, seed, epoch)

    def _shard_of(
        self, items: Sequence[_ShardedItem], key_of: Callable[[_ShardedItem], str], host_number: int
    ) -> Sequence[_ShardedItem]:
        return split_items_by_host(items, key_of, self._host_count, self._rule)[host_number]
