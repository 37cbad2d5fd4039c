"""What a run costs: per hour, and at most. A price nobody knows is said to be unknown."""

from __future__ import annotations

from smlaunch.catalog import instances
from smlaunch.catalog.instances import InstanceType
from smlaunch.job import Job, format_duration
from smlaunch.planning.notes import Notes
from smlaunch.planning.plan import Cost
from smlaunch.planning.surroundings import Surroundings


def plan_cost(
    job: Job,
    instance: tuple[str, InstanceType | None],
    max_runtime: int,
    surroundings: Surroundings,
    notes: Notes,
) -> Cost:
    """``max_runtime`` in seconds. Refuses the job when ``limits.max_cost`` cannot be kept to."""
    if surroundings.target == "local":
        return Cost(True, 0.0, 0.0, "it runs on this machine; nothing is billed")
    name, known = instance
    price = job.compute.price_per_hour
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
        if job.limits.max_cost is not None:
            notes.refuse(
                "limits.max_cost",
                f"the price of {name} is not known, so that no cap can be kept; give compute.price_per_hour",
            )
        return Cost(False, None, None, f"the price of {name} is not known; compute.price_per_hour states it")
    per_hour = price * job.compute.hosts
    at_most = per_hour * max_runtime / 3600
    cap = job.limits.max_cost
    if cap is not None and at_most > cap:
        notes.refuse(
            "limits.max_cost",
            f"{job.compute.hosts} x {name} for up to {format_duration(max_runtime)} may cost "
            f"{dollars(at_most)}, more than {dollars(cap)}; {_way_out(int(cap / per_hour * 3600))}",
        )
    elif cap is not None:
        notes.because(
            "cost.capped",
            f"At most {dollars(at_most)} until the time limit, below the cap of {dollars(cap)}.",
        )
    return Cost(True, per_hour, at_most, note)


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
