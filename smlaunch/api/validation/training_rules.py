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

DEFAULT_MAX_RUNTIME = 86_400
"""Seconds; the service's default without StoppingCondition."""

LONGEST_RUNTIME = 28 * 86_400
"""Seconds; accounts usually have a lower quota."""


def check_training_job(request: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield what the service would reject about a CreateTrainingJob request. ``request`` matches the model's
    types; members may be missing or unknown."""
    if not request.get("ServerlessJobConfig"):
        for name in ("AlgorithmSpecification", "ResourceConfig"):
            if not request.get(name):
                yield Violation((name,), None, "required", None)
    yield from _check_algorithm(request.get("AlgorithmSpecification") or {})
    yield from _check_resources(request)
    yield from _check_stopping(request)
    yield from _check_channels(request)
    yield from _check_unique_names(request)
    yield from check_tags(request.get("Tags") or ())


def _check_algorithm(specification: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield a violation unless exactly one of image and algorithm is given."""
    if not specification:
        return
    image, name = specification.get("TrainingImage"), specification.get("AlgorithmName")
    if bool(image) == bool(name):
        text = "Exactly one of TrainingImage and AlgorithmName must be given in AlgorithmSpecification"
        yield service_violation(("AlgorithmSpecification",), specification, text)
    for field in ("ContainerEntrypoint", "ContainerArguments"):
        if name and specification.get(field):
            text = f"{field} needs TrainingImage; it cannot be given with AlgorithmName"
            yield service_violation(("AlgorithmSpecification", field), specification[field], text)


def _check_resources(request: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield violations of instance type and count, groups, preferences and volume."""
    resources = request.get("ResourceConfig") or {}
    if not resources:
        return
    path = ("ResourceConfig",)
    groups, preferences = resources.get("InstanceGroups"), resources.get("InstancePreferences")
    if preferences:
        yield from _check_preferences(request, resources, preferences)
    elif groups:
        for field in ("InstanceType", "InstanceCount"):
            if resources.get(field) is not None:
                yield service_violation(
                    (*path, field), resources[field], f"{field} cannot be given with InstanceGroups"
                )
        yield from check_unique((*path, "InstanceGroups"), "InstanceGroupName", groups)
    else:
        for field in ("InstanceType", "InstanceCount"):
            if resources.get(field) is None:
                yield Violation((*path, field), None, "required", None)
    entries_with_path: list[tuple[RequestPath, Mapping[str, Any]]] = [(path, resources)]
    for field, entries in (("InstanceGroups", groups), ("InstancePreferences", preferences)):
        entries_with_path += [((*path, field, index), entry) for index, entry in enumerate(entries or ())]
    for entry_path, entry in entries_with_path:
        if entry.get("InstanceCount") == 0:
            yield Violation((*entry_path, "InstanceCount"), 0, "min", 1)
    if resources.get("VolumeSizeInGB") == 0:
        yield Violation((*path, "VolumeSizeInGB"), 0, "min", 1)
    yield from check_volume_key(path, resources, [entry for _, entry in entries_with_path])
    for field in ("SelectedInstanceType", "SelectedInstanceCount"):
        if resources.get(field) is not None:
            yield service_violation(
                (*path, field), resources[field], f"{field} is an answer of the service, not a request"
            )


def _check_preferences(
    request: Mapping[str, Any], resources: Mapping[str, Any], preferences: Sequence[Mapping[str, Any]]
) -> Iterator[Violation]:
    """Yield violations of what InstancePreferences excludes, and of how counts are given."""
    path = ("ResourceConfig",)
    for field in ("InstanceType", "InstanceGroups", "InstancePlacementConfig"):
        if resources.get(field):
            text = f"{field} cannot be given with InstancePreferences"
            yield service_violation((*path, field), resources[field], text)
    if request.get("EnableManagedSpotTraining"):
        text = "Managed spot training cannot be used with InstancePreferences"
        yield service_violation(("EnableManagedSpotTraining",), True, text)
    preferences_with_count = sum(entry.get("InstanceCount") is not None for entry in preferences)
    all_state_count, none_states_count = (
        preferences_with_count == len(preferences),
        preferences_with_count == 0,
    )
    if not (none_states_count if resources.get("InstanceCount") is not None else all_state_count):
        text = "InstanceCount must be given either in ResourceConfig or in every entry of InstancePreferences"
        yield service_violation((*path, "InstancePreferences"), preferences, text)
    for index, entry in enumerate(preferences):
        plan_arns = entry.get("TrainingPlanArns") or ()
        plans_path = (*path, "InstancePreferences", index, "TrainingPlanArns")
        if len(plan_arns) > 1:
            yield Violation(plans_path, plan_arns, "max_items", 1)
        if plan_arns and resources.get("TrainingPlanArn"):
            text = "TrainingPlanArns of a preference cannot be given with ResourceConfig.TrainingPlanArn"
            yield service_violation(plans_path, plan_arns, text)


def _check_stopping(request: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield violations of the limits of run time and wait."""
    condition = request.get("StoppingCondition") or {}
    runtime, wait = condition.get("MaxRuntimeInSeconds"), condition.get("MaxWaitTimeInSeconds")
    path = ("StoppingCondition",)
    if runtime is not None and runtime > LONGEST_RUNTIME:
        yield Violation((*path, "MaxRuntimeInSeconds"), runtime, "max", LONGEST_RUNTIME)
    spot = request.get("EnableManagedSpotTraining")
    wait_path = (*path, "MaxWaitTimeInSeconds")
    if spot and wait is None:
        text = "MaxWaitTimeInSeconds must be given when EnableManagedSpotTraining is true"
        yield service_violation(wait_path, None, text)
    if wait is not None and not spot:
        text = "MaxWaitTimeInSeconds can be given only when EnableManagedSpotTraining is true"
        yield service_violation(wait_path, wait, text)
    min_wait = DEFAULT_MAX_RUNTIME if runtime is None else runtime
    if spot and wait is not None and wait < min_wait:
        text = f"MaxWaitTimeInSeconds ({wait}) must not be less than MaxRuntimeInSeconds ({min_wait})"
        yield service_violation(wait_path, wait, text)


def _check_channels(request: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield violations of the channels' data sources, modes and instance groups."""
    channels: Sequence[Mapping[str, Any]] = request.get("InputDataConfig") or ()
    yield from check_unique(("InputDataConfig",), "ChannelName", channels)
    default_mode = (request.get("AlgorithmSpecification") or {}).get("TrainingInputMode")
    groups = (request.get("ResourceConfig") or {}).get("InstanceGroups") or ()
    known_groups = {group.get("InstanceGroupName") for group in groups}
    restricted_channels = 0
    for index, channel in enumerate(channels):
        path: RequestPath = ("InputDataConfig", index)
        if channel.get("ChannelName") in (".", ".."):
            text = f"ChannelName {channel['ChannelName']!r} cannot be the name of a channel's folder"
            yield service_violation((*path, "ChannelName"), channel["ChannelName"], text)
        source = channel.get("DataSource") or {}
        source_names = [name for name, value in source.items() if value]
        if "DataSource" in channel and len(source_names) != 1:
            text = (
                "Exactly one data source must be given in a channel; here are "
                f"{', '.join(source_names) or 'none'}"
            )
            yield service_violation((*path, "DataSource"), source, text)
        if source.get("FileSystemDataSource") and not request.get("VpcConfig"):
            yield service_violation((*path, "DataSource"), source, "FileSystemDataSource needs VpcConfig")
        s3 = source.get("S3DataSource") or {}
        eula = (s3.get("ModelAccessConfig") or {}).get("AcceptEula")
        if eula is False:
            member_path = (*path, "DataSource", "S3DataSource", "ModelAccessConfig", "AcceptEula")
            yield service_violation(member_path, eula, "AcceptEula must be True for the model to be loaded")
        mode = channel.get("InputMode") or default_mode
        yield from _check_mode(path, channel, s3, mode)
        group_names = s3.get("InstanceGroupNames") or ()
        restricted_channels += bool(group_names)
        member_path = (*path, "DataSource", "S3DataSource", "InstanceGroupNames")
        for name in group_names:
            if name not in known_groups:
                yield service_violation(
                    member_path, group_names, f"InstanceGroupNames names {name!r}, which is no instance group"
                )
    if 0 < restricted_channels < len(channels):
        text = "InstanceGroupNames must be given for all channels or for none"
        yield service_violation(("InputDataConfig",), channels, text)


def _check_mode(
    path: RequestPath, channel: Mapping[str, Any], s3: Mapping[str, Any], mode: str | None
) -> Iterator[Violation]:
    """Yield a violation for each property of a channel that its input mode does not support.

    ``path``: of the channel in the request. ``s3``: its S3DataSource. ``mode``: File, FastFile or Pipe.
    """
    data_type = s3.get("S3DataType")
    source_path = (*path, "DataSource", "S3DataSource")
    if data_type == "AugmentedManifestFile" and mode in ("File", "FastFile"):
        yield service_violation(
            (*source_path, "S3DataType"), data_type, f"AugmentedManifestFile needs Pipe mode, not {mode}"
        )
    if data_type == "ManifestFile" and mode == "FastFile":
        yield service_violation(
            (*source_path, "S3DataType"), data_type, "FastFile mode needs S3DataType S3Prefix"
        )
    if s3.get("AttributeNames") and data_type != "AugmentedManifestFile":
        text = "AttributeNames needs S3DataType AugmentedManifestFile"
        yield service_violation((*source_path, "AttributeNames"), s3["AttributeNames"], text)
    if channel.get("CompressionType") == "Gzip" and mode in ("File", "FastFile"):
        yield service_violation(
            (*path, "CompressionType"), "Gzip", f"CompressionType Gzip needs Pipe mode, not {mode}"
        )
    if channel.get("RecordWrapperType") == "RecordIO" and mode in ("File", "FastFile"):
        text = f"RecordWrapperType RecordIO needs Pipe mode, not {mode}"
        yield service_violation((*path, "RecordWrapperType"), "RecordIO", text)
    if data_type == "AugmentedManifestFile" and not s3.get("AttributeNames"):
        text = "S3DataType AugmentedManifestFile needs AttributeNames"
        yield service_violation((*source_path, "AttributeNames"), s3.get("AttributeNames"), text)


def _check_unique_names(request: Mapping[str, Any]) -> Iterator[Violation]:
    for field in ("DebugRuleConfigurations", "ProfilerRuleConfigurations"):
        yield from check_unique((field,), "RuleConfigurationName", request.get(field) or ())
    collections = (request.get("DebugHookConfig") or {}).get("CollectionConfigurations") or ()
    yield from check_unique(("DebugHookConfig", "CollectionConfigurations"), "CollectionName", collections)
