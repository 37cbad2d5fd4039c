"""Rules that choose the strategy, and some about work that has another way: searches of hyperparameters, and
inputs too large for every host. The first one that chooses decides; earlier ones have stronger evidence.

Their order: ``_STATED`` by what the job states, ``_WORK`` by the kind of work, ``_SCRIPT`` by what the
script uses, ``_DATA`` by how the data is split, then rules of others that state no order, and ``_FALLBACK``
for every script (docs/extending.md).
"""

from __future__ import annotations

from collections.abc import Iterator

from smlaunch.errors import Problem
from smlaunch.facts.discovered_facts import ScriptFacts
from smlaunch.job.model import Workload, parse_duration
from smlaunch.planner.plan import Reason
from smlaunch.planner.plan_context import (
    JobContext,
    PlanContext,
    PlanWarning,
    StrategyMatch,
    has_split_input,
    is_accelerated,
    is_neuron,
    max_hosts_of,
    sized_inputs,
)
from smlaunch.planner.rules.rule import Findings, Problems, rule
from smlaunch.planner.segments import MAX_JOB_SECONDS
from smlaunch.storage.host_data import ELSEWHERE, bound_word
from smlaunch.strategies import load_strategy
from smlaunch.strategies.base import find_imported_library
from smlaunch.text.did_you_mean import did_you_mean
from smlaunch.text.format import format_size

StrategyMatches = Iterator[StrategyMatch]

_PYTORCH_LIBRARIES = (
    *("torch", "lightning", "pytorch_lightning", "transformers", "accelerate", "composer", "fastai"),
    *("torchvision", "timm", "ultralytics", "detectron2", "mmengine", "trl", "peft", "diffusers"),
)
"""Libraries that train with PyTorch."""

_RANK_VARIABLES = frozenset(("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))

_ORDER_SOURCE = "docs/strategies.md"

_STATED, _WORK, _SCRIPT, _DATA, _FALLBACK = 10, 20, 30, 40, 90


@rule(
    "strategy.given",
    phase="choose strategy",
    order=_STATED,
    summary="the `strategy` that the job states",
    source=_ORDER_SOURCE,
    quote="The job names a strategy: that one.",
    fields=("strategy",),
)
def choose_stated_strategy(context: JobContext) -> StrategyMatches:
    if context.job.strategy is not None:
        yield StrategyMatch(context.job.strategy, "The job says so")


@rule(
    "strategy.algorithm",
    phase="choose strategy",
    order=_STATED,
    summary="`builtin` for a built-in algorithm",
    source="https://docs.aws.amazon.com/sagemaker/latest/dg/algos.html",
    quote="Built-in algorithms and pretrained models",
    fields=("algorithm",),
)
def choose_builtin(context: JobContext) -> StrategyMatches:
    if context.job.algorithm is not None:
        yield StrategyMatch("builtin", f"The job names the built-in algorithm {context.job.algorithm}")


@rule(
    "strategy.own-image",
    phase="choose strategy",
    order=_STATED,
    summary="`custom` for an image that contains its own program",
    source="https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-training-algo-dockerfile.html",
    quote="docker run image train",
    fields=("entry", "image"),
)
def choose_custom_for_image(context: JobContext) -> StrategyMatches:
    if context.job.entry is None:
        yield StrategyMatch("custom", "The image contains its own program")


@rule(
    "strategy.shell-script",
    phase="choose strategy",
    order=_STATED,
    summary="`custom` for a shell script",
    source=_ORDER_SOURCE,
    quote="The script is a shell script",
    fields=("entry",),
)
def choose_custom_for_shell_script(context: JobContext) -> StrategyMatches:
    entry = context.facts.source.entry
    if entry.endswith(".sh"):
        yield StrategyMatch("custom", f"{entry} is a shell script, which starts what it needs itself")


@rule(
    "strategy.program",
    phase="choose strategy",
    order=_STATED,
    summary="`custom` for a program that is not written in Python",
    source=_ORDER_SOURCE,
    quote="a program that smlaunch cannot analyze",
    fields=("entry",),
)
def choose_custom_for_program(context: JobContext) -> StrategyMatches:
    entry = context.facts.source.entry
    if not entry.endswith(".py"):
        yield StrategyMatch("custom", f"{entry} is a program that cannot be analyzed")


@rule(
    "strategy.inference",
    phase="choose strategy",
    order=_WORK,
    summary="`share-nothing` for batch inference, unless the script's library distributes records itself",
    source=_ORDER_SOURCE,
    quote="`workload.kind` is inference",
    fields=("workload", "entry"),
    facts=("script",),
)
def choose_share_nothing_for_inference(context: JobContext) -> StrategyMatches:
    detected = context.detected_strategy
    serves_inference = detected is not None and load_strategy(detected.strategy).distributes_records
    if context.job.workload.kind == "inference" and not serves_inference:
        yield StrategyMatch("share-nothing", "In batch inference records are independent")


@rule(
    "strategy.preparation",
    phase="choose strategy",
    order=_WORK,
    summary="`processing` for the preparation of data, unless the script's library runs in processing jobs",
    source="https://docs.aws.amazon.com/sagemaker/latest/dg/processing-job.html",
    quote="run data pre and post processing, feature engineering, and model evaluation tasks",
    fields=("workload", "entry"),
    facts=("script",),
)
def choose_processing_for_preparation(context: JobContext) -> StrategyMatches:
    detected = context.detected_strategy
    prepares_data = detected is not None and not load_strategy(detected.strategy).job_kind.trains_model
    if context.job.workload.kind == "preparation" and not prepares_data:
        yield StrategyMatch("processing", "The job prepares data and trains nothing")


@rule(
    "strategy.reads-resourceconfig",
    phase="choose strategy",
    order=_SCRIPT,
    summary="`custom` for a script that reads the names of the other hosts",
    source="https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-training-algo-running-container.html",
    quote="/opt/ml/input/config/resourceconfig.json",
    fields=("compute", "entry"),
    facts=("script",),
)
def choose_custom_for_resource_config(context: JobContext) -> StrategyMatches:
    """The script connects to the other hosts itself."""
    if context.facts.script.reads_resource_config and _takes_one_process_per_host(context):
        yield StrategyMatch("custom", f"{context.facts.source.entry} reads resourceconfig.json")


@rule(
    "strategy.library",
    phase="choose strategy",
    order=_SCRIPT,
    summary="the strategy of the library that the script imports",
    source=_ORDER_SOURCE,
    quote="The script imports a library that indicates a strategy: that strategy.",
    fields=("compute", "inputs", "entry"),
    facts=("script",),
)
def choose_strategy_of_library(context: JobContext) -> StrategyMatches:
    """A library that trains on each host separately leaves the choice to how the data is split."""
    detected = context.detected_strategy
    if detected is not None and (detected.joins_hosts or not _hosts_read_own_shares(context)):
        yield StrategyMatch(
            detected.strategy,
            _import_evidence(context, detected.library),
            f"strategy.{detected.rule}",
        )


def _import_evidence(context: JobContext, library: str) -> str:
    """Return the clause that a library is imported, with the file that does so: the script, or one of its
    modules."""
    script, entry = context.facts.script, context.facts.source.entry
    if find_imported_library(script.imports, (library,)) is None:
        file_by_import = script.program.files_of_imports
        import_names = sorted(
            name for name in file_by_import if name == library or name.startswith(f"{library}.")
        )
        if import_names and file_by_import[import_names[0]] != entry:
            return f"{file_by_import[import_names[0]]}, which {entry} imports, imports {library}"
    return f"{entry} imports {library}"


@rule(
    "strategy.shards",
    phase="choose strategy",
    order=_DATA,
    summary="`share-nothing` for an input that is split among hosts",
    source=_ORDER_SOURCE,
    quote="An input is split: `share-nothing`.",
    fields=("inputs", "compute"),
)
def choose_share_nothing_for_shards(context: JobContext) -> StrategyMatches:
    if _hosts_read_own_shares(context):
        evidence = "Hosts read their own shares of the data, and nothing joins ranks"
        yield StrategyMatch("share-nothing", evidence)


@rule(
    "strategy.single-process",
    phase="choose strategy",
    order=_FALLBACK,
    summary="`custom` for one process on one host",
    source=_ORDER_SOURCE,
    quote="One host and one process: `custom`",
    fields=("compute", "segments"),
)
def choose_custom_for_single_process(context: JobContext) -> StrategyMatches:
    if max_hosts_of(context.job) == 1 and _takes_one_process_per_host(context):
        yield StrategyMatch("custom", "One process on one host needs no rendezvous")


@rule(
    "strategy.without-pytorch",
    phase="choose strategy",
    order=_FALLBACK,
    summary="`custom` for a script that imports nothing of PyTorch's",
    source=_ORDER_SOURCE,
    quote="The script imports nothing of PyTorch's: `custom`",
    fields=("compute", "entry"),
    facts=("script",),
)
def choose_custom_without_pytorch(context: JobContext) -> StrategyMatches:
    """Choose a plain process for a script that would not use several ranks: ``ddp`` starts them on each host
    and gives them variables (RANK, WORLD_SIZE, ...) that only PyTorch reads."""
    script = context.facts.script
    imports = script.imports | script.program.imports
    uses_pytorch = find_imported_library(imports, _PYTORCH_LIBRARIES) is not None
    reads_rank_variables = not _RANK_VARIABLES.isdisjoint(script.program.variable_uses)
    uses_ranks = uses_pytorch or reads_rank_variables or context.job.launcher != "runtime"
    was_analyzed = script.features is not None
    if was_analyzed and not uses_ranks and _takes_one_process_per_host(context):
        yield StrategyMatch("custom", f"{context.facts.source.entry} imports nothing of PyTorch's")


@rule(
    "strategy.several-processes",
    phase="choose strategy",
    order=_FALLBACK,
    summary="`ddp` for all other scripts",
    source=_ORDER_SOURCE,
    quote="otherwise `ddp`",
    fields=("compute",),
)
def choose_ddp(_: JobContext) -> StrategyMatches:
    yield StrategyMatch("ddp", "The job asks for several processes")


SEARCH_LIBRARIES = (
    *("optuna", "hyperopt", "ray.tune", "keras_tuner", "kerastuner"),
    "sklearn.model_selection.GridSearchCV",
    "sklearn.model_selection.RandomizedSearchCV",
    "sklearn.model_selection.HalvingGridSearchCV",
    "sklearn.model_selection.HalvingRandomSearchCV",
)
"""Libraries that search hyperparameters."""


def find_search_library(script: ScriptFacts) -> str | None:
    """Return the library by which the script, or one of its modules, searches hyperparameters; None without
    one."""
    return find_imported_library(script.imports | script.program.imports, SEARCH_LIBRARIES)


@rule(
    "search.tuning",
    phase="advise",
    summary="a script that searches hyperparameters itself, which automatic model tuning does in parallel",
    source="https://docs.aws.amazon.com/sagemaker/latest/dg/automatic-model-tuning-limits.html",
    quote="Number of parallel training jobs per hyperparameter tuning job: 10",
    fields=("entry", "compute.hosts", "segments"),
    facts=("script",),
)
def point_search_to_tuning(context: PlanContext) -> Findings:
    """Yield a reason that names SageMaker's tuning jobs; on several hosts also a warning, unless the search's
    library distributes its trials over them, as Ray does."""
    library = find_search_library(context.facts.script)
    if library is None:
        return
    entry = context.facts.source.entry
    where_text = "this job's own trials are lost with its hosts if nothing saves them, such as in checkpoints"
    yield Reason(
        "search.tuning",
        f"{entry} imports {library}: if it searches hyperparameters, SageMaker's automatic model tuning "
        "(CreateHyperParameterTuningJob, which smlaunch does not send) runs each trial as a training job, by "
        f"default up to 10 at a time; {where_text}.",
    )
    if context.hosts > 1 and context.strategy.name != "ray" and not has_split_input(context.job):
        yield PlanWarning(
            f"compute.hosts: each of {context.hosts} hosts runs all trials of the search by {library}, "
            "unless the script shares them; take one host, or automatic model tuning."
        )


def _takes_one_process_per_host(context: JobContext) -> bool:
    """Whether the job states one process, or leaves it to the strategy."""
    return context.job.compute.processes_per_host in (None, 1)


def _hosts_read_own_shares(context: JobContext) -> bool:
    return has_split_input(context.job) and _takes_one_process_per_host(context)


MAX_COPIED_BYTES = 10**12
"""Of an input that each of several hosts copies: an hour or more at the speed of a volume."""


@rule(
    "inputs.copies",
    summary="an input of more than 1 TB that each of several hosts copies completely",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ProcessingS3Input.html",
    quote="FullyReplicated: the entire dataset on each ML compute instance (that of training likewise)",
    fields=("inputs.*", "compute.hosts", "segments", "strategy"),
    facts=("inputs",),
    may_be_allowed=True,
    allowed_when="if every host needs all of it",
)
def reject_copies_of_large_inputs(context: PlanContext) -> Problems:
    if context.facts.target != "aws" or context.hosts == 1:
        return
    for name, channel in context.job.inputs.items():
        input_facts = context.facts.inputs.get(name)
        is_copied = channel.split is None and (channel.mode == "File" or context.job_kind.copies_all_inputs)
        size_bytes = 0 if input_facts is None else input_facts.bytes or 0
        if not is_copied or size_bytes <= MAX_COPIED_BYTES:
            continue
        size_text = f"{bound_word(context.facts, [name])}{format_size(size_bytes)}"
        yield Problem(
            f"inputs.{name}",
            f"each of {context.hosts} hosts would copy all of it, {size_text}, before it starts: "
            f"{format_size(size_bytes * context.hosts)} in all, and hours at a volume's 128 to 250 MiB/s; "
            f"{_instead_of_copies(context)}",
        )


def _instead_of_copies(context: PlanContext) -> str:
    if context.strategy.is_for_tables:
        return f"read s3a:// in the script, and leave the input out. {ELSEWHERE}"
    if context.job_kind.copies_all_inputs:
        return "give each host its share (split: key), or read S3 in the script"
    return "give each host its share (split: key), or let hosts read what they open (mode: FastFile)"


@rule(
    "inputs.tables",
    phase="advise",
    summary="tables of terabytes, which other services read from S3",
    source="https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/emr-serverless.html",
    quote="EMR Serverless (AWS Glue and Amazon Athena likewise): billed by use, without a cluster",
    fields=("inputs.*", "strategy"),
    facts=("inputs",),
)
def advise_on_large_tables(context: PlanContext) -> Findings:
    total_bytes = sum(input_facts.bytes or 0 for input_facts in context.facts.inputs.values())
    is_large = total_bytes > MAX_COPIED_BYTES
    if context.facts.target == "aws" and context.strategy.is_for_tables and is_large:
        yield Reason("inputs.tables", f"The inputs have {format_size(total_bytes)}. {ELSEWHERE}.")


@rule(
    "inputs.bounds",
    phase="advise",
    summary="inputs with more objects than a plan counts",
    source="docs/planner.md",
    quote="counts at most 100,000 objects of an input",
    fields=("inputs.*",),
    facts=("inputs",),
)
def warn_of_uncounted_objects(context: PlanContext) -> Findings:
    """What depends on the size of such an input follows from a lower bound."""
    for name in sorted(sized_inputs(context.job)):
        input_facts = context.facts.inputs.get(name)
        if input_facts is not None and input_facts.is_truncated:
            yield PlanWarning(
                f"inputs.{name}: at least {input_facts.objects or 0:,} objects and "
                f"{format_size(input_facts.bytes or 0)}, where counting stopped: machines, disks and times "
                "follow from that bound and may be too small; `smlaunch data inventory` counts all of it."
            )


@rule(
    "groups.exclusive",
    summary="instance groups beside other hosts, and what only one training can have",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ResourceConfig.html",
    quote="InstanceType and InstanceCount cannot be specified with InstanceGroups",
    fields=("compute", "segments", "workload", "limits.segment", "checkpoints"),
)
def reject_fields_beside_groups(context: PlanContext) -> Problems:
    """Yield a problem for each field that states hosts beside the groups, and for each that makes the job a
    part of one training: every group trains by itself, and checkpoints are those of one training."""
    job, compute = context.job, context.job.compute
    if not compute.instance_groups:
        return
    message = "compute.instance_groups names types and hosts of its own; keep one of them"
    for field in ("instance_type", "hosts", "instance_preferences"):
        if field in compute.stated_fields and getattr(compute, field) not in (None, ()):
            yield Problem(f"compute.{field}", message)
    if job.workload != Workload():
        yield Problem("workload", "it lets the plan choose hosts, and compute.instance_groups names them")
    together = (
        "each instance group trains by itself, and a run's checkpoints and segments are of one training"
    )
    for field, is_stated in (
        ("checkpoints", job.checkpoints is not None),
        ("segments", bool(job.segments)),
        ("limits.segment", job.limits.segment is not None),
    ):
        if is_stated:
            yield Problem(field, f"{together}; leave it out, or take hosts of one type")
    max_runtime = job.limits.max_runtime
    if max_runtime is not None and parse_duration(max_runtime) > MAX_JOB_SECONDS:
        message = f"{max_runtime} takes several jobs, and {together}; shorten it, or take hosts of one type"
        yield Problem("limits.max_runtime", message)


@rule(
    "groups.names",
    summary="two instance groups of one name, or types that have no common image",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_InstanceGroup.html",
    quote="InstanceGroupName: Specifies the name of the instance group",
    fields=("compute.instance_groups", "image"),
)
def reject_unsuitable_groups(context: PlanContext) -> Problems:
    groups = context.job.compute.instance_groups
    names = [group.name for group in groups]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            message = f"{names.count(name)} groups are called {name!r}; give each a name of its own"
            yield Problem("compute.instance_groups", message)
    types = [group.type for group in groups]
    neuron_type = next(filter(is_neuron, types), None)
    gpu_type = next((name for name in types if is_accelerated(name) and not is_neuron(name)), None)
    if context.job.image is None and neuron_type is not None and gpu_type is not None:
        message = f"all groups run one image, and AWS has none for {neuron_type} and {gpu_type} together"
        yield Problem("compute.instance_groups", f"{message}; take one of them, or name an image")


@rule(
    "groups.channels",
    summary="channels of instance groups that do not exist, or of groups for some channels only",
    source="https://github.com/aws/sagemaker-python-sdk/issues/6089",
    quote="Some channels have assigned instance groups while others not",
    fields=("inputs.*", "compute.instance_groups"),
)
def reject_channels_of_unknown_groups(context: PlanContext) -> Problems:
    job = context.job
    names = [group.name for group in job.compute.instance_groups]
    has_groups = any(channel.instance_groups for channel in job.inputs.values())
    for channel_name, channel in job.inputs.items():
        field = f"inputs.{channel_name}.instance_groups"
        unknown_names = [name for name in channel.instance_groups if name not in names]
        if channel.instance_groups and not names:
            message = "the job has no instance groups; name them in compute.instance_groups, or leave it out"
            yield Problem(field, message)
        elif unknown_names:
            hint = did_you_mean(unknown_names[0], names)
            yield Problem(field, f"no instance group is called {unknown_names[0]!r}{hint}; there is {names}")
        elif channel.file_system is not None and has_groups:
            message = (
                "a file system is mounted by all groups, and other channels name theirs; leave those out"
            )
            yield Problem(f"inputs.{channel_name}", message)
        elif has_groups and not channel.instance_groups:
            message = "other channels name their instance groups, so every channel has to; name those of it"
            yield Problem(field, message)
