"""A rule: something that cannot work, reported by the job's fields, with its source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from smlaunch.errors import Problem
from smlaunch.planner.plan_context import PlanContext

Problems = Iterator[Problem]


@dataclass(frozen=True)
class Rule:
    """A check for something that cannot work."""

    name: str
    """Dotted, such as ``spot.checkpoints``."""

    summary: str
    """What the rule rejects, in a phrase."""

    section: str
    """Section of the reference that states it."""

    quote: str
    """The reference's words."""

    reads: tuple[str, ...]
    """Fields of the job that the check reads; if one could not be read, the rule is skipped. A field that
    ends in ``.*`` is checked entry by entry."""

    check: Callable[[PlanContext], Problems]

    def reads_any(self, unknown_fields: Iterable[str]) -> bool:
        """Whether the rule reads one of ``unknown_fields``, or a field above or below one."""
        read_fields = [read_field for read_field in self.reads if not read_field.endswith(".*")]
        return any(paths_overlap(field, read_field) for field in unknown_fields for read_field in read_fields)


def rule(
    name: str, summary: str, section: str, quote: str, *reads: str
) -> Callable[[Callable[[PlanContext], Problems]], Rule]:
    """Make a rule from a check function. ``reads``: fields of the job that it reads."""
    return lambda find: Rule(name, summary, section, quote, reads, find)


def paths_overlap(first: str, second: str) -> bool:
    """Whether one field's path equals the other's, or lies inside it."""
    return (
        first == second
        or first.startswith((second + ".", second + "["))
        or second.startswith((first + ".", first + "["))
    )
