"""The registry of the planner's rules: those in the modules of this package, which are loaded because they
lie here, and those that others add (docs/extending.md). Pure.

Each rule is small, has an id and cites its source; docs/refusals.md lists them. A strategy checks its own
requirements (``check``), ``Job`` checks single fields, and ``smlaunch.api.validation`` checks the finished
request.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any, get_args

from smlaunch.catalog.registry import Registry
from smlaunch.errors import Problem
from smlaunch.job.model import Job
from smlaunch.planner.plan_context import Diagnostics, Finding, PlanContext, PlanWarning
from smlaunch.planner.rules.rule import Phase, Rule

AnyRule = Rule[Any, Any]

_OTHER_RULES = Registry[AnyRule]("smlaunch.rules", "rule", "smlaunch.planner.rules.rule:Rule")
"""Rules of scripts and other packages, by their ids."""


def register_rule(rule: AnyRule) -> None:
    """Add a rule for this process. Raises ValueError if one of its id exists, and for an unknown phase."""
    if any(built_in.id == rule.id for built_in in built_in_rules()):
        raise ValueError(f"there is a rule {rule.id} already")
    if rule.phase not in get_args(Phase):
        raise ValueError(f"rule {rule.id}: phase is one of {', '.join(get_args(Phase))}, not {rule.phase!r}")
    _OTHER_RULES.register(rule.id, rule)


def all_rules() -> tuple[AnyRule, ...]:
    """Return all rules. Raises JobError for a rule of another package that cannot be loaded."""
    return (*built_in_rules(), *_OTHER_RULES.values())


@cache
def built_in_rules() -> tuple[AnyRule, ...]:
    """Return the rules of this package: by the names of their modules, and in a module from top to bottom."""
    module_names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = [import_module(f"{__name__}.{name}") for name in module_names]
    module_attributes = [attribute for module in modules for attribute in vars(module).values()]
    return tuple(attribute for attribute in module_attributes if isinstance(attribute, Rule))


def rules_of(phase: Phase) -> tuple[AnyRule, ...]:
    """Return the rules of a phase, in their order."""
    # The sort keeps the sequence of all_rules() among rules of one order.
    return tuple(sorted((rule for rule in all_rules() if rule.phase == phase), key=lambda rule: rule.order))


def apply_rules(
    phase: Phase, context: PlanContext, diagnostics: Diagnostics, unknown_fields: Iterable[str] = ()
) -> None:
    """Add what the rules of a phase find. ``unknown_fields``: could not be read; rules that read them are
    skipped."""
    unreadable_fields = tuple(unknown_fields)
    for rule in rules_of(phase):
        if not rule.reads_any(unreadable_fields):
            for finding in rule.check(context):
                diagnostics.add(_soften_allowed_problem(rule, finding, context))


def apply_rule(rule_id: str, context: PlanContext, diagnostics: Diagnostics) -> None:
    """Add what one of smlaunch's own rules finds, which looks at more than is known when its phase is
    applied."""
    (rule,) = (rule for rule in built_in_rules() if rule.id == rule_id)
    for finding in rule.check(context):
        diagnostics.add(finding)


def _soften_allowed_problem(rule: AnyRule, finding: Finding, context: PlanContext) -> Finding:
    """Return what a rule has found. A problem of a rule that may be wrong becomes a warning if the job allows
    what the rule rejects (``allow``); otherwise its message names the option for that."""
    if not rule.may_be_allowed or not isinstance(finding, Problem):
        return finding
    if is_allowed(rule, context.job):
        return PlanWarning(f"{finding.path}: {finding.message} (allowed: {rule.id}).")
    return finding._replace(message=finding.message + allowing_option(rule))


def is_allowed(rule: AnyRule, job: Job) -> bool:
    """Whether the job allows what the rule rejects."""
    return rule.may_be_allowed and rule.id in job.allow


def allowing_option(rule: AnyRule) -> str:
    """The option that allows what the rule rejects, for the end of a message; empty if it may not be."""
    return f" ({rule.allowed_when}: --allow {rule.id})" if rule.may_be_allowed else ""


def rules_that_may_be_allowed() -> list[str]:
    """Ids of the rules that a job's ``allow`` may name, sorted."""
    return sorted(rule.id for rule in all_rules() if rule.may_be_allowed)
