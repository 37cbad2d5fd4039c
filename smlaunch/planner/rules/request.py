"""Rules about sizes, reserved names and combinations of request members."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any

from smlaunch.api.hyperparameter_text import hyperparameter_text
from smlaunch.api.job_kinds import folders_of_entries, get_at_path, output_addresses, set_at_path
from smlaunch.api.validation.request_check import check_request
from smlaunch.api.validation.violation import path_text
from smlaunch.contract import segment as variables
from smlaunch.contract.run_names import TAG_ATTEMPT, TAG_FORMAT, TAG_JOB, TAG_RUN, TAG_SEGMENT
from smlaunch.contract.s3_uri import split_s3_uri
from smlaunch.contract.sagemaker_paths import RUNTIME_CHANNEL, SOURCE_CHANNEL, WHEELHOUSE_CHANNEL
from smlaunch.contract.secret_reference import parse_secret_reference
from smlaunch.errors import Problem
from smlaunch.facts.requirements_choice import NO_REQUIREMENTS
from smlaunch.job.model import Job
from smlaunch.planner.plan import Reason
from smlaunch.planner.plan_context import PlanContext, PlanWarning, stated_output
from smlaunch.planner.request_problems import job_field_of_member, request_channels
from smlaunch.planner.rules.rule import Findings, Problems, rule

_SMLAUNCH_TAGS = (TAG_FORMAT, TAG_RUN, TAG_SEGMENT, TAG_ATTEMPT, TAG_JOB)
_REMEDY_BY_MEMBER = {
    "HyperParameters": "what is long or many goes into a file of the source, or of an input",
    "Environment": "what is long or many goes into a file of the source, or of an input",
    "Tags": "shorten it, or leave some out",
}
_DIRECTORY_BUCKET_SUFFIX = "--x-s3"
_RESERVED_PREFIXES = ("smlaunch:", "aws:")

_FIELD_BY_VARIABLE = {
    variables.STOP_AFTER_VARIABLE: "limits.segment",
    variables.UNTIL_STEP_VARIABLE: "segments[].until_step",
    variables.RUN_VARIABLE: "name",
    variables.CHECKPOINTS_VARIABLE: "checkpoints.local_path",
    variables.CHECKPOINTS_URI_VARIABLE: "checkpoints.uri",
    variables.UPLOAD_VARIABLE: "checkpoints.upload",
    variables.KEEP_VARIABLE: "checkpoints.keep",
    variables.INTERVAL_VARIABLE: "checkpoints.interval",
    variables.DETERMINISTIC_VARIABLE: "deterministic",
    variables.BUCKET_OWNERS_VARIABLE: "bucket_owner",
}
"""The field of the job that sets what a variable of smlaunch's own tells the hosts."""

_RANK_VARIABLES = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID"),
    "TORCHELASTIC_USE_AGENT_STORE",
)
"""What the runtime tells each rank about itself and its peers; a test compares them with the runtime's."""


@rule(
    "request.sizes",
    summary="hyperparameters, variables and tags that are too many or too long",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateTrainingJob.html",
    quote=("≤100; key ≤256; value ≤2500 ... key [a-zA-Z_][a-zA-Z0-9_]* ≤512; value ≤512 ... ≤50; key 1-128"),
    fields=("hyperparameters.*", "environment.*", "tags.*"),
)
def reject_too_large_members(context: PlanContext) -> Problems:
    """Yield a problem for each of the job's hyperparameters, variables and tags that is too long, and for too
    many of them. A model of the service's API checks them; it checks the whole request later.
    Each violation has the path of a member of the request, and the limit that it breaks."""
    job = context.job
    # Every job gets tags of smlaunch's own; only their number matters here.
    tags = {**dict.fromkeys(_SMLAUNCH_TAGS, ""), **job.tags}
    value_by_field = {
        "hyperparameters": {key: hyperparameter_text(value) for key, value in job.hyperparameters.items()},
        "environment": dict(job.environment),
        "tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }
    kind = context.job_kind
    # A request with nothing but these members, as far as the kind has them.
    request: dict[str, Any] = {}
    for field, value in value_by_field.items():
        if field in kind.request_path_by_field:
            set_at_path(request, kind.request_path_by_field[field], value)
    for violation in check_request(kind.create_operation, request):
        member = violation.path[0]  # the top-level member, such as Tags
        # Members that the request lacks here, and rules across members, are checked with the whole request.
        if member not in request or violation.rule == "service":
            continue
        message = violation.to_problem().message
        if member == "Tags" and violation.rule == "max_items":
            message = f"{len(job.tags)} and smlaunch's own {len(_SMLAUNCH_TAGS)} are {len(tags)}; {message}"
        yield Problem(
            job_field_of_member(violation.path, request), f"{message}; {_REMEDY_BY_MEMBER[str(member)]}"
        )


@rule(
    "tags.reserved",
    summary="tags with a reserved prefix",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_Tag.html",
    quote="≤50; key 1-128, value 0-256",
    fields=("tags.*",),
)
def reject_reserved_tags(context: PlanContext) -> Problems:
    for key in context.job.tags:
        if key.lower().startswith(_RESERVED_PREFIXES):
            yield Problem(f"tags.{key}", f"{key.split(':')[0]}: is a reserved prefix; choose another key")


@rule(
    "environment.own",
    summary="variables with a name of smlaunch's own",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateTrainingJob.html",
    quote="key [a-zA-Z_][a-zA-Z0-9_]* ≤512; value ≤512",
    fields=("environment.*", "secrets.*"),
)
def reject_variables_set_by_plan(context: PlanContext) -> Problems:
    """Yield a problem for each variable by which smlaunch tells hosts and ranks what they need to know. The
    trials of verify-resume state a directory for traces, and an interval of less than a second."""
    is_trial = variables.TRACE_VARIABLE in context.job.environment
    trial_variables = (variables.TRACE_VARIABLE, variables.INTERVAL_VARIABLE) if is_trial else ()
    for section, key in _variables_of_job(context.job):
        if not key.startswith(variables.OWN_PREFIX) or key in trial_variables:
            continue
        field = _FIELD_BY_VARIABLE.get(key)
        remedy = f"the plan sets this one; use {field}" if field else "choose another name"
        yield Problem(
            f"{section}.{key}", f"names that begin with {variables.OWN_PREFIX} are smlaunch's own; {remedy}"
        )


def _variables_of_job(job: Job) -> Iterator[tuple[str, str]]:
    """Yield each variable that the job sets for its ranks, behind the field that has it."""
    for section in ("environment", "secrets"):
        yield from ((section, key) for key in getattr(job, section))


@rule(
    "environment.ranks",
    summary="variables that every rank gets a value of its own for",
    source="https://docs.pytorch.org/docs/stable/elastic/run.html",
    quote="The following environment variables are made available to you in your script: LOCAL_RANK ...",
    fields=("environment.*", "secrets.*", "strategy", "entry"),
)
def reject_variables_of_ranks(context: PlanContext) -> Problems:
    """Yield a problem for each variable that would have no effect, because ranks join by values of their
    own."""
    if not (context.strategy.rendezvous and context.has_runtime):
        return
    for section, key in _variables_of_job(context.job):
        if key in _RANK_VARIABLES:
            yield Problem(
                f"{section}.{key}",
                f"{context.strategy.name} gives each rank its own value, so that this one has no effect; "
                "leave it out, or take strategy custom, which sets none",
            )


@rule(
    "network.both",
    summary="subnets without security groups, or the other way round",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_VpcConfig.html",
    quote="SGs 1-5, subnets 1-16",
    fields=("subnets", "security_groups"),
)
def reject_incomplete_network(context: PlanContext) -> Problems:
    job = context.job
    if bool(job.subnets) != bool(job.security_groups):
        stated_field, missing_field = (
            ("subnets", "security_groups") if job.subnets else ("security_groups", "subnets")
        )
        yield Problem(missing_field, f"it goes together with {stated_field}; give both or neither")


@rule(
    "request.members",
    phase="advise",
    summary="members of the request that no field of the job stands for",
    source="docs/request.md",
    quote="Members that only `request` states",
    fields=("request", "inputs.*", "compute.volume_gb"),
)
def explain_members_of_request(context: PlanContext) -> Findings:
    job, kind = context.job, context.job_kind
    members = [name for name in job.request if (name,) not in kind.request_path_by_field.values()]
    if members:
        names = ", ".join(members)
        yield Reason(
            "request.members",
            f"Each job is created with these members, as the job's request has them: {names}.",
        )
    addresses = [get_at_path(job.request, path) for path in output_addresses(kind, job.request)]
    if addresses:
        yield Reason(
            "request.members",
            f"Outputs are stored at {', '.join(addresses)} itself, and replace files of the same names there "
            "(of an earlier run, too); below output each job has a folder of its own.",
        )
    unmeasured_inputs = ", ".join(sorted(request_channels(job, kind)))
    if unmeasured_inputs and job.compute.volume_gb is None:
        yield PlanWarning(
            f"request: the data of {unmeasured_inputs} is not measured, and the plan decides without it; "
            "state compute.volume_gb if hosts copy it."
        )


@rule(
    "image.registry",
    summary="credentials of a registry without an image, or without a network that reaches it",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_TrainingImageConfig.html",
    quote="Set this to Vpc if your image is hosted in a private Docker registry in your VPC",
    fields=("image_registry_credentials", "image", "subnets", "security_groups"),
)
def reject_unreachable_registry(context: PlanContext) -> Problems:
    job = context.job
    if job.image_registry_credentials is None:
        return
    if job.image is None:
        message = "it is for the registry of an image, and the job names none; give image, or leave it out"
        yield Problem("image_registry_credentials", message)
    if not job.subnets and not job.security_groups:
        message = "hosts reach a private registry through a VPC; give subnets and security_groups of it"
        yield Problem("subnets", message)


@rule(
    "output.key-region",
    summary="a key of another region or partition",
    source="https://docs.aws.amazon.com/kms/latest/developerguide/concepts.html",
    quote="KMS keys are never transmitted outside of the AWS Regions in which they were created",
    fields=("output", "compute.volume_kms_key"),
)
def reject_key_of_another_region(context: PlanContext) -> Problems:
    facts = context.facts
    key_by_field = {
        "output.kms_key": stated_output(context.job).kms_key,
        "compute.volume_kms_key": context.job.compute.volume_kms_key,
    }
    for field, key in key_by_field.items():
        if facts.target != "aws" or key is None or not key.startswith("arn:"):
            continue
        _, partition, _, region, *_ = key.split(":")
        if (partition, region) != (facts.partition, facts.region):
            message = f"it is a key of {region} ({partition}), and the job runs in {facts.region}"
            yield Problem(field, f"{message}; a key encrypts in its own region only, so name one of there")


@rule(
    "output.key-express",
    summary="a key for a directory bucket (S3 Express One Zone)",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_OutputDataConfig.html",
    quote="KmsKeyId: KMS key is not supported for Amazon S3 Express One Zone",
    fields=("output", "outputs"),
)
def reject_key_for_directory_bucket(context: PlanContext) -> Problems:
    output = stated_output(context.job)
    uris = (output.uri, *(other.uri for other in context.job.outputs.values()))
    for uri in uris if output.kms_key is not None else ():
        bucket, _ = split_s3_uri(uri or "") or ("", "")
        if not bucket.endswith(_DIRECTORY_BUCKET_SUFFIX):
            continue
        message = f"{bucket} is a directory bucket (S3 Express One Zone), which takes no key of KMS"
        yield Problem("output.kms_key", f"{message}; leave it out, or take another bucket")


@rule(
    "metrics.unique",
    summary="two metrics of one name",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_MetricDefinition.html",
    quote="Name: The name of the metric",
    fields=("metrics",),
)
def reject_metrics_of_one_name(context: PlanContext) -> Problems:
    names = [metric.name for metric in context.job.metrics]
    for index, name in enumerate(names):
        if name in names[:index]:
            message = f"metrics[{names.index(name)}] has the name {name!r} too; give one of them another"
            yield Problem(f"metrics[{index}].name", message)


@rule(
    "retries.attempts",
    phase="advise",
    summary="the service's own retries beside smlaunch's attempts",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_StoppingCondition.html",
    quote="When RetryStrategy is specified, MaxRuntimeInSeconds is the maximum time for all of the attempts",
    fields=("retries", "limits"),
)
def explain_retries(context: PlanContext) -> Findings:
    job = context.job
    if job.retries is None:
        return
    times = "once" if job.retries == 1 else f"up to {job.retries} times"
    yield Reason(
        "retries.attempts",
        f"After an internal error the service starts the same job again, {times}, within its time limit; "
        "smlaunch sees one job. Only when the service gives up does one of limits.attempts end.",
    )
    if job.limits.segment is not None:
        yield PlanWarning(
            "retries: the time limit counts all of the service's tries of a segment together, and a host "
            "knows its own try only: a segment that was tried again may be ended by the service before it "
            "ends itself, and lose what it computed since its last checkpoint."
        )


@rule(
    "processing.outputs",
    summary="outputs of a job that trains, a folder or a name for two of a job's inputs and outputs",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ProcessingS3Output.html",
    quote="LocalPath: The local path of a directory where you want Amazon SageMaker to upload its contents",
    fields=("outputs", "inputs", "strategy", "request"),
)
def reject_impossible_outputs(context: PlanContext) -> Problems:
    outputs, kind = context.job.outputs, context.job_kind
    own_name = kind.constants.get("output_name")
    if own_name is None:
        if outputs:
            message = f"a {kind.noun} has one output, whose folder is SM_OUTPUT_DATA_DIR; leave it out"
            yield Problem("outputs", message)
        return
    if len(outputs) >= _MAX_OUTPUTS:
        yield Problem("outputs", f"{len(outputs)} are too many: at most {_MAX_OUTPUTS - 1} beside output")
    stated_outputs = (context.job.request.get("ProcessingOutputConfig") or {}).get("Outputs") or ()
    for name in outputs:
        if name == own_name:
            yield Problem(
                f"outputs.{name}", "it is the name of the job's own output; use output, or rename it"
            )
        if any(stated.get("OutputName") == name for stated in stated_outputs):
            yield Problem(f"outputs.{name}", "request states an output of this name too; keep one of them")
    first_by_folder: dict[str, str] = {}
    for field, owner, path in _processing_folders(context):
        first_owner = first_by_folder.setdefault(posixpath.normpath(path), owner)
        if first_owner != owner:
            message = f"{first_owner} is in this folder too; give each a folder of its own"
            yield Problem(field, message)


def _processing_folders(context: PlanContext) -> Iterator[tuple[str, str, str]]:
    """Yield the folders of a processing job's inputs and outputs on the hosts: the field that has it, whose
    it is, and the folder; smlaunch's own first."""
    job, kind = context.job, context.job_kind
    own_name = kind.constants["output_name"]
    if context.has_runtime:
        yield "", "smlaunch's runtime", kind.paths.channel_dir(RUNTIME_CHANNEL)
        yield "", "the source", kind.paths.channel_dir(SOURCE_CHANNEL)
    yield "output", "the job's own output", str(kind.constants["output_path"])
    name_path = kind.input_path_by_field["name"]
    stated_folders = dict(folders_of_entries(kind, job.request))
    inputs_with_folder = {get_at_path(job.request, (*path, *name_path)) for path in stated_folders}
    for name in job.inputs:
        if name not in inputs_with_folder:
            yield f"inputs.{name}", f"inputs.{name}", kind.paths.channel_dir(name)
    for name, output in job.outputs.items():
        yield f"outputs.{name}.path", f"outputs.{name}", output.path
    for path, folder in stated_folders.items():
        if get_at_path(job.request, (*path, "OutputName")) not in (own_name, *job.outputs):
            yield f"request.{path_text(path)}", f"request.{path_text(path)}", folder


_MAX_OUTPUTS = 10
"""Of one request, by botocore's model."""


@rule(
    "processing.other-outputs",
    phase="advise",
    summary="where the other outputs of a processing job are stored",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ProcessingS3Output.html",
    quote="S3UploadMode: Continuous, EndOfJob",
    fields=("outputs", "strategy"),
)
def explain_other_outputs(context: PlanContext) -> Findings:
    for name, output in context.job.outputs.items():
        when = "when the job completes" if output.upload == "EndOfJob" else "while the job runs"
        place = output.uri or f"the folder {name} beside the output"
        replaced = "; they replace files of the same names there" if output.uri else ""
        text = f"Files in {output.path} are uploaded to {place}, {when}{replaced}."
        yield Reason("processing.other-outputs", text)


@rule(
    "secrets.reach",
    summary="secrets that no host could read, or that another field sets",
    source="docs/secrets.md",
    quote="smlaunch's runtime reads secrets on each host, over the network.",
    fields=("secrets", "environment", "entry", "algorithm", "image", "network_isolation"),
)
def reject_unreadable_secrets(context: PlanContext) -> Problems:
    job = context.job
    if not job.secrets:
        return
    if not context.has_runtime:
        message = "smlaunch's runtime reads them on the hosts, and starts scripts only; leave it out"
        yield Problem("secrets", message)
    if job.network_isolation:
        message = "hosts read them over the network, and network_isolation leaves none; leave one of them out"
        yield Problem("secrets", message)
    for name in job.secrets:
        if name in job.environment:
            message = f"environment.{name} sets the same variable; leave one of them out"
            yield Problem(f"secrets.{name}", message)


@rule(
    "secrets.permissions",
    phase="advise",
    summary="secrets, and what the role needs to read them",
    source="https://docs.aws.amazon.com/secretsmanager/latest/userguide/reference_iam-permissions.html",
    quote="secretsmanager:GetSecretValue",
    fields=("secrets", "subnets", "role"),
)
def explain_secrets(context: PlanContext) -> Findings:
    """Yield which secrets the hosts read, and the statement that the role's policy needs for them."""
    job = context.job
    references = {name: parse_secret_reference(text) for name, text in job.secrets.items()}
    names_by_permission: dict[str, list[str]] = {}
    for name, reference in references.items():
        if reference is not None:
            names_by_permission.setdefault(reference.permission, []).append(f"{name} ({reference.id})")
    if not names_by_permission:
        return
    if context.facts.target == "local":
        yield Reason(
            "secrets.permissions",
            f"Hosts read {', '.join(job.secrets)} from the endpoint's own Secrets Manager and Parameter "
            "Store (the extra [moto]), not from those of an account.",
        )
        return
    needs = " and ".join(
        f"{permission} for {', '.join(names)}" for permission, names in names_by_permission.items()
    )
    way = (
        " Its subnets need a way to these services: a NAT gateway, or their endpoints." if job.subnets else ""
    )
    yield Reason(
        "secrets.permissions",
        f"Hosts read these secrets as they start; no request contains them. The role needs {needs}, and "
        f"kms:Decrypt where a key of your own encrypts one.{way}",
    )


@rule(
    "network.requirements",
    summary="requirements without a network and without wheels",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateTrainingJob.html",
    quote="EnableNetworkIsolation",
    fields=("network_isolation", "requirements", "inputs"),
)
def reject_requirements_without_network(context: PlanContext) -> Problems:
    job = context.job
    if context.requirements.lacks_index and job.requirements not in (None, NO_REQUIREMENTS):
        message = f"under network_isolation pip reaches no index; add an input {WHEELHOUSE_CHANNEL!r}"
        yield Problem("requirements", f"{message} with the wheels")


@rule(
    "requirements.beside-program",
    phase="advise",
    summary="a requirements.txt beside the script, which is installed unless the job says otherwise",
    source="docs/source.md",
    quote="A `requirements.txt` beside the script is installed",
    fields=("requirements", "network_isolation", "inputs", "entry"),
)
def explain_default_requirements(context: PlanContext) -> Findings:
    job, file = context.job, context.facts.source.default_requirements
    if job.requirements is not None or file is None:
        return
    if context.requirements.lacks_index:
        yield PlanWarning(
            f"{file} is not installed, because pip reaches no index under network_isolation; add an input "
            f"{WHEELHOUSE_CHANNEL!r} with the wheels if the image lacks any of it."
        )
    else:
        yield Reason(
            "requirements.beside-program",
            f"{file} is in the source: pip installs on every host what of it is missing there. "
            f"--requirements {NO_REQUIREMENTS} (requirements: {NO_REQUIREMENTS}) leaves it out.",
        )


TOOLKIT_PREFIX = "sagemaker_"


@rule(
    "hyperparameters.toolkit",
    phase="advise",
    summary="hyperparameters that the script does not get as arguments",
    source="https://github.com/aws/sagemaker-training-toolkit/blob/master/src/sagemaker_training/params.py",
    quote='SAGEMAKER_PREFIX = "sagemaker_"',
    fields=("hyperparameters",),
)
def warn_of_toolkit_hyperparameters(context: PlanContext) -> Findings:
    for key in context.job.hyperparameters:
        if key.startswith(TOOLKIT_PREFIX):
            yield PlanWarning(
                f"hyperparameters.{key}: names that begin with {TOOLKIT_PREFIX} are for AWS's toolkit; the "
                "script gets them in SM_FRAMEWORK_PARAMS, not as arguments."
            )
