"""What rules look at (a job, the facts and the chosen strategy), which facts a job needs, and what rules
report. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from smlaunch.api.job_kinds import TRAINING, JobKind
from smlaunch.catalog import instances
from smlaunch.catalog.instances import DEFAULT_INSTANCE_TYPE, known_types
from smlaunch.catalog.prices import RegionPrices
from smlaunch.catalog.quotas import (
    DEFAULT_HOSTS_PER_JOB,
    DEFAULT_RUNTIME_QUOTA,
    HOSTS_PER_JOB_QUOTA,
    MAX_RUNTIME_QUOTA,
    ON_DEMAND_QUOTA,
    SPOT_QUOTA,
    WARM_POOL_QUOTA,
)
from smlaunch.errors import Problem
from smlaunch.facts.discovered_facts import DiscoveredFacts, ScriptFacts
from smlaunch.facts.fact_needs import FactNeeds
from smlaunch.facts.requirements_choice import RequirementsChoice, choose_requirements
from smlaunch.job.bucket_owners import BucketOwner, bucket_owners_in_job
from smlaunch.job.model import Job, Workload, format_duration, parse_duration
from smlaunch.job.results import Output
from smlaunch.job.team_config import TeamPolicy
from smlaunch.planner.plan import Cost, Reason
from smlaunch.storage.host_data import data_of_host
from smlaunch.strategies import load_strategy
from smlaunch.strategies.base import Strategy, find_imported_library
from smlaunch.strategies.detection import DetectedStrategy, detect_strategy


def detect_strategy_of_script(script: ScriptFacts) -> DetectedStrategy | None:
    """Return the strategy (a way to start ranks, such as ``ddp``) that the script's imports indicate; if
    none, the one that the imports of its modules indicate.

    A library that the program may do without, because it is imported under a condition or in a function,
    counts only where no other one certainly joins the ranks.
    """
    program = script.program  # the script with the modules that it imports
    detected = detect_strategy(script.imports) or detect_strategy(program.imports)
    if detected is None:
        return None
    certain_script_imports = script.imports - script.optional_imports
    certain_program_imports = program.imports - program.optional_imports
    certain_imports = certain_script_imports | certain_program_imports
    is_certain = find_imported_library(certain_imports, (detected.library,)) is not None
    if is_certain:
        return detected
    for imports in (certain_script_imports, certain_program_imports):
        certain_strategy = detect_strategy(imports)
        if certain_strategy is not None and certain_strategy.joins_hosts:
            return certain_strategy
    return detected


@dataclass(frozen=True)
class JobContext:
    """What rules that choose the strategy look at."""

    job: Job
    facts: DiscoveredFacts

    @cached_property
    def detected_strategy(self) -> DetectedStrategy | None:
        """The strategy that the script's imports indicate; if none, the one that its modules' indicate."""
        return detect_strategy_of_script(self.facts.script)


@dataclass(frozen=True)
class PlanContext(JobContext):
    """What rules look at once the strategy is chosen."""

    strategy: Strategy
    run_id: str = field(default="", kw_only=True)
    """Name of the run, of a shard's run for one shard; empty where only the job is checked."""

    is_chain: bool = field(default=False, kw_only=True)
    """Whether the run may take several jobs, one after the other; False where only the job is checked."""

    cost: Cost | None = field(default=None, kw_only=True)
    """Of one run; None until the plan has computed it."""

    run_count: int = field(default=1, kw_only=True)
    """Equal runs, one for each shard."""

    @property
    def job_kind(self) -> JobKind:
        return self.strategy.job_kind

    @cached_property
    def requirements(self) -> RequirementsChoice:
        return choose_requirements(self.job, self.facts.source)

    @cached_property
    def stated_bucket_owners(self) -> tuple[BucketOwner, ...]:
        return tuple(bucket_owners_in_job(self.job))

    @property
    def prices(self) -> RegionPrices:
        """What is known about prices of jobs of this kind in the region."""
        return self.facts.prices(trains_model=self.job_kind.trains_model)

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
    def policy(self) -> TeamPolicy | None:
        """The team's policy; None on the local endpoint, where nothing is billed and no account is used."""
        return None if self.facts.target == "local" else self.facts.team.policy

    @property
    def launcher(self) -> str:
        """What starts the ranks: the strategy's own launcher, or the job's."""
        return self.strategy.launcher or self.job.launcher

    @property
    def hosts(self) -> int:
        return max_hosts_of(self.job)


def stated_job_kind(strategy_name: str | None) -> JobKind:
    """The kind of the strategy that a job states; training without one."""
    return TRAINING if strategy_name is None else load_strategy(strategy_name).job_kind


def has_split_input(job: Job) -> bool:
    """Whether hosts share the files of an input, instead of each getting all of them."""
    return any(channel.split is not None for channel in job.inputs.values())


def stated_output(job: Job) -> Output:
    """``output`` of the job, with nothing stated if it is None."""
    return job.output or Output()


def bytes_of_file_channels(job: Job, facts: DiscoveredFacts) -> int:
    """Return the size of the inputs that the service copies to each host before training (mode ``File``): of
    one with ``split: key`` a host's share of the objects, each of the average size."""
    return sum(
        math.ceil(data_of_host(channel, facts.inputs[name], job.hosts_of_channel(channel)).bytes)
        for name, channel in job.inputs.items()
        if channel.mode == "File" and name in facts.inputs
    )


def instance_types_of(job: Job) -> tuple[str, ...]:
    """Instance types that the job may run on, in its order."""
    return tuple(dict.fromkeys(name for _, name in stated_instance_types(job)))


def stated_instance_types(job: Job) -> Iterator[tuple[str, str]]:
    """Yield the instance types that the job may run on, each with the field that states it; the default one
    with ``compute.instance_type``."""
    if job.compute.instance_preferences:
        yield from (("compute.instance_preferences", name) for name in job.compute.instance_preferences)
    elif job.compute.instance_groups:
        for index, group in enumerate(job.compute.instance_groups):
            yield f"compute.instance_groups[{index}].type", group.type
    else:
        yield "compute.instance_type", job.compute.own_instance_type
    for index, change in enumerate(job.segments):
        if change.compute.instance_type is not None:
            yield f"segments[{index}].compute.instance_type", change.compute.instance_type


def max_hosts_of(job: Job) -> int:
    """Number of hosts of the largest segment."""
    return max(job.compute.host_count, *(change.compute.hosts or 1 for change in job.segments), 1)


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

    is_warned_of: bool = False
    """Of a type that the job names the plan warns."""

    may_more_hosts_help: bool = False
    is_reported_elsewhere: bool = False
    """Every plan checks this and reports it."""

    distance: float = 0.0
    """How far the machines are from suitable ones: dollars, seconds or a ratio, the same for all objections
    of a rule."""


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


def fact_needs(job: Job) -> FactNeeds:
    """Return what discovery has to read for the plan of a job."""
    may_need_several_jobs = _may_need_several_jobs(job)
    # Such runs need a script that saves checkpoints, or one that reads its own part of the files.
    has_split_by_bytes = any(channel.split == "bytes" for channel in job.inputs.values())
    runtime_quota = MAX_RUNTIME_QUOTA.format(stated_job_kind(job.strategy).noun)
    return FactNeeds(
        instance_quotas=relevant_quotas(job),
        runtime_quota=runtime_quota if _exceeds_default_runtime_quota(job) else None,
        checkpoints=job.checkpoints is not None,
        sized_inputs=sized_inputs(job),
        module_sources=may_need_several_jobs or has_split_by_bytes or job.checkpoints is not None,
    )


def sized_inputs(job: Job) -> frozenset[str]:
    """Return the names of the inputs on whose size the plan depends: those that hosts copy or share, and all
    of a job whose machines are compared."""
    compares_machines = job.workload != Workload() or job.algorithm is not None
    return frozenset(
        name
        for name, channel in job.inputs.items()
        if compares_machines or channel.mode == "File" or channel.split is not None
    )


def _may_need_several_jobs(job: Job) -> bool:
    """Return whether the run may be a chain of several training jobs."""
    max_runtime = None if job.limits.max_runtime is None else parse_duration(job.limits.max_runtime)
    has_segments = job.limits.segment is not None or bool(job.segments)
    return has_segments or (max_runtime is not None and max_runtime > DEFAULT_RUNTIME_QUOTA)


def _exceeds_default_runtime_quota(job: Job) -> bool:
    """Return whether a job may run longer than every account allows. Without a limit the plan sets one by the
    job's measured time."""
    texts = (job.limits.max_runtime or job.workload.time_on_one, job.limits.segment)
    seconds = [parse_duration(text) for text in texts if text is not None]
    return min(seconds, default=0) > DEFAULT_RUNTIME_QUOTA


def unknown_quota_text(facts: DiscoveredFacts, job_seconds: float) -> str:
    """Return what is assumed about the account's quota for the longest run of a job, a sentence without its
    full stop; empty if the quota is known, or too high to matter for a job of ``job_seconds``."""
    if facts.target != "aws" or facts.max_runtime_quota is not None or job_seconds <= DEFAULT_RUNTIME_QUOTA:
        return ""
    cause = f" ({facts.max_runtime_quota_problem})" if facts.max_runtime_quota_problem else ""
    return (
        f"The account's quota for the longest run of a job is not known{cause}: AWS's default is "
        f"{format_duration(DEFAULT_RUNTIME_QUOTA)}, a quota that can be raised, and the service refuses "
        "longer jobs until it is"
    )


def instance_quota_pattern(job: Job, kind: JobKind) -> str:
    """Name pattern of the quota that the hosts of a job of this kind count against."""
    return SPOT_QUOTA if job.compute.spot else ON_DEMAND_QUOTA.format(kind.noun)


def relevant_quotas(job: Job, kind: JobKind | None = None) -> tuple[str, ...]:
    """Return the names, in Service Quotas, of the account's quotas that may limit the job; with a workload,
    those of all instance types that the plan compares. Empty if nothing needs to be read. ``kind``: that of
    the job; by default that of the strategy that it states."""
    kind = kind or stated_job_kind(job.strategy)
    if not kind.has_quotas or job.compute.training_plan is not None:  # its hosts are reserved
        return ()
    # Of all segments: the most hosts, and every instance type (the default if the job names none).
    compute, max_hosts, type_names = job.compute, max_hosts_of(job), instance_types_of(job)
    is_one_default_host = type_names == (DEFAULT_INSTANCE_TYPE,) and max_hosts == 1 and not compute.spot
    # The job leaves instance type and hosts to the plan, which may choose others than the default.
    plan_compares_types = is_one_default_host and plan_chooses_type(job)
    if is_one_default_host and not plan_compares_types and compute.keep_alive is None:
        # Every account may have one such host, and reading quotas costs requests.
        return ()
    # The plan compares all types of the catalog that have a price.
    if plan_compares_types:
        type_names = tuple(
            instance.name for instance in known_types().values() if instance.usd_per_hour is not None
        )
    # Such as "ml.m5.xlarge for training job usage"; spot hosts have quotas of their own.
    quota_names = [instance_quota_pattern(job, kind).format(name) for name in type_names]
    # Hosts that are kept for a next job, a warm pool, have another quota.
    if compute.keep_alive is not None:
        quota_names += [WARM_POOL_QUOTA.format(name) for name in type_names]
    # Every account may have 20 hosts (the default) in one job.
    if max_hosts > DEFAULT_HOSTS_PER_JOB or plan_compares_types:
        quota_names.append(HOSTS_PER_JOB_QUOTA.format(kind.noun))
    return tuple(quota_names)


def plan_chooses_type(job: Job) -> bool:
    """Whether the plan chooses the instance type by the job's workload."""
    compute = job.compute
    names_type = compute.instance_type is not None or compute.instance_preferences or compute.instance_groups
    return job.workload != Workload() and not names_type
