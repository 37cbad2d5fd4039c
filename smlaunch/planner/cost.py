"""Cost of a run: per hour, and at most. An unknown price is reported as unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from smlaunch.catalog import instances
from smlaunch.catalog.instances import InstanceChoice
from smlaunch.job.model import Job, format_duration, parse_duration
from smlaunch.planner.diagnostics import Diagnostics
from smlaunch.planner.facts import Facts
from smlaunch.planner.plan import Cost
from smlaunch.planner.segments import format_span


@dataclass(frozen=True)
class ComputeRate:
    """US dollars per hour for all hosts of a job; None if the price is unknown."""

    instance_type: str
    hosts: int
    per_hour: float | None
    note: str
    """Source of the price."""


def compute_rate(job: Job, instance_choice: InstanceChoice, facts: Facts) -> ComputeRate:
    """Rate of the job's machines. A price that the job states also counts on a local endpoint, to rehearse
    a cap."""
    if len(job.compute.instance_preferences) > 1:
        return _most_expensive(job, facts)
    name, catalog_type = instance_choice
    hosts, price = job.compute.hosts, job.compute.price_per_hour
    if facts.target == "local":
        if price is None:
            return ComputeRate(name, hosts, 0.0, "it runs on this machine; nothing is billed")
        return ComputeRate(
            name, hosts, price * hosts, "by compute.price_per_hour; nothing is really billed here"
        )
    note = "by compute.price_per_hour"
    if price is None and catalog_type is not None and catalog_type.usd_per_hour is not None:
        price = catalog_type.usd_per_hour
        note = (
            f"an estimate: on-demand price of {instances.price_region()} as of {instances.catalog_month()}, "
            f"{catalog_type.price_confidence} confidence"
        )
    if job.compute.spot:
        note += "; spot is billed lower, by an unknown amount"
    if price is None:
        unknown = f"the price of {name} is not known; compute.price_per_hour states it"
        return ComputeRate(name, hosts, None, unknown)
    return ComputeRate(name, hosts, price * hosts, note)


def _most_expensive(job: Job, facts: Facts) -> ComputeRate:
    """Rate of the most expensive preference; unknown if any price is, as the service chooses the type."""
    preferences, rates = job.compute.instance_preferences, []
    for name in preferences:
        single_type = job.compute.model_copy(update={"instance_preferences": (), "instance_type": name})
        single_type_job = job.model_copy(update={"compute": single_type})
        rates.append(
            compute_rate(single_type_job, InstanceChoice(name, instances.find_instance_type(name)), facts)
        )
    rate_without_price = next((rate for rate in rates if rate.per_hour is None), None)
    highest_rate = rate_without_price or max(rates, key=lambda rate: rate.per_hour or 0.0)
    if rate_without_price is not None or not highest_rate.per_hour or job.compute.price_per_hour is not None:
        return highest_rate
    return replace(
        highest_rate,
        note=(
            f"of {highest_rate.instance_type}, the dearest of {len(preferences)} preferences; "
            f"{highest_rate.note}"
        ),
    )


def plan_cost(
    job: Job,
    rates: Sequence[ComputeRate],
    total_seconds: int,
    is_chain: bool,
    min_seconds: float,
    diagnostics: Diagnostics,
) -> Cost:
    """Return what the run costs at most, in US dollars. Adds a problem if ``limits.max_cost`` cannot be met.

    ``rates``: one per kind of segment. ``total_seconds``: total training time. ``is_chain``: the run has
    several segments and ends before it exceeds its cap. ``min_seconds``: shortest useful first segment.
    """
    max_cost = job.limits.max_cost
    highest_rate = rates[0]
    for rate in rates:
        if rate.per_hour is None:
            if max_cost is not None:
                diagnostics.add_problem(
                    "limits.max_cost",
                    f"the price of {rate.instance_type} is unknown, so that the cap cannot be enforced; "
                    "state compute.price_per_hour",
                )
            return Cost(False, None, None, rate.note)
        if rate.per_hour > (highest_rate.per_hour or 0.0):
            highest_rate = rate
    dollars_per_hour = highest_rate.per_hour or 0.0
    keep_alive_seconds = 0 if job.compute.keep_alive is None else parse_duration(job.compute.keep_alive)
    max_dollars = dollars_per_hour * (total_seconds + keep_alive_seconds) / 3600
    if keep_alive_seconds and dollars_per_hour and not is_chain:
        diagnostics.add_reason(
            "cost.warm-pool",
            f"Hosts that wait for a next job are billed: {job.compute.keep_alive} of it are in the price.",
        )
    if max_cost is not None and max_dollars > max_cost:
        affordable_seconds = max(0, int(max_cost / dollars_per_hour * 3600) - keep_alive_seconds)
        if is_chain and affordable_seconds >= min_seconds:
            diagnostics.add_reason(
                "cost.capped-while-running",
                f"All segments together could cost {format_dollars(max_dollars)}; the chain ends at a "
                f"checkpoint before it has cost {format_dollars(max_cost)}.",
            )
            return Cost(True, dollars_per_hour, max_cost, highest_rate.note)
        machines = (
            f"{highest_rate.hosts} x {highest_rate.instance_type} for up to "
            f"{format_duration(total_seconds)} may cost"
        )
        chain_hint = (
            f"it pays for {format_span(affordable_seconds)}, too short for a segment; raise it"
            if is_chain
            else ""
        )
        diagnostics.add_problem(
            "limits.max_cost",
            f"{machines} {format_dollars(max_dollars)}, more than {format_dollars(max_cost)}; "
            f"{chain_hint or _remedy(affordable_seconds)}",
        )
    elif max_cost is not None:
        diagnostics.add_reason(
            "cost.capped",
            f"At most {format_dollars(max_dollars)} until the time limit, below the cap of "
            f"{format_dollars(max_cost)}.",
        )
    return Cost(True, dollars_per_hour, max_dollars, highest_rate.note)


def _remedy(affordable_seconds: int) -> str:
    """What to change so that the run stays below its cap. ``affordable_seconds``: what the cap pays for."""
    if affordable_seconds < 60:
        return "raise it, or take a smaller type"
    unit = "h" if affordable_seconds >= 3600 else "m"
    amount = affordable_seconds // (3600 if unit == "h" else 60)
    return f"limits.max_runtime: {amount}{unit} would stay below it"


def format_dollars(amount: float) -> str:
    """``$14.18``; four decimals below one dollar, so that a small price is not shown as zero."""
    return f"${amount:,.2f}" if amount >= 1 or amount == 0 else f"${amount:.4f}"
