"""What a run costs: per hour, and at most. A price nobody knows is said to be unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from smlaunch.catalog import instances
from smlaunch.catalog.instances import InstanceType
from smlaunch.job import Job, format_duration, parse_duration
from smlaunch.planning.notes import Notes
from smlaunch.planning.plan import Cost
from smlaunch.planning.segments import span
from smlaunch.planning.surroundings import Surroundings


@dataclass(frozen=True)
class Rate:
    """US dollars per hour for ``hosts`` machines of type ``name`` together; None when nobody knows."""

    name: str
    hosts: int
    per_hour: float | None
    note: str


def rate_of(job: Job, instance: tuple[str, InstanceType | None], surroundings: Surroundings) -> Rate:
    """A price that the job states counts on a local endpoint too: so a cap can be rehearsed."""
    if len(job.compute.instance_preferences) > 1:
        return _dearest(job, surroundings)
    name, known = instance
    hosts, price = job.compute.hosts, job.compute.price_per_hour
    if surroundings.target == "local":
        if price is None:
            return Rate(name, hosts, 0.0, "it runs on this machine; nothing is billed")
        return Rate(name, hosts, price * hosts, "by compute.price_per_hour; nothing is really billed here")
    note = "by compute.price_per_hour"
    if price is None and known is not None and known.usd_per_hour is not None:
        price = known.usd_per_hour
        note = (
            f"an estimate: on-demand price of {instances.price_region()} as of {instances.as_of()}, "
            f"{known.price_confidence} confidence"
        )
    if job.compute.spot:
        note += "; spot is billed lower, by an amount nobody knows before"
    if price is None:
        unknown = f"the price of {name} is not known; compute.price_per_hour states it"
        return Rate(name, hosts, None, unknown)
    return Rate(name, hosts, price * hosts, note)


def _dearest(job: Job, surroundings: Surroundings) -> Rate:
    """Nobody knows which of the preferences it will be; one without a price leaves all of it unknown."""
    names, rates = job.compute.instance_preferences, []
    for name in names:
        alone = job.compute.model_copy(update={"instance_preferences": (), "instance_type": name})
        one = job.model_copy(update={"compute": alone})
        rates.append(rate_of(one, (name, instances.find(name)), surroundings))
    unknown = next((rate for rate in rates if rate.per_hour is None), None)
    dearest = unknown or max(rates, key=lambda rate: rate.per_hour or 0.0)
    if unknown is not None or not dearest.per_hour or job.compute.price_per_hour is not None:
        return dearest
    return replace(
        dearest, note=f"of {dearest.name}, the dearest of {len(names)} preferences; {dearest.note}"
    )


def plan_cost(job: Job, rates: Sequence[Rate], total: int, chain: bool, least: float, notes: Notes) -> Cost:
    """``rates``: of every kind of segment; ``total``: seconds of training in all; ``least``: seconds of a
    first segment below which it is worth nothing. Refuses the job when ``limits.max_cost`` cannot be kept to.
    """
    cap = job.limits.max_cost
    dearest = rates[0]
    for rate in rates:
        if rate.per_hour is None:
            if cap is not None:
                notes.refuse(
                    "limits.max_cost",
                    f"the price of {rate.name} is not known, so that no cap can be kept; give "
                    "compute.price_per_hour",
                )
            return Cost(False, None, None, rate.note)
        if rate.per_hour > (dearest.per_hour or 0.0):
            dearest = rate
    per_hour = dearest.per_hour or 0.0
    kept = 0 if job.compute.keep_alive is None else parse_duration(job.compute.keep_alive)
    at_most = per_hour * (total + kept) / 3600
    if kept and per_hour and not chain:
        notes.because(
            "cost.warm-pool",
            f"Hosts that wait for a next job are billed: {job.compute.keep_alive} of it are in the price.",
        )
    if cap is not None and at_most > cap:
        affordable = max(0, int(cap / per_hour * 3600) - kept)
        if chain and affordable >= least:
            notes.because(
                "cost.capped-while-running",
                f"All segments together could cost {dollars(at_most)}; the chain ends at a checkpoint before "
                f"it has cost {dollars(cap)}.",
            )
            return Cost(True, per_hour, cap, dearest.note)
        what = f"{dearest.hosts} x {dearest.name} for up to {format_duration(total)} may cost"
        way_out = f"it pays for {span(affordable)}, too short for a segment; raise it" if chain else ""
        notes.refuse(
            "limits.max_cost",
            f"{what} {dollars(at_most)}, more than {dollars(cap)}; {way_out or _way_out(affordable)}",
        )
    elif cap is not None:
        notes.because(
            "cost.capped",
            f"At most {dollars(at_most)} until the time limit, below the cap of {dollars(cap)}.",
        )
    return Cost(True, per_hour, at_most, dearest.note)


def _way_out(affordable: int) -> str:
    """``affordable``: seconds that the cap pays for."""
    if affordable < 60:
        return "raise it, or take a smaller type"
    unit = "h" if affordable >= 3600 else "m"
    amount = affordable // (3600 if unit == "h" else 60)
    return f"limits.max_runtime: {amount}{unit} would keep to it"


def dollars(amount: float) -> str:
    """``$14.18``; under a dollar with four digits, so that a small price does not read as nothing."""
    return f"${amount:,.2f}" if amount >= 1 or amount == 0 else f"${amount:.4f}"
