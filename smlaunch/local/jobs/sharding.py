"""Chooses which objects of a channel go to which host, and in which order. Pure.

AWS documents only that n hosts get about 1/n of the objects each, so the rule is a setting. With every rule,
each key goes to exactly one host; except with ``hash``, the numbers of keys per host differ by at most one.
A key that a manifest names twice stays on one host.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from smlaunch.local.settings import ShardingRule

_ShardedItem = TypeVar("_ShardedItem")


def hosts_of_keys(keys: Sequence[str], hosts: int, rule: ShardingRule) -> dict[str, int]:
    """Return the number of the host, from 0, that each key belongs to."""
    distinct = list(dict.fromkeys(keys))
    if rule == "contiguous":
        # The same bounds as count * number // hosts for each host's start.
        return {
            key: number
            for number in range(hosts)
            for key in distinct[len(distinct) * number // hosts : len(distinct) * (number + 1) // hosts]
        }
    if rule == "hash":
        return {
            key: int.from_bytes(hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()[:8], "big")
            % hosts
            for key in distinct
        }
    return {key: number % hosts for number, key in enumerate(distinct)}


def split_by_host(
    items: Sequence[_ShardedItem], key_of: Callable[[_ShardedItem], str], hosts: int, rule: ShardingRule
) -> list[list[_ShardedItem]]:
    """Return one list per host, each in the order of ``items``. ``key_of`` returns an item's key."""
    host_of_key = hosts_of_keys([key_of(item) for item in items], hosts, rule)
    shards: list[list[_ShardedItem]] = [[] for _ in range(hosts)]
    for item in items:
        shards[host_of_key[key_of(item)]].append(item)
    return shards


def shuffle(items: Sequence[_ShardedItem], seed: int, epoch: int = 0) -> list[_ShardedItem]:
    """Return the items in the order of ShuffleConfig, which depends on seed and epoch only."""
    shuffled_items = list(items)
    random.Random(f"{seed} {epoch}").shuffle(shuffled_items)  # noqa: S311 - an order, not a secret
    return shuffled_items


class ShardOrder:
    """What each host of a channel gets in each epoch."""

    def __init__(
        self, *, hosts: int, sharded: bool, rule: ShardingRule, seed: int | None, reshard: bool
    ) -> None:
        """``seed`` None means the listing's order. ``reshard``: whether every epoch's shuffle also assigns
        the items to hosts anew, as the API reference says it may (ShuffleConfig); otherwise only the first
        epoch's does."""
        self._hosts = hosts
        self._sharded = sharded
        self._rule = rule
        self._seed = seed
        self._reshard = reshard

    def shard_for_host(
        self,
        items: Sequence[_ShardedItem],
        key_of: Callable[[_ShardedItem], str],
        host_number: int,
        epoch: int = 0,
    ) -> Sequence[_ShardedItem]:
        """Return the items of a host, counted from 0, in an epoch, counted from 0."""
        seed = self._seed
        if not self._sharded:
            return items if seed is None else shuffle(items, seed, epoch)
        if seed is None:
            return split_by_host(items, key_of, self._hosts, self._rule)[host_number]
        sharding_epoch = epoch if self._reshard else 0
        shard = split_by_host(shuffle(items, seed, sharding_epoch), key_of, self._hosts, self._rule)[
            host_number
        ]
        return shard if sharding_epoch == epoch else shuffle(shard, seed, epoch)
