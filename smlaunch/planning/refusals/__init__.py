"""What cannot work, by rule: looked for before anything is uploaded, and told all at once. Pure.

Each rule is small, has a name, and says where in the reference it comes from; docs/refusals.md is their
table. What a strategy needs is checked by the strategy (``check``), what a single field may hold by ``Job``,
and the finished request by ``smlaunch.validate``.
"""

from __future__ import annotations

from collections.abc import Iterable

from smlaunch.errors import Problem
from smlaunch.planning.case import Case
from smlaunch.planning.refusals import account, capacity, data, images, jobs, request
from smlaunch.planning.refusals.rule import Rule, overlap

__all__ = ["RULES", "Case", "Rule", "overlap", "refusals"]

RULES: tuple[Rule, ...] = (
    *capacity.RULES,
    *jobs.RULES,
    *data.RULES,
    *images.RULES,
    *request.RULES,
    *account.RULES,
)


def refusals(case: Case, unknown: Iterable[str] = ()) -> list[Problem]:
    """Every problem that a rule finds. ``unknown``: fields that could not be read, so that rules which look
    at them are passed over."""
    unread = tuple(unknown)
    return [problem for rule in RULES if not rule.needs(unread) for problem in rule.find(case)]
