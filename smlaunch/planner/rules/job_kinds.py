"""Rules about features that a kind of job lacks (smlaunch.api.job_kinds), such as processing jobs, and that
algorithms and images with their own program lack."""

from __future__ import annotations

from smlaunch.api.job_kinds import JobKind
from smlaunch.catalog import algorithms
from smlaunch.errors import Problem
from smlaunch.job.model import Job, format_duration, parse_duration
from smlaunch.planner.plan import Reason
from smlaunch.planner.plan_context import PlanContext, PlanWarning, stated_job_kind
from smlaunch.planner.rules.capacity import MAX_SECONDS_WITHOUT_CHECKPOINTS
from smlaunch.planner.rules.rule import Findings, Problems, rule


@rule(
    "processing.training-only",
    summary="training-only fields in a processing job",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateProcessingJob.html",
    quote="Inputs ≤10, outputs ≤10, instances 1-100, volume 1-16384, runtime ≤777600 s",
    fields=(
        "strategy",
        "entry",
        "algorithm",
        "hyperparameters",
        "compute.spot",
        "compute.keep_alive",
        "checkpoints",
        "segments",
        "limits.segment",
        "limits.max_pending",
        "compute.training_plan",
        "output.compression",
        "image_registry_credentials",
        "metrics",
        "retries",
        "remote_debug",
    ),
)
def reject_training_only_fields(context: PlanContext) -> Problems:
    """Yield a problem for each field of the job that its kind does not have: a member of its request, or
    checkpoints, which another job of the run continues from."""
    job, kind = context.job, context.job_kind
    if job.hyperparameters and "hyperparameters" not in kind.request_path_by_field:
        yield Problem("hyperparameters", f"a {kind.noun} has none; give the script args instead")
    # Each field, whether the job states it, and the field that a kind's requests must have for it.
    for field, is_stated, needed_field in (
        ("checkpoints", job.checkpoints is not None, "checkpoints.uri"),
        ("segments", bool(job.segments), "checkpoints.uri"),
        ("limits.segment", job.limits.segment is not None, "checkpoints.uri"),
        *((field, is_stated, field) for field, is_stated in _stated_request_fields(job).items()),
    ):
        if is_stated and needed_field not in kind.request_path_by_field:
            yield Problem(field, _unsupported_text(kind))


def _stated_request_fields(job: Job) -> dict[str, bool]:
    """Return whether the job states each field that only some kinds of jobs have a member of the request
    for."""
    return {
        "compute.spot": job.compute.spot,
        "compute.keep_alive": job.compute.keep_alive is not None,
        "compute.training_plan": job.compute.training_plan is not None,
        "limits.max_pending": job.limits.max_pending is not None,
        "output.compression": job.stored_output.compression is not None,
        "image_registry_credentials": job.image_registry_credentials is not None,
        "metrics": bool(job.metrics),
        "retries": job.retries is not None,
        "remote_debug": job.remote_debug,
    }


@rule(
    "processing.inputs",
    summary="inputs that a processing job does not copy, or content types",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateProcessingJob.html",
    quote="LocalPaths must start with /opt/ml/processing/.",
    fields=("strategy", "entry", "algorithm"),
)
def reject_unsupported_processing_inputs(context: PlanContext) -> Problems:
    """Yield a problem for each property of an input that the kind of job does not have."""
    kind = context.job_kind
    for name, channel in context.job.inputs.items():
        if channel.mode not in kind.input_modes:
            modes_text = ", ".join(kind.input_modes)
            message = f"a {kind.noun} takes inputs in mode {modes_text}, not {channel.mode}"
            yield Problem(f"inputs.{name}.mode", message)
        if channel.content_type is not None and "content_type" not in kind.input_path_by_field:
            yield Problem(f"inputs.{name}.content_type", _unsupported_text(kind))


def _unsupported_text(kind: JobKind) -> str:
    return f"a {kind.noun} does not support it; leave it out, or use another strategy"


@rule(
    "processing.longest",
    summary="a processing job of more than nine days",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ProcessingStoppingCondition.html",
    quote="runtime ≤777600 s (9 d; 2023 docs: 5 d)",
    fields=("strategy", "entry", "algorithm", "limits.max_runtime"),
)
def reject_too_long_processing(context: PlanContext) -> Problems:
    """Yield a problem for a job of a kind that another job cannot continue, and that may not run so long."""
    max_runtime, kind = context.job.limits.max_runtime, context.job_kind
    if max_runtime is None or kind.has_checkpoints or kind.max_runtime_seconds is None:
        return
    longest_seconds, owner_text = kind.max_runtime_seconds, ""
    quota_seconds = context.facts.max_runtime_quota
    # The quota was read for the kind of job that is stated.
    is_own_quota = stated_job_kind(context.job) is kind
    if is_own_quota and quota_seconds is not None and quota_seconds < longest_seconds:
        longest_seconds, owner_text = quota_seconds, ", by the account's quota,"
    if parse_duration(max_runtime) > longest_seconds:
        message = (
            f"{max_runtime} is longer than the {format_duration(longest_seconds)} that a {kind.noun} may"
            f"{owner_text} run; shorten it, or split it"
        )
        yield Problem("limits.max_runtime", message)


@rule(
    "chain.program",
    summary="more than 28 days, or segments, for a program that cannot be continued by another job",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_StoppingCondition.html",
    quote="MaxRuntimeInSeconds ≥1 (≤2419200 by doc, default 86400; spans all retries)",
    fields=(
        "strategy",
        "entry",
        "algorithm",
        "image",
        "limits.max_runtime",
        "limits.segment",
        "segments",
    ),
    facts=("quotas",),
)
def reject_several_jobs_without_script(context: PlanContext) -> Problems:
    """Yield a problem for each field that makes a run take several jobs, if the job has no script: only a
    script under smlaunch's runtime can stop itself and be continued by another job."""
    job, kind = context.job, context.job_kind
    # smlaunch's runtime starts scripts only; other rules are about kinds that cannot be continued.
    if context.has_runtime or not kind.has_checkpoints:
        return
    program = f"the algorithm {job.algorithm}" if job.algorithm is not None else "an image's own program"
    for field, stated_value in (("limits.segment", job.limits.segment), ("segments", job.segments or None)):
        if stated_value is not None:
            yield Problem(
                field, f"{program} does not stop itself to be continued by another job; leave it out"
            )
    max_runtime = job.limits.max_runtime
    if max_runtime is None or kind.max_runtime_seconds is None:
        return
    # Of a training job 28 days, or less by the account's quota.
    quota_seconds = context.facts.max_runtime_quota or kind.max_runtime_seconds
    max_job_seconds = min(quota_seconds, kind.max_runtime_seconds)
    if parse_duration(max_runtime) > max_job_seconds:
        yield Problem(
            "limits.max_runtime",
            f"{max_runtime} is longer than the {format_duration(max_job_seconds)} that a {kind.noun} may "
            f"run, and {program} cannot be continued by another one; shorten it",
        )


@rule(
    "spot.algorithm",
    summary="more than an hour including the wait for spot, for an algorithm that saves no checkpoints",
    source="https://docs.aws.amazon.com/sagemaker/latest/dg/model-managed-spot-training.html",
    quote="Built-ins/marketplace algorithms that don't checkpoint: MaxWait ≤ 3600 s.",
    fields=("algorithm", "compute.spot", "limits.max_wait"),
)
def reject_long_spot_wait_of_algorithm(context: PlanContext) -> Problems:
    """Yield a problem if a built-in algorithm without checkpoints may wait too long for spot capacity: it may
    take an hour, training included."""
    job, max_wait = context.job, context.job.limits.max_wait
    algorithm = None if job.algorithm is None else algorithms.find_algorithm(job.algorithm)
    if algorithm is None or not job.compute.spot or algorithm.checkpoints:
        return
    if max_wait is not None and parse_duration(max_wait) > MAX_SECONDS_WITHOUT_CHECKPOINTS:
        yield Problem(
            "limits.max_wait",
            f"{job.algorithm} saves no checkpoints, and may take "
            f"{format_duration(MAX_SECONDS_WITHOUT_CHECKPOINTS)} including its wait for spot capacity, not "
            f"{max_wait}; shorten it",
        )


@rule(
    "processing.output",
    phase="advise",
    summary="where a processing job's data is, and hosts that all do the same work",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateProcessingJob.html",
    quote="LocalPaths must start with /opt/ml/processing/.",
    fields=("entry", "inputs", "compute.hosts", "strategy"),
    facts=("script",),
)
def explain_processing_folders(context: PlanContext) -> Findings:
    """Yield where the script of a processing job finds its inputs and writes its output, and a warning if all
    of its hosts do the same work: none gets a share of an input, and they do not communicate."""
    job, kind = context.job, context.job_kind
    output_dir = kind.constants.get("output_path")  # None for training jobs, with the folders of their own
    if output_dir is None or job.entry is None:
        return
    hosts_communicate = context.strategy.joins_hosts or context.facts.script.reads_resource_config
    has_split_input = any(channel.split for channel in job.inputs.values())
    if job.compute.hosts > 1 and not hosts_communicate and not has_split_input:
        yield PlanWarning(
            f"No input is split, and nothing in {job.program} reads which host it is on (SM_CURRENT_HOST): "
            f"unless one of its modules does, each of the {job.compute.hosts} hosts does the whole work for "
            "itself."
        )
    yield Reason(
        "processing.output",
        f"Files that the script writes to {output_dir} (SM_OUTPUT_DATA_DIR) are uploaded when the job "
        f"completes; inputs are in {kind.paths.data} (SM_CHANNEL_...).",
    )
