"""Make a plan: take each decision once, in order, with its reason; then check the resulting request."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from smlaunch.api.job_kinds import TRAINING, job_kind_of, job_name_of
from smlaunch.chain.workflow import RunPolicy, Workflow, build_job_request, variant_of_segment
from smlaunch.contract.run_names import MAX_RUN_ID_LENGTH, is_run_id
from smlaunch.contract.segment import STOP_AFTER_VARIABLE
from smlaunch.errors import JobError, Problem
from smlaunch.facts.discovered_facts import DiscoveredFacts
from smlaunch.facts.requirements_choice import NO_REQUIREMENTS
from smlaunch.job.model import Job, Workload, format_duration
from smlaunch.planner import segments
from smlaunch.planner.checkpoint_upload import plan_checkpoints
from smlaunch.planner.file_sharding import VIA_JOBS, VIA_LISTS, apply_sharding, plan_sharding
from smlaunch.planner.input_channels import RunS3Layout, advise_input_modes, plan_inputs
from smlaunch.planner.launch_choices import advise_scaling, choose_strategy
from smlaunch.planner.plan import (
    Candidate,
    Cost,
    InputSharding,
    PlannedJob,
    PlannedSegment,
    RunPlan,
    Schedule,
    job_hashes,
)
from smlaunch.planner.plan_context import Diagnostics, JobContext, PlanContext, unknown_quota_text
from smlaunch.planner.request_compiler import CompiledSegment, RequestCompiler, warn_of_differing_segments
from smlaunch.planner.request_problems import (
    check_compiled_request,
    field_paths_of,
    report_endpoint_limits,
)
from smlaunch.planner.rules import apply_rule, apply_rules, rules_of
from smlaunch.planner.rules.rule import paths_overlap
from smlaunch.planner.run_cost import PlannedJobCount, plan_cost
from smlaunch.planner.script_advice import (
    advise_script,
    check_resumability,
    suggest_built_in,
    warn_of_idle_accelerators,
)
from smlaunch.planner.shard_plans import plan_shard_runs
from smlaunch.strategies.base import Strategy

CHAIN_OPERATION = TRAINING.create_operation
"""API operation of every job of a chain."""

DEFAULT_CHAIN_ATTEMPTS = 3
"""Attempts per segment of a chain; a single job has one."""

_ROLE_ARN = re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/")


def make_plan(job: Job, facts: DiscoveredFacts, run_id: str) -> RunPlan:
    """Plan a run: choose machines and decide how its data is distributed, then plan one run, or one for each
    shard of the data. Pure: equal arguments give equal plans. Raises JobError with all problems of the job.

    ``facts``: what discovery found about script, data and account.
    """
    diagnostics = Diagnostics()
    for warning in facts.source.warnings:
        diagnostics.add_warning(warning)
    for name, input_facts in facts.inputs.items():
        for warning in input_facts.warnings:
            diagnostics.add_warning(f"inputs.{name}: {warning}")
    strategy = choose_strategy(JobContext(job, facts), diagnostics)
    # The candidates are the machines that were compared; none if the job names its machines.
    job_with_machines, candidates = _choose_machines(job, strategy, facts, diagnostics)
    sharding_by_channel = plan_sharding(job_with_machines, facts, diagnostics)
    hashes = job_hashes(job, facts)
    plan_run = partial(
        plan_single_run,
        facts=facts,
        strategy=strategy,
        sharding_by_channel=sharding_by_channel,
        job_digest=hashes.complete,
        digest_without_max_runtime=hashes.without_max_runtime,
    )
    # VIA_JOBS: each shard is processed by a run of its own, with one host.
    has_run_for_each_shard = any(sharding.split_via == VIA_JOBS for sharding in sharding_by_channel.values())
    if has_run_for_each_shard:
        # plan_run is passed as a function: the called module cannot import this one.
        plan = plan_shard_runs(job_with_machines, run_id, sharding_by_channel, diagnostics, plan_run)
    else:
        plan = plan_run(job=job_with_machines, run_id=run_id, diagnostics=diagnostics)
    if not candidates:
        return plan
    # The plan shows the job as the user stated it, without the machines filled in.
    return replace(plan, job=job, candidates=candidates)


def _choose_machines(
    job: Job, strategy: Strategy, facts: DiscoveredFacts, diagnostics: Diagnostics
) -> tuple[Job, tuple[Candidate, ...]]:
    """The job with machines for its workload and the compared candidates; unchanged without a workload."""
    if job.workload == Workload() and not strategy.sized_by_data:
        return job, ()
    # Imported late: most jobs name their machines, and the import would slow down every command that plans.
    from smlaunch.planner.compute_choice import choose_compute

    job_with_machines, candidates = choose_compute(job, strategy, facts, diagnostics)
    diagnostics.fields_chosen_by_plan |= field_paths_of(job_with_machines.to_mapping()) - field_paths_of(
        job.to_mapping()
    )
    return job_with_machines, candidates


def check_partial_job(job: Job, facts: DiscoveredFacts, unknown_fields: Sequence[str]) -> list[Problem]:
    """Return the problems of a job of which some fields could not be read from its file, besides those
    fields: only problems that exist whatever the fields' values are, and none that follow from their
    defaults.

    ``unknown_fields``: dotted paths of the fields, such as ``compute.hosts``.
    """
    diagnostics = Diagnostics()
    _check_stated_resources(job, facts, job.name or "unnamed", diagnostics)
    if "entry" in unknown_fields:
        # Both are about the script's folder.
        unknown_fields = [*unknown_fields, "source", "requirements"]
    # The strategy is known if no unknown field could change its choice.
    is_strategy_known = job.strategy is not None or not any(
        rule.reads_any(unknown_fields) for rule in rules_of("choose strategy")
    )
    undecided_fields = [*unknown_fields] if is_strategy_known else [*unknown_fields, "strategy"]
    strategy = choose_strategy(JobContext(job, facts), Diagnostics())
    # Rules that depend on an undecided field are not applied.
    apply_rules("validate", PlanContext(job, facts, strategy), diagnostics, undecided_fields)

    def is_about_unknown_field(problem: Problem) -> bool:
        return any(paths_overlap(problem.path, field) for field in unknown_fields)

    return [problem for problem in diagnostics.problems if not is_about_unknown_field(problem)]


def plan_single_run(
    job: Job,
    facts: DiscoveredFacts,
    strategy: Strategy,
    run_id: str,
    sharding_by_channel: Mapping[str, InputSharding],
    diagnostics: Diagnostics,
    job_digest: str,
    digest_without_max_runtime: str,
    shard_index: int | None = None,
    shard_count: int = 1,
) -> RunPlan:
    """Return the plan of a run of one job, or of several segments (jobs in a row). Raises JobError with all
    problems.

    ``facts``: what discovery found about script, data and account. ``sharding_by_channel``: how the files of
    inputs with ``split: bytes`` are distributed. ``job_digest``: hash of job and source, by which a run is
    recognized. ``shard_index``: from 0, if the run processes one shard of several; ``shard_count``: the runs
    that share the job's cost cap.
    """
    stated_job, stated_facts = job, facts
    # From here on job and facts are those that one host sees: with its share of the data.
    job, facts = apply_sharding(stated_job, stated_facts, sharding_by_channel)
    _check_stated_resources(job, facts, run_id, diagnostics)
    total_seconds = segments.total_training_seconds(job, diagnostics)
    # A template for each kind of segment: the job with the changes that it states from some segment on.
    templates, is_multi_segment = _divide_into_segments(job, facts, strategy, total_seconds, diagnostics)
    context = PlanContext(stated_job, stated_facts, strategy, run_id=run_id, is_chain=is_multi_segment)
    apply_rules("validate", context, diagnostics)
    apply_rules("advise", context, diagnostics)

    layout = RunS3Layout(facts.bucket, run_id, facts.bucket_prefix)
    checkpoint_spec = plan_checkpoints(job, facts, layout, is_multi_segment, templates[0], diagnostics)
    attempts = job.limits.attempts or 1
    can_have_checkpoints = strategy.job_kind.has_checkpoints and job.entry is not None
    if attempts > 1 and can_have_checkpoints and checkpoint_spec is None and shard_index is None:
        diagnostics.add_warning(
            f"limits.attempts: each of {attempts} attempts starts from the beginning, because the job has no "
            "checkpoints; `checkpoints: {}` gives the run a prefix for them."
        )
    channels, uploads = plan_inputs(job, facts, layout, diagnostics, sharding_by_channel, shard_index)
    _check_file_lists_fit_hosts(templates, sharding_by_channel, diagnostics)
    # It builds the requests, and collects the uploads that they need.
    compiler = RequestCompiler(
        run_id, job_digest, context, facts, layout, checkpoint_spec, tuple(channels), diagnostics
    )
    compiled_segments = [compiler.compile_segment(template) for template in templates]
    warn_of_differing_segments(compiled_segments, diagnostics)
    first_segment = compiled_segments[0]
    _advise_on_script_and_data(job, facts, strategy, first_segment, diagnostics)
    workflow = Workflow(
        run=run_id,
        job_hash=job_digest,
        variants=tuple(compiled.variant for compiled in compiled_segments),
        policy=_run_policy(job, is_multi_segment, total_seconds),
        checkpoints=None if checkpoint_spec is None else checkpoint_spec.uri,
        hash_without_max_runtime=digest_without_max_runtime if is_multi_segment else "",
    )
    forecast = _forecast_run(job, facts, workflow, compiled_segments, total_seconds, shard_count, diagnostics)
    apply_rule("policy.cost", replace(context, cost=forecast.cost, run_count=shard_count), diagnostics)
    for compiled in compiled_segments:
        check_compiled_request(job, compiled.variant.request, diagnostics, compiled.template.first_segment)
        report_endpoint_limits(job, compiled.variant.request, facts, diagnostics)
    if diagnostics.problems:
        raise JobError(diagnostics.problems)
    return RunPlan(
        run=run_id,
        job=stated_job,
        job_hash=job_digest,
        facts=stated_facts,
        strategy=strategy.name,
        hosts=first_segment.template.job.compute.host_count,
        processes_per_host=first_segment.processes_per_host,
        instance_type=first_segment.instance_type,
        image=first_segment.image,
        reasons=tuple(diagnostics.reasons),
        warnings=tuple(diagnostics.warnings),
        planned_jobs=tuple(forecast.planned_jobs),
        uploads=(*compiler.uploads, *uploads),
        segments=tuple(forecast.planned_segments),
        cost=forecast.cost,
        workflow=workflow,
        checkpoints=checkpoint_spec,
        schedule=forecast.schedule,
        input_shardings=tuple(sharding_by_channel.values()),
    )


class _RunForecast(NamedTuple):
    """What a run is expected to take: its jobs, segments and cost; its timing, None for a single job."""

    planned_segments: list[PlannedSegment]
    planned_jobs: list[PlannedJob]
    cost: Cost
    schedule: Schedule | None


def _forecast_run(
    job: Job,
    facts: DiscoveredFacts,
    workflow: Workflow,
    compiled_segments: Sequence[CompiledSegment],
    total_seconds: int,
    run_count: int,
    diagnostics: Diagnostics,
) -> _RunForecast:
    """Return the jobs that the run takes if none fails, with their timing and cost.

    ``compiled_segments``: one per kind of segment. ``total_seconds``: training time of the whole run.
    ``run_count``: equal runs that share the job's cost cap.
    """
    planned_segments, planned_jobs, segment_durations = _plan_first_attempts(
        workflow, compiled_segments, total_seconds, diagnostics
    )
    first_segment = compiled_segments[0]
    start_seconds = segments.SegmentOverheads.for_job(job, facts).start_seconds
    cost = plan_cost(
        job,
        facts,
        [compiled.price_rate for compiled in compiled_segments],
        total_seconds,
        PlannedJobCount(len(planned_segments), workflow.policy.attempts, workflow.is_multi_segment),
        volume_gb=max(compiled.volume_gb for compiled in compiled_segments),
        min_segment_seconds=max(first_segment.variant.min_useful_seconds, start_seconds),
        run_count=run_count,
        diagnostics=diagnostics,
    )
    schedule = None
    if workflow.is_multi_segment:
        schedule = segments.expected_schedule(
            job, facts, segment_durations, first_segment.template, total_seconds, diagnostics
        )
    return _RunForecast(planned_segments, planned_jobs, cost, schedule)


def _divide_into_segments(
    job: Job, facts: DiscoveredFacts, strategy: Strategy, total_seconds: int, diagnostics: Diagnostics
) -> tuple[tuple[segments.SegmentTemplate, ...], bool]:
    """Return a template for each kind of segment of the run, and whether it may take several training jobs.
    Adds a problem if it takes several and the script cannot resume. ``total_seconds``: training time of the
    whole run."""
    # Processing jobs cannot be continued by another job, nor can programs of images and groups of hosts.
    if not strategy.job_kind.has_checkpoints or job.entry is None or job.compute.instance_groups:
        quota_text = unknown_quota_text(facts, total_seconds)
        if quota_text:
            diagnostics.add_warning(f"{quota_text}.")
        return segments.single_job_template(job, total_seconds), False
    job_limit_seconds = segments.max_job_seconds(job, facts, total_seconds, diagnostics)
    if not segments.needs_several_segments(job, total_seconds, job_limit_seconds):
        return segments.single_job_template(job, total_seconds), False
    templates = segments.plan_segment_templates(job, facts, total_seconds, job_limit_seconds, diagnostics)
    if len(templates) > 1 or total_seconds > templates[0].max_seconds:
        field, reason = _cause_of_several_jobs(job, facts, job_limit_seconds)
        check_resumability(job, facts, strategy, field, reason, diagnostics)
    return templates, True


def _advise_on_script_and_data(
    job: Job,
    facts: DiscoveredFacts,
    strategy: Strategy,
    first_segment: CompiledSegment,
    diagnostics: Diagnostics,
) -> None:
    """Add what the user may do better: input modes, the script, its accelerators, a built-in algorithm, the
    learning rate for several ranks."""
    advise_input_modes(job, facts, first_segment.instance_type, strategy.job_kind, diagnostics)
    total_ranks = None
    if isinstance(first_segment.processes_per_host, int):
        total_ranks = first_segment.processes_per_host * job.compute.host_count
    advise_script(facts, strategy, total_ranks, diagnostics)
    warn_of_idle_accelerators(job, facts, strategy, first_segment.instance_type, diagnostics)
    suggest_built_in(job, facts.script, diagnostics)
    if strategy.joins_hosts and strategy.job_kind.trains_model:
        advise_scaling(job, total_ranks, diagnostics)


def _run_policy(job: Job, is_multi_segment: bool, total_seconds: int) -> RunPolicy:
    """Return the bounds of the run: attempts, training time and cost of all its jobs, and how many
    checkpoints are kept. A run of one job is bounded by its own request: its time and cost are None here. A
    chain is a run of several segments (sequential jobs)."""
    # So many jobs in a row without progress end the run: 3 for a chain.
    attempts = job.limits.attempts or (DEFAULT_CHAIN_ATTEMPTS if is_multi_segment else 1)
    may_take_several_jobs = is_multi_segment or attempts > 1 or job.compute.on_demand_fallback
    return RunPolicy(
        chain=is_multi_segment,
        attempts=attempts,
        total_seconds=total_seconds if may_take_several_jobs else None,
        max_cost=job.limits.max_cost if may_take_several_jobs else None,
        on_demand_fallback=job.compute.on_demand_fallback,
        keep=segments.checkpoints_to_keep(job),
    )


def _cause_of_several_jobs(job: Job, facts: DiscoveredFacts, limit_seconds: int) -> tuple[str, str]:
    """The field that makes the run take several jobs, and the beginning of a sentence about it."""
    if job.limits.segment is not None:
        return "limits.segment", f"the run takes several jobs of {job.limits.segment}"
    if job.segments:
        return "segments", "the run takes several jobs"
    limit_text = f"{format_duration(limit_seconds)} a training job may run"
    if unknown_quota_text(facts, limit_seconds + 1):
        limit_text += (
            " by AWS's default quota (the account's is not known; limits.segment states a longer one)"
        )
    return "limits.max_runtime", f"{job.limits.max_runtime} is longer than the {limit_text}"


def _plan_first_attempts(
    workflow: Workflow,
    compiled_segments: Sequence[CompiledSegment],
    total_seconds: int,
    diagnostics: Diagnostics,
) -> tuple[list[PlannedSegment], list[PlannedJob], list[int]]:
    """Return the segments (sequential jobs) that the run takes if no job fails and every segment uses its
    whole time, the first job of each, and their durations in seconds.

    ``compiled_segments``: one per kind of segment. ``total_seconds``: training time of the whole run.
    """
    planned_segments: list[PlannedSegment] = []
    planned_jobs: list[PlannedJob] = []
    segment_durations: list[int] = []
    remaining_seconds = total_seconds
    # MAX_SEGMENTS: 999, by the format of job names.
    max_segments = segments.MAX_SEGMENTS if workflow.is_multi_segment else 1
    for number in range(1, max_segments + 1):
        # The planned request that this segment uses; several segments may share one.
        variant = variant_of_segment(workflow, number)
        # A last segment shorter than this would train next to nothing: the run ends without it.
        min_seconds = min(variant.min_useful_seconds, variant.max_runtime_seconds)
        if number > 1 and remaining_seconds < min_seconds:
            break
        compiled = next(compiled for compiled in compiled_segments if compiled.variant is variant)
        request = build_job_request(workflow, number, attempt=1, seconds_left=remaining_seconds)
        planned_segments.append(_to_planned_segment(number, request, compiled))
        planned_jobs.append(
            PlannedJob(
                name=job_name_of(request),
                segment=number,
                attempt=1,
                operation=job_kind_of(request).create_operation,
                request=request,
                launch_spec=compiled.launch_spec,
            )
        )
        # planned_seconds: from a full segment's start to its planned end.
        segment_durations.append(min(compiled.template.planned_seconds, remaining_seconds))
        remaining_seconds -= segment_durations[-1]
    else:
        # The time is not used up after the last segment that a run may have.
        if workflow.is_multi_segment:
            _report_too_many_segments(compiled_segments[0].template.job, total_seconds, diagnostics)
    for unused in compiled_segments[len(planned_segments) :]:
        diagnostics.add_warning(
            f"segments[{unused.template.first_segment - 1}] never starts unless an earlier one ends early: "
            f"{format_duration(total_seconds)} in all are used before."
        )
    return planned_segments, planned_jobs, segment_durations


def _report_too_many_segments(job: Job, total_seconds: int, diagnostics: Diagnostics) -> None:
    """Report that the run's training time takes more segments than a run may have: a problem if the job
    states that time, otherwise a warning."""
    message = f"{format_duration(total_seconds)} would take more than {segments.MAX_SEGMENTS} segments"
    if job.limits.max_runtime is not None:
        diagnostics.add_problem("limits.segment", f"{message}; make them longer")
    else:
        diagnostics.add_warning(f"{message}, which is as many as are planned; state limits.max_runtime.")


def _to_planned_segment(number: int, request: Mapping[str, Any], compiled: CompiledSegment) -> PlannedSegment:
    """The segment as a row of the plan. ``request``: of its first attempt."""
    stop_after_text = request.get("Environment", {}).get(STOP_AFTER_VARIABLE)
    return PlannedSegment(
        index=number,
        max_runtime=request["StoppingCondition"]["MaxRuntimeInSeconds"],
        stop_after=None if stop_after_text is None else int(stop_after_text),
        hosts=compiled.template.job.compute.host_count,
        instance_type=compiled.instance_type,
        until_step=compiled.template.until_step,
    )


def _check_stated_resources(job: Job, facts: DiscoveredFacts, run_id: str, diagnostics: Diagnostics) -> None:
    """Add a problem for each thing that the job states and that does not exist or cannot be used: the run's
    name, the script, the source folder, the requirements file and the execution role. ``facts``: what
    discovery found about them."""
    script, source = facts.script, facts.source
    if not is_run_id(run_id):
        diagnostics.add_problem(
            "name",
            f"{run_id!r} cannot name a run: lower-case letters, digits and single dashes between them, "
            f"{MAX_RUN_ID_LENGTH} characters at most",
        )
    if job.entry is None:
        _check_fields_for_scripts_only(job, diagnostics)
    elif script.problem is not None:
        diagnostics.add_problem("entry", script.problem)
    elif not script.exists:
        diagnostics.add_problem("entry", f"{job.program} does not exist; check the path")
    if source.problem is not None:
        diagnostics.add_problem("source", source.problem)
    has_stated_requirements = job.requirements not in (None, NO_REQUIREMENTS)
    if job.entry is not None and has_stated_requirements and not source.has_requirements:
        exclusion_reason = source.why_not_sent(job.requirements or "")
        message = f"{job.requirements!r} is not in {source.root}; it is relative to the source"
        if exclusion_reason:
            message = f"{job.requirements} {exclusion_reason}"
        diagnostics.add_problem("requirements", message)
    if facts.role is None or facts.role_problem is not None:
        diagnostics.add_problem("role", facts.role_problem or "no execution role was found; give its ARN")
    elif not _ROLE_ARN.match(facts.role):
        diagnostics.add_problem(
            "role",
            f"{facts.role!r} is not a role's ARN; it looks like "
            f"arn:{facts.partition}:iam::123456789012:role/NAME",
        )
    elif facts.target == "aws" and facts.role.split(":")[1] != facts.partition:
        diagnostics.add_problem(
            "role",
            f"{facts.role!r} is a role of another partition than {facts.region}: ARNs there begin with "
            f"arn:{facts.partition}:",
        )


def _check_fields_for_scripts_only(job: Job, diagnostics: Diagnostics) -> None:
    """Add a problem for each field that the job states without a script, and that needs smlaunch's runtime:
    it is not added to an image with its own program, such as a built-in algorithm's."""
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


def _check_file_lists_fit_hosts(
    templates: Sequence[segments.SegmentTemplate],
    sharding_by_channel: Mapping[str, InputSharding],
    diagnostics: Diagnostics,
) -> None:
    """Add a problem if hosts read their own lists of files, and segments differ in their number of hosts."""
    host_counts = {template.job.compute.hosts for template in templates}
    uses_file_lists = any(sharding.split_via == VIA_LISTS for sharding in sharding_by_channel.values())
    if len(host_counts) > 1 and uses_file_lists:
        numbers_text = ", ".join(map(str, sorted(host_counts)))
        diagnostics.add_problem(
            "segments", f"file lists are made for one number of hosts, not for {numbers_text}"
        )
