"""Build the exact request for a training or a processing job. Pure: it adds no default that the plan
lacks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from smlaunch.contract.paths import RUNTIME_ARCHIVE, RUNTIME_CHANNEL, Paths, ProcessingPaths

ENTRYPOINT = ("python3", f"{Paths().channel_dir(RUNTIME_CHANNEL)}/{RUNTIME_ARCHIVE}")
"""Replaces the image's entry point: the runtime must be process 1 to receive SIGTERM."""

CREATE_TRAINING_JOB = "CreateTrainingJob"
CREATE_PROCESSING_JOB = "CreateProcessingJob"

_LINE_BREAK = re.compile("[\n\r\x85\u2028\u2029]")
"""What ``.`` excludes in the service's pattern ``.*`` for hyperparameters."""


@dataclass(frozen=True)
class InputChannel:
    """An input of a job."""

    name: str
    uri: str
    """An S3 prefix, or the address of a manifest."""

    mode: Literal["File", "FastFile", "Pipe"] = "File"
    is_sharded: bool = False
    """Every object goes to exactly one host (ShardedByS3Key)."""

    content_type: str | None = None
    is_manifest: bool = False


@dataclass(frozen=True)
class JobParameters:
    """Everything that a request contains. Empty members and those that are None are omitted. Times in
    seconds."""

    name: str
    role: str
    image: str
    entrypoint: tuple[str, ...]
    """Empty for the image's own."""

    hyperparameters: Mapping[str, Any]
    """JSON values, converted to the API's text here."""

    channels: tuple[InputChannel, ...]
    output: str
    instance_type: str
    hosts: int
    volume_gb: int
    """Per host."""

    max_runtime_seconds: int
    spot: bool = False
    max_wait_seconds: int | None = None
    """Only with spot."""

    checkpoints: tuple[str, str] | None = None
    """S3 prefix and local directory."""

    environment: Mapping[str, str] = field(default_factory=dict)
    network_isolation: bool = False
    encrypt_traffic: bool = False
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    """Empty for the image's own."""

    instance_preferences: tuple[str, ...] = ()
    """Types in order instead of ``instance_type``, each for ``hosts`` hosts."""

    keep_alive_seconds: int | None = None
    """How long hosts wait for the next job."""

    max_pending_seconds: int | None = None
    """How long the job waits for capacity."""


def create_training_job(job: JobParameters) -> dict[str, Any]:
    """Return the keyword arguments of boto3's ``create_training_job``."""
    stopping_condition = {"MaxRuntimeInSeconds": job.max_runtime_seconds}
    if job.max_wait_seconds is not None:
        stopping_condition["MaxWaitTimeInSeconds"] = job.max_wait_seconds
    if job.max_pending_seconds is not None:
        stopping_condition["MaxPendingTimeInSeconds"] = job.max_pending_seconds
    request: dict[str, Any] = {
        "TrainingJobName": job.name,
        "HyperParameters": {
            key: hyperparameter_text(value, is_verbatim=not job.entrypoint)
            for key, value in job.hyperparameters.items()
        },
        "AlgorithmSpecification": {
            "TrainingImage": job.image,
            "TrainingInputMode": "File",
            **_container_members(job.entrypoint, job.arguments),
        },
        "RoleArn": job.role,
        "InputDataConfig": [_training_channel(channel) for channel in job.channels],
        "OutputDataConfig": {"S3OutputPath": job.output},
        "ResourceConfig": _resource_members(job),
        "StoppingCondition": stopping_condition,
        "Environment": dict(job.environment),
        "Tags": [{"Key": key, "Value": value} for key, value in job.tags.items()],
    }
    if job.keep_alive_seconds is not None:
        request["ResourceConfig"]["KeepAlivePeriodInSeconds"] = job.keep_alive_seconds
    if job.checkpoints is not None:
        uri, path = job.checkpoints
        request["CheckpointConfig"] = {"S3Uri": uri, "LocalPath": path}
    if job.subnets or job.security_groups:
        request["VpcConfig"] = {
            "SecurityGroupIds": list(job.security_groups),
            "Subnets": list(job.subnets),
        }
    if job.network_isolation:
        request["EnableNetworkIsolation"] = True
    if job.encrypt_traffic:
        request["EnableInterContainerTrafficEncryption"] = True
    if job.spot:
        request["EnableManagedSpotTraining"] = True
    for member in ("HyperParameters", "InputDataConfig", "Environment", "Tags"):
        if not request[member]:
            del request[member]
    return request


def _resource_members(parameters: JobParameters) -> dict[str, Any]:
    """The number of hosts is the same for all preferred types."""
    shared_members = {"InstanceCount": parameters.hosts, "VolumeSizeInGB": parameters.volume_gb}
    if parameters.instance_preferences:
        return {
            "InstancePreferences": [{"InstanceType": name} for name in parameters.instance_preferences],
            **shared_members,
        }
    return {"InstanceType": parameters.instance_type, **shared_members}


def _container_members(entrypoint: Sequence[str], arguments: Sequence[str]) -> dict[str, list[str]]:
    """Replacement of the image's ENTRYPOINT and CMD."""
    container_members = {"ContainerEntrypoint": list(entrypoint), "ContainerArguments": list(arguments)}
    return {member: value for member, value in container_members.items() if value}


def create_processing_job(job: JobParameters) -> dict[str, Any]:
    """Keyword arguments of boto3's ``create_processing_job``.

    Channels become inputs, and the script's output directory is uploaded to a training job's output
    location. Members that a processing job does not support are ignored.
    """
    paths = ProcessingPaths()
    output_prefix = f"{job.output.rstrip('/')}/{job.name}/output/"
    output = {"S3Uri": output_prefix, "LocalPath": paths.output_data, "S3UploadMode": "EndOfJob"}
    request: dict[str, Any] = {
        "ProcessingJobName": job.name,
        "ProcessingInputs": [_processing_input(channel, paths) for channel in job.channels],
        "ProcessingOutputConfig": {"Outputs": [{"OutputName": "output", "S3Output": output}]},
        "ProcessingResources": {"ClusterConfig": _resource_members(job)},
        "StoppingCondition": {"MaxRuntimeInSeconds": job.max_runtime_seconds},
        "AppSpecification": {
            "ImageUri": job.image,
            **_container_members(
                job.entrypoint and ("python3", f"{paths.channel_dir(RUNTIME_CHANNEL)}/{RUNTIME_ARCHIVE}"),
                job.arguments,
            ),
        },
        "Environment": dict(job.environment),
        "RoleArn": job.role,
        "Tags": [{"Key": key, "Value": value} for key, value in job.tags.items()],
    }
    network: dict[str, Any] = {}
    if job.subnets or job.security_groups:
        network["VpcConfig"] = {
            "SecurityGroupIds": list(job.security_groups),
            "Subnets": list(job.subnets),
        }
    if job.network_isolation:
        network["EnableNetworkIsolation"] = True
    if job.encrypt_traffic:
        network["EnableInterContainerTrafficEncryption"] = True
    if network:
        request["NetworkConfig"] = network
    for member in ("Environment", "Tags"):
        if not request[member]:
            del request[member]
    return request


REQUEST_BUILDERS: Mapping[str, Callable[[JobParameters], dict[str, Any]]] = {
    CREATE_TRAINING_JOB: create_training_job,
    CREATE_PROCESSING_JOB: create_processing_job,
}
"""By the operation's name."""


def operation_of(request: Mapping[str, Any]) -> str:
    """API operation of a request."""
    return CREATE_PROCESSING_JOB if "ProcessingJobName" in request else CREATE_TRAINING_JOB


def name_member(request: Mapping[str, Any]) -> str:
    """Name of the member with the job's name."""
    return "ProcessingJobName" if operation_of(request) == CREATE_PROCESSING_JOB else "TrainingJobName"


def hyperparameter_text(value: Any, is_verbatim: bool = False) -> str:
    """The API's text of a hyperparameter; reading it as JSON if it is JSON gives the value back.

    Text is sent unchanged, so that ``lr: "1e-3"`` arrives as those four characters, unless a reader would
    parse it as something other than text or a number, or the service would reject its line breaks: then it
    is sent as a JSON string. Everything else is JSON. (The SageMaker SDK sends all values as JSON.)
    ``is_verbatim``: another program than smlaunch's reads it, such as an algorithm: text is always sent
    unchanged.
    """
    if isinstance(value, str) and is_verbatim:
        return value
    if not isinstance(value, str):
        return json.dumps(value)
    if _LINE_BREAK.search(value) or _is_other_json(value):
        return json.dumps(value)
    return value


def _is_other_json(text: str) -> bool:
    """Whether the text is JSON other than a number."""
    try:
        value = json.loads(text)
    except ValueError:
        # Also what is a number to JSON and too long for Python: more than 4,300 digits.
        return False
    except RecursionError:
        return True
    return isinstance(value, bool) or not isinstance(value, (int, float))


def _training_channel(channel: InputChannel) -> dict[str, Any]:
    """Return an element of CreateTrainingJob's ``InputDataConfig`` for this channel."""
    result: dict[str, Any] = {
        "ChannelName": channel.name,
        "DataSource": {
            "S3DataSource": {
                "S3DataType": "ManifestFile" if channel.is_manifest else "S3Prefix",
                "S3Uri": channel.uri,
                "S3DataDistributionType": "ShardedByS3Key" if channel.is_sharded else "FullyReplicated",
            }
        },
        "InputMode": channel.mode,
    }
    if channel.content_type is not None:
        result["ContentType"] = channel.content_type
    return result


def _processing_input(channel: InputChannel, paths: ProcessingPaths) -> dict[str, Any]:
    return {
        "InputName": channel.name,
        "S3Input": {
            "S3Uri": channel.uri,
            "LocalPath": paths.channel_dir(channel.name),
            "S3DataType": "ManifestFile" if channel.is_manifest else "S3Prefix",
            "S3InputMode": "File",
            "S3DataDistributionType": "ShardedByS3Key" if channel.is_sharded else "FullyReplicated",
        },
    }
