"""Which object of a channel goes to which host, and in which order. Pure.

AWS documents only that n hosts get about 1/n of the objects each, so the rule is a setting: whatever it is,
every key goes to exactly one host, and numbers differ by one at most, but for ``hash``. A key that a manifest
names twice stays on one host.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from smlaunch.local.settings import ShardingRule

_Thing = TypeVar("_Thing")


def owners(keys: Sequence[str], hosts: int, rule: ShardingRule) -> dict[str, int]:
    """The number of the host, from 0, that each key belongs to."""
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


def shard(
    things: Sequence[_Thing], name: Callable[[_Thing], str], hosts: int, rule: ShardingRule
) -> list[list[_Thing]]:
    """One list per host, each in the order of ``things``."""
    owner = owners([name(thing) for thing in things], hosts, rule)
    shares: list[list[_Thing]] = [[] for _ in range(hosts)]
    for thing in things:
        shares[owner[name(thing)]].append(thing)
    return shares


def shuffled(things: Sequence[_Thing], seed: int, epoch: int = 0) -> list[_Thing]:
    """The order ShuffleConfig asks for: the same for the same seed and epoch, another for another epoch."""
    order = list(things)
    random.Random(f"{seed} {epoch}").shuffle(order)  # noqa: S311 - an order, not a secret
    return order


class Order:
    """What each host of a channel gets in each epoch.

    ``seed`` of None keeps the listing's order. ``reshard``: whether an epoch's order also decides which host
    gets what, as the API reference says it may (ShuffleConfig); else only the first one's does.
    """

    def __init__(
        self, *, hosts: int, sharded: bool, rule: ShardingRule, seed: int | None, reshard: bool
    ) -> None:
        self._hosts = hosts
        self._sharded = sharded
        self._rule = rule
        self._seed = seed
        self._reshard = reshard

    def share(
        self, things: Sequence[_Thing], name: Callable[[_Thing], str], host: int, epoch: int = 0
    ) -> Sequence[_Thing]:
        """Of host number ``host``, from 0."""
        seed = self._seed
        if not self._sharded:
            return things if seed is None else shuffled(things, seed, epoch)
        if seed is None:
            return shard(things, name, self._hosts, self._rule)[host]
        deciding = epoch if self._reshard else 0
        mine = shard(shuffled(things, seed, deciding), name, self._hosts, self._rule)[host]
        return mine if deciding == epoch else shuffled(mine, seed, epoch)
