"""Which of the account's quotas a job is measured against, and what a plan says of them. Pure.

Source of the names: the reference's section 7. What was not read is assumed to be enough, and the plan says
so.
"""

from __future__ import annotations

from smlaunch.catalog.instances import known_types
from smlaunch.job import Job, Workload
from smlaunch.planning.case import DEFAULT_INSTANCE_TYPE, Case, hosts_of, is_accelerated, types_of
from smlaunch.planning.notes import Notes
from smlaunch.request import PROCESSING
from smlaunch.strategies import load

LONGEST_RUN = "Longest run time for a training job"
"""Its value is in seconds (SageMaker's quotas page: 432,000 by default)."""

HOSTS_OF_A_JOB = "Number of instances for a training job"
DEFAULT_HOSTS = 20
"""Of HOSTS_OF_A_JOB, where the account has not asked for more."""

ON_DEMAND = "{} for training job usage"
SPOT = "{} for spot training job usage"
WARM_POOL = "{} for training warm pool usage"
"""Names of quotas, as Service Quotas has them; the braces stand for an instance type."""


def usage(job: Job) -> str:
    """The pattern of the quota that the job's hosts count against."""
    return SPOT if job.compute.spot else ON_DEMAND


def wanted(job: Job) -> tuple[str, ...]:
    """The quotas that can matter to a job: of all types that are compared where a workload chooses them. None
    for one host of the default type: looking costs requests."""
    compute, hosts, types = job.compute, hosts_of(job), types_of(job)
    plain = types == (DEFAULT_INSTANCE_TYPE,) and hosts == 1 and not compute.spot
    processes = job.strategy is not None and load(job.strategy).operation == PROCESSING
    if processes or (plain and compute.keep_alive is None and not is_open(job)):
        return ()
    if plain and is_open(job):
        types = tuple(row.name for row in known_types().values() if row.usd_per_hour is not None)
    names = [usage(job).format(name) for name in types]
    if compute.keep_alive is not None:
        names += [WARM_POOL.format(name) for name in types]
    if hosts > DEFAULT_HOSTS or (plain and is_open(job)):
        names.append(HOSTS_OF_A_JOB)
    return tuple(names)


def is_open(job: Job) -> bool:
    """The plan chooses the type by the job's workload."""
    compute = job.compute
    return job.workload != Workload() and compute.instance_type is None and not compute.instance_preferences


def tell_quotas(case: Case, notes: Notes) -> None:
    """What was read, and what is assumed and why."""
    surroundings = case.surroundings
    if surroundings.target != "aws" or case.is_processing:
        return
    hosts = f"{case.hosts} x {' or '.join(case.types)}"
    if surroundings.quotas_problem is not None:
        told = (
            f"The account's quotas could not be read ({surroundings.quotas_problem}): that it may have "
            f"{hosts} is assumed"
        )
        if any(map(is_accelerated, case.types)):
            notes.warn(f"{told}; most accounts begin with none of a type with GPUs.")
        else:
            notes.because("quotas.assumed", f"{told}.")
        return
    matter = wanted(case.job)
    for name, value in surroundings.quotas.items():
        if name not in matter:
            continue
        if value is None:
            notes.because(
                "quotas.assumed", f"Service Quotas lists no {name!r}: that it is enough is assumed."
            )
        else:
            notes.because("quotas.read", f"The account's quota {name!r} is {value:g}; the job takes {hosts}.")
    for name in case.types:
        quota = WARM_POOL.format(name)
        if surroundings.quotas.get(quota) == 0:
            notes.warn(
                f"compute.keep_alive: the account's quota {quota!r} is 0: no host is kept, and the service "
                "does not say so."
            )
    for name, limit in too_small(case).items() if case.job.compute.instance_preferences else ():
        notes.warn(f"{name} is passed over: the account may have {limit} of it; the job takes {case.hosts}.")


def too_small(case: Case) -> dict[str, int]:
    """Types whose quota is known not to be enough, with it."""
    pattern = usage(case.job)
    limits = {name: case.surroundings.quotas.get(pattern.format(name)) for name in case.types}
    return {name: int(limit) for name, limit in limits.items() if limit is not None and limit < case.hosts}
