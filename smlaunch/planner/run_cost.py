"""Cost of a run: per hour, and at most. An unknown price is reported as unknown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from smlaunch.catalog import instances
from smlaunch.catalog.instances import InstanceChoice
from smlaunch.catalog.prices import RegionPrices
from smlaunch.facts.discovered_facts import DiscoveredFacts
from smlaunch.job.model import Job, format_duration, parse_duration
from smlaunch.planner.plan import Cost
from smlaunch.planner.plan_context import Diagnostics
from smlaunch.planner.segments import format_seconds
from smlaunch.text.format import format_dollars_apart


class PriceRate(NamedTuple):
    """US dollars per hour for all hosts of a job; None if the price is unknown."""

    instance_type: str
    hosts: int
    dollars_per_hour: float | None
    source: str
    """Source of the price, or why it is unknown."""

    may_be_read: bool = False
    """The price is unknown, and AWS's price list of the region has not been read."""


def compute_price_rate(
    job: Job, instance_choice: InstanceChoice, facts: DiscoveredFacts, prices: RegionPrices
) -> PriceRate:
    """Return the price per hour of all of the job's hosts, with its source: the job itself for the type that
    it names, otherwise the region's on-demand price; None if it is unknown. On the local endpoint only a
    price that the job states counts, to rehearse a cost cap."""
    if len(job.compute.instance_preferences) > 1:
        return _rate_of_most_expensive_preference(job, facts, prices)
    instance_type = instance_choice.name
    # Of one host; None if the job states none.
    host_price = job.compute.price_per_hour
    if facts.target == "local" and host_price is None:
        host_price, source = 0.0, "it runs on this machine; nothing is billed"
    elif facts.target == "local":
        source = f"by compute.price_per_hour, for {instance_type}; nothing is really billed here"
    elif host_price is not None:
        source = f"by compute.price_per_hour, for {instance_type}"
    elif (price := prices.find(instance_type)) is not None:
        host_price, source = price.dollars, price.source
    else:
        source = prices.unknown_text(instance_type)
    if facts.target != "local" and host_price is not None and job.compute.spot:
        source += "; spot is billed lower, by an unknown amount"
    return PriceRate(
        instance_type=instance_type,
        hosts=job.compute.hosts,
        dollars_per_hour=None if host_price is None else host_price * job.compute.hosts,
        source=source,
        may_be_read=host_price is None and not prices.has_price_list,
    )


def _rate_of_most_expensive_preference(job: Job, facts: DiscoveredFacts, prices: RegionPrices) -> PriceRate:
    """Return the price per hour with the most expensive of the preferred instance types, of which the service
    chooses one; the price is unknown if that of any type is."""
    preferences = job.compute.instance_preferences
    rates: list[PriceRate] = []
    for name in preferences:
        # The price that the job states is that of the first preference.
        stated_price = job.compute.price_per_hour if name == preferences[0] else None
        compute_with_one_type = job.compute.with_changes(
            instance_preferences=(), instance_type=name, price_per_hour=stated_price
        )
        instance_choice = InstanceChoice(name, instances.find_instance_type(name))
        rates.append(
            compute_price_rate(
                job.with_changes(compute=compute_with_one_type), instance_choice, facts, prices
            )
        )
    rate_without_price = _first_rate_without_price(rates)
    if rate_without_price is not None:
        return rate_without_price
    highest_rate = _highest_rate(rates)
    if not highest_rate.dollars_per_hour:
        return highest_rate  # on this machine nothing is billed
    return highest_rate._replace(
        source=(
            f"of {highest_rate.instance_type}, the dearest of {len(preferences)} preferences; "
            f"{highest_rate.source}"
        ),
    )


def _first_rate_without_price(rates: Sequence[PriceRate]) -> PriceRate | None:
    return next((rate for rate in rates if rate.dollars_per_hour is None), None)


def _highest_rate(rates: Sequence[PriceRate]) -> PriceRate:
    return max(rates, key=lambda rate: rate.dollars_per_hour or 0.0)


def plan_cost(
    job: Job,
    rates: Sequence[PriceRate],
    total_seconds: int,
    segment_count: int,
    is_multi_segment: bool,
    min_segment_seconds: float,
    run_count: int,
    diagnostics: Diagnostics,
) -> Cost:
    """Return what the run costs at most, in US dollars. Adds a problem if it may cost more than
    ``limits.max_cost``.

    ``rates``: prices per hour of all hosts, one per kind of segment, as these may differ in their machines.
    ``total_seconds``: training time of the whole run. ``segment_count``: jobs in a row that are planned for
    it. ``is_multi_segment``: the run may take several, and ends before it exceeds its cap.
    ``min_segment_seconds``: shortest useful first segment. ``run_count``: equal runs, one for each shard,
    that share the cap as the user states it.
    """
    max_cost = job.limits.max_cost
    rate_without_price = _first_rate_without_price(rates)
    if rate_without_price is not None:
        return _report_unknown_price(job, rate_without_price, diagnostics)
    highest_rate = _highest_rate(rates)
    dollars_per_hour = highest_rate.dollars_per_hour or 0.0
    # Billed time in which the hosts wait for a next job, after every segment.
    keep_alive_seconds = 0 if job.compute.keep_alive is None else parse_duration(job.compute.keep_alive)
    uncapped_dollars = dollars_per_hour * (total_seconds + segment_count * keep_alive_seconds) / 3600
    uncapped_cost = Cost(
        is_known=True, per_hour=dollars_per_hour, maximum=uncapped_dollars, note=highest_rate.source
    )
    if keep_alive_seconds and dollars_per_hour:
        after_text = f" after each of {segment_count} segments" if segment_count > 1 else ""
        retry_text = "; what follows further attempts is not" if is_multi_segment else ""
        diagnostics.add_reason(
            "cost.warm-pool",
            f"Hosts that wait for a next job are billed: {job.compute.keep_alive} of it{after_text} are in "
            f"the price{retry_text}.",
        )
    # The choice of machines reports a cap that is too low for all of them.
    is_reported = any(problem.path == "limits.max_cost" for problem in diagnostics.problems)
    if max_cost is None or is_reported:
        return uncapped_cost
    uncapped_text, cap_text = format_dollars_apart(uncapped_dollars * run_count, max_cost * run_count)
    if uncapped_dollars <= max_cost:
        diagnostics.add_reason(
            "cost.capped", f"At most {uncapped_text} until the time limit, within the cap of {cap_text}."
        )
        return uncapped_cost
    # Training time that the cap pays for.
    affordable_seconds = max(0, int(max_cost / dollars_per_hour * 3600) - keep_alive_seconds)
    if is_multi_segment and affordable_seconds >= min_segment_seconds:
        diagnostics.add_reason(
            "cost.capped-while-running",
            f"All segments together could cost {uncapped_text}; the chain ends at a checkpoint before it has "
            f"cost {cap_text}.",
        )
        return uncapped_cost._replace(maximum=max_cost)
    suggestion = (
        f"it pays for {format_seconds(affordable_seconds)}, too short for a segment; raise it"
        if is_multi_segment
        else _suggest_cheaper_run(affordable_seconds)
    )
    diagnostics.add_problem(
        "limits.max_cost",
        f"{highest_rate.hosts * run_count} x {highest_rate.instance_type} for up to "
        f"{format_duration(total_seconds)} may cost {uncapped_text}, more than {cap_text}; {suggestion}",
    )
    return uncapped_cost


def _report_unknown_price(job: Job, rate_without_price: PriceRate, diagnostics: Diagnostics) -> Cost:
    """Return the cost of a run whose price is unknown, and add a problem if the job states a cap, which then
    cannot be enforced."""
    type_name, own_type = rate_without_price.instance_type, job.compute.own_instance_type
    note, remedy = rate_without_price.source, "state it with compute.price_per_hour or --price"
    if type_name != own_type:
        remedy = (
            f"compute.price_per_hour would be that of {own_type}: take a type with a known price, or leave "
            "the cap out"
        )
    elif "compute.instance_type" in diagnostics.fields_chosen_by_plan:
        remedy = "name compute.instance_type, and its price with compute.price_per_hour or --price"
        note += "; a job that names the type states it with compute.price_per_hour or --price"
    else:
        note += "; compute.price_per_hour or --price states it"
    if rate_without_price.may_be_read:
        reads_list = "`smlaunch catalog update` reads the region's prices"
        note, remedy = f"{note}; {reads_list}", f"{remedy}; {reads_list}"
    if job.limits.max_cost is not None:
        diagnostics.add_problem(
            "limits.max_cost", f"{rate_without_price.source}, so that the cap cannot be enforced; {remedy}"
        )
    return Cost(is_known=False, per_hour=None, maximum=None, note=note)


def _suggest_cheaper_run(affordable_seconds: int) -> str:
    """Return what to change so that the run stays below its cost cap. ``affordable_seconds``: training time
    that the cap pays for."""
    if affordable_seconds < 60:
        return "raise it, or take a smaller type"
    return f"limits.max_runtime: {longest_runtime_text(affordable_seconds)} would stay below it"


def longest_runtime_text(affordable_seconds: float) -> str:
    """Return the longest time limit, in whole hours or minutes, within ``affordable_seconds``: 60 or more."""
    unit, unit_seconds = ("h", 3600) if affordable_seconds >= 3600 else ("m", 60)
    return f"{int(affordable_seconds) // unit_seconds}{unit}"
