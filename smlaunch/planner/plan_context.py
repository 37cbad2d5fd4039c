"""What rules and quotas look at (a job, the facts and the chosen strategy), and what they report. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from smlaunch.api.job_kinds import PROCESSING, TRAINING, JobKind
from smlaunch.catalog import instances
from smlaunch.catalog.instances import DEFAULT_INSTANCE_TYPE
from smlaunch.errors import Problem
from smlaunch.facts.discovered_facts import DiscoveredFacts
from smlaunch.job.model import Job
from smlaunch.planner.plan import Reason

if TYPE_CHECKING:
    from smlaunch.strategies.base import Strategy


@dataclass(frozen=True)
class PlanContext:
    """What rules look at."""

    job: Job
    facts: DiscoveredFacts
    strategy: Strategy | None = None
    """The chosen strategy; None if none could be chosen."""

    @property
    def job_kind(self) -> JobKind:
        return TRAINING if self.strategy is None else self.strategy.job_kind

    @property
    def is_processing(self) -> bool:
        return self.job_kind is PROCESSING

    @property
    def has_runtime(self) -> bool:
        """Whether smlaunch's runtime starts the program, so that the job can stop itself and be continued."""
        return self.job.entry is not None

    @property
    def instance_types(self) -> tuple[str, ...]:
        return instance_types_of(self.job)

    @property
    def hosts(self) -> int:
        return max_hosts_of(self.job)


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
            self.add_problem(finding.path, finding.message)
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

    def add_problem(self, path: str, message: str) -> None:
        problem = Problem(path, message)
        if problem not in self.problems:
            self.problems.append(problem)
