"""attach(): find an existing run, of whatever kind, by its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from smlaunch.api.job_kinds import JOB_KINDS
from smlaunch.aws.interfaces import CallError, JobSummary
from smlaunch.aws.service_errors import call_with_retries
from smlaunch.chain.orchestrator_execution import describe_driver
from smlaunch.contract.run_names import (
    is_run_id,
    parse_any_job_name,
    parse_job_name,
    parse_shard_number,
)
from smlaunch.contract.segment import STOP_AFTER_VARIABLE
from smlaunch.errors import JobError, Problem, wrong_type_error
from smlaunch.runs.call_errors import translate_call_errors
from smlaunch.runs.chain_driver import ChainDriver
from smlaunch.runs.execution_jobs import ExecutionJobs, orchestrated_run_name
from smlaunch.runs.job_list import JobList, list_own_names
from smlaunch.runs.launch_target import Target, require_target
from smlaunch.runs.orchestrator_driver import OrchestratorDriver
from smlaunch.runs.parent_execution_driver import ParentExecutionDriver
from smlaunch.runs.run import Run
from smlaunch.runs.run_driver import MessageCallback, RunDriver, checked_callback, prefix_messages
from smlaunch.runs.run_folder import RunFolder
from smlaunch.runs.run_format import check_format
from smlaunch.runs.run_kinds import run_of_chain, run_of_shards
from smlaunch.runs.shard_group import ShardGroup
from smlaunch.runs.single_job_driver import SingleJobDriver
from smlaunch.text.did_you_mean import nearest_match

_JOB_RESOURCES = tuple(f"{kind.arn_resource}/" for kind in JOB_KINDS.values())
"""How the last part of a job's ARN begins."""

_MAX_JOBS_FOR_SUGGESTION = 200
"""Jobs that are searched for a name similar to an unknown one."""


def attach(name: str, target: Target | None = None, on_message: MessageCallback | None = None) -> Run:
    """Find an existing run by its id or the ARN of an orchestrator's execution, or any training job by its
    name, or by its ARN where a run has the same name.

    ``on_message`` receives sentences about what happens while the run is followed, such as that its next job
    is due and no client submits it. Without it they are logged as warnings of the logger ``smlaunch``. Raises
    JobError when there is no such run.
    """
    if not isinstance(name, str):
        raise wrong_type_error(name, "the name of a run", "attach('my-run')")
    require_target(target)
    on_message = checked_callback(on_message)
    target = target or Target.region()
    name_or_arn = name
    is_job_arn = name.startswith("arn:") and name.split(":")[-1].startswith(_JOB_RESOURCES)
    if name.startswith("arn:"):
        name = name.replace("/", ":").rpartition(":")[2]  # the last part is the execution's or the job's name
    may_be_run = is_run_id(name) and not is_job_arn
    with translate_call_errors(target):
        job_names = list_own_names(name, target) if may_be_run else []
        if not job_names and may_be_run:
            run = _attach_sharded(name, target, on_message) or _attach_orchestrated(
                name, target, on_message, job_names
            )
            if run is not None:
                return run
        # Without a run of this name, it may be the name of a single job.
        newest_job = job_names[-1] if job_names else name
        try:
            newest_description = call_with_retries(partial(target.control_plane.describe_job, newest_job))
        except CallError as error:
            if error.code not in ("ValidationException", "ResourceNotFound"):
                raise
            raise _make_unknown_run_error(name_or_arn, name, target) from error
        parsed_name = parse_job_name(newest_job)
        run_name = parsed_name.run if parsed_name else name
        # Raises FormatError for a run of another release, which this one cannot read.
        check_format(newest_description, run_name, target.control_plane)
        # The accounts that own the run's buckets, as the job's request states them.
        target.bucket_owners.add_from_environment(newest_description.get("Environment", {}))
        name_at_orchestrator = orchestrated_run_name(newest_description)
        if name_at_orchestrator is not None:  # an orchestrator has created the job
            run = _attach_orchestrated(name_at_orchestrator, target, on_message, job_names or None)
            if run is not None:
                return run
        jobs = JobList(run_name, target, job_names or [name])
        find_driver = partial(_find_driver, jobs, target, on_message, newest_description)
        return Run(run_name, target, jobs, find_driver, attached=True)


def _find_driver(
    jobs: JobList, target: Target, on_message: MessageCallback, newest_description: Mapping[str, Any]
) -> RunDriver:
    """Return the chain driver, which submits the run's further jobs, or the driver of a run of a single job.
    A chain has a workflow file in its folder in S3."""
    # None: smlaunch did not make the job.
    run_folder = RunFolder.from_description(jobs.run, newest_description)
    if parse_job_name(jobs.names[-1]) is None or run_folder is None:
        return SingleJobDriver(jobs, target)
    workflow = run_folder.load_workflow(target.storage)
    if workflow is None:
        # A job of a chain ends itself at a planned time: only a run of one job has no workflow.
        if STOP_AFTER_VARIABLE in newest_description.get("Environment", {}):
            raise JobError([Problem("", run_folder.missing_workflow_message(jobs.run))])
        return SingleJobDriver(jobs, target)
    if workflow.run != jobs.run:
        message = run_folder.foreign_workflow_message(workflow.run)
        raise JobError([Problem("", message)])
    return ChainDriver(workflow, run_folder, target, jobs=jobs, on_message=on_message)


def _attach_orchestrated(
    run_name: str, target: Target, on_message: MessageCallback, job_names: Sequence[str] | None
) -> Run | None:
    """Return the run of this name whose jobs an orchestrator (such as Step Functions) creates; None where it
    has no job.

    ``job_names`` are its jobs with names of the form that smlaunch gives, where they have been listed
    already. Raises JobError for the name of an orchestrator's execution that several runs belong to.
    """
    finder = ExecutionJobs(run_name, target, job_names)
    jobs = JobList(run_name, target, job_names or (), finder)
    if job_names:
        jobs.describe()
    else:
        jobs.find()
    if not jobs.names:
        finder.raise_if_other_runs()
        return None
    if not job_names:  # a caller that has listed the jobs has checked it
        # Raises FormatError for a run of another release, which this one cannot read.
        check_format(jobs.descriptions[-1], run_name, target.control_plane)
    driver = OrchestratorDriver(jobs, target, on_message)
    return Run(run_name, target, jobs, lambda: driver, attached=True)


def _attach_sharded(run_name: str, target: Target, on_message: MessageCallback) -> Run | None:
    """Return the sharded run of this name, found by its jobs and its folder in S3; None where there is none.

    Each shard is a run of its own on a part of the data, with the name ``<run_name>-p<number>``.
    """
    job_names = sorted(
        parsed_name
        for summary in target.control_plane.list_jobs(f"{run_name}-p")
        if (parsed_name := parse_job_name(summary.name)) is not None
        and parse_shard_number(run_name, parsed_name.run) is not None
    )
    if not job_names:
        return None
    first_job = job_names[0]
    description = call_with_retries(partial(target.control_plane.describe_job, str(first_job)))
    check_format(description, run_name, target.control_plane)  # raises for another release's run
    if orchestrated_run_name(description) is not None:  # an orchestrator creates the jobs
        return _attach_orchestrated_shards(run_name, target, on_message)
    # An ordinary run may end in -p1 too. The folder of the sharded run lists its shards, also those that
    # have no job yet.
    first_shard_folder = RunFolder.from_description(first_job.run, description)
    if first_shard_folder is None:
        return None
    folder_of_whole_run = first_shard_folder.folder_of_other_run(first_job.run, run_name)
    shard_run_names = folder_of_whole_run.load_shard_runs(target.storage)
    if shard_run_names is None:
        return None
    run_by_number: dict[int, Run] = {}
    for shard_run_name in shard_run_names:
        shard_number = parse_shard_number(run_name, shard_run_name) or 0
        shard_folder = first_shard_folder.folder_of_other_run(first_job.run, shard_run_name)
        # None: no workflow (how its jobs follow each other) was saved in the shard's folder.
        workflow = shard_folder.load_workflow(target.storage)
        if workflow is not None:
            names = [str(job_name) for job_name in job_names if job_name.run == shard_run_name]
            driver = ChainDriver(
                workflow,
                shard_folder,
                target,
                jobs=JobList(shard_run_name, target, names),
                on_message=prefix_messages(shard_number, on_message),  # puts p3 before each message
                waits_for_quota=True,
            )
            run_by_number[shard_number] = run_of_chain(driver, target, attached=True)
    return run_of_shards(run_name, target, run_by_number, attached=True)


def _attach_orchestrated_shards(run_name: str, target: Target, on_message: MessageCallback) -> Run:
    """Return a sharded run that an orchestrator drives, found by its jobs."""

    def attach_shard(shard_number: int, names: Sequence[str]) -> Run | None:
        report_for_shard = prefix_messages(shard_number, on_message)
        return _attach_orchestrated(f"{run_name}-p{shard_number}", target, report_for_shard, names)

    shards = ShardGroup(run_name, target, {}, attach_shard)
    shards.find()
    driver = ParentExecutionDriver(shards, target, on_message)
    return Run(run_name, target, shards, lambda: driver, attached=True)


def _make_unknown_run_error(name_or_arn: str, unknown_name: str, target: Target) -> JobError:
    """Return the error for a name that no run has. It suggests a similar name, or states what the execution
    of an orchestrator (such as Step Functions) does whose ARN the user gave.

    ``name_or_arn`` is what the user gave: ``unknown_name`` itself, or an ARN that ends in it.
    """
    execution = target.orchestrators.describe_execution(name_or_arn)
    if execution is not None:  # it is an execution's ARN, and the execution has no job of ours
        if execution.has_ended:
            message = f": {execution.message}" if execution.message else ""
            state = f"has ended without a job{message}"
        else:
            state = "has made no job yet; look again in a moment"
        return JobError([Problem("", f"{describe_driver(name_or_arn)} {state}")])
    run_names: set[str] = set()
    for summary in islice(_list_jobs(target), _MAX_JOBS_FOR_SUGGESTION):
        parsed_name = parse_any_job_name(summary.name)
        run_names.add(parsed_name.run if parsed_name else summary.name)
    similar_name = nearest_match(unknown_name, run_names)
    hint = f", did you mean {similar_name!r}?" if similar_name else ""
    hint = hint or f"; `smlaunch ls{target.cli_flag}` shows the runs there"
    return JobError([Problem("", f"there is no run {unknown_name!r} on {target.location}{hint}")])


def _list_jobs(target: Target) -> Iterator[JobSummary]:
    try:
        yield from target.control_plane.list_jobs()
    except CallError:
        return  # only a suggestion depends on it
