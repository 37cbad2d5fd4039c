"""Rules for the machines that a workload may run on, each with its name and source. Pure.

A rule checks one option and returns an objection or None. Rules run in order; the first objection decides.
docs/planner.md lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from smlaunch.api.job_kinds import PROCESSING
from smlaunch.catalog.instances import InstanceType
from smlaunch.planner.compute_demand import ComputeDemand
from smlaunch.planner.fact_needs import instance_quota_pattern
from smlaunch.planner.workload_estimate import (
    MODEL_MEMORY_SHARE,
    HostGroup,
    estimate_duration,
    estimate_hourly_price,
    estimate_price,
)
from smlaunch.storage.read_time_estimates import DataShare, EstimateRange
from smlaunch.strategies.base import LaunchContext
from smlaunch.text.format import format_dollars, format_size

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
            bytes=self.demand.copied_input.bytes / split_count,
            files=self.demand.copied_input.files / split_count,
        )
        return estimate_duration(self.host_group, self.demand.measurement, host_data)

    @cached_property
    def price_per_hour(self) -> EstimateRange | None:
        """Dollars per hour of all hosts, as a range; None if unknown."""
        stated_price = self.demand.job.compute.price_per_hour
        if stated_price is not None and self.demand.names_instance_type:
            return EstimateRange(low=stated_price * self.host_count, high=stated_price * self.host_count)
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
        stated_price = self.demand.job.compute.price_per_hour if self.demand.names_instance_type else None
        price = self.instance.usd_per_hour if stated_price is None else stated_price
        return (price or 0.0) * self.host_count

    def describe(self) -> str:
        return f"{self.host_count} x {self.instance.name}" if self.host_count > 1 else self.instance.name


class Rejection(NamedTuple):
    """Why an option is unsuitable."""

    rule: str
    """Name of the rule that rejects it."""

    objection: str
    """A clause for the user."""


class EvaluatedOption(NamedTuple):
    """An option, and why it is unsuitable; None if it is suitable."""

    option: ComputeOption
    rejection: Rejection | None


@dataclass(frozen=True)
class ComputeRule:
    """A rule that may reject an option."""

    name: str
    field: str
    """The job's field that is reported if the rule rejects all options."""

    source: str
    objection: Callable[[ComputeOption], str | None]
    """Returns why the option is unsuitable, or None."""

    applies_to_named_type: bool = False
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


def _model_too_large_objection(option: ComputeOption) -> str | None:
    """Return the objection to accelerators whose memory is too small for the model; None if it fits. With
    FSDP, DeepSpeed and the like one replica of the model is sharded over several accelerators. ``option``:
    instance type and number of hosts."""
    model_bytes = option.demand.model_bytes
    if model_bytes is None:
        return None
    # Accelerators over which one replica is sharded; 1 if the script does not shard its model.
    device_count = devices_per_replica(option)
    device_gib = device_memory_gib(option.instance)
    # Only 80 % of the memory: the rest is for CUDA and fragmentation.
    usable_bytes = device_gib * 2**30 * MODEL_MEMORY_SHARE * device_count
    if model_bytes <= usable_bytes:
        return None
    message = f"{format_size(int(model_bytes))} do not fit in {MODEL_MEMORY_SHARE:.0%} of {device_gib:g} GiB"
    return f"{message} on each of {device_count} accelerators" if device_count > 1 else message


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


def _data_too_large_objection(option: ComputeOption) -> str | None:
    """Return the objection to hosts whose memory is too small for the data that each of them loads; None if
    it fits. Each host loads only its share of an input that is split among the hosts. ``option``: instance
    type and number of hosts."""
    total_bytes = option.demand.in_memory_bytes
    if total_bytes is None:
        return None
    share_count = option.host_count if option.demand.has_split_input else 1
    bytes_per_host = total_bytes / share_count
    if bytes_per_host <= option.instance.memory_gib * 2**30:
        return None
    return f"{option.instance.memory_gib:g} GiB of memory are less than {format_size(int(bytes_per_host))}"


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
    """Return the objection to machines that take longer than the job's ``workload.wanted_time``; None if they
    are fast enough, or if nothing is wanted or measured. The estimate is a range of seconds. ``option``:
    instance type and number of hosts."""
    demand, estimated = option.demand, option.estimated_seconds
    if demand.wanted_seconds is None or demand.measurement is None:
        return None
    if estimated is None:
        # The catalog cannot compare this accelerator with the measured one.
        return f"how fast its {option.instance.accelerator or 'processors'} are is not known"
    # A type that the job names is rejected only if even the fast end is too slow; otherwise the plan warns.
    decisive_seconds = estimated.low if demand.names_instance_type else estimated.high
    if decisive_seconds <= demand.wanted_seconds:
        return None
    return f"takes {estimated}, and {demand.job.workload.wanted_time} are wanted"


def _over_quota_objection(option: ComputeOption) -> str | None:
    """Return the objection to more hosts than the account's quota for the type; None within the quota."""
    demand = option.demand
    quota_name = instance_quota_pattern(demand.job).format(option.instance.name)
    quota = demand.facts.quotas.get(quota_name)
    if quota is None or quota >= option.host_count or demand.strategy.job_kind is PROCESSING:
        return None
    return f"the account may have {quota:g} of it"


TOO_SLOW = "time.too-slow"
QUOTA_TOO_SMALL = "quota.too-small"
OVER_BUDGET = "cost.over-budget"


def cost_above_cap(option: ComputeOption) -> float | None:
    """Return the dollars until the time limit if they exceed the cap of a single job, otherwise None. A run
    of several segments stops itself before its cap."""
    demand = option.demand
    dollars_until_limit = option.listed_price_per_hour * demand.limit_seconds / 3600
    if demand.max_cost is None or demand.is_multi_segment or demand.facts.target == "local":
        return None
    return dollars_until_limit if dollars_until_limit > demand.max_cost else None


def _over_budget_objection(option: ComputeOption) -> str | None:
    """Return the objection to machines that may cost more than the job's ``limits.max_cost``; None within the
    cap, or without one. Two costs must be within it: the most that a single job can cost, until its time
    limit, and what the work is estimated to cost. ``option``: instance type and number of hosts."""
    demand = option.demand
    # Nothing is billed for local hosts.
    if demand.max_cost is None or demand.facts.target == "local":
        return None
    cap_text = format_dollars(demand.max_cost)
    # None if a single job cannot exceed the cap.
    dollars_until_limit = cost_above_cap(option)
    if dollars_until_limit is not None:
        return (
            f"may cost {format_dollars(dollars_until_limit)} until the time limit of "
            f"{demand.limit_seconds / 3600:g} h, more than {cap_text}"
        )
    estimated = option.estimated_dollars
    if estimated is not None and estimated.high > demand.max_cost:
        return f"may cost {format_dollars(estimated.high)}, more than {cap_text}"
    return None


_MACHINE_FIELDS = ("compute.instance_type", "compute.hosts", "compute.processes_per_host")


def _strategy_objection(option: ComputeOption) -> str | None:
    """Return what the strategy objects to about the machines, or None; its other problems are reported
    elsewhere."""
    demand = option.demand
    context = LaunchContext(
        entry_point=demand.facts.source.entry,
        host_count=option.host_count,
        processes_per_host=option.ranks_per_host,
        imports=demand.facts.script.imports,
        has_split_input=demand.has_split_input,
        options=demand.job.options,
        algorithm=demand.job.algorithm,
        instance_type=option.instance.name,
        instance_spec=option.instance,
        image=demand.job.image or "",
        framework_version=demand.job.framework_version,
        channels=demand.job.inputs,
        hyperparameters=demand.job.hyperparameters,
        is_spot=demand.job.compute.spot,
        target=demand.facts.target,
    )
    return next(
        (
            problem.message
            for problem in demand.strategy.find_problems(context)
            if problem.path in _MACHINE_FIELDS
        ),
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
        _model_too_large_objection,
        applies_to_named_type=True,
    ),
    ComputeRule(
        "memory.data-too-large", "inputs", "McKinney 2017: 5 to 10 times the data", _data_too_large_objection
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
    ComputeRule(TOO_SLOW, "workload.wanted_time", "the job", _too_slow_objection, applies_to_named_type=True),
    ComputeRule(QUOTA_TOO_SMALL, "workload", "Service Quotas, where it could be read", _over_quota_objection),
    ComputeRule(OVER_BUDGET, "limits.max_cost", "the job", _over_budget_objection),
)


def find_rejection(option: ComputeOption) -> Rejection | None:
    """Return the objection of the first rule that rejects these machines (instance type and number of hosts),
    with the rule's name; None if they are suitable. A rule's ``objection`` is the function that checks
    them."""
    for rule in COMPUTE_RULES:
        # Most rules are about the plan's own choice, and leave a type that the job names to the user.
        is_rule_skipped = option.demand.names_instance_type and not rule.applies_to_named_type
        objection = None if is_rule_skipped else rule.objection(option)
        if objection is not None:
            return Rejection(rule=rule.name, objection=objection)
    return None
