"""Choose the machines for a workload: compare all suitable types, take one and explain why. Pure.

Only what the job leaves open is chosen; a stated instance type or number of hosts is kept and checked.
Without a workload section there is nothing to compare by, and the job stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from smlaunch.catalog import instances
from smlaunch.catalog.instances import InstanceType
from smlaunch.job.model import Job
from smlaunch.planner.compute_demand import (
    ComputeDemand,
    named_instance_type,
    read_demand,
    starts_one_process,
)
from smlaunch.planner.compute_reasons import explain_choice, suggest_preferences
from smlaunch.planner.compute_rules import (
    COMPUTE_RULES,
    OVER_BUDGET,
    QUOTA_TOO_SMALL,
    ComputeOption,
    cost_above_cap,
    first_objection,
)
from smlaunch.planner.diagnostics import Diagnostics
from smlaunch.planner.estimate import speedup
from smlaunch.planner.facts import Facts
from smlaunch.planner.plan import Candidate
from smlaunch.strategies.base import Strategy

MAX_HOSTS = 64
"""Largest number of hosts that a plan chooses; the job may state more."""

SIMILAR_PRICE_FACTOR = 1.25
"""Options within this factor of the cheapest cannot be told apart by the estimates."""

TABLE_INSTANCE_TYPE = "ml.m5.4xlarge"
TABLE_BYTES_PER_HOST = 1e11
"""Bytes of tables per Spark host: what "enters the compute node's local storage" (Alliance, Machine
Learning: about 100 GB). The type, 16 vCPU and 64 GiB, is an assumption."""

UP_BEFORE_OUT = ("scale.up-before-out", "one instance is enough")
"""A rule over all candidates. AWS, best practices: scale vertically first."""

JudgedOption = tuple[ComputeOption, tuple[str, str] | None]


def choose_compute(
    job: Job, strategy: Strategy, facts: Facts, diagnostics: Diagnostics
) -> tuple[Job, tuple[Candidate, ...]]:
    """The job with its machines filled in, and the candidates compared. Adds a problem if no candidate is
    suitable."""
    demand = read_demand(job, strategy, facts)
    if demand is None:
        return job, ()
    evaluated_options = _prefer_one_host(
        demand, [(option, first_objection(option)) for option in _candidate_options(demand)]
    )
    suitable = [option for option, rejection in evaluated_options if rejection is None]
    if not suitable:
        rejected = [(option, rejection) for option, rejection in evaluated_options if rejection is not None]
        # Planning continues with the nearest option, so that all other problems of the job are reported too.
        return (_report_nearest(demand, rejected, diagnostics) if rejected else job), ()
    chosen = best_option(demand, suitable)
    explain_choice(chosen, suitable, evaluated_options, diagnostics)
    suggest_preferences(chosen, similarly_priced(suitable), diagnostics)
    ordered_options = sorted(suitable, key=lambda option: (option is not chosen, _price(option)))
    candidates = [_as_candidate(option, None, option is chosen) for option in ordered_options]
    candidates += [
        _as_candidate(option, rejection) for option, rejection in evaluated_options if rejection is not None
    ]
    return _job_with_option(job, chosen), tuple(candidates)


def _job_with_option(job: Job, option: ComputeOption) -> Job:
    """The job with the option's hosts and instance type."""
    changes: dict[str, object] = {"hosts": option.host_count}
    if not job.compute.instance_preferences:
        changes["instance_type"] = option.instance.name
    return job.model_copy(update={"compute": job.compute.model_copy(update=changes)})


def _prefer_one_host(demand: ComputeDemand, evaluated_options: Sequence[JudgedOption]) -> list[JudgedOption]:
    """Reject several hosts if one suffices, unless ranks do not communicate or the CPUs are the
    bottleneck."""
    one_host_suffices = any(
        objection is None and option.host_count == 1 for option, objection in evaluated_options
    )
    if not (one_host_suffices and demand.ranks_communicate and demand.vcpu_per_accelerator is None):
        return list(evaluated_options)
    return [
        (option, UP_BEFORE_OUT if objection is None and option.host_count > 1 else objection)
        for option, objection in evaluated_options
    ]


def best_option(demand: ComputeDemand, suitable: Sequence[ComputeOption]) -> ComputeOption:
    """The cheapest option; among similarly priced ones the measured hardware, then fewer hosts."""
    return min(similarly_priced(suitable), key=lambda option: _preference_order(demand, option))


def similarly_priced(suitable: Sequence[ComputeOption]) -> list[ComputeOption]:
    """Options that cost at most SIMILAR_PRICE_FACTOR times the cheapest."""
    lowest_price = min(_price(option) for option in suitable)
    return [option for option in suitable if _price(option) <= SIMILAR_PRICE_FACTOR * lowest_price]


def _preference_order(demand: ComputeDemand, option: ComputeOption) -> tuple[bool, int, float, str]:
    """Sort key among similarly priced options; lower is better."""
    on_other_hardware = demand.measurement is not None and not demand.measurement.is_same_kind(
        option.instance
    )
    return on_other_hardware, option.host_count, option.listed_price_per_hour, option.instance.name


def _price(option: ComputeOption) -> float:
    """Dollars at the slow end if the duration is known, otherwise dollars per hour."""
    if option.estimated_seconds is None:
        return option.listed_price_per_hour
    return option.listed_price_per_hour * option.estimated_seconds.high / 3600


# ---- options ---------------------------------------------------------------------------------------------


def _candidate_options(demand: ComputeDemand) -> Iterator[ComputeOption]:
    """Per instance type: one host, or as many as the job states; if that is not enough, the smallest
    sufficient number, or the largest number tried."""
    for instance in _instance_types(demand):
        ranks = _ranks_per_host(demand, instance)
        first_hosts, *more_hosts = _host_counts(demand)
        first_option = last_option = ComputeOption(demand, instance, first_hosts, ranks)
        objection = first_objection(first_option)
        min_hosts = _min_hosts(first_option) if objection is not None and more_hosts else 1
        for hosts in [hosts_count for hosts_count in more_hosts if hosts_count >= min_hosts] or more_hosts[
            -1:
        ]:
            if objection is None or not _more_hosts_may_help(objection[0], demand):
                break
            last_option = ComputeOption(demand, instance, hosts, ranks)
            objection = first_objection(last_option)
        yield first_option
        if last_option is not first_option:
            yield last_option


def _min_hosts(single_host: ComputeOption) -> int:
    """Lower bound for the number of hosts: several hosts are at most that many times as fast as one."""
    demand = single_host.demand
    single_speedup = (
        None if demand.measurement is None else speedup(single_host.host_group, demand.measurement)
    )
    if single_speedup is None or demand.measurement is None or demand.wanted_seconds is None:
        return 1
    return math.ceil(
        single_host.host_count * demand.measurement.seconds / (single_speedup.low * demand.wanted_seconds)
    )


def _instance_types(demand: ComputeDemand) -> Iterator[InstanceType]:
    """Instance types to compare."""
    type_name = named_instance_type(demand.job)
    if type_name is not None:
        catalog_type = instances.find_instance_type(type_name)
        if catalog_type is not None:
            yield catalog_type
    elif demand.strategy.is_for_tables:
        yield instances.known_types()[TABLE_INSTANCE_TYPE]
    else:
        for instance in instances.known_types().values():
            if instance.is_neuron != (demand.strategy.trainium_support == "only"):
                continue
            if (instance.accelerators > 0) != demand.capability.uses_accelerators:
                continue
            # Without accelerators all types are suitable; only those with a price are compared.
            if instance.accelerators or instance.usd_per_hour is not None:
                yield instance


def _host_counts(demand: ComputeDemand) -> Sequence[int]:
    """Numbers of hosts to compare, in ascending order."""
    compute = demand.job.compute
    if "hosts" in compute.model_fields_set or demand.job.algorithm is not None:
        return [compute.hosts]
    if demand.strategy.is_for_tables:
        total_bytes = sum(facts.bytes or 0 for facts in demand.facts.inputs.values())
        return [max(1, min(MAX_HOSTS, -(-int(total_bytes) // int(TABLE_BYTES_PER_HOST))))]
    if demand.capability.accelerator_use == "several" or (
        demand.strategy.works_on_shards and demand.has_split_input
    ):
        return range(1, MAX_HOSTS + 1)
    return [1]


def _more_hosts_may_help(rule: str, demand: ComputeDemand) -> bool:
    """Whether more hosts may satisfy the rule that rejected an option."""
    if rule in ("time.too-slow", "memory.model-too-large"):
        return rule != "memory.model-too-large" or demand.capability.shards_model
    return rule == "memory.data-too-large" and demand.has_split_input


def _ranks_per_host(demand: ComputeDemand, instance: InstanceType) -> int:
    """Ranks per host on this instance type."""
    requested = demand.job.compute.processes_per_host
    if isinstance(requested, int):
        return requested
    return 1 if demand.is_single_process else max(1, instance.accelerators)


def _as_candidate(
    option: ComputeOption, rejection: tuple[str, str] | None, chosen: bool = False
) -> Candidate:
    """The option as a row of the plan."""
    rule, objection = rejection or ("", "")
    demand = option.demand
    is_one_process = demand.job.compute.processes_per_host is None and starts_one_process(demand.strategy)
    estimates = (option.estimated_seconds, option.estimated_dollars, option.price_per_hour)
    seconds, dollars, per_hour = (
        None if estimate is None else (estimate.low, estimate.high) for estimate in estimates
    )
    return Candidate(
        strategy=demand.strategy.name,
        instance_type=option.instance.name,
        hosts=option.host_count,
        processes_per_host=1 if is_one_process else option.ranks_per_host,
        chosen=chosen,
        rule=rule,
        objection=objection,
        seconds=seconds,
        dollars=dollars,
        per_hour=per_hour,
    )


# ---- when nothing will do --------------------------------------------------------------------------------


def _report_nearest(
    demand: ComputeDemand, rejected: Sequence[tuple[ComputeOption, tuple[str, str]]], diagnostics: Diagnostics
) -> Job:
    """Report the option that got furthest: the one that the last of the rules rejected."""
    rule_order = {rule.name: number for number, rule in enumerate(COMPUTE_RULES)}

    def distance(pair: tuple[ComputeOption, tuple[str, str]]) -> tuple[int, float, float]:
        option, (rule, _) = pair
        decisive_estimates = {
            "time.too-slow": option.estimated_seconds,
            OVER_BUDGET: option.estimated_dollars,
        }
        estimate = decisive_estimates.get(rule)
        return -rule_order[rule], 0.0 if estimate is None else estimate.high, option.listed_price_per_hour

    option, (rule, objection) = min(rejected, key=distance)
    # Every plan checks its cost cap and its quotas; those two problems are reported there.
    if rule != QUOTA_TOO_SMALL and not (rule == OVER_BUDGET and cost_above_cap(option) is not None):
        field = next(compute_rule.field for compute_rule in COMPUTE_RULES if compute_rule.name == rule)
        comparison = f", the nearest of {len(rejected)} that were compared" if len(rejected) > 1 else ""
        diagnostics.add_problem(
            field, f"{option.describe()}{comparison}: {objection}; {_remedy(rule, demand)}"
        )
    return _job_with_option(demand.job, option)


def _remedy(rule: str, demand: ComputeDemand) -> str:
    """What the user can do about the rule that rejected all options."""
    if rule == "time.too-slow":
        if (
            demand.capability.accelerator_use == "one"
            and demand.capability.uses_accelerators
            and not demand.has_split_input
        ):
            return "let the script use several accelerators (docs/planner.md), or allow more time"
        return "allow more time, or more hosts" if demand.has_fixed_type else "allow more time"
    if rule == "memory.model-too-large":
        return "shard the model over accelerators with FSDP, DeepSpeed or SMP, or take a larger type"
    if rule == OVER_BUDGET:
        return "raise it, or shorten limits.max_runtime"
    if rule == "capability.one-accelerator":
        return "let the script use several (docs/planner.md)"
    return "name compute.instance_type to use one anyway"
