"""A run whose shards are runs of their own: one single-host job or chain per shard of the data.

Each is planned like any other run, with its own name, workflow and checkpoints, so that a failure affects
one shard only. Together they are one plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from smlaunch.contract.names import MAX_RUN_ID_LENGTH, shard_run_id
from smlaunch.errors import JobError
from smlaunch.job.model import Job
from smlaunch.planner.diagnostics import Diagnostics
from smlaunch.planner.facts import Facts
from smlaunch.planner.plan import Cost, InputSharding, Plan, Upload

DEFAULT_SHARD_ATTEMPTS = 3
"""Attempts of each shard: single-host jobs can be retried one by one."""


def plan_shard_runs(
    job: Job,
    facts: Facts,
    run_id: str,
    sharding_by_channel: Mapping[str, InputSharding],
    diagnostics: Diagnostics,
    plan_single_run: Callable[..., Plan],
    job_digest: str,
) -> Plan:
    """One plan per shard that has files, combined. ``job_digest``: of the job as stated. Raises JobError."""
    filled_shards = [
        shard_index
        for shard_index in range(job.compute.hosts)
        if any(sharding.files_by_host[shard_index] for sharding in sharding_by_channel.values())
    ]
    if filled_shards and len(shard_run_id(run_id, filled_shards[-1] + 1)) > MAX_RUN_ID_LENGTH:
        max_length = MAX_RUN_ID_LENGTH - len(shard_run_id("", filled_shards[-1] + 1))
        diagnostics.add_problem(
            "name", f"{run_id!r} is too long for the shards' names: {max_length} characters at most"
        )
    for sharding in sharding_by_channel.values():
        if any(not sharding.files_by_host[shard_index] for shard_index in filled_shards):
            diagnostics.add_problem(
                f"inputs.{sharding.channel}",
                "some shards get files of another channel and none of this one: a job cannot have an empty "
                "channel; use fewer hosts",
            )
    if diagnostics.problems or not filled_shards:
        raise JobError(diagnostics.problems)
    if job.limits.attempts is None:
        diagnostics.add_reason(
            "shards.attempts",
            f"Only the shards that fail are retried, {DEFAULT_SHARD_ATTEMPTS} jobs at most.",
        )
    shard_plans: list[Plan] = []
    for shard_index in filled_shards:
        shard_diagnostics = Diagnostics(list(diagnostics.reasons), list(diagnostics.warnings))
        shard_job = _job_of_shard(job, shard_index + 1, len(filled_shards))
        shard_plans.append(
            plan_single_run(
                shard_job,
                facts,
                shard_run_id(run_id, shard_index + 1),
                sharding_by_channel,
                shard_diagnostics,
                job_digest,
                shard_index,
            )
        )
    return _combine(job, run_id, shard_plans)


def _job_of_shard(job: Job, shard_number: int, shard_count: int) -> Job:
    """The job of one shard. The cost cap and the checkpoint prefix of the run are divided."""
    changes: dict[str, object] = {"compute": job.compute.model_copy(update={"hosts": 1})}
    limits = {"attempts": job.limits.attempts or DEFAULT_SHARD_ATTEMPTS}
    max_cost = None if job.limits.max_cost is None else job.limits.max_cost / shard_count
    changes["limits"] = job.limits.model_copy(update={**limits, "max_cost": max_cost})
    checkpoints = job.checkpoints
    if checkpoints is not None and checkpoints.uri is not None:
        changes["checkpoints"] = checkpoints.model_copy(
            update={"uri": f"{checkpoints.uri.rstrip('/')}/p{shard_number}/"}
        )
    return job.model_copy(update=changes)


def _combine(job: Job, run_id: str, plans: Sequence[Plan]) -> Plan:
    """One plan of all shards."""
    first_plan = plans[0]
    return replace(
        first_plan,
        run=run_id,
        job=job,
        hosts=len(plans),
        planned_jobs=tuple(planned_job for plan in plans for planned_job in plan.planned_jobs),
        uploads=_all_uploads(plans),
        warnings=tuple(dict.fromkeys(warning for plan in plans for warning in plan.warnings)),
        cost=_multiply_cost(first_plan.cost, len(plans)),
        shard_plans=tuple(plans),
    )


def _all_uploads(plans: Sequence[Plan]) -> tuple[Upload, ...]:
    """Uploads of all plans without duplicates: source and data are common to all."""
    return tuple(dict.fromkeys(upload for plan in plans for upload in plan.uploads))


def _multiply_cost(cost: Cost, shard_count: int) -> Cost:
    """Cost of all shards."""

    def multiply(amount: float | None) -> float | None:
        return None if amount is None else amount * shard_count

    return replace(cost, per_hour=multiply(cost.per_hour), maximum=multiply(cost.maximum))
