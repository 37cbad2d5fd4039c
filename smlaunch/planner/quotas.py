"""Account quotas that apply to a job, and what a plan reports about them. Pure.

Source of the names: the reference's section 7. A quota that could not be read is assumed to suffice, and
the plan says so.
"""

from __future__ import annotations

from smlaunch.api.request import CREATE_PROCESSING_JOB
from smlaunch.catalog.instances import known_types
from smlaunch.job.model import Job, Workload
from smlaunch.planner.diagnostics import Diagnostics
from smlaunch.planner.plan_context import (
    DEFAULT_INSTANCE_TYPE,
    PlanContext,
    instance_types_of,
    is_accelerated,
    max_hosts_of,
)
from smlaunch.strategies import load_strategy

MAX_RUNTIME_QUOTA = "Longest run time for a training job"
"""In seconds (SageMaker's quotas page: 432,000 by default)."""

HOSTS_PER_JOB_QUOTA = "Number of instances for a training job"
DEFAULT_HOSTS_PER_JOB = 20
"""Default of HOSTS_PER_JOB_QUOTA."""

ON_DEMAND_QUOTA = "{} for training job usage"
SPOT_QUOTA = "{} for spot training job usage"
WARM_POOL_QUOTA = "{} for training warm pool usage"
"""Names in Service Quotas; the braces stand for an instance type."""


def instance_quota_pattern(job: Job) -> str:
    """Name pattern of the quota that the job's hosts count against."""
    return SPOT_QUOTA if job.compute.spot else ON_DEMAND_QUOTA


def relevant_quotas(job: Job) -> tuple[str, ...]:
    """Quotas that may limit the job; with a workload, those of all compared types. None for one host of
    the default type, as reading them costs requests."""
    compute, max_hosts, type_names = job.compute, max_hosts_of(job), instance_types_of(job)
    is_default_host = type_names == (DEFAULT_INSTANCE_TYPE,) and max_hosts == 1 and not compute.spot
    is_processing = (
        job.strategy is not None and load_strategy(job.strategy).operation == CREATE_PROCESSING_JOB
    )
    if is_processing or (is_default_host and compute.keep_alive is None and not plan_chooses_type(job)):
        return ()
    if is_default_host and plan_chooses_type(job):
        type_names = tuple(
            instance.name for instance in known_types().values() if instance.usd_per_hour is not None
        )
    quota_names = [instance_quota_pattern(job).format(name) for name in type_names]
    if compute.keep_alive is not None:
        quota_names += [WARM_POOL_QUOTA.format(name) for name in type_names]
    if max_hosts > DEFAULT_HOSTS_PER_JOB or (is_default_host and plan_chooses_type(job)):
        quota_names.append(HOSTS_PER_JOB_QUOTA)
    return tuple(quota_names)


def plan_chooses_type(job: Job) -> bool:
    """Whether the plan chooses the instance type by the job's workload."""
    compute = job.compute
    return job.workload != Workload() and compute.instance_type is None and not compute.instance_preferences


def report_quotas(context: PlanContext, diagnostics: Diagnostics) -> None:
    """Report the quotas that were read, and those that are assumed and why."""
    facts = context.facts
    if facts.target != "aws" or context.is_processing:
        return
    hosts_text = f"{context.hosts} x {' or '.join(context.instance_types)}"
    if facts.quotas_problem is not None:
        message = (
            f"The account's quotas could not be read ({facts.quotas_problem}): {hosts_text} is "
            "assumed to be within them"
        )
        if any(map(is_accelerated, context.instance_types)):
            diagnostics.add_warning(f"{message}; most accounts start with a quota of 0 for types with GPUs.")
        else:
            diagnostics.add_reason("quotas.assumed", f"{message}.")
        return
    relevant = relevant_quotas(context.job)
    for quota_or_type, value in facts.quotas.items():
        if quota_or_type not in relevant:
            continue
        if value is None:
            diagnostics.add_reason(
                "quotas.assumed", f"Service Quotas lists no {quota_or_type!r}: it is assumed to suffice."
            )
        else:
            diagnostics.add_reason(
                "quotas.read",
                f"The account's quota {quota_or_type!r} is {value:g}; the job takes {hosts_text}.",
            )
    for quota_or_type in context.instance_types:
        quota = WARM_POOL_QUOTA.format(quota_or_type)
        if facts.quotas.get(quota) == 0:
            diagnostics.add_warning(
                f"compute.keep_alive: the account's quota {quota!r} is 0: no host stays in the pool, and "
                "the service does not report that."
            )
    for quota_or_type, quota_value in (
        insufficient_quotas(context).items() if context.job.compute.instance_preferences else ()
    ):
        diagnostics.add_warning(
            f"{quota_or_type} is skipped: the account may have {quota_value} of it; the job takes "
            f"{context.hosts}."
        )


def insufficient_quotas(context: PlanContext) -> dict[str, int]:
    """Quota by instance type, for the types whose quota is too small."""
    quota_pattern = instance_quota_pattern(context.job)
    limit_by_type = {
        name: context.facts.quotas.get(quota_pattern.format(name)) for name in context.instance_types
    }
    return {
        name: int(limit)
        for name, limit in limit_by_type.items()
        if limit is not None and limit < context.hosts
    }
