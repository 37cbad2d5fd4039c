"""Rules about features that a kind of job lacks (smlaunch.api.job_kinds), such as processing jobs, that
algorithms and images with their own program lack, and that a kind of input lacks."""

from __future__ import annotations

from collections.abc import Iterator

from smlaunch.api.job_kinds import JobKind
from smlaunch.catalog import algorithms
from smlaunch.catalog.hyperparameters import knows_all_names
from smlaunch.catalog.instances import find_instance_type
from smlaunch.catalog.type_families import why_no_job
from smlaunch.errors import Problem
from smlaunch.job.model import Job, format_duration, parse_duration
from smlaunch.job.segment_changes import SegmentCompute
from smlaunch.planner.plan import Reason
from smlaunch.planner.plan_context import (
    PlanContext,
    PlanWarning,
    has_split_input,
    stated_instance_types,
    stated_job_kind,
    stated_output,
)
from smlaunch.planner.rules.capacity import MAX_SECONDS_WITHOUT_CHECKPOINTS
from smlaunch.planner.rules.rule import Findings, Problems, rule
from smlaunch.planner.script_launch import reads_hosts, reads_own_host_name
from smlaunch.planner.segments import apply_change
from smlaunch.strategies.builtin_hyperparameters import (
    find_contradictions,
    find_unknown_names,
    find_wrong_values,
)


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
        "compute.instance_groups",
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
        "compute.instance_groups": bool(job.compute.instance_groups),
        "limits.max_pending": job.limits.max_pending is not None,
        "output.compression": stated_output(job).compression is not None,
        "image_registry_credentials": job.image_registry_credentials is not None,
        "metrics": bool(job.metrics),
        "retries": job.retries is not None,
        "remote_debug": job.remote_debug,
    }


_INPUT_FIELDS_OF_SOME_KINDS = ("content_type", "attributes", "shuffle_seed", "record_wrapper", "compression")


@rule(
    "processing.inputs",
    summary="inputs that a processing job does not copy, or fields of training's inputs",
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
        if channel.file_system is not None and "file_system" not in kind.input_path_by_field:
            message = f"a {kind.noun} cannot mount a file system; copy the data to S3"
            yield Problem(f"inputs.{name}.uri", message)
        for field in _INPUT_FIELDS_OF_SOME_KINDS:
            if getattr(channel, field) is not None and field not in kind.input_path_by_field:
                yield Problem(f"inputs.{name}.{field}", _unsupported_text(kind))


def _unsupported_text(kind: JobKind) -> str:
    return f"a {kind.noun} does not support it; leave it out, or use another strategy"


@rule(
    "inputs.file-system",
    summary="a file system without the network that it is in, or with what only data in S3 can have",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_FileSystemDataSource.html",
    quote="EFS/FSxLustre, id fs-[0-9a-f]{8,}, rw/ro; File mode, needs VPC",
    fields=("inputs.*", "subnets", "security_groups"),
)
def reject_unreachable_file_system(context: PlanContext) -> Problems:
    job = context.job
    for name, channel in job.inputs.items():
        field = f"inputs.{name}"
        if channel.file_system is None:
            if channel.access != "ro":
                message = "it is for a file system (fsx://, efs://); hosts only read other data; leave it out"
                yield Problem(f"{field}.access", message)
            continue
        if context.facts.target == "aws" and not job.subnets and not job.security_groups:
            message = "hosts reach a file system in its VPC; give subnets and security_groups of it"
            yield Problem(field, message)
        if channel.mode != "File":
            message = f"hosts mount a file system, and mode {channel.mode} is for data in S3; leave it out"
            yield Problem(f"{field}.mode", message)
        for other_field in _FIELDS_OF_INPUTS_IN_S3:
            is_left_out = getattr(channel, other_field) in (None, False, ())
            if other_field in channel.stated_fields and not is_left_out:
                message = "it is for data in S3, and hosts mount this file system as it is; leave it out"
                yield Problem(f"{field}.{other_field}", message)


_FIELDS_OF_INPUTS_IN_S3 = (
    *("split", "split_via", "instance_groups", "manifest", "attributes", "shuffle_seed", "record_wrapper"),
    *("compression", "bucket_owner"),
)


@rule(
    "inputs.pipe",
    summary="attributes, a record wrapper or compression in another mode than Pipe",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_Channel.html",
    quote="CompressionType is used only in Pipe input mode. In File mode, leave this field unset",
    fields=("inputs.*",),
)
def reject_pipe_only_fields(context: PlanContext) -> Problems:
    for name, channel in context.job.inputs.items():
        if channel.mode == "Pipe" or channel.file_system is not None:
            continue
        for field in ("attributes", "record_wrapper", "compression"):
            if getattr(channel, field) is not None and field in context.job_kind.input_path_by_field:
                message = f"only mode Pipe has it, and this input has mode {channel.mode}; change one of them"
                yield Problem(f"inputs.{name}.{field}", message)


@rule(
    "inputs.manifest",
    summary="a manifest that is not in S3, that FastFile cannot read, or without attributes",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_S3DataSource.html",
    quote="S3Uri identifies an object that is a manifest file containing a list of object keys",
    fields=("inputs.*",),
)
def reject_unreadable_manifests(context: PlanContext) -> Problems:
    for name, channel in context.job.inputs.items():
        if not channel.is_listed or channel.file_system is not None:
            continue
        field = f"inputs.{name}.{'manifest' if channel.manifest else 'attributes'}"
        if channel.manifest and channel.attributes is not None:
            message = "attributes make it an augmented manifest, which is another format; keep one of them"
            yield Problem(field, message)
        elif channel.attributes == ():
            yield Problem(field, "no attribute is named; name those that are read of each line")
        elif channel.is_local:
            message = f"{channel.uri} is on this machine, and a manifest is read in S3; upload it first"
            yield Problem(field, message)
        elif channel.manifest and channel.mode == "FastFile":
            yield Problem(field, "FastFile shows a folder, and reads no manifest; take mode File")
        if channel.split == "bytes":
            message = "it divides the files of a folder, and a manifest names them itself; take split: key"
            yield Problem(f"inputs.{name}.split", message)


@rule(
    "inputs.unmeasured",
    phase="advise",
    summary="inputs whose size is not known",
    source="docs/inputs.md",
    quote="What a manifest lists is not counted: it has no part in the plan's figures.",
    fields=("inputs.*",),
)
def warn_of_unmeasured_inputs(context: PlanContext) -> Findings:
    for name, channel in context.job.inputs.items():
        if channel.file_system is not None:
            yield Reason(
                f"inputs.{name}",
                f"Hosts mount {channel.uri} ({channel.access}); nothing is copied, its size is not known.",
            )
        elif channel.is_listed and channel.mode == "File":
            yield PlanWarning(
                f"inputs.{name}: what the manifest lists is not counted, and is not part of this plan's "
                "figures. compute.volume_gb sets the disk size of the hosts."
            )


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
    is_own_quota = stated_job_kind(context.job.strategy) is kind
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


def _algorithm_of(context: PlanContext) -> algorithms.Algorithm | None:
    """Return the built-in algorithm that the job names; None for a name that the catalog does not know."""
    name = context.job.algorithm
    return None if name is None else algorithms.find_algorithm(name)


@rule(
    "algorithm.names",
    summary="hyperparameters that a built-in algorithm does not have",
    source="https://github.com/aws/sagemaker-xgboost-container",
    quote="Extraneous hyperparameter found (others: Additional properties are not allowed; from memory)",
    fields=("algorithm", "hyperparameters"),
    may_be_allowed=True,
    allowed_when="if the algorithm has it today",
)
def reject_unknown_hyperparameters(context: PlanContext) -> Problems:
    algorithm = _algorithm_of(context)
    if algorithm is not None and knows_all_names(algorithm.id):
        for name, message in find_unknown_names(algorithm, context.job.hyperparameters):
            yield Problem(f"hyperparameters.{name}", message)


@rule(
    "algorithm.other-names",
    phase="advise",
    summary="hyperparameters that the page of a JumpStart algorithm, which lists the most used ones, lacks",
    source="https://docs.aws.amazon.com/sagemaker/latest/dg/lightgbm-hyperparameters.html",
    quote="the subset of hyperparameters that are required or most commonly used",
    fields=("algorithm", "hyperparameters"),
)
def warn_of_unknown_hyperparameters(context: PlanContext) -> Findings:
    algorithm = _algorithm_of(context)
    if algorithm is not None and not knows_all_names(algorithm.id):
        for name, message in find_unknown_names(algorithm, context.job.hyperparameters):
            yield PlanWarning(f"hyperparameters.{name}: on its page {message}.")


@rule(
    "algorithm.values",
    summary="values that a built-in algorithm does not take for a hyperparameter",
    source="https://docs.aws.amazon.com/sagemaker/latest/dg/algos.html",
    quote="Valid values (of each algorithm's page; the SageMaker SDK's classes; XGBoost's container)",
    fields=("algorithm", "hyperparameters.*"),
    may_be_allowed=True,
    allowed_when="if the algorithm takes it today",
)
def reject_wrong_hyperparameter_values(context: PlanContext) -> Problems:
    algorithm = _algorithm_of(context)
    if algorithm is not None:
        yield from find_wrong_values(algorithm, context.job.hyperparameters)


@rule(
    "algorithm.together",
    summary="hyperparameters of a built-in algorithm that need or exclude each other",
    source="https://docs.aws.amazon.com/sagemaker/latest/dg/xgboost_hyperparameters.html",
    quote="Required if objective is set to multi:softmax or multi:softprob",
    fields=("algorithm", "hyperparameters.*"),
    may_be_allowed=True,
    allowed_when="if the algorithm takes them today",
)
def reject_contradicting_hyperparameters(context: PlanContext) -> Problems:
    algorithm = _algorithm_of(context)
    if algorithm is not None:
        yield from find_contradictions(algorithm, context.job.hyperparameters)


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
    script = context.facts.script
    hosts_communicate = context.strategy.joins_hosts or reads_hosts(script)
    if job.compute.host_count > 1 and not hosts_communicate and not has_split_input(job):
        reader, condition = f"nothing in {job.program}", "one of its modules does"
        if reads_own_host_name(script.program):
            reader, condition = job.program, "it chooses its part by that name"
        yield PlanWarning(
            f"No input is split, and {reader} reads which host it is on (SM_CURRENT_HOST): unless "
            f"{condition}, each of the {job.compute.hosts} hosts does the whole work for itself."
        )
    yield Reason(
        "processing.output",
        f"Files that the script writes to {output_dir} (SM_OUTPUT_DATA_DIR) are uploaded when the job "
        f"completes; inputs are in {kind.paths.data} (SM_CHANNEL_...).",
    )


@rule(
    "instance.job",
    summary="types that SageMaker has for other uses than jobs of this kind, and retired ones",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ResourceConfig.html",
    quote="InstanceType, valid values (of training; of processing in API_ProcessingClusterConfig)",
    fields=(
        "compute.instance_type",
        "compute.instance_preferences",
        "segments",
        "strategy",
        "entry",
        "algorithm",
    ),
    may_be_allowed=True,
    allowed_when="if AWS offers it for such jobs today",
)
def reject_type_without_jobs(context: PlanContext) -> Problems:
    """The model of the API knows such a family, and not for jobs of this kind. Hosts of this machine only
    record the type."""
    if context.facts.target != "aws":
        return
    for field, instance_type in stated_instance_types(context.job):
        reason = why_no_job(instance_type, context.job_kind.trains_model)
        if reason is not None:
            yield Problem(field, f"{reason}; take another type")


@rule(
    "processes.accelerators",
    summary="more ranks that train together than accelerators on a host",
    source="https://github.com/NVIDIA/Megatron-LM/issues/661",
    quote="Duplicate GPU detected",
    fields=(
        "compute.processes_per_host",
        "compute.instance_type",
        "compute.instance_preferences",
        "segments",
        "strategy",
        "entry",
    ),
    may_be_allowed=True,
    allowed_when="if the ranks share accelerators on purpose",
)
def reject_more_ranks_than_accelerators(context: PlanContext) -> Problems:
    """Yield a problem for each number of ranks that torch.distributed joins and that is larger than that of
    the accelerators: ranks would share one, which NCCL rejects."""
    if not context.strategy.script_joins_ranks or not context.has_runtime or context.facts.target != "aws":
        return
    for prefix, job in _jobs_of_segments(context.job):
        compute = job.compute
        ranks = compute.processes_per_host
        for type_name in compute.instance_preferences or (compute.own_instance_type,):
            instance = find_instance_type(type_name)
            if isinstance(ranks, int) and instance is not None and 0 < instance.accelerators < ranks:
                yield Problem(
                    f"{prefix}compute.processes_per_host",
                    f"{ranks} ranks for the {instance.accelerators_text()} of {type_name}: each needs one of "
                    f"its own; take {instance.accelerators}, or leave it out",
                )


def _jobs_of_segments(job: Job) -> Iterator[tuple[str, Job]]:
    """Yield the job, and as it is in each segment with other hosts, with the beginning of the fields that
    state the difference."""
    yield "", job
    for index, change in enumerate(job.segments):
        if change.compute != SegmentCompute():
            yield f"segments[{index}].", apply_change(job, change)
