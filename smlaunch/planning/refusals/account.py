"""What the account may have: quotas as Service Quotas told them to the survey."""

from __future__ import annotations

from collections.abc import Iterator

from smlaunch.errors import Problem
from smlaunch.planning.refusals.rule import Case, Found, rule

HOSTS_OF_A_JOB = "Number of instances for a training job"
ON_DEMAND = "{} for training job usage"
SPOT = "{} for spot training job usage"
WARM_POOL = "{} for training warm pool usage"
"""Names of quotas, as Service Quotas has them; the braces stand for an instance type."""

_RAISE = "ask for more in the Service Quotas console (Amazon SageMaker), or take another type"


@rule(
    "quotas.instances",
    "7",
    'Quota names: "ml.<type> for training job usage", "… for spot training job usage"',
    *("compute.hosts", "compute.instance_type", "compute.instance_preferences", "compute.spot", "segments"),
)
def more_than_the_quota(case: Case) -> Found:
    if case.is_processing:
        return
    short = list(_too_small(case))
    preferences = case.job.compute.instance_preferences
    if preferences:
        if len(short) == len(preferences):
            told = "; ".join(f"{name}: {limit}" for name, limit in short)
            yield Problem(
                "compute.instance_preferences",
                f"the account may have too few of any ({told}) for {case.hosts}; {_RAISE}",
            )
        return
    for name, limit in short:
        quota = (SPOT if case.job.compute.spot else ON_DEMAND).format(name)
        if limit == 0:
            field = "compute.spot" if case.job.compute.spot else "compute.instance_type"
            other = ", or hosts on demand" if case.job.compute.spot else ""
            yield Problem(field, f"the account's quota {quota!r} is 0; {_RAISE}{other}")
        else:
            told = f"the account's quota {quota!r} is {limit}, and the job takes {case.hosts}"
            yield Problem("compute.hosts", f"{told}; take fewer hosts, or {_RAISE}")


def _too_small(case: Case) -> Iterator[tuple[str, int]]:
    """Types whose quota is known not to be enough, with it."""
    pattern = SPOT if case.job.compute.spot else ON_DEMAND
    for name in dict.fromkeys(case.types):
        limit = case.surroundings.quotas.get(pattern.format(name))
        if limit is not None and limit < case.hosts:
            yield name, int(limit)


@rule(
    "quotas.hosts",
    "7",
    '"Number of instances for a training job"',
    *("compute.hosts", "segments"),
)
def more_hosts_than_a_job_may_have(case: Case) -> Found:
    limit = case.surroundings.quotas.get(HOSTS_OF_A_JOB)
    if limit is not None and case.hosts > limit and not case.is_processing:
        told = f"the account's quota {HOSTS_OF_A_JOB!r} is {int(limit)}, and the job takes {case.hosts}"
        yield Problem("compute.hosts", f"{told}; take fewer hosts of a larger type, or ask for more")


RULES = (more_than_the_quota, more_hosts_than_a_job_may_have)
