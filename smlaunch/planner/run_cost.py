"""Cost of a run: per hour, and at most. An unknown price is reported as unknown."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from smlaunch.catalog import instances
from smlaunch.catalog.instances import InstanceChoice
from smlaunch.catalog.prices import RegionPrices
from smlaunch.facts.discovered_facts import DiscoveredFacts
from smlaunch.job.model import Job, format_duration, parse_duration
from smlaunch.planner.plan import Cost
from smlaunch.planner.plan_context import Diagnostics
from smlaunch.planner.segments import (
    PROVISIONING_SECONDS,
    STOP_GRACE_SECONDS,
    SegmentOverheads,
    format_seconds,
)
from smlaunch.storage.workload_estimate import STARTUP_RANGE
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
    if job.compute.instance_groups:
        return _rate_of_groups(job, facts, prices)
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
    rates = [_rate_of_hosts(job, name, job.compute.hosts, facts, prices) for name in preferences]
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


def _rate_of_groups(job: Job, facts: DiscoveredFacts, prices: RegionPrices) -> PriceRate:
    """Return the price per hour of the hosts of all instance groups; it is unknown if that of any type is."""
    groups = job.compute.instance_groups
    rates = [_rate_of_hosts(job, group.type, group.hosts, facts, prices) for group in groups]
    rate_without_price = _first_rate_without_price(rates)
    if rate_without_price is not None:
        return rate_without_price
    return PriceRate(
        instance_type=rates[0].instance_type,
        hosts=job.compute.host_count,
        dollars_per_hour=sum(rate.dollars_per_hour or 0.0 for rate in rates),
        source="; ".join(dict.fromkeys(rate.source for rate in rates)),
    )


def _rate_of_hosts(
    job: Job, instance_type: str, host_count: int, facts: DiscoveredFacts, prices: RegionPrices
) -> PriceRate:
    """Return the price per hour of hosts of one of the job's types, as if it named this one only."""
    # The price that the job states stays with the type that it is of (Compute.fields_left_behind).
    compute = job.compute.with_changes(
        instance_preferences=(), instance_groups=(), instance_type=instance_type, hosts=host_count
    )
    instance_choice = InstanceChoice(instance_type, instances.find_instance_type(instance_type))
    return compute_price_rate(job.with_changes(compute=compute), instance_choice, facts, prices)


def _first_rate_without_price(rates: Sequence[PriceRate]) -> PriceRate | None:
    return next((rate for rate in rates if rate.dollars_per_hour is None), None)


def _highest_rate(rates: Sequence[PriceRate]) -> PriceRate:
    return max(rates, key=lambda rate: rate.dollars_per_hour or 0.0)


class UntrainedTime(NamedTuple):
    """Seconds for which a job may be billed besides its training time. "Download time and upload time are
    billed" (the developer guide's page on training; lengths are assumptions)."""

    start: float
    """Until its image is there and its program runs."""

    download: float
    """Of data and checkpoints."""

    stop: float
    """After its limit, with the upload of its last checkpoint or model."""

    keep_alive: int
    """In which its hosts wait for a next job."""

    @classmethod
    def of_job(cls, job: Job, facts: DiscoveredFacts) -> UntrainedTime:
        """Nothing but the wait on this machine, whose hosts start and stop at once."""
        keep_alive = 0 if job.compute.keep_alive is None else parse_duration(job.compute.keep_alive)
        if facts.target == "local":
            return cls(0.0, 0.0, 0.0, keep_alive)
        overheads = SegmentOverheads.for_job(job, facts)
        stop_seconds = STOP_GRACE_SECONDS + overheads.last_save_seconds
        return cls(STARTUP_RANGE.high, overheads.download_seconds, stop_seconds, keep_alive)

    @property
    def seconds(self) -> float:
        return self.start + self.download + self.stop + self.keep_alive


class PlannedJobCount(NamedTuple):
    """Jobs that a run may take."""

    segments: int
    attempts: int
    """Of each segment, at most."""

    is_multi_segment: bool
    """The run may take several segments, and ends before it exceeds its cap."""

    @property
    def total(self) -> int:
        return self.segments * self.attempts


def plan_cost(
    job: Job,
    facts: DiscoveredFacts,
    rates: Sequence[PriceRate],
    total_seconds: int,
    job_count: PlannedJobCount,
    volume_gb: int,
    min_segment_seconds: float,
    run_count: int,
    diagnostics: Diagnostics,
) -> Cost:
    """Return what the run costs at most, in US dollars. Adds a problem if it may cost more than
    ``limits.max_cost``.

    ``rates``: prices per hour of all hosts, one per kind of segment, as these may differ in their machines.
    ``total_seconds``: training time of the whole run. ``volume_gb``: volumes of all hosts.
    ``min_segment_seconds``: shortest useful first segment. ``run_count``: equal runs, one for each shard,
    that share the cap as the user states it.
    """
    max_cost = job.limits.max_cost
    rate_without_price = _first_rate_without_price(rates)
    if rate_without_price is not None:
        return _report_unknown_price(job, rate_without_price, diagnostics)
    highest_rate = _highest_rate(rates)
    dollars_per_hour = highest_rate.dollars_per_hour or 0.0
    untrained = UntrainedTime.of_job(job, facts)
    billed_seconds = total_seconds + job_count.total * untrained.seconds
    uncapped_dollars = dollars_per_hour * billed_seconds / 3600
    uncapped_cost = Cost(
        is_known=True,
        per_hour=dollars_per_hour,
        maximum=uncapped_dollars,
        note=highest_rate.source,
        volume_gb=volume_gb if facts.target == "aws" else 0,
    )
    if untrained.seconds and dollars_per_hour:
        diagnostics.add_reason(
            "cost.at-most",
            _untrained_time_text(untrained, job_count)
            + _unknown_bills_text(job, facts, uncapped_cost.volume_gb * run_count),
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
    # Training time of the first job that the cap pays for.
    paid_seconds = max_cost / dollars_per_hour * 3600
    affordable_seconds = max(0, int(paid_seconds - untrained.seconds))
    if not job_count.is_multi_segment and job_count.attempts > 1 and affordable_seconds >= total_seconds:
        diagnostics.add_reason(
            "cost.capped-while-running",
            f"{job_count.attempts} attempts could cost {uncapped_text}; none begins for which the cap of "
            f"{cap_text} leaves no time.",
        )
        return uncapped_cost._replace(maximum=max_cost)
    if job_count.is_multi_segment and affordable_seconds >= min_segment_seconds:
        money_ends = _date_after(facts, paid_seconds, billed_seconds, job_count.segments)
        date_text = f", about {money_ends} if it starts today" if money_ends else ""
        diagnostics.add_reason(
            "cost.capped-while-running",
            f"All segments together could cost {uncapped_text}; the chain ends at a checkpoint before it has "
            f"cost {cap_text}{date_text}; the last job's start and upload are not counted.",
        )
        return uncapped_cost._replace(maximum=max_cost, money_ends=money_ends)
    suggestion = (
        f"it pays for {format_seconds(affordable_seconds)}, too short for a segment; raise it"
        if job_count.is_multi_segment
        else _suggest_cheaper_run(affordable_seconds)
    )
    untrained_text = format_seconds(job_count.total * untrained.seconds) if untrained.seconds else ""
    besides_text = f", and {untrained_text} of starts, transfers and stops," if untrained_text else ""
    diagnostics.add_problem(
        "limits.max_cost",
        f"{highest_rate.hosts * run_count} x {highest_rate.instance_type} for up to "
        f"{format_duration(total_seconds)}{besides_text} may cost {uncapped_text}, more than {cap_text}; "
        f"{suggestion}",
    )
    return uncapped_cost


def _unknown_bills_text(job: Job, facts: DiscoveredFacts, volume_gb: int) -> str:
    """Return what the largest bill does not contain, as nobody knows it here: downloads of data of unknown
    size, and volumes. ``volume_gb``: of all hosts of all shards."""
    unknown_text = ""
    unsized_inputs = [
        f"inputs.{name}"
        for name, channel in job.inputs.items()
        if channel.mode == "File" and (name not in facts.inputs or facts.inputs[name].bytes is None)
    ]
    if unsized_inputs and facts.target == "aws":
        unknown_text += f" The download of {', '.join(unsized_inputs)}, of unknown size, is not in it."
    if volume_gb:
        unknown_text += f" Disks ({volume_gb:,} GB) are billed besides, at a price that is not known."
    return unknown_text


def _untrained_time_text(untrained: UntrainedTime, job_count: PlannedJobCount) -> str:
    """Return what the largest bill contains besides the training time."""
    named_times = (
        ("its start", untrained.start),
        ("its download", untrained.download),
        ("its stop and upload", untrained.stop),
        ("the wait of its hosts for a next job", untrained.keep_alive),
    )
    times_text = ", ".join(
        f"{format_seconds(seconds)} for {name}" for name, seconds in named_times if seconds >= 1
    )
    jobs_text = "the job is" if job_count.total == 1 else f"each of up to {job_count.total} jobs is"
    if job_count.segments > 1 and job_count.attempts > 1:
        jobs_text = (
            f"each of up to {job_count.total} jobs ({job_count.segments} segments, {job_count.attempts} "
            "attempts) is"
        )
    return f"Besides its training time {jobs_text} billed for {times_text}, as is assumed."


def _date_after(
    facts: DiscoveredFacts, paid_seconds: float, billed_seconds: float, segment_count: int
) -> str | None:
    """Return the ISO date on which ``paid_seconds`` of billed time are used up if the run starts today, with
    the waits for hosts between its segments; None if nobody knows the date. ``billed_seconds``: of all
    segments."""
    if facts.today is None:
        return None
    gap_seconds = 0.0 if facts.target == "local" else PROVISIONING_SECONDS
    waited_seconds = segment_count * gap_seconds * paid_seconds / billed_seconds
    try:
        return (facts.today + timedelta(seconds=paid_seconds + waited_seconds)).isoformat()
    except OverflowError:
        return None


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
