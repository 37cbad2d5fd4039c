"""Which object of a ShardedByS3Key channel goes to which host. Pure.

AWS documents only that n hosts get about 1/n of the objects each, so the rule is a setting: whatever it is,
every key goes to exactly one host, and numbers differ by one at most, but for ``hash``.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from itertools import pairwise

from smlaunch.local.settings import ShardingRule


def shard(keys: Sequence[str], hosts: int, rule: ShardingRule) -> list[list[str]]:
    """One list of keys per host, each in the order of ``keys``."""
    if rule == "contiguous":
        bounds = [len(keys) * number // hosts for number in range(hosts + 1)]
        return [list(keys[start:end]) for start, end in pairwise(bounds)]
    if rule == "hash":
        shares: list[list[str]] = [[] for _ in range(hosts)]
        for key in keys:
            digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
            shares[int.from_bytes(digest[:8], "big") % hosts].append(key)
        return shares
    return [list(keys[number::hosts]) for number in range(hosts)]


def shuffled(keys: Sequence[str], seed: int) -> list[str]:
    """The order ShuffleConfig asks for, the same for the same seed."""
    order = list(keys)
    random.Random(seed).shuffle(order)  # noqa: S311 - an order, not a secret
    return order
