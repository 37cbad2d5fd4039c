"""Rules for the machines that a workload may run on, each with its name and source. Pure.

A rule checks one option and returns an objection or None. Rules run in order; the first objection decides.
docs/planner.md lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from smlaunch.api.request import CREATE_PROCESSING_JOB
from smlaunch.catalog.instances import InstanceType
from smlaunch.planner.compute_demand import ComputeDemand
from smlaunch.planner.cost import format_dollars
from smlaunch.planner.estimate import (
    MODEL_MEMORY_SHARE,
    HostGroup,
    estimate_duration,
    estimate_hourly_price,
    estimate_price,
)
from smlaunch.planner.quotas import instance_quota_pattern
from smlaunch.planner.throughput import DataShare, EstimateRange
from smlaunch.strategies.base import LaunchContext
from smlaunch.text.format import format_size

RETIRED_FAMILIES = ("p2", "p3")
BURSTABLE_FAMILIES = ("t2", "t3")


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
        bound = self.demand.vcpu_per_accelerator is not None
        return HostGroup(
            self.instance, self.host_count, self.ranks_per_host, self.demand.ranks_communicate, bound
        )

    @cached_property
    def estimated_seconds(self) -> EstimateRange | None:
        """Duration of the work; None without a measurement."""
        if self.demand.measurement is None:
            return None
        split_count = self.host_count if self.demand.has_split_input else 1
        host_data = DataShare(
            self.demand.copied_input.bytes / split_count, self.demand.copied_input.files / split_count
        )
        return estimate_duration(self.host_group, self.demand.measurement, host_data)

    @cached_property
    def price_per_hour(self) -> EstimateRange | None:
        """Dollars per hour of all hosts, as a range; None if unknown."""
        stated_price = self.demand.job.compute.price_per_hour
        if stated_price is not None and self.demand.has_fixed_type:
            return EstimateRange(stated_price * self.host_count, stated_price * self.host_count)
        return estimate_hourly_price(self.instance, self.host_count)

    @cached_property
    def estimated_dollars(self) -> EstimateRange | None:
        """Cost of the work; None if duration or price is unknown."""
        if self.estimated_seconds is None or self.price_per_hour is None:
            return None
        return estimate_price(self.price_per_hour, self.estimated_seconds)

    @property
    def listed_price_per_hour(self) -> float:
        """Dollars per hour of all hosts, by the catalog or the job."""
        stated_price = self.demand.job.compute.price_per_hour if self.demand.has_fixed_type else None
        price = self.instance.usd_per_hour if stated_price is None else stated_price
        return (price or 0.0) * self.host_count

    def describe(self) -> str:
        return f"{self.host_count} x {self.instance.name}" if self.host_count > 1 else self.instance.name


@dataclass(frozen=True)
class ComputeRule:
    """A rule that may reject an option."""

    name: str
    field: str
    """The job's field that is reported if the rule rejects all options."""

    source: str
    objection: Callable[[ComputeOption], str | None]
    """Returns why the option is unsuitable, or None."""

    applies_to_fixed: bool = False
    """The rule also checks a type that the job names."""


def _retired_objection(option: ComputeOption) -> str | None:
    """Return why the instance family, which is retired, is unsuitable; None if it is not retired."""
    family = option.instance.name.split(".")[1]
    if family.startswith(RETIRED_FAMILIES):
        return f"{family} is retired or vanishing from price lists"
    return None


def _burstable_objection(option: ComputeOption) -> str | None:
    """Return the objection to a family with CPU credits; None for another family."""
    family = option.instance.name.split(".")[1]
    if family.startswith(BURSTABLE_FAMILIES):
        return f"{family} has its processors for bursts only, by credits"
    return None


def _unknown_price_objection(option: ComputeOption) -> str | None:
    """Return the objection to a type without a price; None if its price is known."""
    if option.price_per_hour is None:
        return "its price is unknown; name the type and compute.price_per_hour to use it anyway"
    return None


def _idle_accelerators_objection(option: ComputeOption) -> str | None:
    """Return the objection to several accelerators for a script that uses one; None if none would be idle."""
    count = option.instance.accelerators
    requested = option.demand.job.compute.processes_per_host
    if (
        count < 2
        or requested is not None
        or not (option.demand.is_single_process or option.demand.capability.accelerator_use == "one")
    ):
        return None
    program = option.demand.facts.source.entry or option.demand.job.program
    return f"{program} uses one accelerator, and {count - 1} of its {count} would be idle"


def _small_accelerators_objection(option: ComputeOption) -> str | None:
    """Return the objection to accelerators whose memory is too small for the model; None if it fits."""
    needed_bytes = option.demand.model_bytes
    if needed_bytes is None:
        return None
    devices = devices_per_replica(option)
    device_gib = device_memory_gib(option.instance)
    if needed_bytes <= device_gib * 2**30 * MODEL_MEMORY_SHARE * devices:
        return None
    message = f"{format_size(int(needed_bytes))} do not fit in {MODEL_MEMORY_SHARE:.0%} of {device_gib:g} GiB"
    return f"{message} on each of {devices} accelerators" if devices > 1 else message


def device_memory_gib(instance: InstanceType) -> float:
    """Memory of one accelerator, or of a host without accelerators."""
    return instance.accelerator_memory_gib or instance.memory_gib


def devices_per_replica(option: ComputeOption) -> int:
    """Number of accelerators (or hosts without) that one replica of the model is sharded over."""
    return (
        option.host_count * max(1, option.host_group.busy_accelerators)
        if option.demand.capability.shards_model
        else 1
    )


def _small_memory_objection(option: ComputeOption) -> str | None:
    """Return the objection to hosts whose memory is too small for the data that each of them loads; None if
    it fits. Each host loads only its share of an input that is split."""
    needed_bytes = option.demand.in_memory_bytes
    if needed_bytes is None:
        return None
    host_memory_bytes = option.instance.memory_gib * 2**30
    split_count = option.host_count if option.demand.has_split_input else 1
    if needed_bytes / split_count <= host_memory_bytes:
        return None
    return (
        f"{option.instance.memory_gib:g} GiB of memory are less than "
        f"{format_size(int(needed_bytes / split_count))}"
    )


def _few_vcpu_objection(option: ComputeOption) -> str | None:
    """Return the objection to a type with too few vCPU per accelerator for the preprocessing; None if they
    suffice."""
    needed_vcpu, accelerators = option.demand.vcpu_per_accelerator, option.instance.accelerators
    if needed_vcpu is None or not accelerators:
        return None
    vcpu_each = option.instance.vcpu / accelerators
    if vcpu_each >= needed_vcpu:
        return None
    return f"{vcpu_each:g} vCPU for each accelerator; preprocessing keeps {needed_vcpu:g} busy"


def _too_many_hosts_objection(option: ComputeOption) -> str | None:
    """Return the objection to more hosts than files; None if each host gets a file."""
    file_count = option.demand.fewest_files
    if file_count is None or option.host_count <= file_count:
        return None
    return f"{option.host_count} hosts for {file_count} files: some would get none"


def _too_slow_objection(option: ComputeOption) -> str | None:
    """Return the objection to machines that take longer than the job wants; None if they are fast enough."""
    wanted_seconds, estimated = option.demand.wanted_seconds, option.estimated_seconds
    if wanted_seconds is None:
        return None
    if estimated is None:
        if option.demand.measurement is None:
            return None
        return f"how fast its {option.instance.accelerator or 'processors'} are is not known"
    # A type that the job names is rejected only if even the fast end is too slow; otherwise the plan warns.
    decisive_seconds = estimated.low if option.demand.has_fixed_type else estimated.high
    if decisive_seconds <= wanted_seconds:
        return None
    return f"takes {estimated}, and {option.demand.job.workload.wanted_time} are wanted"


def _over_quota_objection(option: ComputeOption) -> str | None:
    """Return the objection to more hosts than the account's quota for the type; None within the quota."""
    demand = option.demand
    quota_name = instance_quota_pattern(demand.job).format(option.instance.name)
    quota = demand.facts.quotas.get(quota_name)
    if quota is None or quota >= option.host_count or demand.strategy.operation == CREATE_PROCESSING_JOB:
        return None
    return f"the account may have {quota:g} of it"


QUOTA_TOO_SMALL = "quota.too-small"
OVER_BUDGET = "cost.over-budget"


def cost_above_cap(option: ComputeOption) -> float | None:
    """Dollars until the time limit, if that exceeds the cap of a single job. A chain stops itself before
    its cap."""
    demand = option.demand
    max_cost = option.listed_price_per_hour * demand.limit_seconds / 3600
    if demand.max_cost is None or demand.is_chain or demand.facts.target == "local":
        return None
    return max_cost if max_cost > demand.max_cost else None


def _over_budget_objection(option: ComputeOption) -> str | None:
    """Return the objection to machines that may cost more than the job's cap; None within the cap."""
    demand, excess_cost = option.demand, cost_above_cap(option)
    if demand.max_cost is None or demand.facts.target == "local":
        return None
    cap_text = format_dollars(demand.max_cost)
    if excess_cost is not None:
        hours_text = f"{demand.limit_seconds / 3600:g} h"
        return (
            f"may cost {format_dollars(excess_cost)} until the time limit of {hours_text}, more than "
            f"{cap_text}"
        )
    if option.estimated_dollars is not None and option.estimated_dollars.high > demand.max_cost:
        return f"may cost {format_dollars(option.estimated_dollars.high)}, more than {cap_text}"
    return None


_MACHINE_FIELDS = ("compute.instance_type", "compute.hosts", "compute.processes_per_host")


def _strategy_objection(option: ComputeOption) -> str | None:
    """Return what the strategy objects to about the machines, or None; its other problems are reported
    elsewhere."""
    demand = option.demand
    context = LaunchContext(
        entry=demand.facts.source.entry,
        hosts=option.host_count,
        processes_per_host=option.ranks_per_host,
        imports=demand.facts.script.imports,
        has_split_input=demand.has_split_input,
        options=demand.job.options,
        algorithm=demand.job.algorithm,
        instance_type=option.instance.name,
        instance=option.instance,
        image=demand.job.image or "",
        framework_version=demand.job.framework_version,
        channels=demand.job.inputs,
        hyperparameters=demand.job.hyperparameters,
        spot=demand.job.compute.spot,
        target=demand.facts.target,
    )
    return next(
        (problem.message for problem in demand.strategy.check(context) if problem.path in _MACHINE_FIELDS),
        None,
    )


COMPUTE_RULES: tuple[ComputeRule, ...] = (
    ComputeRule(
        "instance.retired",
        "workload",
        "the reference, 4.6: P2 is retired, P3 vanishing from price lists",
        _retired_objection,
    ),
    ComputeRule(
        "instance.burstable",
        "workload",
        "EC2, burstable performance instances: CPU credits",
        _burstable_objection,
    ),
    ComputeRule(
        "price.unknown",
        "limits.max_cost",
        "the reference, 5: no package has prices",
        _unknown_price_objection,
    ),
    ComputeRule(
        "strategy.machines", "strategy", "docs/strategies.md: what each strategy runs on", _strategy_objection
    ),
    ComputeRule(
        "capability.one-accelerator",
        "entry",
        'Alliance, tutorial: "use a single GPU unless you are certain that your program uses several"',
        _idle_accelerators_objection,
    ),
    ComputeRule(
        "memory.model-too-large",
        "workload.model_memory",
        "Adaltas, YARN and GPU distribution, 2018: a training often exceeds the GPU's memory",
        _small_accelerators_objection,
        applies_to_fixed=True,
    ),
    ComputeRule(
        "memory.data-too-large", "inputs", "McKinney 2017: 5 to 10 times the data", _small_memory_objection
    ),
    ComputeRule(
        "cpu.too-few-per-accelerator",
        "workload.preprocessing",
        "AWS, best practices: the CPU budget is high and the CPU-to-GPU ratio too low",
        _few_vcpu_objection,
    ),
    ComputeRule(
        "data.more-hosts-than-files",
        "inputs",
        "the reference, 2.8: whole objects are distributed",
        _too_many_hosts_objection,
    ),
    ComputeRule(
        "time.too-slow", "workload.wanted_time", "the job", _too_slow_objection, applies_to_fixed=True
    ),
    ComputeRule(QUOTA_TOO_SMALL, "workload", "Service Quotas, where it could be read", _over_quota_objection),
    ComputeRule(OVER_BUDGET, "limits.max_cost", "the job", _over_budget_objection),
)


def first_objection(option: ComputeOption) -> tuple[str, str] | None:
    """Name and objection of the first rule that rejects the option; None if it is suitable."""
    for rule in COMPUTE_RULES:
        if option.demand.has_fixed_type and not rule.applies_to_fixed:
            continue
        objection = rule.objection(option)
        if objection is not None:
            return rule.name, objection
    return None
