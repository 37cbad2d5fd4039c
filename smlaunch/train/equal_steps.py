"""As many steps per epoch on every rank: a rank that has one more would wait for the others for ever.

Parts of equal bytes are not of equal samples, and a split by number still less so. Before training starts all
ranks compare what they have; they go on with one number, or fail with all of them named.
"""

import os
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional

from smlaunch.train import group as groups
from smlaunch.train.group import Group

SAME = "same"
MIN = "min"
WRAP = "wrap"

_NAMED = 16
"""Hosts that an error names; of more, the extremes."""

_CURE = 'split the data again, or say equal_steps(..., rule="min") or rule="wrap"'


def equal_steps(
    steps: int,
    rule: str = SAME,
    *,
    group: Optional[Group] = None,
    environ: Mapping[str, str] = os.environ,
) -> int:
    """How many steps of each epoch every rank takes. Collective: all ranks call it, before the first epoch.

    ``steps``: what this rank's own part makes, ``len(loader)``. ``rule``: ``same``: they must be equal
    already; ``min``: the fewest that any rank has, the rest of the others stays unused; ``wrap``: the most,
    others begin their part again (``exactly`` does that). Rank 0 prints one line. Raises RuntimeError, on all
    ranks, naming hosts and their numbers, where they are not equal and must be, or a rank has none.
    """
    if rule not in (SAME, MIN, WRAP):
        raise ValueError('rule: "{}", "{}" or "{}", not {!r}'.format(SAME, MIN, WRAP, rule))
    found = groups.find(environ) if group is None else group
    rows = _gathered(found, steps, environ)
    counts: List[int] = [count for _, _, count in rows]
    if min(counts) < 1:
        raise RuntimeError("some ranks have no step at all: {}; ask for fewer hosts".format(told(rows)))
    if rule == SAME:
        _check(rows, "steps of an epoch", _CURE)
    agreed = min(counts) if rule == MIN else max(counts)
    if found.rank == 0:
        rest = "" if min(counts) == max(counts) else " (ranks have {} to {})".format(min(counts), max(counts))
        print("smlaunch: {} steps an epoch on every rank{}".format(agreed, rest), flush=True)
    return agreed


def exactly(batches: Iterable[Any], steps: int) -> Iterator[Any]:
    """So many batches: fewer than there are, or from the start again when they are used up. Raises
    ValueError when there is none to begin again with."""
    left = steps
    while left > 0:
        before = left
        for batch in batches:
            yield batch
            left -= 1
            if left == 0:
                return
        if left == before:
            raise ValueError("no batch, and {} are to be given".format(steps))


def check_equal(group: Group, value: Any, what: str, cure: str, environ: Mapping[str, str]) -> None:
    """Collective. RuntimeError, on all ranks, when they have not the same ``value`` (what JSON can hold)."""
    _check(_gathered(group, value, environ), what, cure)


def told(rows: List[Any]) -> str:
    """``algo-1: 12, 12; algo-2: 15, 15``."""
    of_host: Dict[str, List[str]] = {}
    for host, _, value in rows:
        of_host.setdefault(host, []).append(str(value))
    hosts = list(of_host.items())
    if len(hosts) > _NAMED:
        low, high = min(rows, key=_value), max(rows, key=_value)
        return "{} hosts, from {} on {} to {} on {}".format(len(hosts), low[2], low[0], high[2], high[0])
    return "; ".join("{}: {}".format(host, ", ".join(values)) for host, values in hosts)


def _value(row: Any) -> Any:
    return row[2] if isinstance(row[2], int) else str(row[2])


def _gathered(group: Group, value: Any, environ: Mapping[str, str]) -> List[Any]:
    return group.gather([environ.get("SM_CURRENT_HOST") or "localhost", group.rank, value])


def _check(rows: List[Any], what: str, cure: str) -> None:
    if any(row[2] != rows[0][2] for row in rows):
        raise RuntimeError(
            "ranks differ in their {}, so that some would wait for the others for ever: {}; {}".format(
                what, told(rows), cure
            )
        )
