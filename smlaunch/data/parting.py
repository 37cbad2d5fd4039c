"""An inventory split over hosts, and all there is to say about it in one document."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from smlaunch.data.earlier_lists import hosts_before
from smlaunch.data.inventory import Inventory
from smlaunch.data.keys import SIZE, Keys
from smlaunch.data.split import FILL, KEPT, Split, split, split_blocks
from smlaunch.errors import JobError, Problem
from smlaunch.planning import parts


class Parted(NamedTuple):
    """``summary``: the document of ``smlaunch data split --json``, in plain types."""

    keys: Keys
    split: Split
    summary: dict[str, Any]


def part(inventory: Inventory, hosts: int, *, weight: str = SIZE, previous: Path | None = None) -> Parted:
    """Shares an inventory's objects out over ``hosts`` by the column ``weight``.

    ``previous``: a folder that ``write_lists`` made; keys then stay with their host as far as parts are even.
    Reads numbers only, block by block; with ``previous`` the keys too, and holds all sizes. Raises JobError
    for an inventory, a column or a number of hosts that cannot be used.
    """
    keys = Keys(inventory)
    try:
        if previous is None:
            found = split_blocks(lambda: keys.blocks(weight), keys.count, hosts)
        else:
            sizes = [*keys.blocks(weight)]
            whole = np.concatenate(sizes) if sizes else np.zeros(0, dtype=np.int64)
            found = split(whole, hosts, previous=hosts_before(keys, previous))
    except ValueError as error:
        raise JobError([Problem("--weight" if weight != SIZE else "", str(error))]) from error
    return Parted(keys, found, _summary(inventory, keys, found, weight))


def _summary(inventory: Inventory, keys: Keys, found: Split, weight: str) -> dict[str, Any]:
    bytes_of = found.loads if weight == SIZE else _bytes(keys, found)
    shares: list[dict[str, Any]] = [
        {"host": host, "bytes": size, "keys": count}
        for host, (size, count) in enumerate(zip(bytes_of, found.counts, strict=True))
    ]
    if weight != SIZE:
        shares = [{**share, weight: load} for share, load in zip(shares, found.loads, strict=True)]
    by_count = found.by_count
    return {
        "bucket": keys.bucket,
        "prefix": keys.base,
        "inventory_at": inventory.at,
        "hosts": found.hosts,
        "weight": weight,
        "keys": keys.count,
        "bytes": sum(bytes_of),
        "folder_markers_left_out": keys.left_out,
        "method": found.method,
        "imbalance": found.imbalance,
        "by_count": {
            "imbalance": found.imbalance_by_count,
            "contiguous": list(by_count.contiguous),
            "round_robin": list(by_count.round_robin),
        },
        "stability": _stability(found),
        "warnings": _warnings(found, weight),
        "parts": shares,
    }


def _bytes(keys: Keys, found: Split) -> list[int]:
    """What each host gets in bytes, where the split is by something else."""
    loads = np.zeros(found.hosts, dtype=np.int64)
    start = 0
    for block in keys.blocks():
        np.add.at(loads, found.hosts_of(start, start + len(block)), block)
        start += len(block)
    counted: list[int] = loads.tolist()
    return counted


def _stability(found: Split) -> dict[str, Any]:
    """How parts will change when keys are added: ``in_ranges`` is the share of keys that only move when the
    end of a range passes over them."""
    told: dict[str, Any] = {"rule": _RULES.get(found.method, _FREE)}
    if found.method == FILL:
        told["in_ranges"] = 1 - found.alone / max(sum(found.counts), 1)
    if found.moved is not None:
        told["moved_keys"], told["moved_weight"] = found.moved
    return told


_RULES = {
    FILL: "a key moves when the end of a range passes over it: few do when keys are added all over, many "
    "when they are added at the end; with --previous none moves but to make parts even",
    parts.CONTIGUOUS: "a key moves when the end of a range passes over it",
    KEPT: "no key moved but to make parts even",
}

_FREE = "any key may move when one is added; with --previous none moves but to make parts even"


def _warnings(found: Split, weight: str) -> list[str]:
    told = []
    total = sum(found.loads)
    empty = found.counts.count(0)
    if empty:
        told.append(
            f"{empty} of {found.hosts} hosts get no key at all: there are {sum(found.counts):,} keys."
        )
    elif total and found.largest > total / found.hosts * 1.001:
        what = "bytes" if weight == SIZE else weight
        told.append(
            f"One key alone holds {found.largest / total:.1%} of all {what}, more than a host's even share "
            f"of {1 / found.hosts:.1%}: nothing but cutting it up makes parts even."
        )
    return told
