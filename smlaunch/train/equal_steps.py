"""Agree on the number of steps per epoch: a rank with one step more would wait for the others forever.

Shards of equal bytes do not have equal numbers of samples, and shards with equal numbers of files even less
so. Before training starts all ranks compare their numbers; they continue with one number, or fail with all
numbers named.
"""

import os
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from smlaunch.train import rank_group as groups
from smlaunch.train.rank_group import RankGroup

SAME = "same"
MIN = "min"
WRAP = "wrap"

_MAX_NAMED_HOSTS = 16
"""With more hosts, an error names only the extremes."""

_UNEQUAL_STEPS_REMEDY = 'split the data again, or use equal_steps(..., rule="min") or rule="wrap"'


class RankValue(NamedTuple):
    """What one rank has, and on which host it is."""

    host: str
    rank: int
    value: Any


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
    # It connects the ranks: that of torch.distributed, or of a single rank.
    rank_group = groups.find_group(environ) if group is None else group
    rank_values = _gather_rank_values(rank_group, steps, environ)  # of each rank: host and steps
    step_counts: List[int] = [rank_value.value for rank_value in rank_values]
    smallest_count, largest_count = min(step_counts), max(step_counts)
    if smallest_count < 1:
        raise RuntimeError(
            "some ranks have no step at all: {}; use fewer hosts".format(describe_counts(rank_values))
        )
    if rule == SAME:
        _raise_if_unequal(rank_values, "steps of an epoch", _UNEQUAL_STEPS_REMEDY)
    agreed_steps = smallest_count if rule == MIN else largest_count
    if rank_group.rank == 0:
        is_equal = smallest_count == largest_count
        range_note = "" if is_equal else " (ranks have {} to {})".format(smallest_count, largest_count)
        print("smlaunch: {} steps an epoch on every rank{}".format(agreed_steps, range_note), flush=True)
    return agreed_steps


def batches_for_steps(batches: Iterable[Any], steps: int) -> Iterator[Any]:
    """Yield exactly ``steps`` of the batches: not all of them, or from the start again when they are used up.
    ``batches`` can be iterated several times, as a DataLoader can. Raises ValueError if there is no batch."""
    remaining_steps = steps
    while remaining_steps > 0:
        steps_before_pass = remaining_steps
        for batch in batches:
            yield batch
            remaining_steps -= 1
            if remaining_steps == 0:
                return
        if remaining_steps == steps_before_pass:  # another pass would not yield one either
            raise ValueError("there is no batch for {} steps".format(steps))


def check_equal_on_all_ranks(
    group: RankGroup, value: Any, subject: str, remedy: str, environ: Mapping[str, str]
) -> None:
    """Check that all ranks have the same ``value`` (JSON). Collective. Raises RuntimeError on all ranks if
    not."""
    _raise_if_unequal(_gather_rank_values(group, value, environ), subject, remedy)


def describe_counts(rank_values: Sequence[RankValue]) -> str:
    """Return the counts by host, as ``algo-1: 12, 12; algo-2: 15, 15``."""
    counts_by_host: Dict[str, List[str]] = {}
    for rank_value in rank_values:
        counts_by_host.setdefault(rank_value.host, []).append(str(rank_value.value))
    if len(counts_by_host) > _MAX_NAMED_HOSTS:
        smallest, largest = min(rank_values, key=_sort_key), max(rank_values, key=_sort_key)
        return "{} hosts, from {} on {} to {} on {}".format(
            len(counts_by_host), smallest.value, smallest.host, largest.value, largest.host
        )
    return "; ".join("{}: {}".format(host, ", ".join(counts)) for host, counts in counts_by_host.items())


def _sort_key(rank_value: RankValue) -> Any:
    return rank_value.value if isinstance(rank_value.value, int) else str(rank_value.value)


def _gather_rank_values(group: RankGroup, value: Any, environ: Mapping[str, str]) -> List[RankValue]:
    """Return the value of every rank, by rank. Collective."""
    host = environ.get("SM_CURRENT_HOST") or "localhost"
    return [RankValue(*fields) for fields in group.gather([host, group.rank, value])]


def _raise_if_unequal(rank_values: Sequence[RankValue], subject: str, remedy: str) -> None:
    if any(rank_value.value != rank_values[0].value for rank_value in rank_values):
        raise RuntimeError(
            "ranks differ in their {}, so that some would wait for the others forever: {}; {}".format(
                subject, describe_counts(rank_values), remedy
            )
        )
