"""What deciding says along the way: reasons, warnings and problems, in the order of the decisions."""

from __future__ import annotations

from dataclasses import dataclass, field

from smlaunch.errors import Problem
from smlaunch.planning.plan import Reason


@dataclass
class Notes:
    """Grows while one plan is made. With any problem in it there is no plan. What several segments have in
    common is said once. ``filled``: fields of the job that the plan has filled in, and nobody has stated."""

    reasons: list[Reason] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    filled: set[str] = field(default_factory=set)

    def because(self, rule: str, sentence: str) -> None:
        reason = Reason(rule, sentence)
        if reason not in self.reasons:
            self.reasons.append(reason)

    def warn(self, sentence: str) -> None:
        if sentence not in self.warnings:
            self.warnings.append(sentence)

    def refuse(self, path: str, message: str) -> None:
        problem = Problem(path, message)
        if problem not in self.problems:
            self.problems.append(problem)
