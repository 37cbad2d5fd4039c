"""Support matrix: what this endpoint does with every field of a request. A field is

    supported   it does here what it does on SageMaker;
    recorded    it is stored and shown by Describe, and has no effect; plan and log say so;
    rejected    the request fails with the field's name and the reason.

No field is ignored silently: tests find a field without a row. A row applies to all fields below it that have
no row of their own. Pure data and pure functions.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from smlaunch.api.job_kinds import PROCESSING, TRAINING, JobKind

SupportLevel = Literal["supported", "recorded", "rejected"]


@dataclass(frozen=True)
class SupportRow:
    """Support of a field and of the fields below it."""

    level: SupportLevel
    note: str = ""
    """What happens instead, or the limits of a supported field."""
    rejected_values: Mapping[str, str] = field(default_factory=dict)
    """Values of a supported field that are rejected, with the reason."""


def _supported(**rejected_values: str) -> SupportRow:
    return SupportRow("supported", rejected_values=rejected_values)


def _supported_with_note(note: str) -> SupportRow:
    return SupportRow("supported", note)


def _recorded(note: str) -> SupportRow:
    return SupportRow("recorded", note)


def _rejected(note: str) -> SupportRow:
    return SupportRow("rejected", note)


_NO_KEYS = "nothing is encrypted with a key here"
_NO_HARDWARE = "every host is this machine: it has neither the type's hardware nor its limits"
_ONE_DISK = "hosts share this machine's disk, without a limit"
_NO_ROLE = "no role is assumed; a script's AWS calls reach this endpoint only"
_NO_VPC = "hosts use this machine's network"
_LOOPBACK = "traffic between hosts stays on loopback"
_NO_EXPERIMENTS = "there is no experiment tracking here"
_RESPONSE_FIELD = "it is a field of responses, not of requests"
_CAPACITY = "there is always capacity here, unless a fault plan says so"
_BUCKETS = "a bucket that does not exist is created (setting make_buckets), where SageMaker would fail"
_PULLED = (
    "an image that is not on this machine is pulled with the engine's own login, not with the job's role"
)
_NOT_RUN = (
    "the image is not run: its program starts on this machine, a script by this machine's Python; the "
    "executor `containers` runs images"
)
_OWN_LOGIN = "images are pulled with the container engine's own login"
_ALL_HARDWARE = "every host is a container on this machine: it has neither the type's hardware nor its limits"
_ENGINE_NETWORK = "hosts have a network of the container engine's, of the job's own"
_BRIDGE = "traffic between hosts stays on this machine"
_NO_DEBUGGER = "there is no Debugger and no Profiler here"

TRAINING_JOB_SUPPORT: Mapping[str, SupportRow] = {
    "TrainingJobName": _supported(),
    "HyperParameters": _supported(),
    "AlgorithmSpecification": _supported(),
    "AlgorithmSpecification.TrainingImage": _recorded(_NOT_RUN),
    "AlgorithmSpecification.AlgorithmName": _rejected(
        "algorithm resources and marketplace algorithms cannot run here; give ContainerEntrypoint"
    ),
    "AlgorithmSpecification.TrainingInputMode": _supported(),
    "AlgorithmSpecification.MetricDefinitions": _supported_with_note(
        "regular expressions are Python's, not Java's; an invalid one is rejected"
    ),
    "AlgorithmSpecification.EnableSageMakerMetricsTimeSeries": _recorded(
        "every metric's whole series is in the endpoint's CloudWatch"
    ),
    "AlgorithmSpecification.TrainingImageConfig": _recorded("no image is pulled"),
    "RoleArn": _recorded(_NO_ROLE),
    "InputDataConfig": _supported(),
    "InputDataConfig.DataSource.S3DataSource.S3DataType": _supported(
        Converse="it needs a serverless job, which is not available here"
    ),
    "InputDataConfig.DataSource.S3DataSource.ModelAccessConfig": _recorded("no licence is checked"),
    "InputDataConfig.DataSource.S3DataSource.HubAccessConfig": _rejected("model hubs are not available here"),
    "InputDataConfig.DataSource.FileSystemDataSource": _rejected(
        "EFS and FSx cannot be mounted here; copy the data to S3"
    ),
    "InputDataConfig.DataSource.DatasetSource": _rejected("dataset resources are not available here"),
    "OutputDataConfig": _supported_with_note(_BUCKETS),
    "OutputDataConfig.KmsKeyId": _recorded(_NO_KEYS),
    "ResourceConfig": _supported(),
    "ResourceConfig.InstanceType": _recorded(_NO_HARDWARE),
    "ResourceConfig.VolumeSizeInGB": _recorded(_ONE_DISK),
    "ResourceConfig.VolumeKmsKeyId": _recorded(_NO_KEYS),
    "ResourceConfig.KeepAlivePeriodInSeconds": _supported_with_note(
        "a warm pool is a record with SageMaker's statuses and matching rule; hosts start at once anyway"
    ),
    "ResourceConfig.TrainingPlanArn": _recorded(_CAPACITY),
    "ResourceConfig.InstancePlacementConfig": _recorded("there are no UltraServers here"),
    "ResourceConfig.InstancePreferences": _supported_with_note(f"the first type is selected: {_CAPACITY}"),
    "ResourceConfig.InstancePreferences.TrainingPlanArns": _recorded(_CAPACITY),
    "ResourceConfig.SelectedInstanceType": _rejected(_RESPONSE_FIELD),
    "ResourceConfig.SelectedInstanceCount": _rejected(_RESPONSE_FIELD),
    "VpcConfig": _recorded(_NO_VPC),
    "StoppingCondition": _supported(),
    "StoppingCondition.MaxPendingTimeInSeconds": _supported_with_note(_CAPACITY),
    "Tags": _supported(),
    "EnableNetworkIsolation": _supported(),
    "EnableInterContainerTrafficEncryption": _recorded(_LOOPBACK),
    "EnableManagedSpotTraining": _supported_with_note(
        "hosts are interrupted only by a fault plan; the saving shown is the setting "
        "spot_billable_share, not a price"
    ),
    "CheckpointConfig": _supported_with_note(_BUCKETS),
    "DebugHookConfig": _recorded(_NO_DEBUGGER),
    "DebugRuleConfigurations": _recorded(_NO_DEBUGGER),
    "TensorBoardOutputConfig": _supported_with_note(_BUCKETS),
    "ExperimentConfig": _recorded(_NO_EXPERIMENTS),
    "ProfilerConfig": _recorded(_NO_DEBUGGER),
    "ProfilerRuleConfigurations": _recorded(_NO_DEBUGGER),
    "Environment": _supported(),
    "RetryStrategy": _supported_with_note(
        "an internal error here is a host whose supervisor died or did not start, or a fault of the endpoint"
    ),
    "RemoteDebugConfig": _recorded("there is no SSM session into a host: its processes are on this machine"),
    "InfraCheckConfig": _recorded("there is no hardware to check"),
    "SessionChainingConfig": _recorded("there are no session tags here"),
    "ServerlessJobConfig": _rejected("serverless training cannot run here"),
    "MlflowConfig": _recorded("there is no MLflow server here"),
    "ModelPackageConfig": _rejected("model packages are not available here"),
}

OTHER_OPERATION_SUPPORT: Mapping[str, SupportRow] = {
    "UpdateTrainingJob.ResourceConfig": _supported(),
    "UpdateTrainingJob.ProfilerConfig": _recorded(_NO_DEBUGGER),
    "UpdateTrainingJob.ProfilerRuleConfigurations": _recorded(_NO_DEBUGGER),
    "UpdateTrainingJob.RemoteDebugConfig": _recorded("there is no SSM session into a host"),
    "ListTrainingJobs": _supported(),
    "DescribeTrainingJob": _supported(),
    "StopTrainingJob": _supported(),
    "DeleteTrainingJob": _supported_with_note("metrics, logs and objects in S3 stay"),
    "ListProcessingJobs": _supported(),
    "DescribeProcessingJob": _supported(),
    "StopProcessingJob": _supported(),
    "DeleteProcessingJob": _supported_with_note("logs and objects in S3 stay"),
    "AddTags, ListTags, DeleteTags": _supported_with_note(
        "for training and processing jobs and for pipelines"
    ),
    "Search": _supported_with_note("Resource TrainingJob only; any other is rejected"),
    "Search.CrossAccountFilterOption": _supported_with_note(
        "CrossAccount finds nothing: there is only one account"
    ),
    "Search.VisibilityConditions": _rejected("there are no users to hide a job from"),
}
"""The same for what else is asked about jobs, by operation and field."""

_NO_VERSIONS = "a pipeline has one version here, its newest"
PIPELINE_SUPPORT: Mapping[str, SupportRow] = {
    "CreatePipeline.PipelineDefinition": _supported_with_note(
        "version 2020-12-01 with steps of type Training, Processing, Condition and Fail; another type, and "
        "everything else that is not supported is rejected when the pipeline is created, all at once"
    ),
    "CreatePipeline.PipelineDefinitionS3Location": _supported_with_note(
        "without VersionId: objects have no versions here"
    ),
    "CreatePipeline.PipelineVersionAliases": _rejected(_NO_VERSIONS),
    "CreatePipeline.RoleArn": _recorded(_NO_ROLE),
    "CreatePipeline.Tags": _supported_with_note("they are not passed on to the pipeline's jobs"),
    "CreatePipeline.ParallelismConfiguration": _supported(),
    "UpdatePipeline": _supported(),
    "UpdatePipeline.PipelineVersionAliases": _rejected(_NO_VERSIONS),
    "DescribePipeline.PipelineVersionId": _rejected(_NO_VERSIONS),
    "DescribePipeline.PipelineVersionAlias": _rejected(_NO_VERSIONS),
    "ListPipelines, DeletePipeline": _supported(),
    "StartPipelineExecution": _supported(),
    "StartPipelineExecution.SelectiveExecutionConfig": _rejected("all steps of a pipeline run here"),
    "StartPipelineExecution.PipelineVersionId": _rejected(_NO_VERSIONS),
    "StartPipelineExecution.PipelineVersionAlias": _rejected(_NO_VERSIONS),
    "StartPipelineExecution.MlflowExperimentName": _recorded("there is no MLflow server here"),
    "StartPipelineExecution.RoleArn": _recorded(_NO_ROLE),
    "ListPipelineExecutions.PipelineVersionAlias": _rejected(_NO_VERSIONS),
    "DescribePipelineExecution, ListPipelineExecutions, ListPipelineExecutionSteps": _supported(),
    "DescribePipelineDefinitionForExecution, ListPipelineParametersForExecution": _supported(),
    "StopPipelineExecution": _supported_with_note("jobs that run are stopped as StopTrainingJob does"),
    "RetryPipelineExecution": _supported_with_note("steps that have succeeded are not run again"),
    "Definition.PipelineExperimentConfig": _recorded(_NO_EXPERIMENTS),
    "Definition.MlflowConfig": _recorded("there is no MLflow server here"),
    "Definition.Metadata": _recorded("it stays in the definition"),
    "Definition.Steps.DependsOn.Trigger": _rejected(
        "a step runs when the steps that it depends on have succeeded"
    ),
    "Definition.Steps.CacheConfig": _supported_with_note(
        "a result is reused when the arguments that the service compares by default are equal"
    ),
    "Definition.Steps.RetryPolicies": _supported_with_note("MaxAttempts counts retries"),
}
"""The same for pipelines. What is not documented: after a step has failed, those that do not need it go on,
and a Fail step lets none begin; a job that was stopped from outside fails its step; an execution whose
endpoint died is Failed and can be retried."""

PROCESSING_JOB_SUPPORT: Mapping[str, SupportRow] = {
    "ProcessingJobName": _supported(),
    "ProcessingInputs": _supported(),
    "ProcessingInputs.AppManaged": _supported_with_note(
        "the program downloads such an input itself; it is in processingjobconfig.json"
    ),
    "ProcessingInputs.S3Input.S3InputMode": _supported(
        Pipe="the path of the pipes is documented for training jobs only; use File"
    ),
    "ProcessingInputs.DatasetDefinition": _rejected(
        "Athena and Redshift are not available here; store the query's result in S3 and use S3Input"
    ),
    "ProcessingOutputConfig": _supported_with_note(_BUCKETS),
    "ProcessingOutputConfig.Outputs.AppManaged": _supported_with_note(
        "the program uploads such an output itself"
    ),
    "ProcessingOutputConfig.Outputs.FeatureStoreOutput": _rejected("there is no Feature Store here"),
    "ProcessingOutputConfig.KmsKeyId": _recorded(_NO_KEYS),
    "ProcessingResources": _supported(),
    "ProcessingResources.ClusterConfig.InstanceType": _recorded(_NO_HARDWARE),
    "ProcessingResources.ClusterConfig.VolumeSizeInGB": _recorded(_ONE_DISK),
    "ProcessingResources.ClusterConfig.VolumeKmsKeyId": _recorded(_NO_KEYS),
    "ProcessingResources.ClusterConfig.InstancePreferences": _supported_with_note(
        f"the first type is selected: {_CAPACITY}"
    ),
    "ProcessingResources.ClusterConfig.SelectedInstanceType": _rejected(_RESPONSE_FIELD),
    "ProcessingResources.ClusterConfig.SelectedInstanceCount": _rejected(_RESPONSE_FIELD),
    "StoppingCondition": _supported(),
    "AppSpecification": _supported_with_note(
        "ContainerEntrypoint is required: the image's own entry point and its working directory are not "
        "known here"
    ),
    "AppSpecification.ImageUri": _recorded(_NOT_RUN),
    "Environment": _supported(),
    "NetworkConfig": _supported(),
    "NetworkConfig.EnableInterContainerTrafficEncryption": _recorded(_LOOPBACK),
    "NetworkConfig.VpcConfig": _recorded(_NO_VPC),
    "RoleArn": _recorded(_NO_ROLE),
    "Tags": _supported(),
    "ExperimentConfig": _recorded(_NO_EXPERIMENTS),
}

TRAINING_CONTAINER_SUPPORT: Mapping[str, SupportRow] = {
    "AlgorithmSpecification.TrainingImage": _supported_with_note(_PULLED),
    "AlgorithmSpecification.TrainingImageConfig": _recorded(_OWN_LOGIN),
    "ResourceConfig.InstanceType": _recorded(_ALL_HARDWARE),
    "VpcConfig": _recorded(_ENGINE_NETWORK),
    "EnableInterContainerTrafficEncryption": _recorded(_BRIDGE),
}
PROCESSING_CONTAINER_SUPPORT: Mapping[str, SupportRow] = {
    "ProcessingResources.ClusterConfig.InstanceType": _recorded(_ALL_HARDWARE),
    "AppSpecification": _supported(),
    "AppSpecification.ImageUri": _supported_with_note(_PULLED),
    "NetworkConfig.EnableInterContainerTrafficEncryption": _recorded(_BRIDGE),
    "NetworkConfig.VpcConfig": _recorded(_ENGINE_NETWORK),
}
"""Rows that replace those above with the executor ``containers``."""


_ROWS_BY_KIND: Mapping[JobKind, tuple[Mapping[str, SupportRow], Mapping[str, SupportRow]]] = {
    PROCESSING: (PROCESSING_JOB_SUPPORT, PROCESSING_CONTAINER_SUPPORT),
    TRAINING: (TRAINING_JOB_SUPPORT, TRAINING_CONTAINER_SUPPORT),
}


def support_rows(kind: JobKind, runs_images: bool) -> Mapping[str, SupportRow]:
    """Return the rows of the request that creates a job. ``runs_images``: whether the executor runs
    images."""
    rows, container_rows = _ROWS_BY_KIND[kind]
    return {**rows, **container_rows} if runs_images else rows


_UNSET_VALUES: tuple[Any, ...] = (None, False, "", [], {})
"""Values that mean the same as a missing field."""


def support_row_of_field(
    path: str, rows: Mapping[str, SupportRow] = TRAINING_JOB_SUPPORT
) -> SupportRow | None:
    """Return the row of a dotted path without indices, or of the nearest field above it."""
    while path:
        row = rows.get(path)
        if row is not None:
            return row
        path = path.rpartition(".")[0]
    return None


def recorded_fields(
    request: Mapping[str, Any], rows: Mapping[str, SupportRow] = TRAINING_JOB_SUPPORT
) -> dict[str, str]:
    """Return the fields of a request that have no effect here, with their notes."""
    return {
        path: row.note
        for path, row in rows.items()
        if row.level == "recorded"
        and any(value not in _UNSET_VALUES for _, value in _values_at_dotted_path(request, path))
    }


def training_rejections(request: Mapping[str, Any], mounts_any_path: bool = True) -> list[tuple[str, str]]:
    """Return (path of the field, reason) for everything in a CreateTrainingJob request that makes the local
    endpoint reject it. A path has list indices, such as ``InputDataConfig[0].CompressionType``.
    ``mounts_any_path``: whether a host can have a directory at any path (not at isolation level plain)."""
    return [
        *_rejections_by_support_rows(TRAINING_JOB_SUPPORT, request),
        *_synchronized_directory_rejections(request, mounts_any_path),
        *_metric_regex_rejections(request),
        *_gzip_manifest_rejections(request),
    ]


def _synchronized_directory_rejections(
    request: Mapping[str, Any], mounts_any_path: bool
) -> Iterator[tuple[str, str]]:
    """Yield (field, reason) for directories of a training job that cannot be synchronized with S3.
    ``mounts_any_path``: whether a host can have a directory outside /opt/ml."""
    # Each field with the folders of /opt/ml that its directory must not use: input, model, output and code.
    for field_name, reserved_ml_folders in (
        ("CheckpointConfig", _RESERVED_ML_FOLDERS),
        # SageMaker's default for TensorBoard is /opt/ml/output/tensorboard.
        ("TensorBoardOutputConfig", _RESERVED_ML_FOLDERS - {"output"}),
    ):
        local_path = (request.get(field_name) or {}).get("LocalPath")
        if local_path is None:
            continue
        path_problem = _local_path_problem(local_path, reserved_ml_folders, mounts_any_path)
        if path_problem is not None:
            yield f"{field_name}.LocalPath", f"{local_path}: {path_problem}"


def _metric_regex_rejections(request: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (field, reason) for metric definitions whose regular expression Python cannot compile."""
    metric_definitions = (request.get("AlgorithmSpecification") or {}).get("MetricDefinitions") or ()
    for index, metric_definition in enumerate(metric_definitions):
        regex_problem = _regex_problem(metric_definition["Regex"])
        if regex_problem is not None:
            yield f"AlgorithmSpecification.MetricDefinitions[{index}].Regex", regex_problem


def _gzip_manifest_rejections(request: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (field, reason) for input channels that combine gzip with an augmented manifest."""
    for index, channel in enumerate(request.get("InputDataConfig") or ()):
        s3_source = (channel.get("DataSource") or {}).get("S3DataSource") or {}
        is_augmented_manifest = s3_source.get("S3DataType") == "AugmentedManifestFile"
        if is_augmented_manifest and channel.get("CompressionType") == "Gzip":
            reason = "Gzip: its effect on an augmented manifest is not documented; leave it out"
            yield f"InputDataConfig[{index}].CompressionType", reason


def processing_rejections(request: Mapping[str, Any], runs_images: bool = False) -> list[tuple[str, str]]:
    """Return (path of the field, reason) for everything in a CreateProcessingJob request that makes the local
    endpoint reject it. A path has list indices, such as ``ProcessingInputs[0].S3Input``. ``runs_images``:
    whether the executor runs container images, and with them their own entry points."""
    rejections = _rejections_by_support_rows(support_rows(PROCESSING, runs_images), request)
    if not runs_images and not (request.get("AppSpecification") or {}).get("ContainerEntrypoint"):
        reason = "it is required, because this endpoint does not run images; the executor `containers` does"
        rejections.append(("AppSpecification.ContainerEntrypoint", reason))
    rejections += _processing_directory_rejections(request)
    return rejections


def _processing_directory_rejections(request: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (field, reason) for the inputs and outputs of a processing job that have no S3 location, or whose
    directory on the host cannot be used or is another one's directory too. Those that the program transfers
    itself (AppManaged) are not checked."""
    first_field_by_local_path: dict[str, str] = {}
    for s3_field, entry in _inputs_and_outputs_by_s3_field(request).items():
        # s3_field: such as ProcessingInputs[0].S3Input; entry: the input or output that it belongs to.
        s3_location = entry.get(s3_field.rpartition(".")[2])
        if not s3_location:
            # An input or output that has one of these two instead is rejected by the support matrix.
            if not entry.get("DatasetDefinition") and not entry.get("FeatureStoreOutput"):
                yield s3_field, "it is required unless AppManaged is true"
            continue
        local_path = s3_location.get("LocalPath") or ""
        if ".." in local_path.split("/"):
            yield f"{s3_field}.LocalPath", f"{local_path}: a path without `..` is required"
        first_field = first_field_by_local_path.setdefault(posixpath.normpath(local_path), s3_field)
        if first_field != s3_field:
            yield (
                f"{s3_field}.LocalPath",
                f"{local_path}: {first_field} has the same path, and the result of both is not documented",
            )


def _inputs_and_outputs_by_s3_field(request: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the inputs and outputs of a processing job by the path of their S3 field, such as
    ``ProcessingInputs[0].S3Input``, without those that the program transfers itself (AppManaged)."""
    inputs = request.get("ProcessingInputs") or ()
    outputs = (request.get("ProcessingOutputConfig") or {}).get("Outputs") or ()
    entry_by_s3_field = {f"ProcessingInputs[{index}].S3Input": entry for index, entry in enumerate(inputs)}
    for index, entry in enumerate(outputs):
        entry_by_s3_field[f"ProcessingOutputConfig.Outputs[{index}].S3Output"] = entry
    return {field: entry for field, entry in entry_by_s3_field.items() if not entry.get("AppManaged")}


def _rejections_by_support_rows(
    row_by_path: Mapping[str, SupportRow], request: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Return (path of the field with list indices, reason) for each field and value of a request that the
    support matrix rejects. Its rows say what this endpoint does with a field, here by dotted path without
    indices. A row's ``note`` is the reason for a rejected field; its ``rejected_values`` have a reason
    each."""
    rejections = []
    for row_path, support_row in row_by_path.items():
        for field_path, value in _values_at_dotted_path(request, row_path):
            if support_row.level == "rejected":
                rejections.append((field_path, support_row.note))
            elif isinstance(value, str) and value in support_row.rejected_values:
                rejections.append((field_path, f"{value}: {support_row.rejected_values[value]}"))
    return rejections


def _regex_problem(regex: str) -> str | None:
    try:
        re.compile(regex)
    except re.error as error:
        return f"{regex!r} is not a valid regular expression for Python: {error}"
    return None


def recorded_and_rejected(runs_images: bool = False) -> tuple[dict[str, str], dict[str, str]]:
    """Return for a plan the notes of recorded and of rejected fields, by dotted path, of all kinds of
    jobs."""
    levels = ("recorded", "rejected")
    # A path that is in several tables has the same row in all.
    rows = {path: row for kind in _ROWS_BY_KIND for path, row in support_rows(kind, runs_images).items()}
    recorded_notes, rejected_notes = (
        {path: row.note for path, row in rows.items() if row.level == level} for level in levels
    )
    return recorded_notes, rejected_notes


_RESERVED_ML_FOLDERS = frozenset({"input", "model", "output", "code"})
_SYSTEM_FOLDERS = frozenset(
    {
        "bin",
        "boot",
        "dev",
        "etc",
        "home",
        "lib",
        "lib32",
        "lib64",
        "media",
        "mnt",
        "opt",
        "proc",
        "root",
        "run",
    }
    | {"sbin", "srv", "sys", "tmp", "usr", "var", "usr/bin", "usr/lib", "usr/local", "dev/shm"}
)
"""Directories that a host needs, or that contain such. Directories inside them may be mounted over."""


def _local_path_problem(
    local_path: str, reserved_ml_folders: Collection[str], mounts_any_path: bool
) -> str | None:
    """Explain why a directory of a job's hosts (LocalPath of a request) cannot be synchronized with S3; None
    when it can. ``reserved_ml_folders``: names in /opt/ml that SageMaker uses itself; ``mounts_any_path``:
    whether a host can have a directory outside /opt/ml."""
    components = [name for name in local_path.split("/") if name not in ("", ".")]
    if not local_path.startswith("/") or ".." in components:
        return "an absolute path without `..` is required"
    if components[:2] == ["opt", "ml"]:
        is_unreserved = len(components) > 2 and components[2] not in reserved_ml_folders
        if is_unreserved:
            return None
        return "the training contract has another use for this directory; use /opt/ml/checkpoints"
    is_root = not components
    # Below most system directories (etc, usr/bin, ...) a mount is harmless; all of /proc and /sys is the
    # kernel's.
    if is_root or "/".join(components) in _SYSTEM_FOLDERS or components[0] in ("proc", "sys"):
        return "a system directory cannot be mounted over; use a directory of your own"
    if not mounts_any_path:
        return (
            "at isolation level plain the directory has to be below /opt/ml/; use /opt/ml/checkpoints, "
            "or another level (`smlaunch doctor` shows which work here)"
        )
    return None


def _values_at_dotted_path(
    value: Any, dotted_path: str, path_of_value: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield all values at a dotted path below ``value``, in every entry of the lists on the way, each with
    its path: ``InputDataConfig.InputMode`` finds ``InputDataConfig[0].InputMode``, ``InputDataConfig[1]...``.
    ``path_of_value``: where ``value`` itself was found; "" is the whole request."""
    if not dotted_path:
        yield path_of_value, value
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _values_at_dotted_path(entry, dotted_path, f"{path_of_value}[{index}]")
    elif isinstance(value, Mapping):
        field_name, _, remaining_path = dotted_path.partition(".")
        if field_name in value:
            path_of_field = f"{path_of_value}.{field_name}" if path_of_value else field_name
            yield from _values_at_dotted_path(value[field_name], remaining_path, path_of_field)
