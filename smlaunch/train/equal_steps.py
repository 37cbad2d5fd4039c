"""Agree on the number of steps per epoch: a rank with one step more would wait for the others forever.

Shards of equal bytes do not have equal numbers of samples, and shards with equal numbers of files even less
so. Before training starts all ranks compare their numbers; they continue with one number, or fail with all
numbers named.
"""

import os
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional

from smlaunch.train import rank_group as groups
from smlaunch.train.rank_group import RankGroup

SAME = "same"
MIN = "min"
WRAP = "wrap"

_MAX_NAMED_HOSTS = 16
"""With more hosts, an error names only the extremes."""

_REMEDY = 'split the data again, or use equal_steps(..., rule="min") or rule="wrap"'


def equal_steps(
    steps: int,
    rule: str = SAME,
    *,
    group: Optional[RankGroup] = None,
    environ: Mapping[str, str] = os.environ,
) -> int:
    """Return how many steps of each epoch every rank takes. Collective: all ranks call it, before the first
    epoch.

    ``steps``: what this rank's own data gives, ``len(loader)``. ``rule``: ``same``: the numbers must be
    equal; ``min``: use the smallest, and leave the rest of the others unused; ``wrap``: use the largest, and
    let other ranks repeat their data (``batches_for_steps`` does that). Rank 0 prints one line. Raises
    RuntimeError, on all ranks, naming hosts and their numbers, if they are unequal and must be equal, or if a
    rank has none.
    """
    if rule not in (SAME, MIN, WRAP):
        raise ValueError('rule: "{}", "{}" or "{}", not {!r}'.format(SAME, MIN, WRAP, rule))
    rank_group = groups.find_group(environ) if group is None else group
    rows = _gather_rows(rank_group, steps, environ)
    counts: List[int] = [count for _, _, count in rows]
    if min(counts) < 1:
        raise RuntimeError(
            "some ranks have no step at all: {}; use fewer hosts".format(describe_counts(rows))
        )
    if rule == SAME:
        _check_rows(rows, "steps of an epoch", _REMEDY)
    agreed_steps = min(counts) if rule == MIN else max(counts)
    if rank_group.rank == 0:
        spread = (
            "" if min(counts) == max(counts) else " (ranks have {} to {})".format(min(counts), max(counts))
        )
        print("smlaunch: {} steps an epoch on every rank{}".format(agreed_steps, spread), flush=True)
    return agreed_steps


def batches_for_steps(batches: Iterable[Any], steps: int) -> Iterator[Any]:
    """Yield exactly ``steps`` batches: not all of them, or from the start again when they are used up. Raises
    ValueError if there is no batch at all."""
    remaining = steps
    while remaining > 0:
        remaining_before = remaining
        for batch in batches:
            yield batch
            remaining -= 1
            if remaining == 0:
                return
        if remaining == remaining_before:
            raise ValueError("there is no batch for {} steps".format(steps))


def check_equal(group: RankGroup, value: Any, subject: str, remedy: str, environ: Mapping[str, str]) -> None:
    """Check that all ranks have the same ``value`` (JSON). Collective. Raises RuntimeError on all ranks if
    not."""
    _check_rows(_gather_rows(group, value, environ), subject, remedy)


def describe_counts(rows: List[Any]) -> str:
    """Return the counts by host, as ``algo-1: 12, 12; algo-2: 15, 15``."""
    counts_by_host: Dict[str, List[str]] = {}
    for host, _, value in rows:
        counts_by_host.setdefault(host, []).append(str(value))
    hosts = list(counts_by_host.items())
    if len(hosts) > _MAX_NAMED_HOSTS:
        smallest, largest = min(rows, key=_count_in), max(rows, key=_count_in)
        return "{} hosts, from {} on {} to {} on {}".format(
            len(hosts), smallest[2], smallest[0], largest[2], largest[0]
        )
    return "; ".join("{}: {}".format(host, ", ".join(values)) for host, values in hosts)


def _count_in(row: Any) -> Any:
    return row[2] if isinstance(row[2], int) else str(row[2])


def _gather_rows(group: RankGroup, value: Any, environ: Mapping[str, str]) -> List[Any]:
    return group.gather([environ.get("SM_CURRENT_HOST") or "localhost", group.rank, value])


def _check_rows(rows: List[Any], subject: str, remedy: str) -> None:
    if any(row[2] != rows[0][2] for row in rows):
        raise RuntimeError(
            "ranks differ in their {}, so that some would wait for the others forever: {}; {}".format(
                subject, describe_counts(rows), remedy
            )
        )
