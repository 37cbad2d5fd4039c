"""Split an inventory over hosts, and summarize the split in one document."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from smlaunch.data.inventory_file import Inventory
from smlaunch.data.inventory_keys import SIZE_COLUMN, InventoryKeys
from smlaunch.data.previous_split import read_previous_hosts
from smlaunch.data.split import RANGES_METHOD, STABLE_METHOD, HostSplit, split_size_blocks, split_sizes
from smlaunch.errors import JobError, Problem
from smlaunch.storage import multiway_partitioning


class InventorySplit(NamedTuple):
    """A split of an inventory's keys."""

    keys: InventoryKeys
    host_split: HostSplit
    summary: dict[str, Any]
    """The document of ``smlaunch data split --json``, in plain types."""


def split_inventory(
    inventory: Inventory,
    host_count: int,
    *,
    weight_column: str = SIZE_COLUMN,
    previous_folder: Path | None = None,
) -> InventorySplit:
    """Split an inventory's objects over ``host_count`` hosts, so that the sums of ``weight_column``, by
    default the bytes, are equal.

    ``previous_folder``: that of an earlier split, as ``write_split`` wrote it; keys then keep their host as
    far as the sums stay equal. Without it only numbers are read, block by block; with it the keys too, and
    all weights are held in memory. Raises JobError for an inventory, a column or a number of hosts that
    cannot be used.
    """
    keys = InventoryKeys(inventory)  # the inventory's rows without folder markers, which are no data
    try:
        if previous_folder is None:  # the numbers are read twice
            host_split = split_size_blocks(lambda: keys.column_blocks(weight_column), keys.count, host_count)
        else:
            weight_blocks = [*keys.column_blocks(weight_column)]
            weights = np.concatenate(weight_blocks) if weight_blocks else np.zeros(0, dtype=np.int64)
            previous_hosts = read_previous_hosts(keys, previous_folder)  # of each row, -1 for a new one
            host_split = split_sizes(weights, host_count, previous=previous_hosts)
    except ValueError as error:
        option = "" if weight_column == SIZE_COLUMN else "--weight"
        raise JobError([Problem(option, str(error))]) from error
    summary = _summarize_split(inventory, keys, host_split, weight_column)
    return InventorySplit(keys, host_split, summary)


def _summarize_split(
    inventory: Inventory, keys: InventoryKeys, host_split: HostSplit, weight_column: str
) -> dict[str, Any]:
    """Return the document of ``smlaunch data split --json``. A host's load is its sum of the weights."""
    is_split_by_bytes = weight_column == SIZE_COLUMN
    bytes_by_host = host_split.loads if is_split_by_bytes else _bytes_by_host(keys, host_split)
    shards: list[dict[str, Any]] = []
    for host in range(host_split.hosts):
        shards.append({"host": host, "bytes": bytes_by_host[host], "keys": host_split.row_counts[host]})
        if not is_split_by_bytes:
            shards[-1][weight_column] = host_split.loads[host]
    loads_by_count = host_split.loads_by_row_count  # of a split by the number of keys alone
    return {
        "bucket": keys.bucket,
        "prefix": keys.base_prefix,
        "inventory_at": inventory.created_at,
        "hosts": host_split.hosts,
        "weight": weight_column,
        "keys": keys.count,
        "bytes": sum(bytes_by_host),
        "folder_markers_left_out": keys.marker_count,
        "method": host_split.method,
        "imbalance": host_split.imbalance,
        "by_count": {
            "imbalance": host_split.imbalance_by_row_count,
            "contiguous": list(loads_by_count.contiguous),
            "round_robin": list(loads_by_count.round_robin),
        },
        "stability": _describe_stability(host_split),
        "warnings": _find_split_warnings(host_split, weight_column),
        "shards": shards,
    }


def _bytes_by_host(keys: InventoryKeys, host_split: HostSplit) -> list[int]:
    """Return the bytes each host gets in a split by another column."""
    loads = np.zeros(host_split.hosts, dtype=np.int64)
    start = 0
    for block in keys.column_blocks():
        np.add.at(loads, host_split.hosts_of(start, start + len(block)), block)
        start += len(block)
    bytes_by_host: list[int] = loads.tolist()
    return bytes_by_host


def _describe_stability(host_split: HostSplit) -> dict[str, Any]:
    """Describe how the split changes when keys are added. ``in_ranges``: the share of keys that only move
    when the end of a range passes over them."""
    stability: dict[str, Any] = {"rule": _STABILITY_RULES.get(host_split.method, _UNSTABLE_RULE)}
    if host_split.method == RANGES_METHOD:
        stability["in_ranges"] = 1 - host_split.exception_count / max(sum(host_split.row_counts), 1)
    if host_split.moved is not None:
        stability["moved_keys"], stability["moved_weight"] = host_split.moved
    return stability


_STABILITY_RULES = {
    RANGES_METHOD: "a key moves when the end of a range passes over it: few do when keys are "
    "added all over, many "
    "when they are added at the end; with --previous keys only move to make shards equal",
    multiway_partitioning.CONTIGUOUS: "a key moves when the end of a range passes over it",
    STABLE_METHOD: "keys only moved to make shards equal",
}

_UNSTABLE_RULE = "any key may move when one is added; with --previous keys only move to make shards equal"


def _find_split_warnings(host_split: HostSplit, weight_column: str) -> list[str]:
    """Return warnings about a split: hosts without keys, or a key larger than a host's share. A host's load
    is its sum of ``weight_column``; ``largest_size`` is the largest number in that column."""
    warnings: list[str] = []
    total_weight = sum(host_split.loads)
    empty_host_count = host_split.row_counts.count(0)
    if empty_host_count:
        warnings.append(
            f"{empty_host_count} of {host_split.hosts} hosts get no key at all: there are "
            f"{sum(host_split.row_counts):,} keys."
        )
    # A key that exceeds the even share only by a thousandth is not worth a warning.
    elif total_weight and host_split.largest_size > total_weight / host_split.hosts * 1.001:
        unit = "bytes" if weight_column == SIZE_COLUMN else weight_column
        warnings.append(
            f"One key alone holds {host_split.largest_size / total_weight:.1%} of all {unit}, more than a "
            f"host's even share of {1 / host_split.hosts:.1%}: only splitting that object makes the shards "
            f"equal."
        )
    return warnings
