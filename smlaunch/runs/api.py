"""plan() and launch(): make a run from a job. Python callers and the command line use the same functions."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from smlaunch.aws.interfaces import CallError
from smlaunch.aws.retry import is_quota_in_use
from smlaunch.contract.names import JobName, parse_shard_number
from smlaunch.discovery.gather import gather_facts
from smlaunch.errors import JobError, Problem, SmlaunchError
from smlaunch.job.model import Job
from smlaunch.job.partial import parse_valid_fields
from smlaunch.planner.bucket_owners import owner_by_bucket
from smlaunch.planner.facts import NO_SOURCE, SourceFacts
from smlaunch.planner.plan import Plan
from smlaunch.planner.planner import check_partial_job, make_plan
from smlaunch.planner.workflow import with_caps_of
from smlaunch.runs.chain_driver import ChainDriver
from smlaunch.runs.run import Run, translate_call_errors
from smlaunch.runs.run_state import RunFolder
from smlaunch.runs.sharded_run import ShardedRun, prefix_messages
from smlaunch.runs.source import SourceArchive, pack_source
from smlaunch.runs.stage import ProgressCallback, stage
from smlaunch.runs.submit import find_existing_job, submit
from smlaunch.runs.target import Target

MessageCallback = Callable[[str], None]
"""Receives one sentence about a slow or unexpected action."""

_MAX_STEM_LENGTH = 24
_UNAMBIGUOUS_CHARACTERS = "abcdefghijkmnpqrstuvwxyz23456789"  # without what is easily misread


@dataclass(frozen=True)
class PreparedRun:
    """A plan together with its source archive and target, so that launching does not read the source
    again."""

    plan: Plan
    source: SourceArchive | None
    """None for a job that has no entry script."""
    target: Target
    has_new_name: bool = False
    """The run's name was generated for this plan, so that no existing job can have it."""


def plan(job: Job, target: Target | None = None, name: str | None = None) -> Plan:
    """Plan a run of this job. Changes nothing anywhere.

    ``name`` is the run's id; the default is the job's own name, else a generated one.

    Raises JobError with every problem found, and AccountError or ServiceError when the account or its data
    cannot be read.
    """
    return prepare(job, target, name).plan


def launch(
    job_or_plan: Job | Plan | PreparedRun,
    target: Target | None = None,
    on_message: MessageCallback | None = None,
    on_progress: ProgressCallback | None = None,
) -> Run:
    """Upload missing files, create the run's first job, and return without waiting for it.

    ``on_message`` receives sentences about slow or unexpected actions. ``on_progress`` receives the state of
    the data upload about ten times a second.

    Launching the same job under the same name again attaches to the existing run and starts nothing
    (``Run.attached``). Another job under that name raises JobError.
    """
    if isinstance(job_or_plan, Job):
        prepared = prepare(job_or_plan, target)
    elif not isinstance(job_or_plan, (Plan, PreparedRun)):
        raise _type_error(job_or_plan, "a Job or a Plan", "Job(entry='train.py')")
    elif isinstance(job_or_plan, Plan):
        prepared = PreparedRun(job_or_plan, _pack_job_source(job_or_plan.job)[1], target or Target.region())
    else:
        prepared = job_or_plan
    return _launch_prepared(prepared, on_message or _ignore_message, on_progress)


def prepare(
    job: Job, target: Target | None = None, name: str | None = None, pending_channels: Collection[str] = ()
) -> PreparedRun:
    """Plan a run as ``plan`` does, and keep the source archive for ``launch``.

    ``pending_channels`` names input channels whose data does not exist yet.
    """
    if not isinstance(job, Job):
        raise _type_error(job, "a Job", "Job(entry='train.py')")
    if target is not None and not isinstance(target, Target):
        raise _type_error(target, "a Target", "local_target()")
    target = target or Target.region()
    facts, source = _pack_job_source(job)
    _set_bucket_owners(job, target)
    with translate_call_errors(target):
        job_facts = gather_facts(job, target, facts, pending_channels)
    given_name = name or job.name
    job_plan = make_plan(job, job_facts, given_name or generate_run_id(job.program))
    return PreparedRun(job_plan, source, target, has_new_name=given_name is None)


def prepare_export(
    job: Job,
    target: Target,
    name: str | None = None,
    *,
    step: str | None = None,
    pending_channels: Collection[str] = (),
) -> PreparedRun:
    """Plan a run for an orchestrator, which names its runs itself.

    Without a name, the files that all executions share are staged under a name made of the job's hash, so
    that the same job gives the same export. ``step`` is the job's name among several; the default is the name
    of its program.
    """
    given_name = name or job.name
    stem = step or run_name_stem(job.program)
    prepared = prepare(job, target, given_name or stem, pending_channels)
    if given_name is not None:
        return prepared
    plan = prepared.plan
    staging_name = f"{stem}-{plan.job_hash[:8]}"
    return replace(prepared, plan=make_plan(plan.job, plan.facts, staging_name))


def add_remaining_problems(error: JobError, target: Target) -> JobError:
    """Return the error of a partly invalid job with the problems of its valid fields added.

    A user then sees all mistakes at once. Returns the error unchanged when the facts for the other checks
    cannot be gathered.
    """
    partial_job = None if error.job_mapping is None else parse_valid_fields(error.job_mapping, error.problems)
    if partial_job is None:
        return error
    try:
        _set_bucket_owners(partial_job.job, target)
        with translate_call_errors(target):
            job_facts = gather_facts(partial_job.job, target, _pack_job_source(partial_job.job)[0])
    except SmlaunchError:
        return error
    return JobError(
        [*error.problems, *check_partial_job(partial_job.job, job_facts, partial_job.unknown_fields)]
    )


def _launch_prepared(
    prepared: PreparedRun, on_message: MessageCallback, on_progress: ProgressCallback | None
) -> Run:
    """Upload what the run needs, submit its first job, and return the run; return the existing run if the
    same job was launched under this name before."""
    plan, target = prepared.plan, prepared.target
    _set_bucket_owners(plan.job, target)
    if plan.shard_plans:
        return _launch_sharded(prepared, on_message, on_progress)
    first_job, workflow = plan.planned_jobs[0], plan.workflow
    folder = RunFolder.for_run(plan.facts.bucket, plan.run)
    with translate_call_errors(target):
        # Checked before the upload: files under the run's prefix belong to the job that has the name.
        submitted_job = (
            None if prepared.has_new_name else find_existing_job(first_job, plan.job_hash, target.control)
        )
        if submitted_job is None:
            stage(plan, prepared.source, target, on_message, on_progress)
            folder.save_excluded_files(plan.excluded_files, target.storage)
        chain_driver = None
        if not workflow.is_single_job:
            stored_workflow = None if submitted_job is None else folder.load_workflow(target.storage)
            workflow = workflow if stored_workflow is None else with_caps_of(stored_workflow, workflow)
            chain_driver = ChainDriver(workflow, folder, target, is_driving=True, on_message=on_message)
            # Saved before the first job, so that any other machine can continue the run. Saved again for an
            # existing run, because the same job may have new limits.
            folder.save_workflow(workflow, target.storage)
        if submitted_job is None:
            submitted_job = submit(
                first_job,
                plan.job_hash,
                target.control,
                target.storage,
                on_retry=lambda error, seconds: on_message(_retry_message(error, seconds)),
            )
    return Run(plan.run, target, [first_job.name], attached=submitted_job.attached, chain_driver=chain_driver)


def _launch_sharded(
    prepared: PreparedRun, on_message: MessageCallback, on_progress: ProgressCallback | None
) -> Run:
    """Stage all shards, then submit their first jobs until the instance quota is used up.

    A shard that finds no free instance waits for its driver.
    """
    plan, target = prepared.plan, prepared.target
    storage, bucket = target.storage, plan.facts.bucket
    shard_runs: dict[int, Run] = {}
    with translate_call_errors(target):
        if not prepared.has_new_name:
            # An unsharded run of this name would hide the shards.
            find_existing_job(
                replace(plan.planned_jobs[0], name=str(JobName(plan.run, 1, 1))),
                plan.job_hash,
                target.control,
            )
        existing_jobs = {
            shard.run: None
            if prepared.has_new_name
            else find_existing_job(shard.planned_jobs[0], plan.job_hash, target.control)
            for shard in plan.shard_plans
        }
        if not all(existing_jobs.values()):
            stage(plan, prepared.source, target, on_message, on_progress)
        RunFolder.for_run(bucket, plan.run).save_shard_runs(
            [shard.run for shard in plan.shard_plans], storage
        )
        for shard in plan.shard_plans:
            shard_number = parse_shard_number(plan.run, shard.run) or 0
            folder = RunFolder.for_run(bucket, shard.run)
            stored_workflow = None if existing_jobs[shard.run] is None else folder.load_workflow(storage)
            workflow = (
                shard.workflow if stored_workflow is None else with_caps_of(stored_workflow, shard.workflow)
            )
            folder.save_workflow(workflow, storage)
            folder.save_excluded_files(plan.excluded_files, storage)
            chain_driver = ChainDriver(
                workflow,
                folder,
                target,
                is_driving=True,
                waits_for_quota=True,
                on_message=prefix_messages(shard_number, on_message),
            )
            # As if it had been there before: which job is to be followed is for the chain to say.
            job_name = shard.planned_jobs[0].name
            shard_runs[shard_number] = Run(
                shard.run, target, [job_name], attached=True, chain_driver=chain_driver
            )
        for shard in plan.shard_plans:
            try:
                if existing_jobs[shard.run] is None:
                    submit(
                        shard.planned_jobs[0],
                        plan.job_hash,
                        target.control,
                        storage,
                        on_retry=lambda error, seconds: on_message(_retry_message(error, seconds)),
                    )
            except CallError as error:
                if not is_quota_in_use(error):
                    raise
                on_message(f"{shard.run}: {error.message}; it and later shards begin when others have ended")
                break
    return ShardedRun(plan.run, target, shard_runs, attached=all(existing_jobs.values()))


def _type_error(value: object, expected: str, example: str) -> JobError:
    return JobError([Problem("", f"{expected} is needed, not {type(value).__name__}: {example}")])


def _set_bucket_owners(job: Job, target: Target) -> None:
    for bucket, account in owner_by_bucket(job).items():
        target.bucket_owners.set_owner(bucket, account)


def _retry_message(error: CallError, seconds: float) -> str:
    return f"{error.operation}: {error.code}; trying again in {seconds:.0f} s"


def _ignore_message(_: str) -> None:
    return None


def generate_run_id(program: str) -> str:
    """Return a run id such as ``train-ddp-1121-1604-k7xq`` for ``train_ddp.py``.

    The id is readable, sorts by time within a year, and ends in random characters.
    """
    tail = "".join(secrets.choice(_UNAMBIGUOUS_CHARACTERS) for _ in range(4))
    return f"{run_name_stem(program)}-{time.strftime('%m%d-%H%M')}-{tail}"


def run_name_stem(program: str) -> str:
    """Return the beginning of a run's name: ``train-ddp`` for ``train_ddp.py``."""
    stem = re.sub(r"[^a-z0-9]+", "-", Path(program).stem.lower()).strip("-")
    return stem[:_MAX_STEM_LENGTH].rstrip("-") or "run"


def _pack_job_source(job: Job) -> tuple[SourceFacts, SourceArchive | None]:
    """Return the source's facts for the plan and its archive.

    The archive is None for a job without an entry script and for a source that cannot be packed; the facts
    then name the problem.
    """
    if job.entry is None:
        return NO_SOURCE, None
    entry = Path(job.entry).expanduser()
    root = Path(job.source).expanduser() if job.source else entry.parent
    # relpath, not resolve(): a script that is a link belongs to the folder that the user names.
    entry_path = Path(os.path.relpath(entry, root)).as_posix()

    def without_archive(problem: str | None) -> tuple[SourceFacts, None]:
        return SourceFacts(str(root), entry_path, "", 0, 0, problem=problem), None

    if entry_path.startswith("../"):
        return without_archive(f"{entry} is outside of the source folder {root}")
    if not job.source and not os.path.isfile(entry):  # noqa: PTH113  Path.is_file raises for a closed folder
        return without_archive(None)  # the script's own facts report this
    try:
        archive = pack_source(root, job.include_secrets)
    except JobError as error:
        return without_archive("; ".join(problem.message for problem in error.problems))
    if entry_path not in archive.files and os.path.isfile(entry):  # noqa: PTH113
        return without_archive(archive.explain_missing_file(entry_path))
    facts = SourceFacts(
        root=str(root),
        entry=entry_path,
        archive_sha256=archive.sha256,
        file_count=len(archive.files),
        bytes=archive.size_bytes,
        has_requirements=job.requirements in archive.files,
        warnings=archive.warnings,
        excluded_files=archive.excluded_files,
    )
    return facts, archive
