"""Maps members of a request to fields of the job, so that messages name what the user wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_JOB_FIELD_BY_MEMBER_PATH: Mapping[tuple[str, ...], str] = {
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

_CHANNEL_FIELD_SUFFIX_BY_MEMBER = {
    "S3Uri": ".uri",
    "InputMode": ".mode",
    "S3InputMode": ".mode",
    "S3DataDistributionType": ".split",
    "ContentType": ".content_type",
}


def job_field(member_path: tuple[str | int, ...], request: Mapping[str, Any]) -> str:
    """Return the name of the job's field that a member of a request comes from, such as ``compute.hosts`` or
    ``inputs.train.uri``; the dotted path of the member if there is none.

    ``member_path``: keys and list indices from the top of the request to the member.
    """
    member_names = tuple(member for member in member_path if isinstance(member, str))
    for length in (3, 2, 1):
        job_field_name = _JOB_FIELD_BY_MEMBER_PATH.get(member_names[:length])
        if job_field_name is None:
            continue
        if job_field_name in ("hyperparameters", "environment") and len(member_path) > 1:
            return f"{job_field_name}.{member_path[1]}"
        if job_field_name == "inputs" and len(member_path) > 1 and isinstance(member_path[1], int):
            channel_member = request[str(member_path[0])][member_path[1]]
            channel_name = channel_member.get("ChannelName") or channel_member.get("InputName")
            return f"inputs.{channel_name}{_CHANNEL_FIELD_SUFFIX_BY_MEMBER.get(member_names[-1], '')}"
        if job_field_name == "args" and isinstance(member_path[-1], int):
            return f"args[{member_path[-1]}]"
        if job_field_name == "tags" and len(member_path) > 1 and isinstance(member_path[1], int):
            return f"tags.{request['Tags'][member_path[1]]['Key']}"
        return job_field_name
    return dotted_path(member_path)


def dotted_path(member_path: tuple[str | int, ...]) -> str:
    """Return the path's keys and indices joined by dots."""
    return ".".join(str(member) for member in member_path)


def walk_members(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield path and value of every member of a request, parents before children."""
    if path:
        yield path, value
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from walk_members(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from walk_members(item, (*path, index))
