"""What rules look at (a job, the facts and the chosen strategy), and what they report. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from smlaunch.api.job_kinds import TRAINING, JobKind
from smlaunch.catalog import instances
from smlaunch.catalog.instances import DEFAULT_INSTANCE_TYPE
from smlaunch.errors import Problem
from smlaunch.facts.discovered_facts import DiscoveredFacts
from smlaunch.job.model import Job
from smlaunch.planner.plan import Reason
from smlaunch.strategies import load_strategy
from smlaunch.strategies.base import Strategy
from smlaunch.strategies.detection import DetectedStrategy, detect_strategy


@dataclass(frozen=True)
class JobContext:
    """What rules that choose the strategy look at."""

    job: Job
    facts: DiscoveredFacts

    @cached_property
    def detected_strategy(self) -> DetectedStrategy | None:
        """The strategy that the script's imports indicate; if none, the one that its modules' indicate."""
        script = self.facts.script
        return detect_strategy(script.imports) or detect_strategy(script.program.imports)


@dataclass(frozen=True)
class PlanContext(JobContext):
    """What rules look at once the strategy is chosen."""

    strategy: Strategy

    @property
    def job_kind(self) -> JobKind:
        return self.strategy.job_kind

    @property
    def quotas(self) -> Mapping[str, float | None]:
        """Values, by name, of the account's quotas that limit the job."""
        return self.facts.quotas if self.job_kind.has_quotas else {}

    @property
    def has_runtime(self) -> bool:
        """Whether smlaunch's runtime starts the program, so that the job can stop itself and be continued."""
        return self.job.entry is not None

    @property
    def instance_types(self) -> tuple[str, ...]:
        return instance_types_of(self.job)

    @property
    def has_accelerators(self) -> bool:
        """False for hosts that certainly have none."""
        return may_have_accelerators(self.job, self.facts)

    @property
    def launcher(self) -> str:
        """What starts the ranks: the strategy's own launcher, or the job's."""
        return self.strategy.launcher or self.job.launcher

    @property
    def hosts(self) -> int:
        return max_hosts_of(self.job)


def stated_job_kind(job: Job) -> JobKind:
    """The kind of the strategy that the job states; training without one."""
    return TRAINING if job.strategy is None else load_strategy(job.strategy).job_kind


def instance_types_of(job: Job) -> tuple[str, ...]:
    """Instance types that the job may run on, in its order."""
    segment_types = (change.compute.instance_type for change in job.segments)
    type_names = job.compute.instance_preferences or (job.compute.instance_type or DEFAULT_INSTANCE_TYPE,)
    return tuple(dict.fromkeys([*type_names, *(name for name in segment_types if name is not None)]))


def max_hosts_of(job: Job) -> int:
    """Number of hosts of the largest segment."""
    return max(job.compute.hosts, *(change.compute.hosts or 1 for change in job.segments), 1)


def is_accelerated(instance_type: str) -> bool:
    """Whether a type has GPUs or NeuronCores: by the catalog, otherwise by the family's prefix."""
    catalog_entry = instances.find_instance_type(instance_type)
    if catalog_entry is not None:
        return catalog_entry.accelerators > 0
    return instance_type.split(".")[1].startswith(("g", "p", "trn"))


def may_have_accelerators(job: Job, facts: DiscoveredFacts) -> bool:
    if facts.target == "local":
        return bool(facts.endpoint.accelerators_per_host)
    return any(map(is_accelerated, instance_types_of(job)))


def is_neuron(instance_type: str) -> bool:
    catalog_entry = instances.find_instance_type(instance_type)
    return (
        catalog_entry.is_neuron
        if catalog_entry is not None
        else instance_type.split(".")[1].startswith("trn")
    )


class PlanWarning(NamedTuple):
    """A sentence of the plan's warnings."""

    sentence: str


Finding = Problem | Reason | PlanWarning
"""What a rule finds."""


class StrategyMatch(NamedTuple):
    """A strategy that a rule chooses."""

    strategy_name: str
    evidence: str
    """What indicates it, as the beginning of a sentence."""

    reason_rule: str = ""
    """Name of the plan's reason; empty for the rule's id."""


class Objection(NamedTuple):
    """Why machines are unsuitable for a workload, and what the user can do."""

    clause: str
    """Why, for the user."""

    remedy: str = "name compute.instance_type to use one anyway"
    """What to change about the job if no machines are left."""

    holds_for_named_type: bool = False
    """The objection also rejects a type that the job names."""

    may_more_hosts_help: bool = False
    is_reported_elsewhere: bool = False
    """Every plan checks this and reports it."""

    estimate: float = 0.0
    """Dollars or seconds that the objection is about: the less, the nearer the machines are to suitable
    ones."""


@dataclass
class Diagnostics:
    """Collects the diagnostics of one plan, without duplicates. A plan with any problem is rejected."""

    reasons: list[Reason] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    fields_chosen_by_plan: set[str] = field(default_factory=set)
    """Fields of the job that the plan has filled in and the user has not stated."""

    def add(self, finding: Finding) -> None:
        if isinstance(finding, Problem):
            self.add_problem(finding.path, finding.message, finding.change)
        elif isinstance(finding, Reason):
            self.add_reason(finding.rule, finding.explanation)
        else:
            self.add_warning(finding.sentence)

    def add_reason(self, rule: str, sentence: str) -> None:
        reason = Reason(rule, sentence)
        if reason not in self.reasons:
            self.reasons.append(reason)

    def add_warning(self, sentence: str) -> None:
        if sentence not in self.warnings:
            self.warnings.append(sentence)

    def add_problem(self, path: str, message: str, change: str = "") -> None:
        problem = Problem(path, message, change)
        if problem not in self.problems:
            self.problems.append(problem)
