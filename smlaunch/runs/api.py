"""plan() and launch(): from a job to a running one, for Python and for the command line alike."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from smlaunch.errors import JobError, Problem, SmlaunchError
from smlaunch.job import Job
from smlaunch.job_rest import rest_of
from smlaunch.planning.bucket_owners import owners_of
from smlaunch.planning.decide import make_plan, other_problems
from smlaunch.planning.plan import Plan
from smlaunch.planning.surroundings import NO_SOURCE, SourceFacts
from smlaunch.ports import CallError
from smlaunch.protocol.names import TaskName, part_of
from smlaunch.runs.chain import Chain
from smlaunch.runs.fan_out import PartsRun, told_of
from smlaunch.runs.lineage import RunFolder
from smlaunch.runs.retry import is_quota_in_use
from smlaunch.runs.run import Run, answers_of
from smlaunch.runs.source import PackedSource, pack
from smlaunch.runs.stage import Watch, stage
from smlaunch.runs.submit import existing, submit
from smlaunch.runs.target import Target
from smlaunch.survey import survey

Told = Callable[[str], None]
"""Hears, in a sentence, what takes time or may surprise."""

_STEM_LIMIT = 24
_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"  # without what is easily misread


@dataclass(frozen=True)
class Prepared:
    """A plan with what it was made from, ready to be launched without reading the source again.

    ``fresh``: the run's name was made for it, so that nothing can have it yet.
    """

    plan: Plan
    source: PackedSource | None
    target: Target
    fresh: bool = False


def plan(job: Job, target: Target | None = None, name: str | None = None) -> Plan:
    """Decides everything about a run of this job and changes nothing anywhere.

    ``name``: the run's id (default: the job's, else a fresh one). Raises JobError with every problem found;
    AccountError or ServiceError when the surroundings cannot be looked at.
    """
    return prepare(job, target, name).plan


def launch(
    what: Job | Plan | Prepared,
    target: Target | None = None,
    told: Told | None = None,
    watch: Watch | None = None,
) -> Run:
    """Uploads what is missing, creates the job and returns at once. ``watch`` sees how far the upload of data
    is, some ten times a second.

    Launching the same job under the same name again attaches to it and starts nothing (``Run.attached``);
    another job under that name is refused with JobError.
    """
    if isinstance(what, Job):
        prepared = prepare(what, target)
    elif not isinstance(what, (Plan, Prepared)):
        raise _unfit(what, "a Job or a Plan", "Job(entry='train.py')")
    elif isinstance(what, Plan):
        prepared = Prepared(what, _packed(what.job)[1], target or Target.region())
    else:
        prepared = what
    return _carry_out(prepared, told or _say_nothing, watch)


def prepare(
    job: Job, target: Target | None = None, name: str | None = None, pending: Collection[str] = ()
) -> Prepared:
    """As ``plan``, keeping the packed source for ``launch``. ``pending``: channels whose data is not there
    yet."""
    if not isinstance(job, Job):
        raise _unfit(job, "a Job", "Job(entry='train.py')")
    if target is not None and not isinstance(target, Target):
        raise _unfit(target, "a Target", "local_target()")
    target = target or Target.region()
    facts, source = _packed(job)
    _name_owners(job, target)
    with answers_of(target):
        surroundings = survey(job, target, facts, pending)
    given = name or job.name
    made = make_plan(job, surroundings, given or fresh_run_id(job.program))
    return Prepared(made, source, target, fresh=given is None)


def prepare_export(
    job: Job,
    target: Target,
    name: str | None = None,
    *,
    step: str | None = None,
    pending: Collection[str] = (),
) -> Prepared:
    """As ``prepare``, for an orchestrator that names its runs itself: without a name, what all of them share
    is staged under one made of the job's hash, so that the same job gives the same export. ``step``: what the
    job is called among several; its own program's name otherwise."""
    given = name or job.name
    stem = step or stem_of(job.program)
    prepared = prepare(job, target, given or stem, pending)
    if given is not None:
        return prepared
    plan = prepared.plan
    staged = f"{stem}-{plan.job_hash[:8]}"
    return replace(prepared, plan=make_plan(plan.job, plan.surroundings, staged))


def with_the_rest(error: JobError, target: Target) -> JobError:
    """The error of a job some of whose fields cannot be read, with whatever else is wrong with it: a job is
    mended once. Where nobody can look around, the error as it was."""
    rest = None if error.mapping is None else rest_of(error.mapping, error.problems)
    if rest is None:
        return error
    try:
        _name_owners(rest.job, target)
        with answers_of(target):
            surroundings = survey(rest.job, target, _packed(rest.job)[0])
    except SmlaunchError:
        return error
    return JobError([*error.problems, *other_problems(rest.job, surroundings, rest.unknown)])


def _carry_out(prepared: Prepared, told: Told, watch: Watch | None) -> Run:
    plan, target = prepared.plan, prepared.target
    _name_owners(plan.job, target)
    if plan.parts:
        return _carry_out_parts(prepared, told, watch)
    task, workflow = plan.tasks[0], plan.workflow
    folder = RunFolder.of(plan.surroundings.bucket, plan.run)
    chain = None if workflow.single else Chain(workflow, folder, target, drives=True, told=told)
    with answers_of(target):
        # Looked for before the upload: what lies at the run's place belongs to the job that has the name.
        there = None if prepared.fresh else existing(task, plan.job_hash, target.control)
        if there is None:
            stage(plan, prepared.source, target, told, watch)
            folder.save_left_out(plan.left_out, target.storage)
        if chain is not None:
            # Before the first job: from then on any other machine can go on with the run. Again when it is
            # there: the same job may have been given other caps.
            folder.save(workflow, target.storage)
        if there is None:
            there = submit(
                task,
                plan.job_hash,
                target.control,
                target.storage,
                told=lambda e, s: told(_waiting(e, s)),
            )
    return Run(plan.run, target, [task.name], attached=there.attached, chain=chain)


def _carry_out_parts(prepared: Prepared, told: Told, watch: Watch | None) -> Run:
    """All parts are staged before the first job is asked for. One that no instance is left for waits."""
    plan, target = prepared.plan, prepared.target
    storage, bucket = target.storage, plan.surroundings.bucket
    parts: dict[int, Run] = {}
    with answers_of(target):
        if not prepared.fresh:
            # A run of this name that is not in parts would hide them from whoever asks for the name.
            existing(
                replace(plan.tasks[0], name=str(TaskName(plan.run, 1, 1))), plan.job_hash, target.control
            )
        there = {
            part.run: None if prepared.fresh else existing(part.tasks[0], plan.job_hash, target.control)
            for part in plan.parts
        }
        if not all(there.values()):
            stage(plan, prepared.source, target, told, watch)
        RunFolder.of(bucket, plan.run).save_parts([part.run for part in plan.parts], storage)
        for part in plan.parts:
            number = part_of(plan.run, part.run) or 0
            folder = RunFolder.of(bucket, part.run)
            folder.save(part.workflow, storage)
            folder.save_left_out(plan.left_out, storage)
            chain = Chain(
                part.workflow, folder, target, drives=True, patient=True, told=told_of(number, told)
            )
            # As if it had been there before: which job is to be followed is for the chain to say.
            job = part.tasks[0].name
            parts[number] = Run(part.run, target, [job], attached=True, chain=chain)
        for part in plan.parts:
            try:
                if there[part.run] is None:
                    submit(
                        part.tasks[0],
                        plan.job_hash,
                        target.control,
                        storage,
                        told=lambda e, s: told(_waiting(e, s)),
                    )
            except CallError as error:
                if not is_quota_in_use(error):
                    raise
                told(f"{part.run}: {error.message}; it and later parts begin when others have ended")
                break
    return PartsRun(plan.run, target, parts, attached=all(there.values()))


def _unfit(what: object, needed: str, example: str) -> JobError:
    return JobError([Problem("", f"{needed} is needed, not {type(what).__name__}: {example}")])


def _name_owners(job: Job, target: Target) -> None:
    for bucket, account in owners_of(job).items():
        target.owners.name(bucket, account)


def _waiting(error: CallError, seconds: float) -> str:
    return f"{error.operation}: {error.code}; trying again in {seconds:.0f} s"


def _say_nothing(_: str) -> None:
    return None


def fresh_run_id(program: str) -> str:
    """``train_ddp.py`` -> ``train-ddp-1121-1604-k7xq``: readable, sortable within a year, and not taken."""
    tail = "".join(secrets.choice(_ALPHABET) for _ in range(4))
    return f"{stem_of(program)}-{time.strftime('%m%d-%H%M')}-{tail}"


def stem_of(program: str) -> str:
    """``train_ddp.py`` -> ``train-ddp``: the beginning of a run's name."""
    stem = re.sub(r"[^a-z0-9]+", "-", Path(program).stem.lower()).strip("-")
    return stem[:_STEM_LIMIT].rstrip("-") or "run"


def _packed(job: Job) -> tuple[SourceFacts, PackedSource | None]:
    """The facts for the plan, and the archive where there is one. What is wrong stands in the facts."""
    if job.entry is None:
        return NO_SOURCE, None
    entry = Path(job.entry).expanduser()
    root = Path(job.source).expanduser() if job.source else entry.parent
    # relpath, not resolve(): a script that is a link belongs to the folder it is named in.
    inside = Path(os.path.relpath(entry, root)).as_posix()

    def wrong(problem: str | None) -> tuple[SourceFacts, None]:
        return SourceFacts(str(root), inside, "", 0, 0, problem=problem), None

    if inside.startswith("../"):
        return wrong(f"{entry} lies outside of the source folder {root}")
    if not job.source and not os.path.isfile(entry):  # noqa: PTH113  Path.is_file raises for a closed folder
        return wrong(None)  # said once, by the script's own facts
    try:
        packed = pack(root, job.include_secrets)
    except JobError as error:
        return wrong("; ".join(problem.message for problem in error.problems))
    if inside not in packed.files and os.path.isfile(entry):  # noqa: PTH113
        return wrong(packed.why_absent(inside))
    facts = SourceFacts(
        root=str(root),
        entry=inside,
        archive_sha256=packed.sha256,
        files=len(packed.files),
        bytes=packed.size,
        has_requirements=job.requirements in packed.files,
        notes=packed.notes,
        left_out=packed.left_out,
    )
    return facts, packed
