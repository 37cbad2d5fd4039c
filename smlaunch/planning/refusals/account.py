"""What the account may have: quotas as Service Quotas told them to the survey."""

from __future__ import annotations

from smlaunch.errors import Problem
from smlaunch.planning.case import Case
from smlaunch.planning.quotas import HOSTS_OF_A_JOB, too_small, usage
from smlaunch.planning.refusals.rule import Found, rule

_RAISE = "ask for more in the Service Quotas console (Amazon SageMaker), or take another type"


@rule(
    "quotas.instances",
    "more hosts than the account's quota for the type",
    "7",
    'Quota names: "ml.<type> for training job usage", "… for spot training job usage"',
    *("compute.hosts", "compute.instance_type", "compute.instance_preferences", "compute.spot", "segments"),
)
def more_than_the_quota(case: Case) -> Found:
    if case.is_processing:
        return
    short, compute = too_small(case), case.job.compute
    if compute.instance_preferences:
        if len(short) == len(set(compute.instance_preferences)):
            told = "; ".join(f"{name}: {limit}" for name, limit in short.items())
            told = f"the account's quotas are too small for {case.hosts} of any ({told}); {_RAISE}"
            yield Problem("compute.instance_preferences", told)
        return
    for name, limit in short.items():
        quota = usage(case.job).format(name)
        if limit == 0:
            field = "compute.spot" if compute.spot else "compute.instance_type"
            other = ", or hosts on demand" if compute.spot else ""
            yield Problem(field, f"the account's quota {quota!r} is 0; {_RAISE}{other}")
        else:
            told = f"the account's quota {quota!r} is {limit}, and the job takes {case.hosts}"
            yield Problem("compute.hosts", f"{told}; take fewer hosts, or {_RAISE}")


@rule(
    "quotas.hosts",
    "more hosts than the account's quota for one job",
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
