"""A run whose parts are runs of their own: one job, or one chain, of one host for each part of the data.

Each is planned as any other run, with its own name, workflow and checkpoints, so that whatever happens to one
is that one's affair. Together they are one plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from smlaunch.errors import JobError
from smlaunch.job import Job
from smlaunch.planning.notes import Notes
from smlaunch.planning.plan import Carried, Cost, Plan, Upload
from smlaunch.planning.surroundings import Surroundings
from smlaunch.protocol.names import RUN_LIMIT, part_run

DEFAULT_ATTEMPTS = 3
"""Of each part: that one may be tried again alone is what jobs of one host are for."""


def plan_parts(
    job: Job,
    surroundings: Surroundings,
    run_id: str,
    carried: Mapping[str, Carried],
    notes: Notes,
    make_one: Callable[..., Plan],
    digest: str,
) -> Plan:
    """One plan for each part that has files. ``digest``: of the job as it was asked for. Raises JobError."""
    filled = [part for part in range(job.compute.hosts) if any(one.files[part] for one in carried.values())]
    if filled and len(part_run(run_id, filled[-1] + 1)) > RUN_LIMIT:
        room = RUN_LIMIT - len(part_run("", filled[-1] + 1))
        notes.refuse("name", f"{run_id!r} leaves no room for the parts' own names: {room} characters at most")
    for one in carried.values():
        if any(not one.files[part] for part in filled):
            notes.refuse(f"inputs.{one.channel}", "some parts get files of another channel and none of this "
                         "one: a job cannot have an empty channel; ask for fewer hosts")  # fmt: skip
    if notes.problems or not filled:
        raise JobError(notes.problems)
    if job.limits.attempts is None:
        notes.because(
            "parts.attempts", f"A part that fails is tried again alone, {DEFAULT_ATTEMPTS} jobs at most."
        )
    plans: list[Plan] = []
    for part in filled:
        own = Notes(list(notes.reasons), list(notes.warnings))
        single = _of_one_host(job, part + 1, len(filled))
        plans.append(make_one(single, surroundings, part_run(run_id, part + 1), carried, own, digest, part))
    return _together(job, run_id, plans)


def _of_one_host(job: Job, number: int, parts: int) -> Job:
    """What each part runs. What the whole run may cost, and where its checkpoints lie, is shared out."""
    changes: dict[str, object] = {"compute": job.compute.model_copy(update={"hosts": 1})}
    limits = {"attempts": job.limits.attempts or DEFAULT_ATTEMPTS}
    cap = None if job.limits.max_cost is None else job.limits.max_cost / parts
    changes["limits"] = job.limits.model_copy(update={**limits, "max_cost": cap})
    kept = job.checkpoints
    if kept is not None and kept.uri is not None:
        changes["checkpoints"] = kept.model_copy(update={"uri": f"{kept.uri.rstrip('/')}/p{number}/"})
    return job.model_copy(update=changes)


def _together(job: Job, run_id: str, plans: Sequence[Plan]) -> Plan:
    first = plans[0]
    return replace(
        first,
        run=run_id,
        job=job,
        hosts=len(plans),
        tasks=tuple(task for plan in plans for task in plan.tasks),
        uploads=_all_uploads(plans),
        warnings=tuple(dict.fromkeys(warning for plan in plans for warning in plan.warnings)),
        cost=_times(first.cost, len(plans)),
        parts=tuple(plans),
    )


def _all_uploads(plans: Sequence[Plan]) -> tuple[Upload, ...]:
    """Source and data, which all have in common, once."""
    return tuple(dict.fromkeys(upload for plan in plans for upload in plan.uploads))


def _times(cost: Cost, parts: int) -> Cost:
    def times(amount: float | None) -> float | None:
        return None if amount is None else amount * parts

    return replace(cost, per_hour=times(cost.per_hour), at_most=times(cost.at_most))
