"""Rules about capacity and segments: spot, preferences, warm pools, maximum waits, last steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from smlaunch.catalog import algorithms
from smlaunch.catalog.instances import find_instance_type
from smlaunch.errors import Problem
from smlaunch.job.model import format_duration, parse_duration
from smlaunch.planner.plan import Reason
from smlaunch.planner.plan_context import (
    Diagnostics,
    Finding,
    PlanContext,
    PlanWarning,
    has_split_input,
    is_accelerated,
    is_neuron,
)
from smlaunch.planner.rules.rule import Findings, Problems, rule
from smlaunch.planner.script_advice import imports_package, uses_smlaunch_train
from smlaunch.planner.script_launch import is_command, may_name_own_files, reads_hosts
from smlaunch.planner.segments import max_job_seconds, needs_several_segments, stated_training_seconds

MAX_SECONDS_WITHOUT_CHECKPOINTS = 3600
"""Seconds that a spot job may run without checkpoints, and the service's limit for an algorithm without
them: what an interruption loses."""

MAX_KEEP_ALIVE_SECONDS = 21_600
DOCUMENTED_KEEP_ALIVE_SECONDS = 3600
POOL_LIFETIME_SECONDS = 7 * 86_400
MIN_PENDING_SECONDS, MAX_PENDING_SECONDS = 1800, 28 * 86_400

DEFAULT_MAX_RUNTIME = 86_400
"""All in seconds, from the API model."""

_SPOT_FIELD, _PREFERENCES_FIELD = "compute.spot", "compute.instance_preferences"
_TRAINING_PLAN_FIELD = "compute.training_plan"
_KEEP_ALIVE_FIELD, _MAX_PENDING_FIELD = "compute.keep_alive", "limits.max_pending"


@rule(
    "spot.checkpoints",
    summary="spot for more than an hour without checkpoints",
    source="https://docs.aws.amazon.com/sagemaker/latest/dg/model-managed-spot-training.html",
    quote="Without CheckpointConfig an interruption restarts from zero.",
    fields=(
        "compute.spot",
        "checkpoints",
        "limits.max_runtime",
        "limits.segment",
        "segments",
        "strategy",
        "algorithm",
    ),
)
def reject_long_spot_without_checkpoints(context: PlanContext) -> Problems:
    """Yield a problem if a spot job of one segment is so long that it needs checkpoints, and has none. A
    segment is one of the sequential jobs of a run; a run of several has a prefix of its own."""
    job, limits = context.job, context.job.limits
    if not job.compute.spot or job.checkpoints is not None:
        return
    if not context.job_kind.has_checkpoints:  # another rule rejects spot
        return
    max_seconds = DEFAULT_MAX_RUNTIME if limits.max_runtime is None else parse_duration(limits.max_runtime)
    longest_job_seconds = max_job_seconds(job, context.facts, max_seconds, Diagnostics())
    takes_several_jobs = job.entry is not None and needs_several_segments(
        job, max_seconds, longest_job_seconds
    )
    # An hour: what the service allows, waiting included, to algorithms without checkpoints.
    if takes_several_jobs or max_seconds <= MAX_SECONDS_WITHOUT_CHECKPOINTS:
        return
    algorithm = None if job.algorithm is None else algorithms.find_algorithm(job.algorithm)
    # A built-in algorithm that saves none does not do so with a prefix either.
    if algorithm is not None and not algorithm.checkpoints:
        message = f"{job.algorithm} saves no checkpoints: on spot it may take an hour including its wait"
        yield Problem("limits.max_runtime", f"{message}; shorten it, or take hosts on demand")
    else:
        yield Problem(
            "checkpoints",
            f"a spot job of {format_duration(max_seconds)} that is interrupted starts from zero without "
            "them; give an S3 prefix (without one a spot job may take "
            f"{format_duration(MAX_SECONDS_WITHOUT_CHECKPOINTS)})",
        )


@rule(
    "spot.wait",
    summary="`limits.max_wait` without spot",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_StoppingCondition.html",
    quote="MaxWaitTimeInSeconds (spot only, ≥ MaxRuntime)",
    fields=("compute.spot", "limits.max_wait"),
)
def reject_max_wait_without_spot(context: PlanContext) -> Problems:
    if context.job.limits.max_wait is not None and not context.job.compute.spot:
        message = "it bounds the wait for spot capacity; set compute.spot, or leave it out"
        yield Problem("limits.max_wait", message)


@rule(
    "spot.fallback",
    summary="a fallback from spot without spot",
    source="https://docs.aws.amazon.com/sagemaker/latest/dg/model-managed-spot-training.html",
    quote="Needs EnableManagedSpotTraining + MaxWaitTimeInSeconds ≥ MaxRuntimeInSeconds.",
    fields=("compute.spot", "compute.on_demand_fallback"),
)
def reject_fallback_without_spot(context: PlanContext) -> Problems:
    if context.job.compute.on_demand_fallback and not context.job.compute.spot:
        message = "it replaces spot capacity that is not available; set compute.spot, or leave it out"
        yield Problem("compute.on_demand_fallback", message)


@rule(
    "preferences.instance-type",
    summary="preferences beside an instance type",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ResourceConfig.html",
    quote="not with InstanceType, InstanceGroups, InstancePlacementConfig, spot",
    fields=(_PREFERENCES_FIELD, "compute.instance_type"),
)
def reject_preferences_beside_type(context: PlanContext) -> Problems:
    compute = context.job.compute
    if compute.instance_preferences and compute.instance_type is not None:
        message = f"compute.instance_type names {compute.instance_type} already; keep one of them"
        yield Problem(_PREFERENCES_FIELD, message)


@rule(
    "preferences.segment",
    summary="preferences beside the type of a segment",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ResourceConfig.html",
    quote="not with InstanceType, InstanceGroups, InstancePlacementConfig, spot",
    fields=(_PREFERENCES_FIELD, "segments"),
)
def reject_preferences_beside_segment_type(context: PlanContext) -> Problems:
    for index, change in enumerate(context.job.segments):
        if context.job.compute.instance_preferences and change.compute.instance_type is not None:
            message = (
                "it cannot go with compute.instance_preferences; leave it out, or name types per segment"
            )
            yield Problem(f"segments[{index}].compute.instance_type", message)


@rule(
    "preferences.spot",
    summary="preferences on spot",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ResourceConfig.html",
    quote="Not with InstancePreferences (so no type fallback on spot).",
    fields=(_PREFERENCES_FIELD, _SPOT_FIELD),
)
def reject_preferences_on_spot(context: PlanContext) -> Problems:
    if context.job.compute.instance_preferences and context.job.compute.spot:
        message = (
            "it is for on-demand capacity, and compute.spot asks for spot; name one compute.instance_type"
        )
        yield Problem(_PREFERENCES_FIELD, message)


@rule(
    "preferences.once",
    summary="a preference named twice",
    source="https://github.com/aws/sagemaker-python-sdk",
    quote="Compute(instance_preferences=...): duplicate instance types",
    fields=(_PREFERENCES_FIELD,),
)
def reject_duplicate_preferences(context: PlanContext) -> Problems:
    preferences = context.job.compute.instance_preferences
    for name in dict.fromkeys(preferences):
        if preferences.count(name) > 1:
            message = (
                f"{name} may be named once, and is named {preferences.count(name)} times; leave the others "
                "out"
            )
            yield Problem(_PREFERENCES_FIELD, message)


@rule(
    "preferences.image",
    summary="preferences of several kinds, for which AWS has no common image",
    source="https://github.com/aws/sagemaker-python-sdk",
    quote="processors, version_aliases, ... processor_in_tag",
    fields=(_PREFERENCES_FIELD, "image", "algorithm"),
)
def reject_preferences_without_common_image(context: PlanContext) -> Problems:
    """Yield a problem if the preferred instance types, of which the service takes the first with free
    capacity, need different images: for CPUs, GPUs or Neuron devices (Trainium)."""
    if context.job.image is not None or context.job.algorithm is not None:
        return
    type_by_processor: dict[str, str] = {}
    for name in context.job.compute.instance_preferences:
        processor = "CPUs"
        if is_neuron(name):
            processor = "Neuron"
        elif is_accelerated(name):
            processor = "GPUs"
        type_by_processor.setdefault(processor, name)
    if len(type_by_processor) > 1:
        types_text = " and ".join(f"{name} ({processor})" for processor, name in type_by_processor.items())
        yield Problem(
            _PREFERENCES_FIELD,
            f"a job has one image, and AWS has none for {types_text} together; name types of one kind, or "
            "an image",
        )


@rule(
    "training-plan.spot",
    summary="a training plan on spot",
    source="https://docs.aws.amazon.com/sagemaker/latest/dg/reserve-capacity-with-training-plans.html",
    quote="Training plans reserve capacity; managed spot training uses spare capacity",
    fields=(_TRAINING_PLAN_FIELD, _SPOT_FIELD),
)
def reject_training_plan_on_spot(context: PlanContext) -> Problems:
    if context.job.compute.training_plan is not None and context.job.compute.spot:
        message = "its hosts are reserved, and compute.spot asks for spare ones; keep one of them"
        yield Problem(_TRAINING_PLAN_FIELD, message)


@rule(
    "training-plan.type",
    summary="a training plan without the instance type that it has reserved",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ResourceConfig.html",
    quote="TrainingPlanArn: The Amazon Resource Name (ARN); of the training plan to use for this resource",
    fields=(_TRAINING_PLAN_FIELD, "compute.instance_type", _PREFERENCES_FIELD),
)
def reject_training_plan_without_type(context: PlanContext) -> Problems:
    compute = context.job.compute
    if compute.training_plan is None:
        return
    if compute.instance_preferences:
        yield Problem(
            _TRAINING_PLAN_FIELD,
            "a plan has reserved hosts of one type, and compute.instance_preferences leaves the type open; "
            "name one compute.instance_type",
        )
    elif compute.instance_type is None:
        message = "a plan has reserved hosts of one type; name that type in compute.instance_type"
        yield Problem(_TRAINING_PLAN_FIELD, message)


@rule(
    "training-plan.cost",
    phase="advise",
    summary="the cost of hosts that a training plan has reserved",
    source="https://docs.aws.amazon.com/sagemaker/latest/dg/reserve-capacity-with-training-plans.html",
    quote="paid for up front",
    fields=(_TRAINING_PLAN_FIELD,),
)
def explain_cost_of_training_plan(context: PlanContext) -> Findings:
    if context.job.compute.training_plan is not None and context.facts.target == "aws":
        yield Reason(
            "training-plan.cost",
            "The hosts are those that the training plan has reserved and that were paid for with it; the "
            "cost here is that of as many hours on demand. Quotas for hosts on demand are not compared.",
        )


@rule(
    "warm-pool.spot",
    summary="a warm pool on spot",
    source="https://docs.aws.amazon.com/sagemaker/latest/dg/train-warm-pools.html",
    quote="Not with warm pools",
    fields=(_KEEP_ALIVE_FIELD, _SPOT_FIELD),
)
def reject_warm_pool_on_spot(context: PlanContext) -> Problems:
    if context.job.compute.keep_alive is not None and context.job.compute.spot:
        message = "spot hosts cannot stay in a warm pool; leave it out, or use hosts on demand"
        yield Problem(_KEEP_ALIVE_FIELD, message)


@rule(
    "warm-pool.preferences",
    summary="a warm pool with preferences, which leave the type open",
    source="https://docs.aws.amazon.com/sagemaker/latest/dg/train-warm-pools.html",
    quote="Next job matches if identical: RoleArn, InstanceCount, InstanceType",
    fields=(_KEEP_ALIVE_FIELD, _PREFERENCES_FIELD),
)
def reject_warm_pool_of_preferences(context: PlanContext) -> Problems:
    if context.job.compute.keep_alive is not None and context.job.compute.instance_preferences:
        yield Problem(
            _KEEP_ALIVE_FIELD,
            "a pool serves jobs that name its very instance type, which compute.instance_preferences leaves "
            "open; name one compute.instance_type, or leave the pool out",
        )


@rule(
    "warm-pool.longest",
    summary="a warm pool for more than six hours",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ResourceConfig.html",
    quote="KeepAlivePeriodInSeconds 0-21600",
    fields=(_KEEP_ALIVE_FIELD,),
)
def reject_too_long_warm_pool(context: PlanContext) -> Problems:
    keep_alive = context.job.compute.keep_alive
    if keep_alive is not None and parse_duration(keep_alive) > MAX_KEEP_ALIVE_SECONDS:
        longest_text = format_duration(MAX_KEEP_ALIVE_SECONDS)
        yield Problem(
            _KEEP_ALIVE_FIELD,
            f"{keep_alive} is longer than the {longest_text} that hosts can stay in a pool; shorten it",
        )


@rule(
    "warm-pool.lifetime",
    phase="advise",
    summary="a warm pool for a run that is longer than a pool lives, or for longer than AWS's guide names",
    source="https://docs.aws.amazon.com/sagemaker/latest/dg/train-warm-pools.html",
    quote="for a maximum of 7 days (2023; a later text: 28 days); maximum KeepAlivePeriodInSeconds 3600",
    fields=(_KEEP_ALIVE_FIELD, "limits.max_runtime", "segments"),
)
def warn_of_pool_lifetime(context: PlanContext) -> Findings:
    """AWS's pages contradict each other and the API's model: nothing is rejected."""
    job = context.job
    if job.compute.keep_alive is None or context.facts.target != "aws":
        return
    total_seconds = stated_training_seconds(job)
    if total_seconds is not None and total_seconds > POOL_LIFETIME_SECONDS:
        yield PlanWarning(
            f"{_KEEP_ALIVE_FIELD}: a pool hands its hosts from job to job for 7 days in all by AWS's guide "
            "of 2023, for 28 days by a later one (neither is confirmed): the job after that starts on new "
            "hosts."
        )
    if parse_duration(job.compute.keep_alive) > DOCUMENTED_KEEP_ALIVE_SECONDS:
        yield PlanWarning(
            f"{_KEEP_ALIVE_FIELD}: {job.compute.keep_alive} is longer than the 60 minutes that AWS's guide "
            "names as the longest; the API's model allows 6h, and which of them holds is not confirmed."
        )


@rule(
    "pending.bounds",
    summary="a bound on the wait for capacity below 30 minutes or above 28 days",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_StoppingCondition.html",
    quote="MaxPendingTimeInSeconds 1800-2419200",
    fields=(_MAX_PENDING_FIELD,),
)
def reject_max_pending_out_of_bounds(context: PlanContext) -> Problems:
    max_pending = context.job.limits.max_pending
    if (
        max_pending is not None
        and not MIN_PENDING_SECONDS <= parse_duration(max_pending) <= MAX_PENDING_SECONDS
    ):
        min_text, max_text = format_duration(MIN_PENDING_SECONDS), format_duration(MAX_PENDING_SECONDS)
        yield Problem(
            _MAX_PENDING_FIELD,
            f"{max_pending} is not between {min_text} and {max_text}, as the service requires; change it",
        )


@rule(
    "pending.accelerator",
    summary="a bound on the wait for capacity of types without an accelerator, where it has no effect",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_StoppingCondition.html",
    quote="(accelerated types only)",
    fields=(_MAX_PENDING_FIELD, "compute.instance_type", _PREFERENCES_FIELD, "strategy"),
)
def reject_max_pending_without_accelerator(context: PlanContext) -> Problems:
    """Yield a problem if the job limits its wait for capacity, and none of the instance types that it may run
    on has an accelerator: the service ignores the limit for them."""
    sends_max_pending = _MAX_PENDING_FIELD in context.job_kind.request_path_by_field
    if context.job.limits.max_pending is None or not sends_max_pending:
        return
    type_names = context.instance_types
    # A type that the catalog does not know may have one.
    if any(is_accelerated(name) or find_instance_type(name) is None for name in type_names):
        return
    verb = "has" if len(type_names) == 1 else "have"
    yield Problem(
        _MAX_PENDING_FIELD,
        f"it has an effect on types with an accelerator only, and {', '.join(type_names)} {verb} none; leave "
        "it out",
    )


_MAX_UNREPORTED_RANKS = 8
_MAX_RANKS_PER_CPU = 4
"""More ranks on one machine are rarely meant, except to see that a job starts at all."""


@rule(
    "local.shared-cpus",
    phase="advise",
    summary="many more local ranks than this machine has CPU cores",
    source="docs/isolation.md",
    quote="hosts are processes of one machine",
    fields=("compute.hosts", "compute.processes_per_host", "segments"),
)
def warn_of_shared_cpus(context: PlanContext) -> Findings:
    """Yield a warning if a local job with several hosts, all of them this machine, has so many ranks that
    they wait for each other's CPU time."""
    cpu_count, processes = context.facts.endpoint.cpus, context.job.compute.processes_per_host
    if context.facts.target != "local" or cpu_count is None or context.hosts == 1:
        return
    rank_count = context.hosts * (processes if isinstance(processes, int) else 1)
    if rank_count > _MAX_UNREPORTED_RANKS and rank_count > _MAX_RANKS_PER_CPU * cpu_count:
        yield PlanWarning(
            f"compute.hosts: {context.hosts} hosts with {rank_count} ranks together share this machine's "
            f"{cpu_count} CPU cores and its memory; to try the job, take fewer, such as --hosts 2."
        )


# ---- segments that end at a step --------------------------------------------------------------------------


@rule(
    "script.until-step",
    summary="`segments[].until_step` for a script that does not report its training steps",
    source="docs/chains.md",
    quote="the segment ends when the script reports the step",
    fields=("entry", "source", "segments", "compute.hosts"),
    facts=("script",),
    may_be_allowed=True,
)
def reject_unreported_last_step(context: PlanContext) -> Iterator[Finding]:
    """Yield a problem for each step at which no segment would end, as nothing reports it; a warning if a
    script without smlaunch.train reports its steps, or cannot be analyzed."""
    job, script = context.job, context.facts.script
    if not context.has_runtime or uses_smlaunch_train(script) or script.problem is not None:
        return
    entry = context.facts.source.entry or job.program
    reports_steps = script.names_progress_line or imports_package(script, "smlaunch.contract")
    hosts_text = "" if job.compute.hosts == 1 else " on each host"
    for index, change in enumerate(job.segments):
        if change.until_step is None:
            continue
        field, line = f"segments[{index}].until_step", f"smlaunch: progress step={change.until_step}"
        if reports_steps or not entry.endswith(".py"):
            condition = "" if reports_steps else ", if it does"
            yield PlanWarning(
                f"{field}: without smlaunch.train, the segment ends when {entry} prints `{line}` or a later "
                f"step{hosts_text}{condition}: the script gets SIGTERM, or finds the stop file if it reads "
                "that. What follows begins at its newest checkpoint: save before that line is printed."
            )
        else:
            yield Problem(
                field,
                f"nothing in {entry} reports its training steps, so no segment would end at step "
                f"{change.until_step}; print `smlaunch: progress step=N` after each step{hosts_text}, use "
                "smlaunch.train, or give the segment a length",
            )


# ---- checkpoints of hosts that train apart from each other ------------------------------------------------


@rule(
    "checkpoints.shared-by-hosts",
    summary="files of the same names in the one checkpoint prefix of hosts that train independently",
    source="docs/checkpoints.md",
    quote="All hosts share one prefix: of files of one name the last one written counts",
    fields=("entry", "source", "inputs.*", "compute", "segments", "limits", "checkpoints", "strategy"),
    facts=("script",),
    may_be_allowed=True,
    allowed_when="if each host's files have names of their own, such as those of its input files",
)
def reject_checkpoints_shared_by_hosts(context: PlanContext) -> Iterator[Finding]:
    """Yield a problem for a script that continues, on each of several independent hosts or ranks, from files
    whose names do not tell them apart: the next job has those of one on all. A warning where the script
    cannot be analyzed."""
    job, script, strategy = context.job, context.facts.script, context.strategy
    may_communicate = strategy.joins_hosts or reads_hosts(script)
    are_independent = strategy.has_independent_ranks or (has_split_input(job) and not may_communicate)
    has_one_rank_per_host = job.compute.processes_per_host in (None, 1)
    continues = context.is_chain or job.checkpoints is not None
    has_checkpoints = context.job_kind.has_checkpoints and context.has_runtime
    if not (are_independent and continues and has_checkpoints):
        return
    if context.hosts == 1 and has_one_rank_per_host:
        return
    if not context.run_id and any(channel.split == "bytes" for channel in job.inputs.values()):
        return  # each shard may get a run of its own, with one host
    entry, program = context.facts.source.entry or job.program, script.program
    one: Literal["host", "rank"]
    sharers, one, variable = f"all {context.hosts} hosts", "host", "SM_CURRENT_HOST"
    if not has_one_rank_per_host:
        sharers, one, variable = "all ranks", "rank", "RANK"
    shared_prefix = (
        f"{sharers} share one checkpoint prefix, so that the next job continues on every {one} from the file "
        "of one of them, and records are left out or repeated"
    )
    own_name = f'put the {one} into the name (of a Checkpointer: directory=): os.environ["{variable}"]'
    if program.fixed_checkpoint_files:
        file = program.fixed_checkpoint_files[0]
        yield Problem("entry", f"{file.place} uses {file.path}, and {shared_prefix}; {own_name}")
    elif may_name_own_files(script, one):
        return
    elif program.was_read and script.names_checkpoint_dir and not is_command(job):
        yield Problem(
            "entry",
            f"{entry} saves its own checkpoints and reads nothing that tells its {one} from the others, and "
            f"{shared_prefix}; {own_name}",
        )
    else:
        yield PlanWarning(f"entry: if {entry} saves checkpoints of its own, {own_name}: {shared_prefix}.")
