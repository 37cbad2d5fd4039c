"""Choose the machines for a workload: compare all suitable types, take one and explain why. Pure.

Only what the job leaves open is chosen; a stated instance type or number of hosts is kept and checked.
Without a workload section there is nothing to compare by, and the job stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from smlaunch.catalog import algorithms, instances
from smlaunch.catalog.instances import InstanceType
from smlaunch.facts.discovered_facts import DiscoveredFacts
from smlaunch.job.model import Job, format_duration
from smlaunch.planner.compute_demand import (
    ComputeDemand,
    ComputeOption,
    EvaluatedOption,
    Rejection,
    derive_compute_demand,
    instance_type_of_job,
    starts_one_process,
)
from smlaunch.planner.compute_reasons import explain_choice, suggest_preferences
from smlaunch.planner.launch_choices import threads_per_rank
from smlaunch.planner.plan import Candidate
from smlaunch.planner.plan_context import Diagnostics, Objection
from smlaunch.storage.host_data import ELSEWHERE
from smlaunch.storage.read_time_estimates import EstimateRange
from smlaunch.storage.workload_estimate import speedup
from smlaunch.strategies.base import Strategy

MAX_HOSTS = 64
"""Largest number of hosts that a plan chooses; the job may state more."""

SIMILAR_PRICE_FACTOR = 1.25
"""Options within this factor of the cheapest cannot be told apart by the estimates."""

TABLE_INSTANCE_TYPE = "ml.m5.4xlarge"
TABLE_BYTES_PER_HOST = 1e11
"""Bytes of tables per Spark host: what "enters the compute node's local storage" (Alliance, Machine
Learning: about 100 GB). The type, 16 vCPU and 64 GiB, is an assumption."""

ONE_HOST_SUFFICES = Rejection("scale.up-before-out", Objection("one instance is enough"))
"""A rule over all candidates. AWS, best practices: scale vertically first."""


def choose_compute(
    job: Job, strategy: Strategy, facts: DiscoveredFacts, diagnostics: Diagnostics
) -> tuple[Job, tuple[Candidate, ...]]:
    """Choose instance type and number of hosts for the job's workload. An option is one such pair; rules
    reject the unsuitable ones.

    Returns the job with its machines filled in, and all options that were compared, the chosen one first, as
    rows of the plan; the job unchanged and no options if it states nothing to choose by. Adds a problem if no
    option is suitable.
    """
    # What the workload demands of machines, such as memory, time and cost.
    demand = derive_compute_demand(job, strategy, facts)
    if demand is None:
        return job, ()
    if job.compute.price_per_hour is not None and not demand.names_instance_type:
        diagnostics.add_problem(
            "compute.price_per_hour",
            "it is the price of one instance type, and the plan chooses the type by the workload; name "
            "compute.instance_type, or leave the price out",
        )
        # Nothing can be compared by it: planning continues with the catalog's prices.
        job = job.with_changes(compute=job.compute.with_changes(price_per_hour=None))
        demand = replace(demand, job=job)
    if (unsized := _unsized_inputs(demand)) is not None:
        diagnostics.add_problem(*unsized)
        return job, ()
    evaluated_options = [
        EvaluatedOption(option, rejection=option.rejection) for option in _generate_options(demand)
    ]
    # Also unsuitable, but only by comparison: several hosts where one is enough.
    evaluated_options = _reject_several_hosts_if_one_suffices(demand, evaluated_options)
    suitable = [option for option, rejection in evaluated_options if rejection is None]
    rejected = [(option, rejection) for option, rejection in evaluated_options if rejection is not None]
    if not suitable and not rejected:
        return job, ()
    if not suitable:
        # Planning continues with the nearest option, so that all other problems of the job are reported too.
        return _report_nearest_option(demand, rejected, diagnostics), ()
    chosen = choose_best_option(demand, suitable)
    # Reasons for the plan, and types of similar price for when capacity is short.
    explain_choice(chosen, suitable, evaluated_options, diagnostics)
    for warning in chosen.overruled_warnings():
        diagnostics.add_warning(warning)
    suggest_preferences(chosen, options_of_similar_price(suitable), diagnostics)
    others_by_price = sorted((option for option in suitable if option is not chosen), key=_comparable_price)
    candidates = [
        _to_candidate(chosen, rejection=None, chosen=True),
        *(_to_candidate(option, rejection=None) for option in others_by_price),
        *(_to_candidate(option, rejection) for option, rejection in rejected),
    ]
    return _job_with_limit(_job_with_option(job, chosen), chosen, diagnostics), tuple(candidates)


def _unsized_inputs(demand: ComputeDemand) -> tuple[str, str] | None:
    """Return the problem, field and message, of machines that follow from the size of inputs which is not
    known; None if nothing depends on it. A later step of a pipeline has no input yet, and takes the least."""
    job, facts, strategy = demand.job, demand.facts, demand.strategy
    names = [
        f"inputs.{name}"
        for name, channel in job.inputs.items()
        if not channel.is_local
        and name in facts.inputs
        and facts.inputs[name].bytes is None
        and facts.inputs[name].exists
        and not facts.inputs[name].is_pending
    ]
    if not names or facts.target == "local":
        return None
    size_text = f"the size of {' and '.join(names)} is not known"
    if facts.account_problem is not None:
        size_text += ", as no account was asked"
    if strategy.is_for_tables and "hosts" not in job.compute.stated_fields:
        return (
            "compute.hosts",
            f"hosts are chosen by the size of the tables, and {size_text}; every host gets a complete copy "
            f"of each input; state compute.hosts, or read large tables from S3 in the script. {ELSEWHERE}",
        )
    holds_data_in_memory = strategy.loads_all_data and not demand.capability.uses_accelerators
    if holds_data_in_memory and not demand.names_instance_type:
        return (
            "compute.instance_type",
            f"the algorithm holds all of its data in memory, about five times its size, and {size_text}; "
            "state compute.instance_type, and compute.hosts where hosts share the data",
        )
    return None


def _job_with_limit(job: Job, chosen: ComputeOption, diagnostics: Diagnostics) -> Job:
    """The job with the time limit that the plan sets by its estimate, unless the job states one."""
    is_limit_estimated = chosen.estimated_seconds is not None and chosen.demand.facts.target != "local"
    if chosen.demand.stated_limit_seconds is not None or not is_limit_estimated:
        return job
    limit_text = format_duration(chosen.limit_seconds)
    diagnostics.add_reason(
        "limit.estimate",
        f"The job states no limits.max_runtime: the plan sets {limit_text}, a tenth more than the slow end "
        f"of its estimate ({chosen.estimated_seconds}), in full hours.",
    )
    return job.with_changes(limits=job.limits.with_changes(max_runtime=limit_text))


def _job_with_option(job: Job, option: ComputeOption) -> Job:
    """The job with the option's hosts and instance type."""
    changes: dict[str, object] = {"hosts": option.host_count}
    if not job.compute.instance_preferences:
        changes["instance_type"] = option.instance.name
    return job.with_changes(compute=job.compute.with_changes(**changes))


def _reject_several_hosts_if_one_suffices(
    demand: ComputeDemand, evaluated_options: Sequence[EvaluatedOption]
) -> list[EvaluatedOption]:
    """Return the options (instance type and number of hosts, each with the rejection that it already has, or
    None), with those of several hosts rejected if one host of some type is enough. Several hosts remain where
    ranks do not communicate, or where the CPUs are the bottleneck."""
    one_host_suffices = any(
        evaluated.rejection is None and evaluated.option.host_count == 1 for evaluated in evaluated_options
    )
    if not one_host_suffices or not demand.ranks_communicate or demand.is_cpu_bound:
        return list(evaluated_options)
    return [
        evaluated._replace(rejection=ONE_HOST_SUFFICES)
        if evaluated.rejection is None and evaluated.option.host_count > 1
        else evaluated
        for evaluated in evaluated_options
    ]


def choose_best_option(demand: ComputeDemand, suitable: Sequence[ComputeOption]) -> ComputeOption:
    """The cheapest option; among similarly priced ones the measured hardware, then fewer hosts."""
    return min(options_of_similar_price(suitable), key=lambda option: _preference_order(demand, option))


def options_of_similar_price(suitable: Sequence[ComputeOption]) -> list[ComputeOption]:
    """Options that cost at most SIMILAR_PRICE_FACTOR times the cheapest."""
    lowest_price = min(_comparable_price(option) for option in suitable)
    return [option for option in suitable if _comparable_price(option) <= SIMILAR_PRICE_FACTOR * lowest_price]


def _preference_order(demand: ComputeDemand, option: ComputeOption) -> tuple[bool, int, float, str]:
    """Sort key among similarly priced options; lower is better."""
    on_other_hardware = demand.measurement is not None and not demand.measurement.is_same_kind(
        option.instance
    )
    return on_other_hardware, option.host_count, option.listed_price_per_hour, option.instance.name


def _comparable_price(option: ComputeOption) -> float:
    """Dollars at the slow end if the duration is known, otherwise dollars per hour."""
    if option.estimated_seconds is None:
        return option.listed_price_per_hour
    return option.listed_price_per_hour * option.estimated_seconds.high / 3600


# ---- options ---------------------------------------------------------------------------------------------


def _generate_options(demand: ComputeDemand) -> Iterator[ComputeOption]:
    """Yield the options to compare. Per instance type: one host, or as many as the job states; if those are
    not enough, also the smallest sufficient number of hosts, or the largest number tried."""
    for instance in _instance_types_to_compare(demand):
        ranks_per_host = _ranks_per_host(demand, instance)
        smallest_host_count, *larger_host_counts = _host_counts_to_compare(demand)
        smallest_option = ComputeOption(
            demand=demand, instance=instance, host_count=smallest_host_count, ranks_per_host=ranks_per_host
        )
        yield smallest_option
        larger_option = _smallest_sufficient_option(smallest_option, larger_host_counts)
        if larger_option is not None:
            yield larger_option


def _smallest_sufficient_option(
    smallest_option: ComputeOption, larger_host_counts: Sequence[int]
) -> ComputeOption | None:
    """Return the option with the smallest of ``larger_host_counts``, which ascend, that no rule rejects; if
    all are rejected, the last one tried. None if more hosts than ``smallest_option`` has are not needed, or
    do not help."""
    rejection = smallest_option.rejection
    if rejection is None or not larger_host_counts:
        return None
    # Fewer hosts than this are too slow in any case.
    min_hosts = _min_useful_hosts(smallest_option)
    host_counts = [count for count in larger_host_counts if count >= min_hosts]
    if not host_counts:
        # Even the largest number is too small: it shows the user by how much.
        host_counts = [larger_host_counts[-1]]
    last_option = None
    for host_count in host_counts:
        # More hosts help against too little time or memory, and not against, say, a missing price.
        if rejection is None or not rejection.objection.may_more_hosts_help:
            break
        last_option = replace(smallest_option, host_count=host_count)
        rejection = last_option.rejection
    return last_option


def _min_useful_hosts(smallest_option: ComputeOption) -> int:
    """Return a lower bound for the number of hosts that finish in the wanted time: n times as many hosts are
    at most n times as fast. 1 if nothing is known about the speed."""
    demand, measurement = smallest_option.demand, smallest_option.demand.measurement
    allowed_seconds = (demand.wanted_seconds, demand.stated_limit_seconds, demand.longest_job_seconds)
    longest_seconds = min((seconds for seconds in allowed_seconds if seconds is not None), default=math.inf)
    if measurement is None or longest_seconds == math.inf:
        return 1
    # Relative to the machine that the user measured; None if the catalog cannot compare the two.
    speed_ratio = speedup(smallest_option.host_group, measurement)
    if speed_ratio is None:
        return 1
    seconds_on_smallest = measurement.seconds / speed_ratio.low
    return math.ceil(smallest_option.host_count * seconds_on_smallest / longest_seconds)


def _instance_types_to_compare(demand: ComputeDemand) -> Iterator[InstanceType]:
    """Yield the instance types to compare: the one that the job names; one fixed type for a strategy that
    processes tables, such as Spark; otherwise all of the catalog with the kind of accelerator that the
    strategy and the script use: GPUs, Neuron devices (Trainium) or none."""
    type_name = instance_type_of_job(demand.job)
    if type_name is not None:
        named_type = instances.find_instance_type(type_name)
        return iter(() if named_type is None else (named_type,))
    if demand.strategy.is_for_tables:
        return iter((instances.known_types()[TABLE_INSTANCE_TYPE],))
    # "only": the strategy runs on nothing but Trainium, whose accelerators are Neuron devices.
    needs_neuron = demand.strategy.trainium_support == "only"
    needs_accelerators = demand.capability.uses_accelerators
    return (
        instance
        for instance in instances.known_types().values()
        if instance.is_neuron == needs_neuron
        and (instance.accelerators > 0) == needs_accelerators
        # Without accelerators all types are suitable; only those with a price are compared.
        and (instance.accelerators > 0 or demand.prices.find_to_compare(instance.name) is not None)
    )


def _host_counts_to_compare(demand: ComputeDemand) -> Sequence[int]:
    """Return the numbers of hosts to compare, in ascending order: only the job's own if it states one; as
    many as its tables need for a strategy that processes tables; only one host if neither the program (a
    script or a built-in algorithm) nor the data can use several; otherwise up to 64 (MAX_HOSTS)."""
    compute = demand.job.compute
    # stated_fields: what the job states, without defaults.
    states_host_count = "hosts" in compute.stated_fields
    if states_host_count:
        return [compute.hosts]
    if demand.job.algorithm is not None:
        algorithm = algorithms.find_algorithm(demand.job.algorithm)
        is_parallelizable = algorithm is not None and algorithm.hosts == "several"
        # Hosts that all read all of the data would learn it several times.
        return range(1, MAX_HOSTS + 1) if is_parallelizable and demand.has_split_input else [1]
    if demand.strategy.is_for_tables:
        total_bytes = sum(input_facts.bytes or 0 for input_facts in demand.facts.inputs.values())
        # TABLE_BYTES_PER_HOST: about 100 GB, what fits on the disk of a host.
        # -(-a // b) rounds up.
        needed_hosts = -(-int(total_bytes) // int(TABLE_BYTES_PER_HOST))
        return [max(1, min(MAX_HOSTS, needed_hosts))]
    # A script whose ranks join a process group can use accelerators of several hosts; independent ranks need
    # data that is split among the hosts.
    script_joins_ranks = demand.capability.accelerator_use == "several"
    hosts_work_on_shards = demand.strategy.works_on_shards and demand.has_split_input
    if script_joins_ranks or hosts_work_on_shards:
        return range(1, MAX_HOSTS + 1)
    return [1]


def _ranks_per_host(demand: ComputeDemand, instance: InstanceType) -> int:
    """Ranks per host on this instance type."""
    requested = demand.job.compute.processes_per_host
    if isinstance(requested, int):
        return requested
    if demand.is_single_process:
        return 1
    return demand.strategy.ranks_per_host(instance, threads_per_rank(demand.job))


def _to_candidate(option: ComputeOption, rejection: Rejection | None, chosen: bool = False) -> Candidate:
    """The option as a row of the plan."""
    demand = option.demand
    is_one_process = demand.job.compute.processes_per_host is None and starts_one_process(demand.strategy)
    return Candidate(
        strategy=demand.strategy.name,
        instance_type=option.instance.name,
        hosts=option.host_count,
        processes_per_host=1 if is_one_process else option.ranks_per_host,
        chosen=chosen,
        rule="" if rejection is None else rejection.rule_id,
        objection="" if rejection is None else rejection.objection.clause,
        seconds=_low_and_high(option.estimated_seconds),
        dollars=_low_and_high(option.estimated_dollars),
        per_hour=_low_and_high(option.price_per_hour),
    )


def _low_and_high(estimate: EstimateRange | None) -> tuple[float, float] | None:
    return None if estimate is None else (estimate.low, estimate.high)


# ---- when nothing will do --------------------------------------------------------------------------------


def _report_nearest_option(
    demand: ComputeDemand, rejected: Sequence[tuple[ComputeOption, Rejection]], diagnostics: Diagnostics
) -> Job:
    """Add the problem of the option that is nearest to a suitable one, and return the job with its machines.
    Called if all options are rejected, each by the first rule that it breaks: the later that rule, the nearer
    the option; then the less it lacks by that rule; then the cheaper."""
    option, rejection = min(rejected, key=lambda pair: _distance_from_suitable(*pair))
    objection = rejection.objection
    if not objection.is_reported_elsewhere:
        comparison = f", the nearest of {len(rejected)} that were compared" if len(rejected) > 1 else ""
        diagnostics.add_problem(
            rejection.field, f"{option.describe()}{comparison}: {objection.clause}; {objection.remedy}"
        )
    return _job_with_option(demand.job, option)


def _distance_from_suitable(option: ComputeOption, rejection: Rejection) -> tuple[int, float, float]:
    """Sort key of rejected options; the nearest to a suitable one first."""
    return -rejection.rule_number, rejection.objection.distance, option.listed_price_per_hour
