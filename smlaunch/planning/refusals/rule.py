"""What a rule is: something that cannot work, told by the job's own fields, and where that is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from smlaunch.errors import Problem
from smlaunch.planning.case import Case

Found = Iterator[Problem]


@dataclass(frozen=True)
class Rule:
    """``name``: as reasons have them, ``spot.checkpoints``. ``what`` it refuses, in a phrase. ``section`` and
    ``fact``: where it comes from, a section of the reference and its words. ``reads``: the job's fields it
    looks at: where one of them could not be read, nobody knows whether the rule holds. One that ends in
    ``.*`` is looked at entry by entry, each on its own."""

    name: str
    what: str
    section: str
    fact: str
    reads: tuple[str, ...]
    find: Callable[[Case], Found]

    def needs(self, unknown: Iterable[str]) -> bool:
        """Whether one of the fields ``unknown`` is among those it reads, or above or below one."""
        reads = [read for read in self.reads if not read.endswith(".*")]
        return any(overlap(field, read) for field in unknown for read in reads)


def rule(
    name: str, what: str, section: str, fact: str, *reads: str
) -> Callable[[Callable[[Case], Found]], Rule]:
    return lambda find: Rule(name, what, section, fact, reads, find)


def overlap(one: str, other: str) -> bool:
    """Whether one field's path is the other's, or lies inside it."""
    return (
        one == other or one.startswith((other + ".", other + "[")) or other.startswith((one + ".", one + "["))
    )
