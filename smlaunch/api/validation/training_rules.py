"""Rules of CreateTrainingJob beyond its model.

Sources: the model's documentation in botocore 1.44.5 (exclusions, spot, preferences, instance groups) and
the developer guide of 2023 (manifests and compression in Pipe mode, FastFile). Unconfirmed rules are left
to the service.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from smlaunch.api.validation.shared_rules import (
    RequestPath,
    check_tags,
    check_unique,
    check_volume_key,
    service_violation,
)
from smlaunch.api.validation.violation import Violation

DEFAULT_MAX_RUNTIME_SECONDS = 86_400
"""Seconds; the service's default without StoppingCondition."""

MAX_RUNTIME_SECONDS = 28 * 86_400
"""Seconds; accounts usually have a lower quota."""


def check_training_job(request: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield what the service would reject about a CreateTrainingJob request. ``request`` matches the model's
    types; members may be missing or unknown."""
    if not request.get("ServerlessJobConfig"):
        for member in ("AlgorithmSpecification", "ResourceConfig"):
            if not request.get(member):
                yield Violation((member,), None, rule="required", limit=None)
    yield from _check_algorithm(request.get("AlgorithmSpecification") or {})
    yield from _check_resources(request)
    yield from _check_stopping(request)
    yield from _check_channels(request)
    yield from _check_unique_names(request)
    yield from check_tags(request.get("Tags") or ())


def _check_algorithm(specification: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield violations of AlgorithmSpecification: exactly one of image and algorithm must be given, and an
    entry point only with an image."""
    if not specification:
        return
    image, algorithm_name = specification.get("TrainingImage"), specification.get("AlgorithmName")
    if bool(image) == bool(algorithm_name):
        message = "Exactly one of TrainingImage and AlgorithmName must be given in AlgorithmSpecification"
        yield service_violation(("AlgorithmSpecification",), specification, message)
    for member in ("ContainerEntrypoint", "ContainerArguments"):
        if algorithm_name and specification.get(member):
            message = f"{member} needs TrainingImage; it cannot be given with AlgorithmName"
            yield service_violation(("AlgorithmSpecification", member), specification[member], message)


def _check_resources(request: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield violations of a training job's ResourceConfig: instance type and count, groups, preferences and
    volume. InstanceGroups (hosts of several types) and InstancePreferences (types of which the service takes
    one) stand instead of InstanceType and InstanceCount."""
    resources = request.get("ResourceConfig") or {}
    if not resources:
        return
    path = ("ResourceConfig",)
    groups, preferences = resources.get("InstanceGroups"), resources.get("InstancePreferences")
    if preferences:
        yield from _check_preferences(request, resources, preferences)
    elif groups:
        for member in ("InstanceType", "InstanceCount"):
            if resources.get(member) is not None:
                yield service_violation(
                    (*path, member), resources[member], f"{member} cannot be given with InstanceGroups"
                )
        yield from check_unique((*path, "InstanceGroups"), "InstanceGroupName", groups)
    else:
        for member in ("InstanceType", "InstanceCount"):
            if resources.get(member) is None:
                yield Violation((*path, member), None, rule="required", limit=None)
    yield from _check_counts_and_volume(resources)
    for member in ("SelectedInstanceType", "SelectedInstanceCount"):
        if resources.get(member) is not None:
            yield service_violation(
                (*path, member), resources[member], f"{member} is an answer of the service, not a request"
            )


def _check_counts_and_volume(resources: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield violations of the instance counts and of the volume in ResourceConfig: the API model allows 0,
    the service does not."""
    path = ("ResourceConfig",)
    # All objects that may have an instance type and count, by their paths.
    entry_by_path: dict[RequestPath, Mapping[str, Any]] = {path: resources}
    for member in ("InstanceGroups", "InstancePreferences"):
        for index, entry in enumerate(resources.get(member) or ()):
            entry_path: RequestPath = (*path, member, index)
            entry_by_path[entry_path] = entry
    for entry_path, entry in entry_by_path.items():
        if entry.get("InstanceCount") == 0:
            yield Violation((*entry_path, "InstanceCount"), 0, rule="min", limit=1)
    if resources.get("VolumeSizeInGB") == 0:
        yield Violation((*path, "VolumeSizeInGB"), 0, rule="min", limit=1)
    # A key for the volume cannot be given with instance types that have local disks instead.
    yield from check_volume_key(path, resources, entry_by_path.values())


def _check_preferences(
    request: Mapping[str, Any], resources: Mapping[str, Any], preferences: Sequence[Mapping[str, Any]]
) -> Iterator[Violation]:
    """Yield violations of a ResourceConfig with InstancePreferences, instance types of which the service
    takes the first available one: members that these exclude, instance counts that are given twice or not at
    all, and training plans (reserved capacity)."""
    path = ("ResourceConfig",)
    for member in ("InstanceType", "InstanceGroups", "InstancePlacementConfig"):
        if resources.get(member):
            message = f"{member} cannot be given with InstancePreferences"
            yield service_violation((*path, member), resources[member], message)
    if request.get("EnableManagedSpotTraining"):
        message = "Managed spot training cannot be used with InstancePreferences"
        yield service_violation(("EnableManagedSpotTraining",), True, message)
    counted_preferences = sum(preference.get("InstanceCount") is not None for preference in preferences)
    # A count in ResourceConfig is for all preferences, none of which has one then.
    has_common_count = resources.get("InstanceCount") is not None
    if counted_preferences != (0 if has_common_count else len(preferences)):
        message = (
            "InstanceCount must be given either in ResourceConfig or in every entry of InstancePreferences"
        )
        yield service_violation((*path, "InstancePreferences"), preferences, message)
    for index, preference in enumerate(preferences):
        plan_arns = preference.get("TrainingPlanArns") or ()
        plans_path = (*path, "InstancePreferences", index, "TrainingPlanArns")
        if len(plan_arns) > 1:
            yield Violation(plans_path, plan_arns, rule="max_items", limit=1)
        if plan_arns and resources.get("TrainingPlanArn"):
            message = "TrainingPlanArns of a preference cannot be given with ResourceConfig.TrainingPlanArn"
            yield service_violation(plans_path, plan_arns, message)


def _check_stopping(request: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield violations of a training job's StoppingCondition: its limits of run time and of waiting for spot
    capacity, both in seconds."""
    stopping_condition = request.get("StoppingCondition") or {}
    max_runtime = stopping_condition.get("MaxRuntimeInSeconds")
    max_wait = stopping_condition.get("MaxWaitTimeInSeconds")
    path = ("StoppingCondition",)
    if max_runtime is not None and max_runtime > MAX_RUNTIME_SECONDS:  # 28 days
        yield Violation((*path, "MaxRuntimeInSeconds"), max_runtime, rule="max", limit=MAX_RUNTIME_SECONDS)
    is_spot = request.get("EnableManagedSpotTraining")
    wait_path = (*path, "MaxWaitTimeInSeconds")
    if is_spot and max_wait is None:
        message = "MaxWaitTimeInSeconds must be given when EnableManagedSpotTraining is true"
        yield service_violation(wait_path, None, message)
    if max_wait is not None and not is_spot:
        message = "MaxWaitTimeInSeconds can be given only when EnableManagedSpotTraining is true"
        yield service_violation(wait_path, max_wait, message)
    # The wait includes the run time.
    effective_max_runtime = DEFAULT_MAX_RUNTIME_SECONDS if max_runtime is None else max_runtime
    if is_spot and max_wait is not None and max_wait < effective_max_runtime:
        message = (
            f"MaxWaitTimeInSeconds ({max_wait}) must not be less than MaxRuntimeInSeconds "
            f"({effective_max_runtime})"
        )
        yield service_violation(wait_path, max_wait, message)


def _check_channels(request: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield violations of a training job's input channels: data sources, input modes and instance groups.
    A channel may name the instance groups whose hosts get it; without names all hosts do."""
    channels: Sequence[Mapping[str, Any]] = request.get("InputDataConfig") or ()
    yield from check_unique(("InputDataConfig",), "ChannelName", channels)
    default_mode = (request.get("AlgorithmSpecification") or {}).get("TrainingInputMode")
    groups = (request.get("ResourceConfig") or {}).get("InstanceGroups") or ()
    known_group_names = {group.get("InstanceGroupName") for group in groups}
    grouped_channel_count = 0  # of channels that only some instance groups get
    for index, channel in enumerate(channels):
        path: RequestPath = ("InputDataConfig", index)
        if channel.get("ChannelName") in (".", ".."):
            message = f"ChannelName {channel['ChannelName']!r} cannot be the name of a channel's folder"
            yield service_violation((*path, "ChannelName"), channel["ChannelName"], message)
        yield from _check_data_source(path, channel, has_vpc=bool(request.get("VpcConfig")))
        s3_source = (channel.get("DataSource") or {}).get("S3DataSource") or {}
        input_mode = channel.get("InputMode") or default_mode
        yield from _check_input_mode(path, channel, s3_source, input_mode)
        group_names = s3_source.get("InstanceGroupNames") or ()
        if group_names:
            grouped_channel_count += 1
        for group_name in group_names:
            if group_name not in known_group_names:
                yield service_violation(
                    (*path, "DataSource", "S3DataSource", "InstanceGroupNames"),
                    group_names,
                    f"InstanceGroupNames names {group_name!r}, which is no instance group",
                )
    if 0 < grouped_channel_count < len(channels):
        message = "InstanceGroupNames must be given for all channels or for none"
        yield service_violation(("InputDataConfig",), channels, message)


def _check_data_source(path: RequestPath, channel: Mapping[str, Any], has_vpc: bool) -> Iterator[Violation]:
    """Yield violations of the DataSource of the channel at ``path`` of a request. ``has_vpc``: whether the
    request has VpcConfig."""
    data_source = channel.get("DataSource") or {}
    source_names = [name for name, source in data_source.items() if source]
    if "DataSource" in channel and len(source_names) != 1:
        message = (
            "Exactly one data source must be given in a channel; here are "
            f"{', '.join(source_names) or 'none'}"
        )
        yield service_violation((*path, "DataSource"), data_source, message)
    if data_source.get("FileSystemDataSource") and not has_vpc:
        yield service_violation((*path, "DataSource"), data_source, "FileSystemDataSource needs VpcConfig")
    s3_source = data_source.get("S3DataSource") or {}
    accept_eula = (s3_source.get("ModelAccessConfig") or {}).get("AcceptEula")
    if accept_eula is False:  # absent is allowed
        member_path = (*path, "DataSource", "S3DataSource", "ModelAccessConfig", "AcceptEula")
        yield service_violation(
            member_path, accept_eula, "AcceptEula must be True for the model to be loaded"
        )


def _check_input_mode(
    path: RequestPath, channel: Mapping[str, Any], s3_source: Mapping[str, Any], input_mode: str | None
) -> Iterator[Violation]:
    """Yield a violation for each property of a channel that its input mode does not support.

    ``path`` is the channel's in the request, ``s3_source`` its S3DataSource, ``input_mode`` File, FastFile or
    Pipe; None if the request gives none.
    """
    data_type = s3_source.get("S3DataType")
    source_path = (*path, "DataSource", "S3DataSource")
    if data_type == "AugmentedManifestFile" and input_mode in ("File", "FastFile"):
        yield service_violation(
            (*source_path, "S3DataType"),
            data_type,
            f"AugmentedManifestFile needs Pipe mode, not {input_mode}",
        )
    if data_type == "ManifestFile" and input_mode == "FastFile":
        yield service_violation(
            (*source_path, "S3DataType"), data_type, "FastFile mode needs S3DataType S3Prefix"
        )
    if s3_source.get("AttributeNames") and data_type != "AugmentedManifestFile":
        message = "AttributeNames needs S3DataType AugmentedManifestFile"
        yield service_violation((*source_path, "AttributeNames"), s3_source["AttributeNames"], message)
    if channel.get("CompressionType") == "Gzip" and input_mode in ("File", "FastFile"):
        yield service_violation(
            (*path, "CompressionType"), "Gzip", f"CompressionType Gzip needs Pipe mode, not {input_mode}"
        )
    if channel.get("RecordWrapperType") == "RecordIO" and input_mode in ("File", "FastFile"):
        message = f"RecordWrapperType RecordIO needs Pipe mode, not {input_mode}"
        yield service_violation((*path, "RecordWrapperType"), "RecordIO", message)
    if data_type == "AugmentedManifestFile" and not s3_source.get("AttributeNames"):
        message = "S3DataType AugmentedManifestFile needs AttributeNames"
        yield service_violation((*source_path, "AttributeNames"), s3_source.get("AttributeNames"), message)


def _check_unique_names(request: Mapping[str, Any]) -> Iterator[Violation]:
    for member in ("DebugRuleConfigurations", "ProfilerRuleConfigurations"):
        yield from check_unique((member,), "RuleConfigurationName", request.get(member) or ())
    collections = (request.get("DebugHookConfig") or {}).get("CollectionConfigurations") or ()
    yield from check_unique(("DebugHookConfig", "CollectionConfigurations"), "CollectionName", collections)
