"""A rule of the planner: what it looks at, and what it finds, with its source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from smlaunch.errors import Problem
from smlaunch.planner.plan_context import Finding

Phase = Literal["choose strategy", "choose machines", "validate", "advise"]
"""``choose strategy``: the rule names the strategy for a ``JobContext``; the first match decides.
``choose machines``: it objects to a ``ComputeOption``; the first objection rejects the option.
``validate``: it rejects jobs that cannot work. ``advise``: it explains and warns. Both look at a
``PlanContext``."""

DEFAULT_ORDER = 50
"""``Rule.order`` of a rule that states none."""

FactName = Literal["account", "inputs", "quotas", "script"]
"""A part of ``DiscoveredFacts``."""


Problems = Iterator[Problem]
Findings = Iterator[Finding]

Subject = TypeVar("Subject")
Found = TypeVar("Found")


@dataclass(frozen=True)
class Rule(Generic[Subject, Found]):
    """One rule of the registry, of what it looks at and what it finds."""

    id: str
    """Dotted, such as ``spot.checkpoints``."""

    phase: Phase
    summary: str
    """What the rule chooses, rejects or reports, in a phrase."""

    source: str
    """Address of the page that states it; a page of this project by its path, such as ``docs/planner.md``."""

    quote: str
    """What the source says, in short."""

    fields: tuple[str, ...]
    """Fields of the job that the check reads; if one could not be read, the rule is skipped. A field that
    ends in ``.*`` is checked entry by entry. The first one is reported if no machines are left."""

    facts: tuple[FactName, ...]
    """Facts that the check reads."""

    check: Callable[[Subject], Iterator[Found]]

    may_be_allowed: bool = False
    """A job that names the rule in ``allow`` gets a warning instead of a problem."""

    allowed_when: str = "if this is wrong"
    """When to name it there, a phrase."""

    order: int = DEFAULT_ORDER
    """Place among the rules of its phase, the lowest first. Of rules in one place smlaunch's own come first,
    then registered ones as they were registered, then those of installed packages."""

    def reads_any(self, unknown_fields: Iterable[str]) -> bool:
        """Whether the rule reads one of ``unknown_fields``, or a field above or below one."""
        read_fields = [read_field for read_field in self.fields if not read_field.endswith(".*")]
        return any(paths_overlap(field, read_field) for field in unknown_fields for read_field in read_fields)


def rule(
    rule_id: str,
    *,
    summary: str,
    source: str,
    quote: str,
    fields: tuple[str, ...],
    facts: tuple[FactName, ...] = (),
    phase: Phase = "validate",
    may_be_allowed: bool = False,
    allowed_when: str = "if this is wrong",
    order: int = DEFAULT_ORDER,
) -> Callable[[Callable[[Subject], Iterator[Found]]], Rule[Subject, Found]]:
    """Make a rule from a function that yields what it finds. ``fields``: of the job, that it reads."""
    return lambda check: Rule(
        id=rule_id,
        phase=phase,
        summary=summary,
        source=source,
        quote=quote,
        fields=fields,
        facts=facts,
        check=check,
        may_be_allowed=may_be_allowed,
        allowed_when=allowed_when,
        order=order,
    )


def paths_overlap(first: str, second: str) -> bool:
    """Whether one field's path equals the other's, or lies inside it."""
    return (
        first == second
        or first.startswith((second + ".", second + "["))
        or second.startswith((first + ".", first + "["))
    )
