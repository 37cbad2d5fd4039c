"""A run whose shards are runs of their own: one single-host job or chain per shard of the data.

Each is planned like any other run, with its own name, workflow and checkpoints, so that a failure affects
one shard only. Together they are one plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from smlaunch.api.job_kinds import FieldPath, get_at_path, output_addresses, set_at_path
from smlaunch.api.request_merge import plain_copy
from smlaunch.contract.run_names import MAX_RUN_ID_LENGTH, shard_run_id
from smlaunch.errors import JobError
from smlaunch.job.model import Job
from smlaunch.planner.plan import Cost, InputSharding, RunPlan, Upload
from smlaunch.planner.plan_context import Diagnostics, stated_job_kind

DEFAULT_SHARD_ATTEMPTS = 3
"""Attempts of each shard: single-host jobs can be retried one by one."""


def plan_shard_runs(
    job: Job,
    run_id: str,
    sharding_by_channel: Mapping[str, InputSharding],
    diagnostics: Diagnostics,
    plan_run: Callable[..., RunPlan],
) -> RunPlan:
    """Plan one run for each shard of the data that has files, and return them combined into one plan. Raises
    JobError with all problems.

    ``sharding_by_channel``: how the files of inputs with ``split: bytes`` are distributed.
    ``plan_run``: plans the run of one shard, by its job, run id, diagnostics and index; a parameter, as its
    module imports this one.
    """
    # Indices from 0 of the shards; a run gets the number from 1 in its name.
    nonempty_shards = [
        shard_index
        for shard_index in range(job.compute.hosts)
        if any(sharding.files_by_host[shard_index] for sharding in sharding_by_channel.values())
    ]
    _check_shards(run_id, nonempty_shards, sharding_by_channel, diagnostics)
    if diagnostics.problems or not nonempty_shards:
        raise JobError(diagnostics.problems)
    if job.limits.attempts is None:
        diagnostics.add_reason(
            "shards.attempts",
            f"Only the shards that fail are retried, {DEFAULT_SHARD_ATTEMPTS} jobs at most"
            + ("." if job.checkpoints is not None else ", each from the beginning: without `checkpoints`."),
        )
    stated_uris = [output.uri for output in job.outputs.values() if output.uri is not None]
    stated_uris += [get_at_path(job.request, path) for path in _stated_output_paths(job)]
    if stated_uris:
        diagnostics.add_reason(
            "shards.outputs",
            f"Each shard has a folder of its own, p1/ and so on, in {', '.join(stated_uris)}: they would "
            "replace each other's files there.",
        )
    shard_plans: list[RunPlan] = []
    for shard_index in nonempty_shards:
        # What was found so far applies to every shard; what follows only to this one.
        shard_diagnostics = Diagnostics(list(diagnostics.reasons), list(diagnostics.warnings))
        shard_job = _job_of_shard(job, shard_index + 1, len(nonempty_shards))
        shard_plans.append(
            plan_run(
                job=shard_job,
                run_id=shard_run_id(run_id, shard_index + 1),
                diagnostics=shard_diagnostics,
                shard_index=shard_index,
                shard_count=len(nonempty_shards),
            )
        )
    return _combine_shard_plans(job, run_id, shard_plans)


def _check_shards(
    run_id: str,
    nonempty_shards: Sequence[int],
    sharding_by_channel: Mapping[str, InputSharding],
    diagnostics: Diagnostics,
) -> None:
    """Add a problem if the names of the shards' runs are too long, or if a shard lacks files of some input.
    ``nonempty_shards``: indices from 0 of the shards that have files."""
    if nonempty_shards and len(shard_run_id(run_id, nonempty_shards[-1] + 1)) > MAX_RUN_ID_LENGTH:
        # The number of the shard is appended to the name.
        max_length = MAX_RUN_ID_LENGTH - len(shard_run_id("", nonempty_shards[-1] + 1))
        diagnostics.add_problem(
            "name", f"{run_id!r} is too long for the shards' names: {max_length} characters at most"
        )
    for sharding in sharding_by_channel.values():
        file_counts = [sharding.files_by_host[shard_index] for shard_index in nonempty_shards]
        if 0 in file_counts:
            diagnostics.add_problem(
                f"inputs.{sharding.channel}",
                "some shards get files of another channel and none of this one: a job cannot have an empty "
                "channel; use fewer hosts",
            )


def _job_of_shard(job: Job, shard_number: int, shard_count: int) -> Job:
    """Return the job of one shard: with one host, its share of the cost cap, and a folder of its own in each
    prefix that the job states for checkpoints or outputs, to which nothing adds the job's name.
    ``shard_number``: from 1."""
    max_cost, checkpoints = job.limits.max_cost, job.checkpoints

    def folder_of_shard(uri: str) -> str:
        return f"{uri.rstrip('/')}/p{shard_number}/"

    changes: dict[str, object] = {
        "compute": job.compute.with_changes(hosts=1),
        "limits": job.limits.with_changes(
            attempts=job.limits.attempts or DEFAULT_SHARD_ATTEMPTS,
            max_cost=None if max_cost is None else max_cost / shard_count,
        ),
    }
    if checkpoints is not None and checkpoints.uri is not None:
        changes["checkpoints"] = checkpoints.with_changes(uri=folder_of_shard(checkpoints.uri))
    changes["outputs"] = {
        name: output if output.uri is None else output.with_changes(uri=folder_of_shard(output.uri))
        for name, output in job.outputs.items()
    }
    if stated_paths := _stated_output_paths(job):
        changes["request"] = members = plain_copy(job.request)
        for path in stated_paths:
            set_at_path(members, path, folder_of_shard(get_at_path(members, path)))
    return job.with_changes(**changes)


def _stated_output_paths(job: Job) -> list[FieldPath]:
    """Return where the job's ``request`` states addresses of outputs, which are sent as they are."""
    return list(output_addresses(stated_job_kind(job.strategy), job.request))


def _combine_shard_plans(job: Job, run_id: str, plans: Sequence[RunPlan]) -> RunPlan:
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


def _all_uploads(plans: Sequence[RunPlan]) -> tuple[Upload, ...]:
    """Uploads of all plans without duplicates: source and data are common to all."""
    return tuple(dict.fromkeys(upload for plan in plans for upload in plan.uploads))


def _multiply_cost(cost: Cost, shard_count: int) -> Cost:
    """Cost of all shards."""

    def multiply(amount: float | None) -> float | None:
        return None if amount is None else amount * shard_count

    return cost._replace(
        per_hour=multiply(cost.per_hour),
        maximum=multiply(cost.maximum),
        volume_gb=cost.volume_gb * shard_count,
    )
