"""Make a plan: take each decision once, in order, with its reason; then check the resulting request."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from smlaunch.api.request import CREATE_PROCESSING_JOB, CREATE_TRAINING_JOB, name_member, operation_of
from smlaunch.api.validation import check_request
from smlaunch.contract.names import MAX_RUN_ID_LENGTH, is_run_id
from smlaunch.contract.segment import STOP_AFTER_VARIABLE
from smlaunch.errors import JobError, Problem
from smlaunch.job.model import Job, Workload, format_duration
from smlaunch.planner import segments
from smlaunch.planner.built_in_hint import suggest_built_in
from smlaunch.planner.checkpoint_upload import plan_checkpoints
from smlaunch.planner.cost import plan_cost
from smlaunch.planner.diagnostics import Diagnostics
from smlaunch.planner.facts import Facts
from smlaunch.planner.input_advice import advise_reading
from smlaunch.planner.input_channels import RunLayout, plan_inputs
from smlaunch.planner.job_hash import job_hash
from smlaunch.planner.launch_choices import choose_strategy
from smlaunch.planner.plan import Candidate, InputSharding, Plan, PlannedJob, PlannedSegment
from smlaunch.planner.processing_advice import advise_processing
from smlaunch.planner.quotas import report_quotas
from smlaunch.planner.refusals import PlanContext, find_problems, paths_overlap
from smlaunch.planner.request_compiler import CompiledSegment, RequestCompiler
from smlaunch.planner.request_fields import dotted_path, job_field, walk_members
from smlaunch.planner.resume_advice import check_resumability
from smlaunch.planner.scaling import advise_scaling
from smlaunch.planner.script_advice import advise_script, warn_of_idle_accelerators
from smlaunch.planner.shard_plans import plan_shard_runs
from smlaunch.planner.sharding import JOBS, LISTS, apply_sharding, plan_sharding
from smlaunch.planner.workflow import RunPolicy, Workflow, request_for, variant_for
from smlaunch.strategies import load_strategy

CHAIN_OPERATION = CREATE_TRAINING_JOB
"""API operation of every job of a chain."""

TOOLKIT_PREFIX = "sagemaker_"

DEFAULT_CHAIN_ATTEMPTS = 3
"""Attempts per segment of a chain; a single job has one."""

_ROLE_ARN = re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/")

_SERVICE_DECIDES = {("compute.instance_type", "enum"), ("compute.instance_preferences", "enum")}
"""Violations that are only warnings: the service knows new instance types before any client's tables."""


def make_plan(job: Job, facts: Facts, run_id: str) -> Plan:
    """Plan a run. Pure: equal arguments give equal plans.

    Raises JobError with all problems of the job.
    """
    diagnostics = Diagnostics()
    for note in facts.source.warnings:
        diagnostics.add_warning(note)
    for name, input_facts in facts.inputs.items():
        for note in input_facts.warnings:
            diagnostics.add_warning(f"inputs.{name}: {note}")
    settled_job, candidates = _choose_machines(job, facts, diagnostics)
    sharding_by_channel = plan_sharding(settled_job, facts, diagnostics)
    job_digest = job_hash(job, facts)
    if any(sharding.split_via == JOBS for sharding in sharding_by_channel.values()):
        plan = plan_shard_runs(
            settled_job, facts, run_id, sharding_by_channel, diagnostics, plan_single_run, job_digest
        )
    else:
        plan = plan_single_run(settled_job, facts, run_id, sharding_by_channel, diagnostics, job_digest)
    return replace(plan, job=job, candidates=candidates) if candidates else plan


def _choose_machines(job: Job, facts: Facts, diagnostics: Diagnostics) -> tuple[Job, tuple[Candidate, ...]]:
    """The job with machines for its workload and the compared candidates; unchanged without a workload."""
    strategy = load_strategy(choose_strategy(job, facts, Diagnostics()))
    if job.workload == Workload() and not strategy.sized_by_data:
        return job, ()
    # Imported late: most jobs name their machines, and the import would slow down every command that plans.
    from smlaunch.planner.compute_choice import choose_compute

    settled_job, candidates = choose_compute(job, strategy, facts, diagnostics)
    diagnostics.filled_fields |= _stated_fields(settled_job.to_mapping()) - _stated_fields(job.to_mapping())
    return settled_job, candidates


def check_partial_job(job: Job, facts: Facts, unknown_fields: Sequence[str]) -> list[Problem]:
    """Other problems of a job whose ``unknown_fields`` could not be read. Reports only what holds for any
    value of them; nothing that follows from a default in their place."""
    diagnostics = Diagnostics()
    _check_facts(job, facts, job.name or "unnamed", diagnostics)
    if "entry" in unknown_fields:
        unknown_fields = [*unknown_fields, "source", "requirements"]  # which are about the script's folder
    strategy = None
    if job.strategy is not None or not any(
        paths_overlap(field, decisive_field)
        for field in unknown_fields
        for decisive_field in _STRATEGY_INPUTS
    ):
        strategy = load_strategy(choose_strategy(job, facts, Diagnostics()))
    unread_fields = [*unknown_fields, *(() if strategy is not None else ("strategy",))]
    for problem in find_problems(PlanContext(job, facts, strategy), unread_fields):
        diagnostics.add_problem(problem.path, problem.message)
    return [
        problem
        for problem in diagnostics.problems
        if not any(paths_overlap(problem.path, field) for field in unknown_fields)
    ]


_STRATEGY_INPUTS = ("strategy", "entry", "algorithm", "image", "workload", "compute", "inputs")
"""If one of these is unknown, the strategy cannot be chosen."""


def plan_single_run(
    job: Job,
    facts: Facts,
    run_id: str,
    sharding_by_channel: Mapping[str, InputSharding],
    diagnostics: Diagnostics,
    job_digest: str,
    shard_index: int | None = None,
) -> Plan:
    """Return the plan of a run of one job or of a chain of segments. Raises JobError with all problems.

    ``sharding_by_channel``: how the files of inputs with ``split: bytes`` are distributed. ``job_digest``:
    hash of job and source, by which a run is recognized. ``shard_index``: from 0, if the run processes one
    shard of several.
    """
    stated_job, stated_facts = job, facts
    job, facts = apply_sharding(job, facts, sharding_by_channel)
    _check_facts(job, facts, run_id, diagnostics)
    strategy = load_strategy(choose_strategy(job, facts, diagnostics))
    if strategy.operation == CREATE_PROCESSING_JOB:
        advise_processing(stated_job, facts.script, strategy.joins_hosts, diagnostics)
    total_seconds = segments.total_training_seconds(job, diagnostics)
    job_limit_seconds = segments.max_job_seconds(job, facts, total_seconds, diagnostics)
    can_be_chain = strategy.operation == CREATE_TRAINING_JOB and job.entry is not None
    is_chain = can_be_chain and segments.needs_chain(job, total_seconds, job_limit_seconds)
    if is_chain:
        segment_shapes = segments.chain_shapes(job, facts, total_seconds, job_limit_seconds, diagnostics)
        if len(segment_shapes) > 1 or total_seconds > segment_shapes[0].max_seconds:
            field, reason = _cause_of_chain(job, job_limit_seconds)
            check_resumability(job, facts, strategy, field, reason, diagnostics)
    else:
        segment_shapes = segments.single_shape(job, total_seconds)
    context = PlanContext(stated_job, stated_facts, strategy)
    for problem in find_problems(context):
        diagnostics.add_problem(problem.path, problem.message)
    report_quotas(context, diagnostics)
    _check_hyperparameter_names(job, diagnostics)

    layout = RunLayout(facts.bucket, run_id)
    checkpoint_spec = plan_checkpoints(job, facts, layout, is_chain, segment_shapes[0], diagnostics)
    channels, uploads = plan_inputs(job, facts, layout, diagnostics, sharding_by_channel, shard_index)
    _check_hosts(segment_shapes, sharding_by_channel, diagnostics)
    compiler = RequestCompiler(
        run_id, job_digest, strategy, facts, layout, checkpoint_spec, tuple(channels), diagnostics
    )
    compiled_segments = [compiler.compile(shape) for shape in segment_shapes]
    for previous, following in pairwise(compiled_segments):
        _warn_of_difference(previous, following, diagnostics)
    first_segment = compiled_segments[0]
    advise_reading(
        job, facts, first_segment.instance_type, diagnostics, strategy.operation == CREATE_PROCESSING_JOB
    )
    ranks = (
        first_segment.processes_per_host * job.compute.hosts
        if isinstance(first_segment.processes_per_host, int)
        else None
    )
    advise_script(facts, strategy, ranks, diagnostics)
    warn_of_idle_accelerators(job, facts, strategy, first_segment.instance_type, diagnostics)
    suggest_built_in(job, facts.script, diagnostics)
    if strategy.joins_hosts and strategy.operation == CREATE_TRAINING_JOB:
        advise_scaling(job, ranks, diagnostics)
    workflow = Workflow(
        run=run_id,
        job_hash=job_digest,
        variants=tuple(compiled.variant for compiled in compiled_segments),
        policy=RunPolicy(
            chain=is_chain,
            attempts=job.limits.attempts or (DEFAULT_CHAIN_ATTEMPTS if is_chain else 1),
            total_seconds=total_seconds if is_chain else None,
            max_cost=job.limits.max_cost if is_chain else None,
            on_demand_fallback=job.compute.on_demand_fallback,
            keep=segments.checkpoints_to_keep(job),
        ),
        checkpoints=None if checkpoint_spec is None else checkpoint_spec.uri,
    )
    planned_segments, planned_jobs, wall_seconds = _first_attempts(
        workflow, compiled_segments, total_seconds, diagnostics
    )
    min_seconds = max(
        first_segment.variant.min_seconds, segments.SegmentCosts.for_job(job, facts).start_seconds
    )
    cost = plan_cost(
        job,
        [compiled.rate for compiled in compiled_segments],
        total_seconds,
        is_chain,
        min_seconds,
        diagnostics,
    )
    expected_schedule = (
        segments.expected_schedule(job, facts, wall_seconds, segment_shapes[0], total_seconds, diagnostics)
        if is_chain
        else None
    )
    for compiled in compiled_segments:
        _check_request(compiled.variant.request, diagnostics)
        _report_endpoint_limits(job, compiled.variant.request, facts, diagnostics)
    if diagnostics.problems:
        raise JobError(diagnostics.problems)
    return Plan(
        run=run_id,
        job=stated_job,
        job_hash=job_digest,
        facts=stated_facts,
        strategy=strategy.name,
        hosts=first_segment.shape.job.compute.hosts,
        processes_per_host=first_segment.processes_per_host,
        instance_type=first_segment.instance_type,
        image=first_segment.image,
        reasons=tuple(diagnostics.reasons),
        warnings=tuple(diagnostics.warnings),
        planned_jobs=tuple(planned_jobs),
        uploads=(*compiler.uploads, *uploads),
        segments=tuple(planned_segments),
        cost=cost,
        workflow=workflow,
        checkpoints=checkpoint_spec,
        schedule=expected_schedule,
        input_shardings=tuple(sharding_by_channel.values()),
    )


def _cause_of_chain(job: Job, limit_seconds: int) -> tuple[str, str]:
    """The field that makes the run take several jobs, and the beginning of a sentence about it."""
    if job.limits.segment is not None:
        return "limits.segment", f"the run takes several jobs of {job.limits.segment}"
    if job.segments:
        return "segments", "the run takes several jobs"
    limit_text = format_duration(limit_seconds)
    return (
        "limits.max_runtime",
        f"{job.limits.max_runtime} is longer than the {limit_text} a training job may run",
    )


def _first_attempts(
    workflow: Workflow,
    compiled_segments: Sequence[CompiledSegment],
    total_seconds: int,
    diagnostics: Diagnostics,
) -> tuple[list[PlannedSegment], list[PlannedJob], list[int]]:
    """Return the planned segments, the first job of each, and their durations in seconds.

    The requests are those that the driver sends if no job fails and every segment uses its whole time.
    """
    planned_segments: list[PlannedSegment] = []
    planned_jobs: list[PlannedJob] = []
    wall_seconds: list[int] = []
    remaining_seconds = total_seconds
    while len(planned_segments) < segments.MAX_SEGMENTS:
        number = len(planned_segments) + 1
        variant = variant_for(workflow, number)
        if planned_segments and remaining_seconds < min(variant.min_seconds, variant.max_runtime):
            break
        segment = next(segment for segment in compiled_segments if segment.variant is variant)
        request = request_for(workflow, number, 1, seconds_left=remaining_seconds)
        seconds = request["StoppingCondition"]["MaxRuntimeInSeconds"]
        stop_after = request.get("Environment", {}).get(STOP_AFTER_VARIABLE)
        compute = segment.shape.job.compute
        planned_segments.append(
            PlannedSegment(
                number,
                seconds,
                None if stop_after is None else int(stop_after),
                compute.hosts,
                segment.instance_type,
                segment.shape.until_step,
            )
        )
        planned_jobs.append(
            PlannedJob(request[name_member(request)], number, 1, operation_of(request), request, segment.spec)
        )
        wall_seconds.append(min(segment.shape.wall_seconds, remaining_seconds))
        remaining_seconds -= wall_seconds[-1]
        if not workflow.is_chain:
            break
    else:
        message = f"{format_duration(total_seconds)} would take more than {segments.MAX_SEGMENTS} segments"
        if compiled_segments[0].shape.job.limits.max_runtime is not None:
            diagnostics.add_problem("limits.segment", f"{message}; make them longer")
        else:
            diagnostics.add_warning(f"{message}, which is as many as are planned; state limits.max_runtime.")
    for segment in compiled_segments[len(planned_segments) :]:
        diagnostics.add_warning(
            f"segments[{segment.shape.first_segment - 1}] never starts unless an earlier one ends early: "
            f"{format_duration(total_seconds)} in all are used before."
        )
    return planned_segments, planned_jobs, wall_seconds


def _warn_of_difference(
    previous: CompiledSegment, following: CompiledSegment, diagnostics: Diagnostics
) -> None:
    """Add a warning if two successive segments differ: the run is then not equivalent to one long job."""
    differences = []
    for name, old_value, new_value in (
        ("hosts", previous.shape.job.compute.hosts, following.shape.job.compute.hosts),
        ("ranks per host", previous.processes_per_host, following.processes_per_host),
        ("instance type", previous.instance_type, following.instance_type),
    ):
        if old_value != new_value:
            differences.append(f"{name} {old_value} -> {new_value}")
    old_values, new_values = previous.shape.job.hyperparameters, following.shape.job.hyperparameters
    hyperparameter_names = [
        *old_values,
        *(hyperparameter for hyperparameter in new_values if hyperparameter not in old_values),
    ]
    differences += [
        f"{hyperparameter} {old_values.get(hyperparameter)} -> {new_values.get(hyperparameter)}"
        for hyperparameter in hyperparameter_names
        if old_values.get(hyperparameter) != new_values.get(hyperparameter)
    ]
    if differences:
        until_step = previous.shape.until_step
        subject = (
            f"Segment {following.shape.first_segment}"
            if until_step is None
            else f"What follows on step {until_step}"
        )
        diagnostics.add_warning(
            f"{subject} differs ({', '.join(differences)}): from there on the run is not bit-identical with "
            "an unchanged one."
        )


def _check_facts(job: Job, facts: Facts, run_id: str, diagnostics: Diagnostics) -> None:
    """Add a problem for each wrong name, script, source or role."""
    script, source = facts.script, facts.source
    if not is_run_id(run_id):
        diagnostics.add_problem(
            "name",
            f"{run_id!r} cannot name a run: lower-case letters, digits and single dashes between them, "
            f"{MAX_RUN_ID_LENGTH} characters at most",
        )
    if job.entry is None:
        _check_without_script(job, diagnostics)
    elif script.problem is not None:
        diagnostics.add_problem("entry", script.problem)
    elif not script.exists:
        diagnostics.add_problem("entry", f"{job.entry} does not exist; check the path")
    if source.problem is not None:
        diagnostics.add_problem("source", source.problem)
    if job.entry is not None and job.requirements is not None and not source.has_requirements:
        exclusion = source.excluded_files.get(job.requirements)
        message = (
            f"{job.requirements} {exclusion}"
            if exclusion
            else f"{job.requirements!r} is not in {source.root}; it is "
        )
        diagnostics.add_problem("requirements", message if exclusion else f"{message}relative to the source")
    if facts.role is None:
        diagnostics.add_problem("role", facts.role_problem or "no execution role was found; give its ARN")
    elif not _ROLE_ARN.match(facts.role):
        diagnostics.add_problem(
            "role",
            f"{facts.role!r} is not a role's ARN; it looks like arn:aws:iam::123456789012:role/NAME",
        )


def _check_without_script(job: Job, diagnostics: Diagnostics) -> None:
    """Report fields that need smlaunch's runtime, which is not added to an image with its own program."""
    stated_by_field = {
        "source": job.source is not None,
        "requirements": job.requirements is not None,
        "launcher": job.launcher != "runtime",
        "deterministic": job.deterministic,
        "limits.hang": job.limits.hang is not None,
        "compute.processes_per_host": job.compute.processes_per_host not in (None, 1),
    }
    for field, is_stated in stated_by_field.items():
        if is_stated:
            diagnostics.add_problem(
                field, f"it applies to scripts, and {job.program} contains its own program; leave it out"
            )
    if job.algorithm is not None and job.args:
        diagnostics.add_problem("args", "a built-in algorithm takes hyperparameters; use those")


def _check_hosts(
    segment_shapes: Sequence[segments.SegmentShape],
    sharding_by_channel: Mapping[str, InputSharding],
    diagnostics: Diagnostics,
) -> None:
    """Report file lists with a varying number of hosts."""
    host_numbers = {shape.job.compute.hosts for shape in segment_shapes}
    if len(host_numbers) > 1 and any(
        sharding.split_via == LISTS for sharding in sharding_by_channel.values()
    ):
        numbers_text = ", ".join(map(str, sorted(host_numbers)))
        diagnostics.add_problem(
            "segments", f"file lists are made for one number of hosts, not for {numbers_text}"
        )


def _check_hyperparameter_names(job: Job, diagnostics: Diagnostics) -> None:
    """Warn of hyperparameters with the toolkit's prefix."""
    for key in job.hyperparameters:
        if key.startswith(TOOLKIT_PREFIX):
            diagnostics.add_warning(
                f"hyperparameters.{key}: names that begin with {TOOLKIT_PREFIX} are for AWS's toolkit; the "
                "script gets them in SM_FRAMEWORK_PARAMS, not as arguments."
            )


def _image_in_request(request: Mapping[str, Any]) -> Any:
    if operation_of(request) == CREATE_PROCESSING_JOB:
        return request["AppSpecification"]["ImageUri"]
    return request["AlgorithmSpecification"]["TrainingImage"]


def _check_request(request: Mapping[str, Any], diagnostics: Diagnostics) -> None:
    """Report what the service would reject: once per field, and not if the field already has a problem."""
    reported_fields = {problem.path for problem in diagnostics.problems}
    if not _image_in_request(request):
        # No image could be chosen; the field at fault (framework_version, or the type) is already reported.
        reported_fields.add("image")
    for violation in check_request(operation_of(request), request):
        field = job_field(violation.path, request)
        if field in reported_fields or (field, violation.rule) in _SERVICE_DECIDES:
            continue
        if field == "compute.spot" and "compute.instance_preferences" in reported_fields:
            continue  # the two exclude each other; that is reported for the other field
        diagnostics.add_problem(field, violation.problem().message)
        reported_fields.add(field)


def _report_endpoint_limits(
    job: Job, request: Mapping[str, Any], facts: Facts, diagnostics: Diagnostics
) -> None:
    """Report request members that the endpoint records without effect or rejects: a warning if the job
    states the field, otherwise a reason."""
    endpoint = facts.endpoint
    for warning in endpoint.warnings:
        diagnostics.add_warning(warning)
    stated_fields = _stated_fields(job.to_mapping()) - diagnostics.filled_fields
    fields_by_member = _fields_by_member(request)
    for member, sentence in endpoint.rejected_members.items():
        for field in fields_by_member.get(member, ()):
            diagnostics.add_problem(field, sentence)
    for member, sentence in endpoint.recorded_members.items():
        requested_fields = [field for field in fields_by_member.get(member, ()) if field in stated_fields]
        for field in requested_fields:
            diagnostics.add_warning(f"{field}: {sentence}")
        if member in fields_by_member and not requested_fields:
            diagnostics.add_reason(
                f"endpoint.{member}", sentence[:1].upper() + sentence[1:].rstrip(".") + "."
            )


def _fields_by_member(request: Mapping[str, Any]) -> dict[str, list[str]]:
    """The job's fields behind each request member, and behind each member with its value."""
    fields: dict[str, list[str]] = {}
    for path, value in walk_members(request):
        member_path = dotted_path(tuple(name for name in path if isinstance(name, str)))
        member_keys = (
            [member_path] if isinstance(value, (dict, list)) else [member_path, f"{member_path}={value}"]
        )
        for key in member_keys:
            member_fields = fields.setdefault(key, [])
            job_field_name = job_field(path, request)
            if job_field_name not in member_fields:
                member_fields.append(job_field_name)
    return fields


def _stated_fields(mapping: Mapping[str, Any], prefix: str = "") -> set[str]:
    """Dotted paths of all fields of the job that are stated."""
    field_names: set[str] = set()
    for key, value in mapping.items():
        field_names.add(prefix + key)
        if isinstance(value, Mapping):
            field_names |= _stated_fields(value, f"{prefix}{key}.")
    return field_names
