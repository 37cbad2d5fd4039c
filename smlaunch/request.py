"""A decided task -> the exact request for a training or a processing job. Pure: no default is added behind
the plan's back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from smlaunch.protocol.paths import RUNTIME_ARCHIVE, RUNTIME_CHANNEL, Paths, ProcessingPaths

ENTRYPOINT = ("python3", f"{Paths().channel(RUNTIME_CHANNEL)}/{RUNTIME_ARCHIVE}")
"""The image's own entry point is replaced: the runtime has to be process 1 to hear SIGTERM."""

TRAINING = "CreateTrainingJob"
PROCESSING = "CreateProcessingJob"

_LINE_BREAK = re.compile("[\n\r\x85\u2028\u2029]")
"""What ``.`` leaves out in the service's pattern ``.*`` for hyperparameters."""


@dataclass(frozen=True)
class InputChannel:
    """``uri``: an S3 prefix, or the address of a ``manifest``. ``sharded``: every object goes to exactly one
    host (ShardedByS3Key)."""

    name: str
    uri: str
    mode: Literal["File", "FastFile", "Pipe"] = "File"
    sharded: bool = False
    content_type: str | None = None
    manifest: bool = False


@dataclass(frozen=True)
class TrainingTask:
    """Everything one training job is made of. Times in seconds; ``volume_gb`` per host, in GB.

    ``entrypoint`` and ``arguments`` are empty where the image's own are meant. ``max_wait`` with spot only.
    ``instance_preferences``: types in order instead of ``instance_type``, each for ``hosts`` hosts.
    ``keep_alive``: how long hosts wait for the next job; ``max_pending``: how long to wait for capacity.
    ``checkpoints``: S3 prefix and local directory. ``hyperparameters``: JSON values, turned into the API's
    text here. A member that is empty or None is left out of the request.
    """

    name: str
    role: str
    image: str
    entrypoint: tuple[str, ...]
    hyperparameters: Mapping[str, Any]
    channels: tuple[InputChannel, ...]
    output: str
    instance_type: str
    hosts: int
    volume_gb: int
    max_runtime: int
    spot: bool = False
    max_wait: int | None = None
    checkpoints: tuple[str, str] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    network_isolation: bool = False
    encrypt_traffic: bool = False
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    instance_preferences: tuple[str, ...] = ()
    keep_alive: int | None = None
    max_pending: int | None = None


def create_training_job(task: TrainingTask) -> dict[str, Any]:
    """The keyword arguments of boto3's ``create_training_job``."""
    stopping = {"MaxRuntimeInSeconds": task.max_runtime}
    if task.max_wait is not None:
        stopping["MaxWaitTimeInSeconds"] = task.max_wait
    if task.max_pending is not None:
        stopping["MaxPendingTimeInSeconds"] = task.max_pending
    request: dict[str, Any] = {
        "TrainingJobName": task.name,
        "HyperParameters": {
            key: hyperparameter_text(value, own_reader=not task.entrypoint)
            for key, value in task.hyperparameters.items()
        },
        "AlgorithmSpecification": {
            "TrainingImage": task.image,
            "TrainingInputMode": "File",
            **_container(task.entrypoint, task.arguments),
        },
        "RoleArn": task.role,
        "InputDataConfig": [_channel(channel) for channel in task.channels],
        "OutputDataConfig": {"S3OutputPath": task.output},
        "ResourceConfig": _machines(task),
        "StoppingCondition": stopping,
        "Environment": dict(task.environment),
        "Tags": [{"Key": key, "Value": value} for key, value in task.tags.items()],
    }
    if task.keep_alive is not None:
        request["ResourceConfig"]["KeepAlivePeriodInSeconds"] = task.keep_alive
    if task.checkpoints is not None:
        uri, path = task.checkpoints
        request["CheckpointConfig"] = {"S3Uri": uri, "LocalPath": path}
    if task.subnets or task.security_groups:
        request["VpcConfig"] = {
            "SecurityGroupIds": list(task.security_groups),
            "Subnets": list(task.subnets),
        }
    if task.network_isolation:
        request["EnableNetworkIsolation"] = True
    if task.encrypt_traffic:
        request["EnableInterContainerTrafficEncryption"] = True
    if task.spot:
        request["EnableManagedSpotTraining"] = True
    for member in ("HyperParameters", "InputDataConfig", "Environment", "Tags"):
        if not request[member]:
            del request[member]
    return request


def _machines(task: TrainingTask) -> dict[str, Any]:
    """One number of hosts for the job, whichever type is taken."""
    rest = {"InstanceCount": task.hosts, "VolumeSizeInGB": task.volume_gb}
    if task.instance_preferences:
        return {"InstancePreferences": [{"InstanceType": name} for name in task.instance_preferences], **rest}
    return {"InstanceType": task.instance_type, **rest}


def _container(entrypoint: Sequence[str], arguments: Sequence[str]) -> dict[str, list[str]]:
    """What replaces the image's own ENTRYPOINT and CMD."""
    words = {"ContainerEntrypoint": list(entrypoint), "ContainerArguments": list(arguments)}
    return {member: given for member, given in words.items() if given}


def create_processing_job(task: TrainingTask) -> dict[str, Any]:
    """The keyword arguments of boto3's ``create_processing_job``: channels are inputs, and what a script
    leaves in its output directory goes where a training job's output would. Of the task's members that a
    processing job does not know none is read."""
    paths = ProcessingPaths()
    place = f"{task.output.rstrip('/')}/{task.name}/output/"
    output = {"S3Uri": place, "LocalPath": paths.output_data, "S3UploadMode": "EndOfJob"}
    request: dict[str, Any] = {
        "ProcessingJobName": task.name,
        "ProcessingInputs": [_input(channel, paths) for channel in task.channels],
        "ProcessingOutputConfig": {"Outputs": [{"OutputName": "output", "S3Output": output}]},
        "ProcessingResources": {"ClusterConfig": _machines(task)},
        "StoppingCondition": {"MaxRuntimeInSeconds": task.max_runtime},
        "AppSpecification": {
            "ImageUri": task.image,
            **_container(
                task.entrypoint and ("python3", f"{paths.channel(RUNTIME_CHANNEL)}/{RUNTIME_ARCHIVE}"),
                task.arguments,
            ),
        },
        "Environment": dict(task.environment),
        "RoleArn": task.role,
        "Tags": [{"Key": key, "Value": value} for key, value in task.tags.items()],
    }
    network: dict[str, Any] = {}
    if task.subnets or task.security_groups:
        network["VpcConfig"] = {
            "SecurityGroupIds": list(task.security_groups),
            "Subnets": list(task.subnets),
        }
    if task.network_isolation:
        network["EnableNetworkIsolation"] = True
    if task.encrypt_traffic:
        network["EnableInterContainerTrafficEncryption"] = True
    if network:
        request["NetworkConfig"] = network
    for member in ("Environment", "Tags"):
        if not request[member]:
            del request[member]
    return request


CREATE: Mapping[str, Callable[[TrainingTask], dict[str, Any]]] = {
    TRAINING: create_training_job,
    PROCESSING: create_processing_job,
}
"""By the operation's name."""


def operation_of(request: Mapping[str, Any]) -> str:
    """Whose request it is."""
    return PROCESSING if "ProcessingJobName" in request else TRAINING


def name_member(request: Mapping[str, Any]) -> str:
    """The member that holds the job's name."""
    return "ProcessingJobName" if operation_of(request) == PROCESSING else "TrainingJobName"


def hyperparameter_text(value: Any, own_reader: bool = False) -> str:
    """The API's text for a hyperparameter, such that reading it as JSON where it is JSON gives it back.

    Text goes as it is, so that ``lr: "1e-3"`` arrives as those four characters, unless a reader would take it
    for something other than text or a number, or the service would refuse it for its line breaks: then it
    goes as a JSON string. Everything else is JSON. (The SageMaker SDK sends all values as JSON.)
    ``own_reader``: a program that is not ours reads it, such as an algorithm's: its text is left alone.
    """
    if isinstance(value, str) and own_reader:
        return value
    if not isinstance(value, str):
        return json.dumps(value)
    if _LINE_BREAK.search(value) or _is_json_but_no_number(value):
        return json.dumps(value)
    return value


def _is_json_but_no_number(text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        # Also what is a number to JSON and too long for Python: more than 4,300 digits.
        return False
    except RecursionError:
        return True
    return isinstance(value, bool) or not isinstance(value, (int, float))


def _channel(channel: InputChannel) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ChannelName": channel.name,
        "DataSource": {
            "S3DataSource": {
                "S3DataType": "ManifestFile" if channel.manifest else "S3Prefix",
                "S3Uri": channel.uri,
                "S3DataDistributionType": "ShardedByS3Key" if channel.sharded else "FullyReplicated",
            }
        },
        "InputMode": channel.mode,
    }
    if channel.content_type is not None:
        result["ContentType"] = channel.content_type
    return result


def _input(channel: InputChannel, paths: ProcessingPaths) -> dict[str, Any]:
    return {
        "InputName": channel.name,
        "S3Input": {
            "S3Uri": channel.uri,
            "LocalPath": paths.channel(channel.name),
            "S3DataType": "ManifestFile" if channel.manifest else "S3Prefix",
            "S3InputMode": "File",
            "S3DataDistributionType": "ShardedByS3Key" if channel.sharded else "FullyReplicated",
        },
    }
