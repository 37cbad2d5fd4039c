"""Makes the run of a chain, of shards, or of a single job, from its jobs and its driver.

What drives chains and shards is loaded for them only: most runs are a single job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smlaunch.runs.job_list import JobList
from smlaunch.runs.launch_target import Target
from smlaunch.runs.run import Run
from smlaunch.runs.single_job_driver import SingleJobDriver

if TYPE_CHECKING:
    from smlaunch.runs.chain_driver import ChainDriver


def run_of_chain(driver: ChainDriver, target: Target, *, attached: bool) -> Run:
    """Return the run of a chain, with the driver that submits its further jobs."""
    return Run(driver.jobs.run, target, driver.jobs, lambda: driver, attached=attached)


def run_of_shards(run_name: str, target: Target, run_by_number: dict[int, Run], *, attached: bool) -> Run:
    """Return the run of these shards, which have their own drivers."""
    from smlaunch.runs.shard_drivers import ShardDrivers
    from smlaunch.runs.shard_group import ShardGroup

    shards = ShardGroup(run_name, target, run_by_number)
    return Run(run_name, target, shards, lambda: ShardDrivers(shards, target), attached=attached)


def run_of_single_job(run_name: str, target: Target, job_name: str, *, attached: bool) -> Run:
    """Return the run of a job that no other follows."""
    jobs = JobList(run_name, target, [job_name])
    return Run(run_name, target, jobs, lambda: SingleJobDriver(jobs, target), attached=attached)
