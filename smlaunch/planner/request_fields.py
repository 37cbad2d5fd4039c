"""Maps members of a request to fields of the job, so that messages name what the user wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_FIELDS: Mapping[tuple[str, ...], str] = {
    ("TrainingJobName",): "name",
    ("HyperParameters",): "hyperparameters",
    ("Environment",): "environment",
    ("RoleArn",): "role",
    ("InputDataConfig",): "inputs",
    ("OutputDataConfig", "S3OutputPath"): "output",
    ("ResourceConfig", "InstanceType"): "compute.instance_type",
    ("ResourceConfig", "InstanceCount"): "compute.hosts",
    ("ResourceConfig", "InstancePreferences"): "compute.instance_preferences",
    ("ResourceConfig", "KeepAlivePeriodInSeconds"): "compute.keep_alive",
    ("ResourceConfig", "VolumeSizeInGB"): "compute.volume_gb",
    ("EnableManagedSpotTraining",): "compute.spot",
    ("StoppingCondition", "MaxRuntimeInSeconds"): "limits.max_runtime",
    ("StoppingCondition", "MaxWaitTimeInSeconds"): "limits.max_wait",
    ("StoppingCondition", "MaxPendingTimeInSeconds"): "limits.max_pending",
    ("CheckpointConfig", "S3Uri"): "checkpoints.uri",
    ("CheckpointConfig", "LocalPath"): "checkpoints.local_path",
    ("VpcConfig", "Subnets"): "subnets",
    ("VpcConfig", "SecurityGroupIds"): "security_groups",
    ("EnableNetworkIsolation",): "network_isolation",
    ("EnableInterContainerTrafficEncryption",): "encrypt_traffic",
    ("AlgorithmSpecification", "TrainingImage"): "image",
    ("AlgorithmSpecification", "ContainerArguments"): "args",
    ("AppSpecification", "ContainerArguments"): "args",
    ("AlgorithmSpecification",): "image",
    ("Tags",): "tags",
    ("ProcessingJobName",): "name",
    ("ProcessingInputs",): "inputs",
    ("ProcessingOutputConfig",): "output",
    ("ProcessingResources", "ClusterConfig", "InstanceType"): "compute.instance_type",
    ("ProcessingResources", "ClusterConfig", "InstanceCount"): "compute.hosts",
    ("ProcessingResources", "ClusterConfig", "InstancePreferences"): "compute.instance_preferences",
    ("ProcessingResources", "ClusterConfig", "VolumeSizeInGB"): "compute.volume_gb",
    ("NetworkConfig", "VpcConfig", "Subnets"): "subnets",
    ("NetworkConfig", "VpcConfig", "SecurityGroupIds"): "security_groups",
    ("NetworkConfig", "EnableNetworkIsolation"): "network_isolation",
    ("NetworkConfig", "EnableInterContainerTrafficEncryption"): "encrypt_traffic",
    ("AppSpecification",): "image",
}

_CHANNEL_FIELDS = {
    "S3Uri": ".uri",
    "InputMode": ".mode",
    "S3InputMode": ".mode",
    "S3DataDistributionType": ".split",
    "ContentType": ".content_type",
}


def job_field(path: tuple[str | int, ...], request: Mapping[str, Any]) -> str:
    """The job's field behind ``path`` of a request; the path itself if there is none."""
    names = tuple(member for member in path if isinstance(member, str))
    for length in (3, 2, 1):
        field = _FIELDS.get(names[:length])
        if field is None:
            continue
        if field in ("hyperparameters", "environment") and len(path) > 1:
            return f"{field}.{path[1]}"
        if field == "inputs" and len(path) > 1 and isinstance(path[1], int):
            channels = request[str(path[0])][path[1]]
            channel_name = channels.get("ChannelName") or channels.get("InputName")
            return f"inputs.{channel_name}{_CHANNEL_FIELDS.get(names[-1], '')}"
        if field == "args" and isinstance(path[-1], int):
            return f"args[{path[-1]}]"
        if field == "tags" and len(path) > 1 and isinstance(path[1], int):
            return f"tags.{request['Tags'][path[1]]['Key']}"
        return field
    return dotted_path(path)


def dotted_path(path: tuple[str | int, ...]) -> str:
    return ".".join(str(member) for member in path)


def walk_members(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Path and value of every member of a request, parents before children."""
    if path:
        yield path, value
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from walk_members(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from walk_members(item, (*path, index))
