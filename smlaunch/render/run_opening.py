"""The first lines of ``smlaunch run``: what runs, where, and for how long. Reasons are left to the plan."""

from __future__ import annotations

from smlaunch.planner.plan import RunPlan
from smlaunch.render.plan_text import largest_bill_text, ranks_text, time_limit_text


def opening_lines(plan: RunPlan, target_text: str) -> list[str]:
    """Return three lines: what, where, and the limits. ``target_text``: the region, or this machine."""
    program = plan.facts.source.entry or plan.job.program
    what = f"run {plan.run}: {program}, {ranks_text(plan)}, strategy {plan.strategy}"
    spot_text = ", spot" if plan.job.compute.spot else ""
    if plan.facts.target != "local":
        where = f"in region {target_text}: {plan.hosts} x {plan.instance_type}{spot_text}"
    else:
        where = f"on {target_text}: {plan.facts.endpoint.hosts or 'hosts of its own'}"
    limit_text = time_limit_text(plan, plan.planned_jobs[0].request["StoppingCondition"])
    return [what, where, f"{limit_text}; {_cost_text(plan)}"]


def _cost_text(plan: RunPlan) -> str:
    if plan.cost.per_hour is None or plan.cost.maximum is None:
        return "cost not known"
    return f"cost {largest_bill_text(plan.cost)}" if plan.cost.per_hour else "no cost"
