"""Which facts the plan of a job needs, and the account's quotas by their names. Pure.

Source of the names: https://docs.aws.amazon.com/general/latest/gr/sagemaker.html. A quota that could not be
read is assumed to suffice, and the plan says so.
"""

from __future__ import annotations

from smlaunch.catalog.instances import DEFAULT_INSTANCE_TYPE, known_types
from smlaunch.facts.fact_needs import FactNeeds
from smlaunch.job.model import Job, Workload, parse_duration
from smlaunch.planner.plan_context import (
    instance_types_of,
    max_hosts_of,
    stated_job_kind,
)
from smlaunch.planner.segments import DEFAULT_RUNTIME_QUOTA


def fact_needs(job: Job) -> FactNeeds:
    """Return what discovery has to read for the plan of a job."""
    may_need_several_jobs = _may_need_several_jobs(job)
    # Such runs need a script that saves checkpoints, or one that reads its own part of the files.
    has_split_by_bytes = any(channel.split == "bytes" for channel in job.inputs.values())
    return FactNeeds(
        instance_quotas=relevant_quotas(job),
        runtime_quota=MAX_RUNTIME_QUOTA if _exceeds_default_runtime_quota(job) else None,
        checkpoints=may_need_several_jobs,
        module_sources=may_need_several_jobs or has_split_by_bytes,
    )


def _may_need_several_jobs(job: Job) -> bool:
    """Return whether the run may be a chain of several training jobs."""
    max_runtime = None if job.limits.max_runtime is None else parse_duration(job.limits.max_runtime)
    has_segments = job.limits.segment is not None or bool(job.segments)
    return has_segments or (max_runtime is not None and max_runtime > DEFAULT_RUNTIME_QUOTA)


def _exceeds_default_runtime_quota(job: Job) -> bool:
    """Return whether a job may run longer than every account allows."""
    texts = (job.limits.max_runtime, job.limits.segment)
    seconds = [parse_duration(text) for text in texts if text is not None]
    return min(seconds, default=0) > DEFAULT_RUNTIME_QUOTA


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
    """Return the names, in Service Quotas, of the account's quotas that may limit the job; with a workload,
    those of all instance types that the plan compares. Empty if nothing needs to be read."""
    # Of all segments: the most hosts, and every instance type (the default if the job names none).
    compute, max_hosts, type_names = job.compute, max_hosts_of(job), instance_types_of(job)
    is_one_default_host = type_names == (DEFAULT_INSTANCE_TYPE,) and max_hosts == 1 and not compute.spot
    # The job leaves instance type and hosts to the plan, which may choose others than the default.
    plan_compares_types = is_one_default_host and plan_chooses_type(job)
    if not stated_job_kind(job).has_quotas:
        return ()
    if is_one_default_host and not plan_compares_types and compute.keep_alive is None:
        # Every account may have one such host, and reading quotas costs requests.
        return ()
    # The plan compares all types of the catalog that have a price.
    if plan_compares_types:
        type_names = tuple(
            instance.name for instance in known_types().values() if instance.usd_per_hour is not None
        )
    # Such as "ml.m5.xlarge for training job usage"; spot hosts have quotas of their own.
    quota_names = [instance_quota_pattern(job).format(name) for name in type_names]
    # Hosts that are kept for a next job, a warm pool, have another quota.
    if compute.keep_alive is not None:
        quota_names += [WARM_POOL_QUOTA.format(name) for name in type_names]
    # Every account may have 20 hosts (the default) in one job.
    if max_hosts > DEFAULT_HOSTS_PER_JOB or plan_compares_types:
        quota_names.append(HOSTS_PER_JOB_QUOTA)
    return tuple(quota_names)


def plan_chooses_type(job: Job) -> bool:
    """Whether the plan chooses the instance type by the job's workload."""
    compute = job.compute
    return job.workload != Workload() and compute.instance_type is None and not compute.instance_preferences
