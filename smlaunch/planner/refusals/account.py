"""Rules about the account's quotas."""

from __future__ import annotations

from smlaunch.errors import Problem
from smlaunch.planner.plan_context import PlanContext
from smlaunch.planner.quotas import HOSTS_PER_JOB_QUOTA, instance_quota_pattern, insufficient_quotas
from smlaunch.planner.refusals.rule import Problems, rule

_RAISE_QUOTA = "ask for more in the Service Quotas console (Amazon SageMaker), or take another type"


@rule(
    "quotas.instances",
    "more hosts than the account's quota for the type",
    "7",
    'Quota names: "ml.<type> for training job usage", "… for spot training job usage"',
    *("compute.hosts", "compute.instance_type", "compute.instance_preferences", "compute.spot", "segments"),
)
def more_than_the_quota(context: PlanContext) -> Problems:
    """Yield a problem if the job takes more hosts than the account's quotas allow."""
    if context.is_processing:
        return
    insufficient, compute = insufficient_quotas(context), context.job.compute
    if compute.instance_preferences:
        if len(insufficient) == len(set(compute.instance_preferences)):
            message = "; ".join(f"{name}: {limit}" for name, limit in insufficient.items())
            message = (
                f"the account's quotas are too small for {context.hosts} of any ({message}); {_RAISE_QUOTA}"
            )
            yield Problem("compute.instance_preferences", message)
        return
    for name, limit in insufficient.items():
        quota_name = instance_quota_pattern(context.job).format(name)
        if limit == 0:
            field = "compute.spot" if compute.spot else "compute.instance_type"
            on_demand_hint = ", or hosts on demand" if compute.spot else ""
            yield Problem(field, f"the account's quota {quota_name!r} is 0; {_RAISE_QUOTA}{on_demand_hint}")
        else:
            message = f"the account's quota {quota_name!r} is {limit}, and the job takes {context.hosts}"
            yield Problem("compute.hosts", f"{message}; take fewer hosts, or {_RAISE_QUOTA}")


@rule(
    "quotas.hosts",
    "more hosts than the account's quota for one job",
    "7",
    '"Number of instances for a training job"',
    *("compute.hosts", "segments"),
)
def more_hosts_than_a_job_may_have(context: PlanContext) -> Problems:
    limit = context.facts.quotas.get(HOSTS_PER_JOB_QUOTA)
    if limit is not None and context.hosts > limit and not context.is_processing:
        message = (
            f"the account's quota {HOSTS_PER_JOB_QUOTA!r} is {int(limit)}, and the job takes {context.hosts}"
        )
        yield Problem("compute.hosts", f"{message}; take fewer hosts of a larger type, or ask for more")


RULES = (more_than_the_quota, more_hosts_than_a_job_may_have)
