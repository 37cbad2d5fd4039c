"""What the workload demands of machines, by job and facts, and machines that may meet it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from smlaunch.catalog import algorithms, instances
from smlaunch.catalog.instances import InstanceType
from smlaunch.catalog.prices import HourlyPrice
from smlaunch.facts.discovered_facts import DiscoveredFacts
from smlaunch.facts.script_capability import ScriptCapability, script_capability
from smlaunch.job.channel import Channel
from smlaunch.job.field_types import parse_size
from smlaunch.job.model import Job, parse_duration
from smlaunch.planner import segments
from smlaunch.planner.plan_context import Objection, PlanContext, has_split_input
from smlaunch.planner.rules import AnyRule, allowing_option, is_allowed, rules_of
from smlaunch.storage.read_time_estimates import DataShare, EstimateRange
from smlaunch.storage.workload_estimate import (
    MODEL_MEMORY_SHARE,
    HostGroup,
    Measurement,
    estimate_duration,
    estimate_hourly_price,
    estimate_price,
)
from smlaunch.strategies.base import Strategy, find_imported_library

ASSUMED_ACCELERATOR_TYPE = "ml.g5.xlarge"
ASSUMED_CPU_TYPE = "ml.m5.xlarge"
"""Used if the job does not state where time_on_one was measured."""

LIMIT_RESERVE = 1.1
"""A time limit that the plan sets, as a multiple of the slow end of the estimate: an assumption."""

HEAVY_VCPU_PER_ACCELERATOR = 16
"""vCPU per accelerator that heavy preprocessing keeps busy if not measured: an assumption. The Alliance
suggests six for ordinary work."""

IN_MEMORY_FACTOR = 5
"""Memory, as a multiple of a table's file size, of a program that loads all of it. McKinney, "Apache Arrow
and the 10 things I hate about pandas", 2017: "5 to 10 times as much RAM as the size of your dataset"."""

IN_MEMORY_LIBRARIES = ("pandas", "sklearn", "xgboost", "lightgbm", "catboost")
"""Libraries whose programs usually load all of their data into memory."""


class HostInput(NamedTuple):
    """Data that hosts read: what each of them reads as a whole, and what they share."""

    whole: DataShare
    split: DataShare

    def of_host(self, host_count: int) -> DataShare:
        """What each of so many hosts reads, if all read the same amount."""
        return DataShare(
            bytes=self.whole.bytes + self.split.bytes / host_count,
            files=self.whole.files + self.split.files / host_count,
        )


@dataclass(frozen=True)
class ComputeDemand(PlanContext):
    """What the workload demands of machines."""

    rules: tuple[AnyRule, ...]
    """Rules that may reject machines."""

    capability: ScriptCapability
    """What the script can use."""

    measurement: Measurement | None
    """None if the job states no time."""

    wanted_seconds: float | None
    """Longest duration that the user accepts."""

    stated_limit_seconds: int | None
    """Time limit of the run that the job states."""

    longest_job_seconds: float | None
    """Longest duration of a program that another job cannot continue; None for one that it can."""

    max_cost: float | None
    """Dollars."""

    asks_for_segments: bool
    """The job states how it is cut into several jobs."""

    model_bytes: float | None
    """Memory of one replica of the model."""

    in_memory_input: HostInput | None
    """All data, for a program that loads it."""

    copied_input: HostInput
    """All File channels."""

    has_split_input: bool
    """Each host gets its own share of an input."""

    fewest_files: int | None
    """Smallest number of objects among the split channels; None without one."""

    names_instance_type: bool
    """The job names the instance type."""

    ranks_communicate: bool
    """Ranks exchange data while they work."""

    vcpu_per_accelerator: float | None
    """vCPU that each accelerator keeps busy; None if they are no bottleneck."""

    @property
    def is_single_process(self) -> bool:
        """Whether each host runs one process, which uses one accelerator."""
        return starts_one_process(self.strategy) and self.capability.accelerator_use != "instance"

    @property
    def is_cpu_bound(self) -> bool:
        """Whether preprocessing is so heavy that the CPUs limit the speed of the accelerators."""
        return self.vcpu_per_accelerator is not None


class Rejection(NamedTuple):
    """Why an option is unsuitable."""

    rule_id: str
    objection: Objection
    field: str = ""
    """The job's field that is reported if no option is suitable."""

    rule_number: int = 0
    """How many rules the option has passed before this one rejected it."""


@dataclass(frozen=True)
class ComputeOption:
    """A choice of machines for a workload, with estimates."""

    demand: ComputeDemand
    instance: InstanceType
    host_count: int
    ranks_per_host: int
    """Ranks per host."""

    @property
    def host_group(self) -> HostGroup:
        """The option's hosts for the estimates."""
        return HostGroup(
            self.instance,
            self.host_count,
            self.ranks_per_host,
            self.demand.ranks_communicate,
            self.demand.is_cpu_bound,
        )

    @property
    def device_memory_gib(self) -> float:
        """Memory of one accelerator, or of a host without accelerators."""
        return self.instance.accelerator_memory_gib or self.instance.memory_gib

    @property
    def usable_bytes_per_device(self) -> float:
        """Memory of one accelerator that a model may use: the rest is for CUDA and fragmentation."""
        return self.device_memory_gib * 2**30 * MODEL_MEMORY_SHARE

    @property
    def usable_device_memory_text(self) -> str:
        return f"{MODEL_MEMORY_SHARE:.0%} of {self.device_memory_gib:g} GiB"

    @property
    def in_memory_bytes(self) -> float | None:
        """Memory that each host needs for the data that the program loads; None for one that loads none."""
        data = self.demand.in_memory_input
        return None if data is None else data.of_host(self.host_count).bytes * IN_MEMORY_FACTOR

    @property
    def devices_per_replica(self) -> int:
        """Number of accelerators (or hosts without) that one replica of the model is sharded over."""
        if not self.demand.capability.shards_model:
            return 1
        return self.host_count * max(1, self.host_group.busy_accelerators)

    @cached_property
    def estimated_seconds(self) -> EstimateRange | None:
        """Duration of the work; None without a measurement."""
        if self.demand.measurement is None:
            return None
        host_data = self.demand.copied_input.of_host(self.host_count)
        return estimate_duration(self.host_group, self.demand.measurement, host_data)

    @cached_property
    def limit_seconds(self) -> int:
        """Time limit of the run: the job's, or one that the slow end of the estimate leaves free."""
        if self.demand.stated_limit_seconds is not None:
            return self.demand.stated_limit_seconds
        if self.estimated_seconds is None or self.demand.facts.target == "local":
            return segments.DEFAULT_MAX_RUNTIME
        return 3600 * math.ceil(LIMIT_RESERVE * self.estimated_seconds.high / 3600)

    @property
    def is_multi_segment(self) -> bool:
        """Whether the run may take several jobs, and stops itself before it exceeds its cap."""
        return self.demand.asks_for_segments or self.limit_seconds > segments.MAX_JOB_SECONDS

    @cached_property
    def price_per_hour(self) -> EstimateRange | None:
        """Dollars per hour of all hosts, as a range; None if unknown."""
        return None if self.price is None else estimate_hourly_price(self.price, self.host_count)

    @cached_property
    def estimated_dollars(self) -> EstimateRange | None:
        """Cost of the work; None if duration or price is unknown."""
        if self.estimated_seconds is None or self.price_per_hour is None:
            return None
        return estimate_price(self.price_per_hour, self.estimated_seconds)

    @cached_property
    def price(self) -> HourlyPrice | None:
        """Price of one host, by the job or of the region; None if unknown."""
        stated_price = self.demand.job.compute.price_per_hour
        if stated_price is not None and self.demand.names_instance_type:
            return HourlyPrice(stated_price, relative_error=0.0, source="by compute.price_per_hour")
        return self.demand.prices.find(self.instance.name)

    @cached_property
    def ranking_price(self) -> HourlyPrice | None:
        """Price of one host by which the option is compared with others; in a region whose prices are not
        known it is that of another region. None for a type that cannot be compared."""
        return self.price or self.demand.prices.find_to_compare(self.instance.name)

    @property
    def listed_price_per_hour(self) -> float:
        """Dollars per hour of all hosts, to compare options."""
        return (self.ranking_price.dollars if self.ranking_price else 0.0) * self.host_count

    @cached_property
    def rejection(self) -> Rejection | None:
        """The objection of the first rule that rejects the machines; None if they are suitable."""
        for number, rule in enumerate(self.demand.rules):
            if is_allowed(rule, self.demand.job):
                continue
            for objection in rule.check(self):
                # Most rules are about the plan's own choice, and leave a type that the job names to the user.
                if objection.holds_for_named_type or not self.demand.names_instance_type:
                    remedy = objection.remedy + allowing_option(rule)
                    return Rejection(rule.id, objection._replace(remedy=remedy), rule.fields[0], number)
        return None

    def overruled_warnings(self) -> Iterator[str]:
        """Yield a warning for each objection that the user overrules: by allowing a rule, or, where the rule
        says so, by naming the type."""
        for rule in self.demand.rules:
            allowed_text = f" (allowed: {rule.id})" if is_allowed(rule, self.demand.job) else ""
            for objection in rule.check(self):
                is_named = self.demand.names_instance_type and not objection.holds_for_named_type
                if allowed_text or (is_named and objection.is_warned_of):
                    yield f"{rule.fields[0]}: {self.describe()}: {objection.clause}{allowed_text}."

    def describe(self) -> str:
        return f"{self.host_count} x {self.instance.name}" if self.host_count > 1 else self.instance.name


class EvaluatedOption(NamedTuple):
    """An option, and why it is unsuitable; None if it is suitable."""

    option: ComputeOption
    rejection: Rejection | None


def starts_one_process(strategy: Strategy) -> bool:
    """Whether the strategy starts one process per host unless the job asks for more."""
    return strategy.one_process_per_host or strategy.one_process_by_default


def instance_type_of_job(job: Job) -> str | None:
    """The instance type that the job names; the first of several preferences."""
    preferences = job.compute.instance_preferences
    return preferences[0] if preferences else job.compute.instance_type


def derive_compute_demand(job: Job, strategy: Strategy, facts: DiscoveredFacts) -> ComputeDemand | None:
    """Return what the job's workload demands of machines, by the job, its strategy and what discovery found
    about script and data; None if the job states nothing to choose machines by, or names an instance type
    that the catalog does not know.
    """
    type_name = instance_type_of_job(job)
    is_type_unknown = type_name is not None and instances.find_instance_type(type_name) is None
    # Criteria to choose by: a measured time, memory, a wanted time, heavy preprocessing, or data.
    if is_type_unknown or not _states_criteria(job, strategy):
        return None
    workload = job.workload
    # What the script itself can use, by static analysis; strategy and measurement may say otherwise.
    capability = script_capability(facts.script, facts.source.entry)
    # Whether instance types with accelerators are compared, or those without.
    on_accelerators = _uses_accelerated_types(job, strategy, capability)
    measurement = _read_measurement(job, type_name, on_accelerators)
    if measurement is not None:
        on_accelerators = measurement.on_accelerator
    return ComputeDemand(
        job=job,
        facts=facts,
        strategy=strategy,
        rules=rules_of("choose machines"),
        capability=capability._replace(
            shards_model=capability.shards_model or _asks_trainer_to_shard(job),
            uses_accelerators=on_accelerators,
            accelerator_use="several" if strategy.is_multi_host else capability.accelerator_use,
        ),
        measurement=measurement,
        wanted_seconds=None if workload.wanted_time is None else parse_duration(workload.wanted_time),
        stated_limit_seconds=segments.stated_training_seconds(job),
        longest_job_seconds=_longest_job_seconds(job, strategy, facts),
        max_cost=job.limits.max_cost,
        asks_for_segments=job.limits.segment is not None or bool(job.segments),
        model_bytes=None if workload.model_memory is None else parse_size(workload.model_memory),
        in_memory_input=None if on_accelerators else _in_memory_input(job, strategy, facts),
        # Data of File channels, which hosts copy before training.
        copied_input=_copied_input(job, facts),
        has_split_input=has_split_input(job),
        # Objects of the smallest input that is split among hosts: the most hosts that it can serve.
        fewest_files=_fewest_files(job, facts),
        names_instance_type=type_name is not None,
        ranks_communicate=strategy.joins_hosts and not strategy.is_for_tables,
        # vCPU that heavy preprocessing keeps busy for each accelerator.
        vcpu_per_accelerator=_vcpu_per_accelerator(job, measurement),
    )


def _states_criteria(job: Job, strategy: Strategy) -> bool:
    """Whether the job states anything to choose machines by."""
    workload = job.workload
    if workload.time_on_one or workload.model_memory or workload.wanted_time or workload.preprocessing:
        return True
    # The size of the data is a criterion for work such as Spark's and the preparation of data; for a program
    # that loads all of it also where the job names the type.
    is_sized_by_data = strategy.sized_by_data or workload.kind == "preparation"
    return is_sized_by_data and (instance_type_of_job(job) is None or strategy.loads_all_data)


def _longest_job_seconds(job: Job, strategy: Strategy, facts: DiscoveredFacts) -> float | None:
    """Longest duration of a program that another job cannot continue: by the service, or by the account's
    quota; None for one that it can, and on this machine."""
    kind = strategy.job_kind
    if facts.target == "local" or (kind.has_checkpoints and job.entry is not None):
        return None
    return min(facts.max_runtime_quota or math.inf, kind.max_runtime_seconds or math.inf)


def _uses_accelerated_types(job: Job, strategy: Strategy, capability: ScriptCapability) -> bool:
    """Return whether instance types with accelerators are compared, or else those without. ``capability``:
    what the script can use, by static analysis."""
    if job.algorithm is not None:
        algorithm = algorithms.find_algorithm(job.algorithm)
        return algorithm is not None and "cpu" not in algorithm.processors
    return capability.uses_accelerators and job.workload.kind != "preparation" and not strategy.is_for_tables


_SHARDING_OPTIONS = ("fsdp", "deepspeed")
"""Options by which scripts that parse transformers' TrainingArguments shard a model."""


def _asks_trainer_to_shard(job: Job) -> bool:
    """Whether arguments or hyperparameters of the script have it shard the model over its ranks."""
    stated_options = {argument.partition("=")[0] for argument in job.args}
    return any(
        bool(job.hyperparameters.get(name)) or f"--{name}" in stated_options for name in _SHARDING_OPTIONS
    )


def _read_measurement(job: Job, type_name: str | None, on_accelerators: bool) -> Measurement | None:
    """Return the time that the user measured on one accelerator or host (``workload.time_on_one``), and the
    instance type it was measured on; None if the job states none, or the catalog does not know the type.

    ``type_name``: type that the job names, for a measurement that states none; if there is none either, a
    type with or without accelerators is assumed, by ``on_accelerators``.
    """
    measured_time = job.workload.time_on_one
    if measured_time is None:
        return None
    assumed_type_name = ASSUMED_ACCELERATOR_TYPE if on_accelerators else ASSUMED_CPU_TYPE
    stated_type_name = job.workload.measured_on or type_name
    instance = instances.find_instance_type(stated_type_name or assumed_type_name)
    if instance is None:
        return None
    return Measurement(
        seconds=float(parse_duration(measured_time)),
        instance=instance,
        on_accelerator=instance.accelerators > 0,
        is_instance_stated=stated_type_name is not None,
    )


def _vcpu_per_accelerator(job: Job, measurement: Measurement | None) -> float | None:
    """Return how many vCPU the preprocessing for one accelerator keeps busy: as many as the measured machine
    has, otherwise an assumption; None if the job does not call its preprocessing heavy."""
    if job.workload.preprocessing != "heavy":
        return None
    if measurement is None or not measurement.is_instance_stated:
        return HEAVY_VCPU_PER_ACCELERATOR
    return measurement.instance.vcpu / max(1, measurement.instance.accelerators)


def _in_memory_input(job: Job, strategy: Strategy, facts: DiscoveredFacts) -> HostInput | None:
    """All inputs, for a program that loads them; None for another one, and where no size is known."""
    loads_all_data = (
        strategy.loads_all_data
        or find_imported_library(facts.script.imports, IN_MEMORY_LIBRARIES) is not None
    )
    all_inputs = _sum_inputs(job.inputs, facts)
    return all_inputs if loads_all_data and all_inputs.of_host(1).bytes else None


def _copied_input(job: Job, facts: DiscoveredFacts) -> HostInput:
    """All File channels; nothing on local hosts, which do not download."""
    if facts.target == "local":
        return HostInput(DataShare(0, 0), DataShare(0, 0))
    return _sum_inputs(
        {name: channel for name, channel in job.inputs.items() if channel.mode == "File"}, facts
    )


def _sum_inputs(channels: Mapping[str, Channel], facts: DiscoveredFacts) -> HostInput:
    """Return the sizes of the channels, as far as they are known."""

    def total(*, is_split: bool) -> DataShare:
        inputs = [
            facts.inputs[name]
            for name, channel in channels.items()
            if name in facts.inputs and (channel.split is not None) == is_split
        ]
        return DataShare(
            bytes=sum(input_facts.bytes or 0 for input_facts in inputs),
            files=sum(input_facts.objects or 0 for input_facts in inputs),
        )

    return HostInput(whole=total(is_split=False), split=total(is_split=True))


def _fewest_files(job: Job, facts: DiscoveredFacts) -> int | None:
    """Return the smallest number of objects among the channels that are split among hosts; None if there are
    none, or if their objects could not all be counted."""
    channel_names = [name for name, channel in job.inputs.items() if channel.split is not None]
    split_inputs = [facts.inputs[name] for name in channel_names if name in facts.inputs]
    object_counts = [
        input_facts.objects
        for input_facts in split_inputs
        if input_facts.objects and not input_facts.is_truncated
    ]
    return min(object_counts, default=None)
