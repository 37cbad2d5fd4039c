"""Diagnostics of planning: reasons, warnings and problems, in the order of the decisions."""

from __future__ import annotations

from dataclasses import dataclass, field

from smlaunch.errors import Problem
from smlaunch.planner.plan import Reason


@dataclass
class Diagnostics:
    """Collects the diagnostics of one plan, without duplicates. A plan with any problem is rejected."""

    reasons: list[Reason] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    filled_fields: set[str] = field(default_factory=set)
    """Fields of the job that the plan has filled in and the user has not stated."""

    def add_reason(self, rule: str, sentence: str) -> None:
        reason = Reason(rule, sentence)
        if reason not in self.reasons:
            self.reasons.append(reason)

    def add_warning(self, sentence: str) -> None:
        if sentence not in self.warnings:
            self.warnings.append(sentence)

    def add_problem(self, path: str, message: str) -> None:
        problem = Problem(path, message)
        if problem not in self.problems:
            self.problems.append(problem)
