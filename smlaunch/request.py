"""A decided task -> the exact CreateTrainingJob request. Pure: no default is added behind the plan's back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from smlaunch.protocol.paths import RUNTIME_ARCHIVE, RUNTIME_CHANNEL, Paths

ENTRYPOINT = ("python3", f"{Paths().channel(RUNTIME_CHANNEL)}/{RUNTIME_ARCHIVE}")
"""The image's own entry point is replaced: the runtime has to be process 1 to hear SIGTERM."""

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

    ``max_wait`` with spot only. ``checkpoints``: S3 prefix and local directory. ``hyperparameters``: JSON
    values, turned into the API's text here. A member that is empty or None is left out of the request.
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


def create_training_job(task: TrainingTask) -> dict[str, Any]:
    """The keyword arguments of boto3's ``create_training_job``."""
    stopping = {"MaxRuntimeInSeconds": task.max_runtime}
    if task.max_wait is not None:
        stopping["MaxWaitTimeInSeconds"] = task.max_wait
    request: dict[str, Any] = {
        "TrainingJobName": task.name,
        "HyperParameters": {key: hyperparameter_text(value) for key, value in task.hyperparameters.items()},
        "AlgorithmSpecification": {
            "TrainingImage": task.image,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": list(task.entrypoint),
        },
        "RoleArn": task.role,
        "InputDataConfig": [_channel(channel) for channel in task.channels],
        "OutputDataConfig": {"S3OutputPath": task.output},
        "ResourceConfig": {
            "InstanceType": task.instance_type,
            "InstanceCount": task.hosts,
            "VolumeSizeInGB": task.volume_gb,
        },
        "StoppingCondition": stopping,
        "Environment": dict(task.environment),
        "Tags": [{"Key": key, "Value": value} for key, value in task.tags.items()],
    }
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


def hyperparameter_text(value: Any) -> str:
    """The API's text for a hyperparameter, such that reading it as JSON where it is JSON gives it back.

    Text goes as it is, so that ``lr: "1e-3"`` arrives as those four characters, unless a reader would take it
    for something other than text or a number, or the service would refuse it for its line breaks: then it
    goes as a JSON string. Everything else is JSON. (The SageMaker SDK sends all values as JSON.)
    """
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
