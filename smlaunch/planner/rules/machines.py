"""Rules that reject machines which a workload cannot run on, or should not (the first objection decides), and
disks of them that are too small."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from smlaunch.catalog import instances, regions
from smlaunch.catalog.type_families import family_of
from smlaunch.errors import Problem
from smlaunch.job.model import format_duration
from smlaunch.planner.plan_context import (
    Objection,
    PlanContext,
    instance_quota_pattern,
    stated_instance_types,
    stated_job_kind,
)
from smlaunch.planner.rules.rule import Problems, rule
from smlaunch.planner.rules.strategies import find_search_library
from smlaunch.planner.run_cost import UntrainedTime, longest_runtime_text
from smlaunch.storage.host_data import bound_word
from smlaunch.strategies.base import LaunchContext
from smlaunch.text.format import format_dollars, format_size

if TYPE_CHECKING:
    # Loaded only if machines are compared: most jobs name theirs.
    from smlaunch.planner.compute_demand import ComputeOption

Objections = Iterator[Objection]

RETIRED_FAMILIES = ("p2", "p3")
BURSTABLE_FAMILIES = ("t2", "t3")


@rule(
    "instance.retired",
    phase="choose machines",
    summary="types that are retired, or vanish from price lists",
    source="https://aws.amazon.com/sagemaker/ai/pricing/",
    quote="P2 is retired, P3 vanishing from price lists (not confirmed: the page could not be opened)",
    fields=("workload",),
)
def reject_retired_family(option: ComputeOption) -> Objections:
    family = family_of(option.instance.name)
    if family.startswith(RETIRED_FAMILIES):
        yield Objection(f"{family} is retired or vanishing from price lists")


@rule(
    "instance.burstable",
    phase="choose machines",
    summary="types whose processors are available for bursts only",
    source="https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/burstable-performance-instances.html",
    quote="burstable performance instances: CPU credits (not confirmed: the page could not be opened)",
    fields=("workload",),
)
def reject_burstable_family(option: ComputeOption) -> Objections:
    family = family_of(option.instance.name)
    if family.startswith(BURSTABLE_FAMILIES):
        yield Objection(f"{family} has its processors for bursts only, by credits")


@rule(
    "region.offers",
    phase="choose machines",
    summary="types that EC2 does not offer in the region",
    source="https://github.com/getmoto/moto",
    quote="instance_type_offerings/region: EC2's types (those of SageMaker are not confirmed)",
    fields=("workload",),
    facts=("account",),
)
def reject_type_missing_in_region(option: ComputeOption) -> Iterator[Objection]:
    facts, name = option.demand.facts, option.instance.name
    if facts.target != "aws" or option.demand.prices.has_price_list:
        return  # AWS's own list says it
    if regions.is_type_missing(name, facts.region):
        yield Objection(f"EC2 does not offer it in {facts.region} ({regions.table_month()})")


@rule(
    "price.unknown",
    phase="choose machines",
    summary="types without a known price",
    source="docs/planner.md",
    quote="Of the remaining candidates it chooses the cheapest",
    fields=("limits.max_cost", "compute.price_per_hour"),
)
def reject_unknown_price(option: ComputeOption) -> Objections:
    if option.ranking_price is None:
        prices, name = option.demand.prices, option.instance.name
        clause = prices.unknown_text(name) if prices.has_price_list else "its price is unknown"
        yield Objection(f"{clause}; name the type and compute.price_per_hour to use it anyway")


_MACHINE_FIELDS = ("compute.instance_type", "compute.hosts", "compute.processes_per_host")


@rule(
    "strategy.machines",
    phase="choose machines",
    summary="machines that the strategy does not run on",
    source="docs/strategies.md",
    quote="what each strategy runs on",
    fields=("strategy", "entry", "compute"),
    facts=("script",),
)
def reject_machines_unsuited_to_strategy(option: ComputeOption) -> Objections:
    """Yield what the strategy objects to about the machines; its other problems are reported elsewhere."""
    demand, job = option.demand, option.demand.job
    context = LaunchContext(
        entry_point=demand.facts.source.entry,
        entry=job.entry,
        host_count=option.host_count,
        processes_per_host=option.ranks_per_host,
        imports=demand.facts.script.imports,
        has_split_input=demand.has_split_input,
        options=job.options,
        algorithm=job.algorithm,
        instance_type=option.instance.name,
        instance_spec=option.instance,
        image=job.image or "",
        framework_version=job.framework_version,
        channels=job.inputs,
        hyperparameters=job.hyperparameters,
        is_spot=job.compute.spot,
        target=demand.facts.target,
    )
    for problem in demand.strategy.find_problems(context):
        if problem.path in _MACHINE_FIELDS:
            yield Objection(problem.message)


@rule(
    "capability.one-accelerator",
    phase="choose machines",
    summary="several accelerators for a script that uses one",
    source="https://westgrid-ml.netlify.app/2020_autumnschool/17_pt_distributed",
    quote="PyTorch, by default, only uses one GPU",
    fields=("entry", "compute.processes_per_host"),
    facts=("script",),
)
def reject_idle_accelerators(option: ComputeOption) -> Objections:
    """Yield an objection to several accelerators per host for a script that uses one, by its source, unless
    the job states its number of processes."""
    demand, accelerator_count = option.demand, option.instance.accelerators
    uses_one = demand.is_single_process or demand.capability.accelerator_use == "one"
    if accelerator_count > 1 and uses_one and demand.job.compute.processes_per_host is None:
        program = demand.facts.source.entry or demand.job.program
        yield Objection(
            f"{program} uses one accelerator, and {accelerator_count - 1} of its {accelerator_count} would "
            "be idle",
            remedy="let the script use several (docs/planner.md)",
            distance=accelerator_count,
        )


@rule(
    "memory.model-too-large",
    phase="choose machines",
    summary="accelerators whose memory is too small for the model",
    source="https://www.adaltas.com/en/2018/05/30/yarn-and-gpu-distribution-for-machine-learning/",
    quote="a training often exceeds the GPU's memory",
    fields=("workload.model_memory",),
    facts=("script",),
    may_be_allowed=True,
    allowed_when="if the program shards it, or needs less",
)
def reject_too_little_accelerator_memory(option: ComputeOption) -> Objections:
    """With FSDP, DeepSpeed and the like one replica of the model is sharded over several accelerators."""
    model_bytes, device_count = option.demand.model_bytes, option.devices_per_replica
    if model_bytes is None or model_bytes <= option.usable_bytes_per_device * device_count:
        return
    clause = f"{format_size(int(model_bytes))} do not fit in {option.usable_device_memory_text}"
    yield Objection(
        f"{clause} on each of {device_count} accelerators" if device_count > 1 else clause,
        remedy="shard the model over accelerators with FSDP, DeepSpeed or SMP, or take a larger type",
        holds_for_named_type=True,
        may_more_hosts_help=option.demand.capability.shards_model,
        distance=model_bytes / (option.usable_bytes_per_device * device_count),
    )


@rule(
    "memory.data-too-large",
    phase="choose machines",
    summary="hosts whose memory is too small for the data that a program loads",
    source="https://wesmckinney.com/blog/apache-arrow-pandas-internals/",
    quote="5 to 10 times as much RAM as the size of your dataset",
    fields=("inputs", "entry"),
    facts=("inputs", "script"),
)
def reject_too_little_host_memory(option: ComputeOption) -> Objections:
    """Each host loads only its share of an input that is split among the hosts."""
    has_split_input, bytes_per_host = option.demand.has_split_input, option.in_memory_bytes
    if bytes_per_host is None:
        return
    if bytes_per_host > option.instance.memory_gib * 2**30:
        states_hosts = "hosts" in option.demand.job.compute.stated_fields
        remedy = "name compute.instance_type and compute.hosts to use such hosts anyway"
        if not has_split_input:
            remedy = f"split the data among several hosts if the program can (split: key), or {remedy}"
        yield Objection(
            f"{option.instance.memory_gib:g} GiB of memory are less than {format_size(int(bytes_per_host))}, "
            "about five times the data of a host",
            remedy,
            # More of the named hosts are compared, unless the job states their number.
            holds_for_named_type=has_split_input and not states_hosts,
            is_warned_of=True,
            may_more_hosts_help=has_split_input,
            distance=bytes_per_host / option.instance.memory_gib,
        )


@rule(
    "cpu.too-few-per-accelerator",
    phase="choose machines",
    summary="too few vCPU per accelerator for heavy preprocessing",
    source="https://docs.aws.amazon.com/sagemaker/latest/dg/train-heterogeneous-cluster.html",
    quote="low GPU utilization and CPU bottleneck problems due to CPU-intensive tasks",
    fields=("workload.preprocessing", "workload.measured_on"),
)
def reject_too_few_vcpu(option: ComputeOption) -> Objections:
    needed_vcpu, accelerators = option.demand.vcpu_per_accelerator, option.instance.accelerators
    if needed_vcpu is not None and accelerators and option.instance.vcpu / accelerators < needed_vcpu:
        vcpu_each = option.instance.vcpu / accelerators
        yield Objection(
            f"{vcpu_each:g} vCPU for each accelerator; preprocessing keeps {needed_vcpu:g} busy",
            distance=needed_vcpu / vcpu_each,
        )


@rule(
    "data.more-hosts-than-files",
    phase="choose machines",
    summary="more hosts than files of a split input",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_S3DataSource.html",
    quote="don't use more instances than objects (some nodes get nothing, you still pay)",
    fields=("inputs",),
    facts=("inputs",),
)
def reject_hosts_without_files(option: ComputeOption) -> Objections:
    file_count = option.demand.fewest_files
    if file_count is not None and option.host_count > file_count:
        yield Objection(
            f"{option.host_count} hosts for {file_count} files: some would get none",
            distance=option.host_count / file_count,
        )


@rule(
    "time.too-slow",
    phase="choose machines",
    summary="machines that take longer than `workload.wanted_time`",
    source="docs/planner.md",
    quote="how long it may take",
    fields=("workload.wanted_time", "workload.time_on_one", "workload.measured_on"),
)
def reject_too_slow_machines(option: ComputeOption) -> Objections:
    """The estimate is a range of seconds; without a measurement nothing is estimated."""
    demand, estimated = option.demand, option.estimated_seconds
    if demand.wanted_seconds is None or demand.measurement is None:
        return
    remedy = _remedy_for_speed(option)
    if estimated is None:
        # The catalog cannot compare this accelerator with the measured one.
        unknown = option.instance.accelerator or "processors"
        clause = f"how fast its {unknown} are is not known"
        yield Objection(clause, remedy, holds_for_named_type=True, may_more_hosts_help=True)
        return
    # A type that the job names is rejected only if even the fast end is too slow; otherwise the plan warns.
    decisive_seconds = estimated.low if demand.names_instance_type else estimated.high
    if decisive_seconds > demand.wanted_seconds:
        yield Objection(
            f"takes {estimated}, and {demand.job.workload.wanted_time} are wanted",
            remedy,
            holds_for_named_type=True,
            may_more_hosts_help=True,
            distance=estimated.high,
        )


@rule(
    "time.beyond-limit",
    phase="choose machines",
    summary="machines that take longer than the `limits.max_runtime` that the job states",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_StoppingCondition.html",
    quote="the maximum length of time that a training job can run before it is stopped",
    fields=("limits.max_runtime", "segments", "workload.time_on_one", "workload.measured_on"),
)
def reject_machines_beyond_limit(option: ComputeOption) -> Objections:
    """The estimate is of a region's machines, and says nothing of this one."""
    limit_seconds = option.demand.stated_limit_seconds
    if limit_seconds is not None and option.demand.facts.target != "local":
        yield from _object_to_duration(
            option, limit_seconds, f"the job's time limit ends it after {format_duration(limit_seconds)}"
        )


@rule(
    "time.longest-job",
    phase="choose machines",
    summary="machines that take longer than a job may last, for a program that another job cannot continue",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_StoppingCondition.html",
    quote="MaxRuntimeInSeconds ≥1 (≤2419200 by doc, default 86400; spans all retries)",
    fields=("workload.time_on_one", "workload.measured_on", "strategy", "algorithm"),
    facts=("quotas",),
)
def reject_machines_beyond_longest_job(option: ComputeOption) -> Objections:
    demand, longest_seconds = option.demand, option.demand.longest_job_seconds
    if longest_seconds is not None and longest_seconds < math.inf:
        kind = demand.strategy.job_kind
        yield from _object_to_duration(
            option,
            longest_seconds,
            f"a {kind.noun} may run for {format_duration(int(longest_seconds))}, and another job cannot "
            "continue this program",
        )


def _object_to_duration(option: ComputeOption, longest_seconds: float, limit_clause: str) -> Objections:
    """Yield an objection if the work may take longer. A type that the job names is rejected only if even the
    fast end of the estimate is too slow; otherwise the plan warns. ``limit_clause``: what limits it."""
    estimated = option.estimated_seconds
    if estimated is None:
        return
    decisive_seconds = estimated.low if option.demand.names_instance_type else estimated.high
    if decisive_seconds > longest_seconds:
        yield Objection(
            f"takes {estimated}, and {limit_clause}",
            _remedy_for_speed(option),
            holds_for_named_type=True,
            may_more_hosts_help=True,
            distance=estimated.high,
        )


def _remedy_for_speed(option: ComputeOption) -> str:
    """Return what the user can change if all machines are too slow."""
    capability = option.demand.capability
    if find_search_library(option.demand.facts.script) is not None:
        return "run the trials in parallel, by automatic model tuning (a tuning job), or allow more time"
    uses_one_accelerator = capability.uses_accelerators and capability.accelerator_use == "one"
    # Split data can be processed by more hosts, even if each of them uses one accelerator.
    if uses_one_accelerator and not option.demand.has_split_input:
        return "let the script use several accelerators (docs/planner.md), or allow more time"
    return "allow more time, or more hosts" if option.demand.names_instance_type else "allow more time"


@rule(
    "quota.too-small",
    phase="choose machines",
    summary="more hosts than the account's quota for the type",
    source="https://docs.aws.amazon.com/sagemaker/latest/dg/distributed-data-parallel-support.html",
    quote="'ml.p3dn.24xlarge for training job usage' is 0 Instances (the name for spot is not confirmed)",
    fields=("workload", "compute.hosts", "compute.spot"),
    facts=("quotas",),
)
def reject_hosts_above_quota(option: ComputeOption) -> Objections:
    job = option.demand.job
    quota_name = instance_quota_pattern(job, stated_job_kind(job.strategy)).format(option.instance.name)
    quota = option.demand.quotas.get(quota_name)
    if quota is not None and quota < option.host_count:
        yield Objection(
            f"the account may have {quota:g} of it",
            is_reported_elsewhere=True,
            distance=option.host_count - quota,
        )


@rule(
    "cost.over-budget",
    phase="choose machines",
    summary="machines that may cost more than `limits.max_cost`",
    source="docs/planner.md",
    quote="no machines are chosen that could cost more",
    fields=("limits.max_cost", "limits.max_runtime", "compute.price_per_hour"),
)
def reject_machines_over_budget(option: ComputeOption) -> Objections:
    """Two costs must be within the cap: the most that a single job can cost, until its time limit, and what
    the work is estimated to cost."""
    demand, estimated = option.demand, option.estimated_dollars
    # Nothing is billed for local hosts; without a price the plan asks for one.
    if demand.max_cost is None or demand.facts.target == "local" or option.price_per_hour is None:
        return
    estimated_dollars = 0.0 if estimated is None else estimated.high
    # Of the first attempt: those after it end at the cap.
    untrained_seconds = UntrainedTime.of_job(demand.job, demand.facts).seconds
    dollars_until_limit = option.listed_price_per_hour * (option.limit_seconds + untrained_seconds) / 3600
    is_estimate_over_cap = estimated_dollars > demand.max_cost
    # A run of several segments stops itself before its cap.
    is_limit_over_cap = not option.is_multi_segment and dollars_until_limit > demand.max_cost
    if not is_limit_over_cap and not is_estimate_over_cap:
        return
    needed_dollars = max(estimated_dollars, dollars_until_limit if is_limit_over_cap else 0.0)
    limit_text = ""
    if needed_dollars > estimated_dollars:
        limit_text = f" until the time limit of {format_duration(option.limit_seconds)}"
    remedy = f"raise it to {format_dollars(math.ceil(needed_dollars * 100) / 100)}"
    # A shorter time limit is enough if the work itself is expected to cost less than the cap.
    affordable_seconds = demand.max_cost / option.listed_price_per_hour * 3600 - untrained_seconds
    if not is_estimate_over_cap and affordable_seconds >= 60:
        remedy += f", or shorten limits.max_runtime to {longest_runtime_text(affordable_seconds)}"
    cap_text = format_dollars(demand.max_cost)
    clause = f"may cost {format_dollars(needed_dollars)}{limit_text}, more than {cap_text}"
    yield Objection(clause, remedy, distance=needed_dollars if is_estimate_over_cap else estimated_dollars)


MAX_VOLUME_GB = 65_536
"""64 TiB, the largest volume of Amazon EBS; those of gp2, which the API's documentation names, have 16."""


@rule(
    "volume.size",
    summary="a volume of more than 64 TiB",
    source="https://docs.aws.amazon.com/ebs/latest/userguide/ebs-volume-types.html",
    quote="Volume size: 1 GiB - 16 TiB (gp2), 64 TiB (io2; that of gp3 today is not confirmed)",
    fields=("compute.volume_gb",),
)
def reject_impossible_volume(context: PlanContext) -> Problems:
    volume_gb = context.job.compute.volume_gb
    if volume_gb is not None and volume_gb > MAX_VOLUME_GB:
        yield Problem(
            "compute.volume_gb",
            f"no volume has {volume_gb:,} GB: at most {MAX_VOLUME_GB:,} (64 TiB); read large inputs in mode "
            "FastFile, or split them among hosts",
        )


@rule(
    "volume.inputs",
    summary="inputs of mode File that do not fit on the disks of the hosts",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ResourceConfig.html",
    quote="you must provide enough storage (File); Available storage is fixed to the NVMe-type ... capacity",
    fields=("inputs.*", "compute", "segments"),
    facts=("inputs",),
)
def reject_inputs_larger_than_disk(context: PlanContext) -> Problems:
    """Sizes are those that were listed, so that there may be more; of an input that is split among hosts an
    equal share is counted."""
    job = context.job
    if context.facts.target != "aws":
        return
    copied_bytes = sum(
        (context.facts.inputs[name].bytes or 0) / (context.hosts if channel.split else 1)
        for name, channel in job.inputs.items()
        if channel.mode == "File" and name in context.facts.inputs
    )
    at_least = bound_word(context.facts, job.inputs)
    copies_text = f"inputs in mode File copy {at_least}{copied_bytes / 1e9:,.0f} GB to every host"
    advice = "take mode FastFile, or split them among hosts"
    for field, type_name in stated_instance_types(job):
        instance = instances.find_instance_type(type_name)
        if instance is None or instance.nvme_gb is None:
            continue
        if instance.nvme_gb:  # instead of a volume
            if copied_bytes > instance.nvme_gb * 1e9:
                disk_text = f"{type_name} has {instance.nvme_gb:,.0f} GB of disk"
                yield Problem(field, f"{copies_text}, and {disk_text}; {advice}, or take a larger type")
        elif job.compute.volume_gb is not None and copied_bytes > job.compute.volume_gb * 2**30:
            message = f"{copies_text}, and the volume has {job.compute.volume_gb:,} GB; make it larger"
            yield Problem("compute.volume_gb", f"{message}, or {advice}")
            return
        elif copied_bytes > MAX_VOLUME_GB * 2**30:
            yield Problem("inputs", f"{copies_text}, and a volume has at most 64 TiB; {advice}")
            return
