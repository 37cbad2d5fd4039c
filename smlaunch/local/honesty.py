"""What becomes of every field of CreateTrainingJob on this endpoint. A field of a request is

    honoured         it does here what it does on SageMaker;
    without effect   it is recorded and shown by Describe, and nothing else; plan and log say so;
    refused          the request is, with the field's name and the reason.

Nothing is ignored silently: a field that is in no row is a fault that a test finds. Rows hold for everything
below them that has no row of its own. Pure data and pure functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Effect = Literal["honoured", "without effect", "refused"]


@dataclass(frozen=True)
class Row:
    """``sentence`` says what happens instead. ``refused_values``: values of an honoured field that are not
    had, with the reason."""

    effect: Effect
    sentence: str = ""
    refused_values: Mapping[str, str] = field(default_factory=dict)


def _honoured(**refused_values: str) -> Row:
    return Row("honoured", refused_values=refused_values)


def _without(sentence: str) -> Row:
    return Row("without effect", sentence)


def _refused(sentence: str) -> Row:
    return Row("refused", sentence)


_NO_KEYS = "nothing is encrypted with a key here"
_NO_DEBUGGER = "there is no Debugger and no Profiler here"
_NO_PIPES = "Pipe mode is not had here; use File or FastFile"
_NO_PIPE_FORMATS = "it belongs to Pipe mode, which is not had here"

CREATE_TRAINING_JOB: Mapping[str, Row] = {
    "TrainingJobName": _honoured(),
    "HyperParameters": _honoured(),
    "AlgorithmSpecification": _honoured(),
    "AlgorithmSpecification.TrainingImage": _without(
        "the image is not run; the job's program runs on this machine's Python"
    ),
    "AlgorithmSpecification.AlgorithmName": _refused(
        "algorithm resources and marketplace algorithms cannot run here; give ContainerEntrypoint"
    ),
    "AlgorithmSpecification.TrainingInputMode": _honoured(Pipe=_NO_PIPES),
    "AlgorithmSpecification.MetricDefinitions": _without("no metrics are read from the log here"),
    "AlgorithmSpecification.EnableSageMakerMetricsTimeSeries": _without("there is no metrics store here"),
    "AlgorithmSpecification.TrainingImageConfig": _without("no image is pulled"),
    "RoleArn": _without("no role is assumed; a script's AWS calls reach this endpoint only"),
    "InputDataConfig": _honoured(),
    "InputDataConfig.DataSource.S3DataSource.S3DataType": _honoured(
        AugmentedManifestFile=_NO_PIPES, Converse="it needs a serverless job, which is not had here"
    ),
    "InputDataConfig.DataSource.S3DataSource.AttributeNames": _refused(
        "it belongs to AugmentedManifestFile in Pipe mode, which is not had here"
    ),
    "InputDataConfig.DataSource.S3DataSource.ModelAccessConfig": _without("no licence is asked for"),
    "InputDataConfig.DataSource.S3DataSource.HubAccessConfig": _refused("model hubs are not had here"),
    "InputDataConfig.DataSource.FileSystemDataSource": _refused(
        "EFS and FSx cannot be mounted here; copy the data to S3"
    ),
    "InputDataConfig.DataSource.DatasetSource": _refused("dataset resources are not had here"),
    "InputDataConfig.CompressionType": _honoured(Gzip=_NO_PIPE_FORMATS),
    "InputDataConfig.RecordWrapperType": _honoured(RecordIO=_NO_PIPE_FORMATS),
    "InputDataConfig.InputMode": _honoured(Pipe=_NO_PIPES),
    "OutputDataConfig": _honoured(),
    "OutputDataConfig.KmsKeyId": _without(_NO_KEYS),
    "ResourceConfig": _honoured(),
    "ResourceConfig.InstanceType": _without(
        "every host is this machine: neither the type's hardware nor its limits are there"
    ),
    "ResourceConfig.VolumeSizeInGB": _without("hosts share this machine's disk, without a limit"),
    "ResourceConfig.VolumeKmsKeyId": _without(_NO_KEYS),
    "ResourceConfig.KeepAlivePeriodInSeconds": _without("hosts start at once: there is no warm pool"),
    "ResourceConfig.TrainingPlanArn": _without("capacity never lacks here"),
    "ResourceConfig.InstancePlacementConfig": _without("there are no UltraServers here"),
    "ResourceConfig.InstancePreferences.TrainingPlanArns": _without("capacity never lacks here"),
    "ResourceConfig.SelectedInstanceType": _refused("it is an answer's field, not a request's"),
    "ResourceConfig.SelectedInstanceCount": _refused("it is an answer's field, not a request's"),
    "VpcConfig": _without("hosts use this machine's network"),
    "StoppingCondition": _honoured(),
    "StoppingCondition.MaxWaitTimeInSeconds": _without("capacity never lacks here, so nothing waits"),
    "StoppingCondition.MaxPendingTimeInSeconds": _without("capacity never lacks here, so nothing waits"),
    "Tags": _honoured(),
    "EnableNetworkIsolation": _honoured(),
    "EnableInterContainerTrafficEncryption": _without("traffic between hosts stays on loopback"),
    "EnableManagedSpotTraining": _without("hosts are never interrupted here"),
    "CheckpointConfig": _honoured(),
    "DebugHookConfig": _without(_NO_DEBUGGER),
    "DebugRuleConfigurations": _without(_NO_DEBUGGER),
    "TensorBoardOutputConfig": _without("TensorBoard files are not uploaded; use /opt/ml/output/data"),
    "ExperimentConfig": _without("there is no experiment tracking here"),
    "ProfilerConfig": _without(_NO_DEBUGGER),
    "ProfilerRuleConfigurations": _without(_NO_DEBUGGER),
    "Environment": _honoured(),
    "RetryStrategy": _without("a job is tried once"),
    "RemoteDebugConfig": _without("there is no SSM session into a host: its processes are on this machine"),
    "InfraCheckConfig": _without("there is no hardware to check"),
    "SessionChainingConfig": _without("there are no session tags here"),
    "ServerlessJobConfig": _refused("serverless training cannot run here"),
    "MlflowConfig": _without("there is no MLflow server here"),
    "ModelPackageConfig": _refused("model packages are not had here"),
}

_NOTHING: tuple[Any, ...] = (None, False, "", [], {})
"""Values that ask for nothing."""


def row_for(path: str) -> Row | None:
    """The row of a dotted path without indices, or of the nearest field above it."""
    while path:
        row = CREATE_TRAINING_JOB.get(path)
        if row is not None:
            return row
        path = path.rpartition(".")[0]
    return None


def without_effect(request: Mapping[str, Any]) -> dict[str, str]:
    """The fields this request uses that do nothing here, with what happens instead."""
    return {
        path: row.sentence
        for path, row in CREATE_TRAINING_JOB.items()
        if row.effect == "without effect" and any(value not in _NOTHING for _, value in _find(request, path))
    }


def refusals(request: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(field, reason) for all that makes this endpoint refuse the request; fields carry their index."""
    found = []
    for path, row in CREATE_TRAINING_JOB.items():
        for place, value in _find(request, path):
            if row.effect == "refused":
                found.append((place, row.sentence))
            elif isinstance(value, str) and value in row.refused_values:
                found.append((place, f"{value}: {row.refused_values[value]}"))
    local = (request.get("CheckpointConfig") or {}).get("LocalPath")
    if local is not None and not _below_contract(local):
        found.append(
            (
                "CheckpointConfig.LocalPath",
                f"{local}: only a directory below /opt/ml/ of its own can be had here",
            )
        )
    return found


def facts() -> tuple[dict[str, str], dict[str, str]]:
    """For a plan: what is without effect, and what is refused whatever its value, by dotted path."""
    effects = ("without effect", "refused")
    without, refused = (
        {path: row.sentence for path, row in CREATE_TRAINING_JOB.items() if row.effect == effect}
        for effect in effects
    )
    return without, refused


def _below_contract(path: str) -> bool:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    taken = ("input", "model", "output", "code")
    return (
        path.startswith("/")
        and parts[:2] == ["opt", "ml"]
        and len(parts) > 2
        and not (".." in parts or parts[2] in taken)
    )


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
