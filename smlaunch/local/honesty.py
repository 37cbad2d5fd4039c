"""What becomes of every field of CreateTrainingJob and CreateProcessingJob on this endpoint. A field is

    honoured         it does here what it does on SageMaker;
    without effect   it is recorded and shown by Describe, and nothing else; plan and log say so;
    refused          the request is, with the field's name and the reason.

Nothing is ignored silently: a field that is in no row is a fault that a test finds. Rows hold for everything
below them that has no row of its own. Pure data and pure functions.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Effect = Literal["honoured", "without effect", "refused"]


@dataclass(frozen=True)
class Row:
    """``sentence`` says what happens instead, or where an honoured field's effect ends. ``refused_values``:
    values of an honoured field that are not had, with the reason."""

    effect: Effect
    sentence: str = ""
    refused_values: Mapping[str, str] = field(default_factory=dict)


def _honoured(**refused_values: str) -> Row:
    return Row("honoured", refused_values=refused_values)


def _noted(sentence: str) -> Row:
    return Row("honoured", sentence)


def _without(sentence: str) -> Row:
    return Row("without effect", sentence)


def _refused(sentence: str) -> Row:
    return Row("refused", sentence)


_NO_KEYS = "nothing is encrypted with a key here"
_NO_HARDWARE = "every host is this machine: neither the type's hardware nor its limits are there"
_ONE_DISK = "hosts share this machine's disk, without a limit"
_NO_ROLE = "no role is assumed; a script's AWS calls reach this endpoint only"
_NO_VPC = "hosts use this machine's network"
_LOOPBACK = "traffic between hosts stays on loopback"
_NO_EXPERIMENTS = "there is no experiment tracking here"
_ANSWER = "it is an answer's field, not a request's"
_CAPACITY = "capacity never lacks here, unless a fault plan says so"
_BUCKETS = "a bucket that does not exist is made (setting make_buckets), where SageMaker would fail"
_PULLED = (
    "an image that is not on this machine is pulled with the engine's own login, not with the job's role"
)
_NOT_RUN = (
    "the image is not run: its program starts on this machine, a script by this machine's Python; the "
    "executor `containers` runs images"
)
_OWN_LOGIN = "images are pulled with the container engine's own login"
_ALL_HARDWARE = (
    "every host is a container on this machine: neither the type's hardware nor its limits are there"
)
_ENGINE_NETWORK = "hosts have a network of the container engine's, of the job's own"
_BRIDGE = "traffic between hosts stays on this machine"
_NO_DEBUGGER = "there is no Debugger and no Profiler here"

CREATE_TRAINING_JOB: Mapping[str, Row] = {
    "TrainingJobName": _honoured(),
    "HyperParameters": _honoured(),
    "AlgorithmSpecification": _honoured(),
    "AlgorithmSpecification.TrainingImage": _without(_NOT_RUN),
    "AlgorithmSpecification.AlgorithmName": _refused(
        "algorithm resources and marketplace algorithms cannot run here; give ContainerEntrypoint"
    ),
    "AlgorithmSpecification.TrainingInputMode": _honoured(),
    "AlgorithmSpecification.MetricDefinitions": _noted(
        "regular expressions are Python's, not Java's; one that Python cannot read is refused"
    ),
    "AlgorithmSpecification.EnableSageMakerMetricsTimeSeries": _without(
        "every metric's whole series is in the endpoint's CloudWatch"
    ),
    "AlgorithmSpecification.TrainingImageConfig": _without("no image is pulled"),
    "RoleArn": _without(_NO_ROLE),
    "InputDataConfig": _honoured(),
    "InputDataConfig.DataSource.S3DataSource.S3DataType": _honoured(
        Converse="it needs a serverless job, which is not had here"
    ),
    "InputDataConfig.DataSource.S3DataSource.ModelAccessConfig": _without("no licence is asked for"),
    "InputDataConfig.DataSource.S3DataSource.HubAccessConfig": _refused("model hubs are not had here"),
    "InputDataConfig.DataSource.FileSystemDataSource": _refused(
        "EFS and FSx cannot be mounted here; copy the data to S3"
    ),
    "InputDataConfig.DataSource.DatasetSource": _refused("dataset resources are not had here"),
    "OutputDataConfig": _noted(_BUCKETS),
    "OutputDataConfig.KmsKeyId": _without(_NO_KEYS),
    "ResourceConfig": _honoured(),
    "ResourceConfig.InstanceType": _without(_NO_HARDWARE),
    "ResourceConfig.VolumeSizeInGB": _without(_ONE_DISK),
    "ResourceConfig.VolumeKmsKeyId": _without(_NO_KEYS),
    "ResourceConfig.KeepAlivePeriodInSeconds": _noted(
        "a warm pool is a record with SageMaker's statuses and matching rule; hosts start at once anyway"
    ),
    "ResourceConfig.TrainingPlanArn": _without(_CAPACITY),
    "ResourceConfig.InstancePlacementConfig": _without("there are no UltraServers here"),
    "ResourceConfig.InstancePreferences": _noted(f"the first type is selected: {_CAPACITY}"),
    "ResourceConfig.InstancePreferences.TrainingPlanArns": _without(_CAPACITY),
    "ResourceConfig.SelectedInstanceType": _refused(_ANSWER),
    "ResourceConfig.SelectedInstanceCount": _refused(_ANSWER),
    "VpcConfig": _without(_NO_VPC),
    "StoppingCondition": _honoured(),
    "StoppingCondition.MaxPendingTimeInSeconds": _noted(_CAPACITY),
    "Tags": _honoured(),
    "EnableNetworkIsolation": _honoured(),
    "EnableInterContainerTrafficEncryption": _without(_LOOPBACK),
    "EnableManagedSpotTraining": _noted(
        "hosts are taken away only when a fault plan says so; the saving shown is the setting "
        "spot_billable_share, not a price"
    ),
    "CheckpointConfig": _noted(_BUCKETS),
    "DebugHookConfig": _without(_NO_DEBUGGER),
    "DebugRuleConfigurations": _without(_NO_DEBUGGER),
    "TensorBoardOutputConfig": _noted(_BUCKETS),
    "ExperimentConfig": _without(_NO_EXPERIMENTS),
    "ProfilerConfig": _without(_NO_DEBUGGER),
    "ProfilerRuleConfigurations": _without(_NO_DEBUGGER),
    "Environment": _honoured(),
    "RetryStrategy": _noted(
        "an internal error here is a host whose supervisor died or did not start, or a fault of the endpoint"
    ),
    "RemoteDebugConfig": _without("there is no SSM session into a host: its processes are on this machine"),
    "InfraCheckConfig": _without("there is no hardware to check"),
    "SessionChainingConfig": _without("there are no session tags here"),
    "ServerlessJobConfig": _refused("serverless training cannot run here"),
    "MlflowConfig": _without("there is no MLflow server here"),
    "ModelPackageConfig": _refused("model packages are not had here"),
}

OTHER_OPERATIONS: Mapping[str, Row] = {
    "UpdateTrainingJob.ResourceConfig": _honoured(),
    "UpdateTrainingJob.ProfilerConfig": _without(_NO_DEBUGGER),
    "UpdateTrainingJob.ProfilerRuleConfigurations": _without(_NO_DEBUGGER),
    "UpdateTrainingJob.RemoteDebugConfig": _without("there is no SSM session into a host"),
    "ListTrainingJobs": _honoured(),
    "DescribeTrainingJob": _honoured(),
    "StopTrainingJob": _honoured(),
    "DeleteTrainingJob": _noted("metrics, logs and objects in S3 stay"),
    "ListProcessingJobs": _honoured(),
    "DescribeProcessingJob": _honoured(),
    "StopProcessingJob": _honoured(),
    "DeleteProcessingJob": _noted("logs and objects in S3 stay"),
    "AddTags, ListTags, DeleteTags": _noted("for training and processing jobs and for pipelines"),
    "Search": _noted("Resource TrainingJob only; any other is refused"),
    "Search.CrossAccountFilterOption": _noted("CrossAccount finds nothing: there is one account"),
    "Search.VisibilityConditions": _refused("there is nobody to hide a job from here"),
}
"""The same for what else is asked about jobs, by operation and field."""

_NO_VERSIONS = "a pipeline has one version here, its newest"
PIPELINES: Mapping[str, Row] = {
    "CreatePipeline.PipelineDefinition": _noted(
        "version 2020-12-01 with steps of type Training, Processing, Condition and Fail; another type, and "
        "everything else that cannot be had, is refused when the pipeline is created, all at once"
    ),
    "CreatePipeline.PipelineDefinitionS3Location": _noted("without VersionId: objects have no versions here"),
    "CreatePipeline.PipelineVersionAliases": _refused(_NO_VERSIONS),
    "CreatePipeline.RoleArn": _without(_NO_ROLE),
    "CreatePipeline.Tags": _noted("they are the pipeline's, and not handed on to its jobs"),
    "CreatePipeline.ParallelismConfiguration": _honoured(),
    "UpdatePipeline": _honoured(),
    "UpdatePipeline.PipelineVersionAliases": _refused(_NO_VERSIONS),
    "DescribePipeline.PipelineVersionId": _refused(_NO_VERSIONS),
    "DescribePipeline.PipelineVersionAlias": _refused(_NO_VERSIONS),
    "ListPipelines, DeletePipeline": _honoured(),
    "StartPipelineExecution": _honoured(),
    "StartPipelineExecution.SelectiveExecutionConfig": _refused("all steps of a pipeline run here"),
    "StartPipelineExecution.PipelineVersionId": _refused(_NO_VERSIONS),
    "StartPipelineExecution.PipelineVersionAlias": _refused(_NO_VERSIONS),
    "StartPipelineExecution.MlflowExperimentName": _without("there is no MLflow server here"),
    "StartPipelineExecution.RoleArn": _without(_NO_ROLE),
    "ListPipelineExecutions.PipelineVersionAlias": _refused(_NO_VERSIONS),
    "DescribePipelineExecution, ListPipelineExecutions, ListPipelineExecutionSteps": _honoured(),
    "DescribePipelineDefinitionForExecution, ListPipelineParametersForExecution": _honoured(),
    "StopPipelineExecution": _noted("jobs that run are stopped as StopTrainingJob does"),
    "RetryPipelineExecution": _noted("steps that have succeeded stay so"),
    "Definition.PipelineExperimentConfig": _without(_NO_EXPERIMENTS),
    "Definition.MlflowConfig": _without("there is no MLflow server here"),
    "Definition.Metadata": _without("it stays in the definition"),
    "Definition.Steps.DependsOn.Trigger": _refused("a step runs when those it needs have succeeded"),
    "Definition.Steps.CacheConfig": _noted(
        "a result is taken again when the arguments that the service compares by default are the same"
    ),
    "Definition.Steps.RetryPolicies": _noted("MaxAttempts counts retries"),
}
"""The same for pipelines. What is not documented: after a step has failed, those that do not need it go on,
and a Fail step lets none begin; a job that was stopped from outside fails its step; an execution whose
endpoint died is Failed and can be retried."""

CREATE_PROCESSING_JOB: Mapping[str, Row] = {
    "ProcessingJobName": _honoured(),
    "ProcessingInputs": _honoured(),
    "ProcessingInputs.AppManaged": _noted(
        "such an input is left to the program, which finds it in processingjobconfig.json"
    ),
    "ProcessingInputs.S3Input.S3InputMode": _honoured(
        Pipe="where the pipes lie is documented for training jobs only; take File"
    ),
    "ProcessingInputs.DatasetDefinition": _refused(
        "Athena and Redshift are not had here; have the query's result in S3 and give S3Input"
    ),
    "ProcessingOutputConfig": _noted(_BUCKETS),
    "ProcessingOutputConfig.Outputs.AppManaged": _noted("such an output is left to the program"),
    "ProcessingOutputConfig.Outputs.FeatureStoreOutput": _refused("there is no Feature Store here"),
    "ProcessingOutputConfig.KmsKeyId": _without(_NO_KEYS),
    "ProcessingResources": _honoured(),
    "ProcessingResources.ClusterConfig.InstanceType": _without(_NO_HARDWARE),
    "ProcessingResources.ClusterConfig.VolumeSizeInGB": _without(_ONE_DISK),
    "ProcessingResources.ClusterConfig.VolumeKmsKeyId": _without(_NO_KEYS),
    "ProcessingResources.ClusterConfig.InstancePreferences": _noted(
        f"the first type is selected: {_CAPACITY}"
    ),
    "ProcessingResources.ClusterConfig.SelectedInstanceType": _refused(_ANSWER),
    "ProcessingResources.ClusterConfig.SelectedInstanceCount": _refused(_ANSWER),
    "StoppingCondition": _honoured(),
    "AppSpecification": _noted(
        "ContainerEntrypoint is needed: the image's own, and its working directory, are not known here"
    ),
    "AppSpecification.ImageUri": _without(_NOT_RUN),
    "Environment": _honoured(),
    "NetworkConfig": _honoured(),
    "NetworkConfig.EnableInterContainerTrafficEncryption": _without(_LOOPBACK),
    "NetworkConfig.VpcConfig": _without(_NO_VPC),
    "RoleArn": _without(_NO_ROLE),
    "Tags": _honoured(),
    "ExperimentConfig": _without(_NO_EXPERIMENTS),
}

TRAINING_IN_CONTAINERS: Mapping[str, Row] = {
    "AlgorithmSpecification.TrainingImage": _noted(_PULLED),
    "AlgorithmSpecification.TrainingImageConfig": _without(_OWN_LOGIN),
    "ResourceConfig.InstanceType": _without(_ALL_HARDWARE),
    "VpcConfig": _without(_ENGINE_NETWORK),
    "EnableInterContainerTrafficEncryption": _without(_BRIDGE),
}
PROCESSING_IN_CONTAINERS: Mapping[str, Row] = {
    "ProcessingResources.ClusterConfig.InstanceType": _without(_ALL_HARDWARE),
    "AppSpecification": _honoured(),
    "AppSpecification.ImageUri": _noted(_PULLED),
    "NetworkConfig.EnableInterContainerTrafficEncryption": _without(_BRIDGE),
    "NetworkConfig.VpcConfig": _without(_ENGINE_NETWORK),
}
"""Rows that stand for those above where the executor is ``containers``."""


def training_rows(runs_images: bool) -> Mapping[str, Row]:
    """CreateTrainingJob's, for the executor that an endpoint has."""
    return {**CREATE_TRAINING_JOB, **TRAINING_IN_CONTAINERS} if runs_images else CREATE_TRAINING_JOB


def processing_rows(runs_images: bool) -> Mapping[str, Row]:
    """CreateProcessingJob's, for the executor that an endpoint has."""
    return {**CREATE_PROCESSING_JOB, **PROCESSING_IN_CONTAINERS} if runs_images else CREATE_PROCESSING_JOB


_NOTHING: tuple[Any, ...] = (None, False, "", [], {})
"""Values that ask for nothing."""


def row_for(path: str, rows: Mapping[str, Row] = CREATE_TRAINING_JOB) -> Row | None:
    """The row of a dotted path without indices, or of the nearest field above it."""
    while path:
        row = rows.get(path)
        if row is not None:
            return row
        path = path.rpartition(".")[0]
    return None


def without_effect(
    request: Mapping[str, Any], rows: Mapping[str, Row] = CREATE_TRAINING_JOB
) -> dict[str, str]:
    """The fields this request uses that do nothing here, with what happens instead."""
    return {
        path: row.sentence
        for path, row in rows.items()
        if row.effect == "without effect" and any(value not in _NOTHING for _, value in _find(request, path))
    }


def refusals(request: Mapping[str, Any], anywhere: bool = True) -> list[tuple[str, str]]:
    """(field, reason) for all that makes this endpoint refuse the request; fields carry their index.

    ``anywhere``: whether hosts can be shown a directory at any path (not at isolation level plain)."""
    found = _refused_by(CREATE_TRAINING_JOB, request)
    for member, taken in (
        ("CheckpointConfig", _CONTRACT),
        ("TensorBoardOutputConfig", _CONTRACT - {"output"}),
    ):
        local = (request.get(member) or {}).get("LocalPath")
        problem = None if local is None else _path_problem(local, taken, anywhere)
        if problem is not None:
            found.append((f"{member}.LocalPath", f"{local}: {problem}"))
    metrics = (request.get("AlgorithmSpecification") or {}).get("MetricDefinitions") or ()
    for index, metric in enumerate(metrics):
        problem = _regex_problem(metric["Regex"])
        if problem is not None:
            found.append((f"AlgorithmSpecification.MetricDefinitions[{index}].Regex", problem))
    for index, channel in enumerate(request.get("InputDataConfig") or ()):
        source = (channel.get("DataSource") or {}).get("S3DataSource") or {}
        if channel.get("CompressionType") == "Gzip" and source.get("S3DataType") == "AugmentedManifestFile":
            reason = "Gzip: what it does to an augmented manifest is not documented; leave it out"
            found.append((f"InputDataConfig[{index}].CompressionType", reason))
    return found


def processing_refusals(request: Mapping[str, Any], runs_images: bool = False) -> list[tuple[str, str]]:
    """(field, reason) for all that makes this endpoint refuse a processing job. ``runs_images``: whether an
    image's own entry point can be had."""
    found = _refused_by(processing_rows(runs_images), request)
    if not runs_images and not (request.get("AppSpecification") or {}).get("ContainerEntrypoint"):
        reason = "this endpoint does not run images, so that it is needed; the executor `containers` does"
        found.append(("AppSpecification.ContainerEntrypoint", reason))
    outputs = (request.get("ProcessingOutputConfig") or {}).get("Outputs") or ()
    taken: dict[str, str] = {}
    for above, member, entries in (
        ("ProcessingInputs", "S3Input", request.get("ProcessingInputs") or ()),
        ("ProcessingOutputConfig.Outputs", "S3Output", outputs),
    ):
        for index, entry in enumerate(entries):
            if entry.get("AppManaged"):
                continue
            place = f"{above}[{index}].{member}"
            if not entry.get(member):
                if not entry.get("DatasetDefinition") and not entry.get("FeatureStoreOutput"):
                    found.append((place, "it is needed unless AppManaged is true"))
                continue
            path = entry[member].get("LocalPath") or ""
            if ".." in path.split("/"):
                found.append((f"{place}.LocalPath", f"{path}: a path without `..` is needed"))
            other = taken.setdefault(posixpath.normpath(path), place)
            if other != place:
                reason = f"{path}: it is that of {other} too, and what becomes of both is not documented"
                found.append((f"{place}.LocalPath", reason))
    return found


def _refused_by(rows: Mapping[str, Row], request: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = []
    for path, row in rows.items():
        for place, value in _find(request, path):
            if row.effect == "refused":
                found.append((place, row.sentence))
            elif isinstance(value, str) and value in row.refused_values:
                found.append((place, f"{value}: {row.refused_values[value]}"))
    return found


def _regex_problem(regex: str) -> str | None:
    try:
        re.compile(regex)
    except re.error as error:
        return f"{regex!r} is no regular expression that Python can read: {error}"
    return None


def facts(runs_images: bool = False) -> tuple[dict[str, str], dict[str, str]]:
    """For a plan: what is without effect, and what is refused whatever its value, by dotted path, of any kind
    of job: where two of them have the same path, the same is said of it."""
    effects = ("without effect", "refused")
    rows = {**processing_rows(runs_images), **training_rows(runs_images)}
    without, refused = (
        {path: row.sentence for path, row in rows.items() if row.effect == effect} for effect in effects
    )
    return without, refused


_CONTRACT = frozenset({"input", "model", "output", "code"})
_SYSTEM = frozenset(
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
"""Directories that a host cannot do without, or that hold those: something inside them may be covered."""


def _path_problem(path: str, taken: Collection[str], anywhere: bool) -> str | None:
    """Why a host's directory cannot be synchronized with S3. ``taken``: what of /opt/ml has another use."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not path.startswith("/") or ".." in parts:
        return "an absolute path without `..` is needed"
    if parts[:2] == ["opt", "ml"]:
        if len(parts) > 2 and parts[2] not in taken:
            return None
        return "the training contract has another use for this directory; take /opt/ml/checkpoints"
    if not parts or "/".join(parts) in _SYSTEM or parts[0] in ("proc", "sys"):
        return "a directory of the system cannot be covered; take one of its own"
    if not anywhere:
        return (
            "at isolation level plain only a directory below /opt/ml/ can be had; take /opt/ml/checkpoints, "
            "or another level (`smlaunch doctor` says which work here)"
        )
    return None


def _find(value: Any, path: str, place: str = "") -> Iterator[tuple[str, Any]]:
    """All values at ``path``, through lists, each with its exact place (``InputDataConfig[1].InputMode``)."""
    if not path:
        yield place, value
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _find(entry, path, f"{place}[{index}]")
    elif isinstance(value, Mapping):
        name, _, rest = path.partition(".")
        if name in value:
            yield from _find(value[name], rest, f"{place}.{name}" if place else name)
