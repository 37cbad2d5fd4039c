"""Rules for jobs that cannot work: checked before anything is uploaded, and reported together. Pure.

Each rule is small, has a name, and cites its source in the reference; docs/refusals.md lists them. A
strategy checks its own requirements (``check``), ``Job`` checks single fields, and
``smlaunch.api.validation`` checks the finished request.
"""

from __future__ import annotations

from collections.abc import Iterable

from smlaunch.errors import Problem
from smlaunch.planner.plan_context import PlanContext
from smlaunch.planner.refusals import account, capacity, data, images, jobs, request
from smlaunch.planner.refusals.rule import Rule, paths_overlap

__all__ = ["RULES", "PlanContext", "Rule", "find_problems", "paths_overlap"]

RULES: tuple[Rule, ...] = (
    *capacity.RULES,
    *jobs.RULES,
    *data.RULES,
    *images.RULES,
    *request.RULES,
    *account.RULES,
)


def find_problems(context: PlanContext, unknown_fields: Iterable[str] = ()) -> list[Problem]:
    """All problems that the rules find. ``unknown_fields``: could not be read; rules that read them are
    skipped."""
    unread_fields = tuple(unknown_fields)
    return [problem for rule in RULES if not rule.reads_any(unread_fields) for problem in rule.check(context)]
