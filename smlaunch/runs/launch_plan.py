"""launch(): start the run of a job or a plan. Python callers and the command line use the same function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from smlaunch.api.job_kinds import get_at_path, job_kind_of
from smlaunch.aws.interfaces import CallError
from smlaunch.aws.service_errors import is_quota_in_use
from smlaunch.chain.workflow import Workflow, changed_limits_text, price_texts, with_limits_of
from smlaunch.contract.formats import FormatError
from smlaunch.contract.run_names import JobName, parse_shard_number
from smlaunch.contract.s3_uri import split_s3_uri
from smlaunch.errors import JobError, Problem, SmlaunchError, wrong_type_error
from smlaunch.job.bucket_owners import bucket_owners_in_job, owner_by_bucket
from smlaunch.job.model import Job
from smlaunch.planner.plan import RunPlan
from smlaunch.render.plan import Plan
from smlaunch.runs.call_errors import translate_call_errors
from smlaunch.runs.job_list import JobList
from smlaunch.runs.launch_target import Target, require_target
from smlaunch.runs.plan_job import PreparedRun, pack_job_source, prepare
from smlaunch.runs.plan_upload import ProgressCallback, upload_plan_files
from smlaunch.runs.run import Run
from smlaunch.runs.run_checkpoints import RunCheckpoints
from smlaunch.runs.run_driver import MessageCallback, checked_callback, prefix_messages
from smlaunch.runs.run_folder import RunFolder, UnsentFiles
from smlaunch.runs.run_kinds import (
    run_of_chain,
    run_of_shards,
    run_of_single_job,
)
from smlaunch.runs.submit_job import SubmittedJob, find_existing_job, submit_job_once

if TYPE_CHECKING:
    from smlaunch.runs.chain_driver import ChainDriver


def launch(
    job_or_plan: Job | Plan | PreparedRun,
    target: Target | None = None,
    on_message: MessageCallback | None = None,
    on_progress: ProgressCallback | None = None,
) -> Run:
    """Upload missing files, create the run's first job, and return without waiting for it.

    ``on_message`` receives sentences about slow or unexpected actions; without it they are logged as warnings
    of the logger ``smlaunch``. ``on_progress`` receives the state of
    the data upload about ten times a second.

    A PreparedRun is a plan with the packed source folder and its own target. Launching the same job under the
    same name again attaches to the existing run and starts nothing (``Run.attached``). Another job under that
    name raises JobError.
    """
    require_target(target)
    on_message = checked_callback(on_message)
    if isinstance(job_or_plan, Job):
        prepared_run = prepare(job_or_plan, target)
    elif isinstance(job_or_plan, Plan):
        # The program may have changed its folder since it planned.
        _, source_archive = pack_job_source(job_or_plan.job, folder=Path(job_or_plan.facts.folder))
        prepared_run = PreparedRun(plan=job_or_plan, source=source_archive, target=target or Target.region())
    elif isinstance(job_or_plan, PreparedRun):
        prepared_run = job_or_plan
    else:
        raise wrong_type_error(job_or_plan, "a Job or a Plan", "Job(entry='train.py')")
    return _launch_prepared(prepared_run, on_message, on_progress)


def _launch_prepared(
    prepared_run: PreparedRun, on_message: MessageCallback, on_progress: ProgressCallback | None
) -> Run:
    """Upload what the run needs, submit its first job, and return the run; return the existing run if the
    same job was launched under this name before."""
    plan, target = prepared_run.plan, prepared_run.target
    prepared_run.require_account()
    target.bucket_owners.add(owner_by_bucket(bucket_owners_in_job(plan.job)))  # for all later requests to S3
    if plan.shard_plans:  # several runs, each on a part of the data
        return _launch_sharded(prepared_run, on_message, on_progress)
    first_job = plan.planned_jobs[0]
    run_folder = RunFolder.for_plan(plan)
    with translate_call_errors(target):
        # Raises JobError for another job's name: files under the run's prefix belong to the job that has it.
        [(existing_job, stored_workflow)] = _find_earlier_launches(prepared_run)
        if existing_job is None:
            upload_plan_files(plan, prepared_run.source, target, on_message, on_progress)
        with _claimed_names(plan, [] if existing_job else [plan], target):
            if existing_job is None:
                run_folder.save_unsent_files(_unsent_files(plan), target.storage)
            chain_driver = _prepare_chain(plan, stored_workflow, run_folder, target, on_message)
            job = existing_job or _submit_first_job(plan, target, on_message)
    # attached: the job existed before.
    if chain_driver is None:
        return run_of_single_job(plan.run, target, first_job.name, attached=job.attached)
    return run_of_chain(chain_driver, target, attached=job.attached)


def _prepare_chain(
    plan: RunPlan,
    stored_workflow: Workflow | None,
    run_folder: RunFolder,
    target: Target,
    on_message: MessageCallback,
) -> ChainDriver | None:
    """Save the workflow, how the run goes on after each job, and return the driver that submits the further
    jobs; any machine can continue the run from then on. None for a run of a single job.
    ``stored_workflow``: of an existing run."""
    if plan.workflow.is_single_job:
        return None
    from smlaunch.runs.chain_driver import ChainDriver

    workflow = _current_workflow(plan, stored_workflow, on_message)
    # The driver records the owners of the workflow's buckets, one of which it is saved in.
    chain_driver = ChainDriver(
        workflow,
        run_folder,
        target,
        jobs=JobList(plan.run, target, [plan.planned_jobs[0].name]),
        is_driving=True,
        on_message=on_message,
    )
    run_folder.save_workflow(workflow, target.storage)
    return chain_driver


def _unsent_files(plan: RunPlan) -> UnsentFiles:
    """Return the files that lie in the source or in an input and are not sent, for hints after a failure."""
    reason_by_path: dict[str, str] = {}
    for excluded_files in plan.excluded_by_field.values():  # of the source and of each input
        reason_by_path |= excluded_files
    channel_by_path = {path: channel for channel, path in plan.facts.source.input_paths.items()}
    return UnsentFiles(reason_by_path, channel_by_path, plan.facts.source.ignored_files)


class EarlierLaunch(NamedTuple):
    """What an earlier launch of a run has left."""

    first_job: SubmittedJob | None = None
    workflow: Workflow | None = None
    """None for a run of a single job."""


def find_earlier_launches(plan: RunPlan, target: Target) -> list[EarlierLaunch]:
    """Return what an earlier launch of the same job under the plan's name has left, of the run or of each of
    its shards; nothing for a new run. Raises JobError when another job has a name, also one whose training
    jobs were deleted and whose files are still there."""
    if plan.shard_plans:
        # An unsharded run of this name would hide the shards.
        first_job_if_unsharded = replace(plan.planned_jobs[0], name=str(JobName(plan.run, 1, 1)))
        find_existing_job(first_job_if_unsharded, plan.job_hash, target.control_plane)
    return [_find_earlier_launch(run_plan, target) for run_plan in plan.shard_plans or [plan]]


def _find_earlier_launch(plan: RunPlan, target: Target) -> EarlierLaunch:
    """As ``find_earlier_launches``, of one run."""
    run_folder = RunFolder.for_plan(plan)
    stored = run_folder.load_workflow(target.storage)
    job_hash = plan.job_hash
    if stored is not None and stored.is_of_same_job(plan.workflow):
        job_hash = stored.job_hash  # of the job with its first limits
    first_job = find_existing_job(plan.planned_jobs[0], job_hash, target.control_plane, plan.facts.team)
    if first_job is not None:
        return EarlierLaunch(first_job, stored)
    run_folder.require_name_of_job(plan.workflow, stored, target.storage)
    _require_own_outcome(plan, target)
    _require_free_output(plan, target)
    return EarlierLaunch()


def _require_own_outcome(plan: RunPlan, target: Target) -> None:
    """Raise JobError if another job has trained to its end under the run's name with the same prefix for
    checkpoints, such as one in another region: the hosts of the run would refuse to train."""
    uri = plan.workflow.checkpoints
    if uri is None:
        return
    with suppress(CallError, FormatError):  # what the caller may not or cannot read, the hosts refuse
        outcome = RunCheckpoints(uri, target.storage).read_outcome(plan.run)
        if outcome is not None and outcome.has_finished and not outcome.is_of_job(plan.job_hash):
            text = (
                f"another job has trained to its end as run {plan.run} with checkpoints at {uri}, and this "
                "one would train nothing: take another name, or another prefix for checkpoints"
            )
            raise JobError([Problem("name", text)])


def _require_free_output(plan: RunPlan, target: Target) -> None:
    """Raise JobError if results of a job with the first job's name exist, whose record is gone: a run that is
    launched again finds in its checkpoints that it has ended, trains nothing, and the service would replace
    its model by an empty archive."""
    first_job = plan.planned_jobs[0]
    kind = job_kind_of(first_job.request)
    stated_uri = str(get_at_path(first_job.request, kind.request_path_by_field["output"]) or "")
    # The service adds the job's name, where the request does not have it.
    output_uri = stated_uri if kind.output_suffix else f"{stated_uri.rstrip('/')}/{first_job.name}/"
    bucket_and_prefix = split_s3_uri(output_uri)
    if bucket_and_prefix is None or f"/{first_job.name}/" not in output_uri:
        return  # an address that request states is that of every run
    bucket, prefix = bucket_and_prefix
    try:
        has_results = next(iter(target.storage.list_objects(bucket, prefix)), None) is not None
    except CallError as error:
        if error.code != "NoSuchBucket":  # the upload makes it
            raise
        return
    if has_results:
        text = (
            f"results of an earlier job {first_job.name} are at {output_uri}, and the job's record is gone; "
            "a new job of that name would replace them: take another name, or move them away"
        )
        raise JobError([Problem("name", text)])


def _find_earlier_launches(prepared_run: PreparedRun) -> list[EarlierLaunch]:
    if prepared_run.has_generated_name:  # a random name, which no job can have
        return [EarlierLaunch()] * max(1, len(prepared_run.plan.shard_plans))
    return find_earlier_launches(prepared_run.plan, prepared_run.target)


def _plans_to_claim(plan: RunPlan, earlier_launches: Sequence[EarlierLaunch]) -> list[RunPlan]:
    """Return the plans of the shards' runs that are new, after that of the whole run if all are."""
    new_plans = [
        shard_plan
        for shard_plan, earlier_launch in zip(plan.shard_plans, earlier_launches, strict=True)
        if earlier_launch.first_job is None
    ]
    return [plan, *new_plans] if len(new_plans) == len(plan.shard_plans) else new_plans


@contextmanager
def _claimed_names(plan: RunPlan, new_plans: Sequence[RunPlan], target: Target) -> Iterator[None]:
    """Make the names of new runs those of the plan's job, before the files that a run goes on by are written:
    of several clients that launch other jobs under one name at the same time, one goes on. If the block
    raises before it has created a job, the names are free again. Raises JobError for a name that another job
    has.

    A run without any files of smlaunch's own needs no claim.
    """
    has_files = bool(plan.uploads) or not plan.workflow.is_single_job
    claimed_folders: list[RunFolder] = []
    try:
        for new_plan in new_plans if has_files else ():
            run_folder = RunFolder.for_plan(new_plan)
            if run_folder.claim_name(new_plan.run, new_plan.workflow, target.storage):
                claimed_folders.append(run_folder)
        yield
    except BaseException:  # also Ctrl-C
        with suppress(SmlaunchError, CallError):  # where it is not known whether a job exists, names are kept
            if claimed_folders and _has_no_job(plan, target):
                for run_folder in claimed_folders:
                    run_folder.release_name(target.storage)
        raise


def _has_no_job(plan: RunPlan, target: Target) -> bool:
    """Return whether the first of the planned jobs, which is created before all others, does not exist."""
    return find_existing_job(plan.planned_jobs[0], plan.job_hash, target.control_plane) is None


def _current_workflow(plan: RunPlan, stored: Workflow | None, on_message: MessageCallback) -> Workflow:
    """Return the run's workflow, which is what any machine needs to submit its further jobs. An existing run
    keeps its stored workflow, but with the limits of the new plan, which may have changed, and with its
    prices if the job states one: its driver reads them before each job. A price of the catalog, or none, must
    not replace one by which a cap is counted."""
    planned = plan.workflow
    if stored is None:
        return planned
    current = with_limits_of(stored, planned, keeps_prices=plan.job.compute.price_per_hour is None)
    if text := changed_limits_text(stored.policy, current.policy):
        on_message(text)
    for text in price_texts(stored, planned, current):
        on_message(text)
    return current


def _delete_outcomes_of_deleted_jobs(plan: RunPlan, target: Target) -> None:
    """Delete outcome files of a run that has no job: its driver would take them for those of its jobs."""
    if plan.workflow.checkpoints is None:
        return
    checkpoints = RunCheckpoints(plan.workflow.checkpoints, target.storage)
    stale_keys = checkpoints.list_outcome_keys(plan.run)
    # Looked for again: another client may have created the job while this one uploaded its data.
    if stale_keys and _has_no_job(plan, target):
        target.storage.delete_objects(checkpoints.bucket, stale_keys)


def _submit_first_job(plan: RunPlan, target: Target, on_message: MessageCallback) -> SubmittedJob:
    first_job = plan.planned_jobs[0]
    _delete_outcomes_of_deleted_jobs(plan, target)
    return submit_job_once(
        first_job,
        plan.job_hash,
        target,
        on_retry=lambda error, seconds: on_message(_retry_message(error, seconds)),
    )


def _launch_sharded(
    prepared_run: PreparedRun, on_message: MessageCallback, on_progress: ProgressCallback | None
) -> Run:
    """Upload the files of all shards of a run, then submit the shards' first jobs until the instance quota is
    used up.

    Each shard is a run of its own on a part of the data. One that finds no free instance is submitted later
    by its driver. Returns the existing run if the same job was launched under this name before.
    """
    plan, target = prepared_run.plan, prepared_run.target
    with translate_call_errors(target):
        earlier_launches = _find_earlier_launches(prepared_run)
        is_complete = all(earlier_launch.first_job for earlier_launch in earlier_launches)
        if not is_complete:
            upload_plan_files(plan, prepared_run.source, target, on_message, on_progress)
        with _claimed_names(plan, _plans_to_claim(plan, earlier_launches), target):
            # Saved in S3, so that the run is found by its name and its shards by this list.
            names_of_shards = [shard_plan.run for shard_plan in plan.shard_plans]
            RunFolder.for_plan(plan).save_shard_runs(names_of_shards, target.storage)
            drivers: dict[int, ChainDriver] = {}
            new_shards: list[tuple[RunPlan, ChainDriver]] = []
            for shard_plan, (existing_job, stored_workflow) in zip(
                plan.shard_plans, earlier_launches, strict=True
            ):
                shard_number = parse_shard_number(plan.run, shard_plan.run) or 0
                report_for_shard = prefix_messages(shard_number, on_message)  # puts p3 before each message
                driver = _prepare_shard(shard_plan, plan, target, stored_workflow, report_for_shard)
                drivers[shard_number] = driver
                if existing_job is None:
                    new_shards.append((shard_plan, driver))
                else:
                    driver.jobs.add(existing_job.name)
            _submit_shards_until_quota_is_used(new_shards, plan, target, on_message)
    # Of a shard that existed before, the driver finds out which job to follow; the first job of a new one is
    # followed even if it has ended meanwhile.
    new_drivers = [driver for _, driver in new_shards]
    run_by_number = {
        number: run_of_chain(driver, target, attached=driver not in new_drivers)
        for number, driver in drivers.items()
    }
    return run_of_shards(plan.run, target, run_by_number, attached=is_complete)


def _prepare_shard(
    shard_plan: RunPlan,
    plan: RunPlan,
    target: Target,
    stored_workflow: Workflow | None,
    on_message: MessageCallback,
) -> ChainDriver:
    """Save what a shard's run needs in its folder in S3, and return its driver, which submits its further
    jobs. ``plan``: of the whole run, whose files all shards share. ``stored_workflow``: of an existing run.
    """
    from smlaunch.runs.chain_driver import ChainDriver

    shard_folder = RunFolder.for_plan(shard_plan)
    workflow = _current_workflow(shard_plan, stored_workflow, on_message)
    shard_folder.save_workflow(workflow, target.storage)
    shard_folder.save_unsent_files(_unsent_files(plan), target.storage)
    return ChainDriver(
        workflow,
        shard_folder,
        target,
        is_driving=True,
        waits_for_quota=True,
        on_message=on_message,
    )


def _submit_shards_until_quota_is_used(
    new_shards: Sequence[tuple[RunPlan, ChainDriver]],
    plan: RunPlan,
    target: Target,
    on_message: MessageCallback,
) -> None:
    """Submit the first job of each of these shards, until the account's quota of instances is used up: the
    drivers of the other shards submit theirs later."""
    for shard_plan, driver in new_shards:
        try:
            first_job = _submit_first_job(shard_plan, target, on_message)
        except CallError as error:
            if not is_quota_in_use(error):
                raise
            on_message(f"{shard_plan.run}: {error.message}; it and later shards begin when others have ended")
            return
        driver.jobs.add(first_job.name)


def _retry_message(error: CallError, seconds: float) -> str:
    return f"{error.operation}: {error.code}; trying again in {seconds:.0f} s"
