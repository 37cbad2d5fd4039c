"""What CreateTrainingJob refuses although its model allows it.

Sources: the model's prose in botocore 1.44.5 (exclusions, spot, preferences, instance groups) and the
developer guide of 2023 (manifests and compression in Pipe mode, FastFile). Only rules that these state are
here; what is merely believed is left to the service.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from smlaunch.validate.rules import Steps, rule, tags, unique, volume_key
from smlaunch.validate.violation import Violation

DEFAULT_MAX_RUNTIME = 86_400
"""Seconds; what the service takes when StoppingCondition says nothing."""

LONGEST_RUNTIME = 28 * 86_400
"""Seconds; a harder quota per account is usual."""


def check_training_job(request: Mapping[str, Any]) -> Iterator[Violation]:
    """``request`` has the model's types; members may be missing or too many."""
    if not request.get("ServerlessJobConfig"):
        for name in ("AlgorithmSpecification", "ResourceConfig"):
            if not request.get(name):
                yield Violation((name,), None, "required", None)
    yield from _algorithm(request.get("AlgorithmSpecification") or {})
    yield from _resources(request)
    yield from _stopping(request)
    yield from _channels(request)
    yield from _named_rules(request)
    yield from tags(request.get("Tags") or ())


def _algorithm(specification: Mapping[str, Any]) -> Iterator[Violation]:
    if not specification:
        return
    image, name = specification.get("TrainingImage"), specification.get("AlgorithmName")
    if bool(image) == bool(name):
        text = "Exactly one of TrainingImage and AlgorithmName must be given in AlgorithmSpecification"
        yield rule(("AlgorithmSpecification",), specification, text)
    for field in ("ContainerEntrypoint", "ContainerArguments"):
        if name and specification.get(field):
            text = f"{field} needs TrainingImage; it cannot be given with AlgorithmName"
            yield rule(("AlgorithmSpecification", field), specification[field], text)


def _resources(request: Mapping[str, Any]) -> Iterator[Violation]:
    resources = request.get("ResourceConfig") or {}
    if not resources:
        return
    at = ("ResourceConfig",)
    groups, preferences = resources.get("InstanceGroups"), resources.get("InstancePreferences")
    if preferences:
        yield from _preferences(request, resources, preferences)
    elif groups:
        for field in ("InstanceType", "InstanceCount"):
            if resources.get(field) is not None:
                yield rule((*at, field), resources[field], f"{field} cannot be given with InstanceGroups")
        yield from unique((*at, "InstanceGroups"), "InstanceGroupName", groups)
    else:
        for field in ("InstanceType", "InstanceCount"):
            if resources.get(field) is None:
                yield Violation((*at, field), None, "required", None)
    counted: list[tuple[Steps, Mapping[str, Any]]] = [(at, resources)]
    for field, entries in (("InstanceGroups", groups), ("InstancePreferences", preferences)):
        counted += [((*at, field, index), entry) for index, entry in enumerate(entries or ())]
    for steps, entry in counted:
        if entry.get("InstanceCount") == 0:
            yield Violation((*steps, "InstanceCount"), 0, "min", 1)
    if resources.get("VolumeSizeInGB") == 0:
        yield Violation((*at, "VolumeSizeInGB"), 0, "min", 1)
    yield from volume_key(at, resources, [entry for _, entry in counted])
    for field in ("SelectedInstanceType", "SelectedInstanceCount"):
        if resources.get(field) is not None:
            yield rule((*at, field), resources[field], f"{field} is an answer of the service, not a request")


def _preferences(
    request: Mapping[str, Any], resources: Mapping[str, Any], preferences: Sequence[Mapping[str, Any]]
) -> Iterator[Violation]:
    at = ("ResourceConfig",)
    for field in ("InstanceType", "InstanceGroups", "InstancePlacementConfig"):
        if resources.get(field):
            text = f"{field} cannot be given with InstancePreferences"
            yield rule((*at, field), resources[field], text)
    if request.get("EnableManagedSpotTraining"):
        text = "Managed spot training cannot be used with InstancePreferences"
        yield rule(("EnableManagedSpotTraining",), True, text)
    with_count = sum(entry.get("InstanceCount") is not None for entry in preferences)
    everywhere, nowhere = with_count == len(preferences), with_count == 0
    if not (nowhere if resources.get("InstanceCount") is not None else everywhere):
        text = "InstanceCount must be given either in ResourceConfig or in every entry of InstancePreferences"
        yield rule((*at, "InstancePreferences"), preferences, text)
    for index, entry in enumerate(preferences):
        plans = entry.get("TrainingPlanArns") or ()
        steps = (*at, "InstancePreferences", index, "TrainingPlanArns")
        if len(plans) > 1:
            yield Violation(steps, plans, "max_items", 1)
        if plans and resources.get("TrainingPlanArn"):
            text = "TrainingPlanArns of a preference cannot be given with ResourceConfig.TrainingPlanArn"
            yield rule(steps, plans, text)


def _stopping(request: Mapping[str, Any]) -> Iterator[Violation]:
    condition = request.get("StoppingCondition") or {}
    runtime, wait = condition.get("MaxRuntimeInSeconds"), condition.get("MaxWaitTimeInSeconds")
    at = ("StoppingCondition",)
    if runtime is not None and runtime > LONGEST_RUNTIME:
        yield Violation((*at, "MaxRuntimeInSeconds"), runtime, "max", LONGEST_RUNTIME)
    spot = request.get("EnableManagedSpotTraining")
    steps = (*at, "MaxWaitTimeInSeconds")
    if spot and wait is None:
        text = "MaxWaitTimeInSeconds must be given when EnableManagedSpotTraining is true"
        yield rule(steps, None, text)
    if wait is not None and not spot:
        text = "MaxWaitTimeInSeconds can be given only when EnableManagedSpotTraining is true"
        yield rule(steps, wait, text)
    needed = DEFAULT_MAX_RUNTIME if runtime is None else runtime
    if spot and wait is not None and wait < needed:
        text = f"MaxWaitTimeInSeconds ({wait}) must not be less than MaxRuntimeInSeconds ({needed})"
        yield rule(steps, wait, text)


def _channels(request: Mapping[str, Any]) -> Iterator[Violation]:
    channels: Sequence[Mapping[str, Any]] = request.get("InputDataConfig") or ()
    yield from unique(("InputDataConfig",), "ChannelName", channels)
    default_mode = (request.get("AlgorithmSpecification") or {}).get("TrainingInputMode")
    groups = (request.get("ResourceConfig") or {}).get("InstanceGroups") or ()
    known = {group.get("InstanceGroupName") for group in groups}
    restricted = 0
    for index, channel in enumerate(channels):
        at: Steps = ("InputDataConfig", index)
        source = channel.get("DataSource") or {}
        given = [name for name, value in source.items() if value]
        if "DataSource" in channel and len(given) != 1:
            text = (
                f"Exactly one data source must be given in a channel; here are {', '.join(given) or 'none'}"
            )
            yield rule((*at, "DataSource"), source, text)
        if source.get("FileSystemDataSource") and not request.get("VpcConfig"):
            yield rule((*at, "DataSource"), source, "FileSystemDataSource needs VpcConfig")
        s3 = source.get("S3DataSource") or {}
        eula = (s3.get("ModelAccessConfig") or {}).get("AcceptEula")
        if eula is False:
            steps = (*at, "DataSource", "S3DataSource", "ModelAccessConfig", "AcceptEula")
            yield rule(steps, eula, "AcceptEula must be True for the model to be loaded")
        mode = channel.get("InputMode") or default_mode
        yield from _mode(at, channel, s3, mode)
        chosen = s3.get("InstanceGroupNames") or ()
        restricted += bool(chosen)
        steps = (*at, "DataSource", "S3DataSource", "InstanceGroupNames")
        for name in chosen:
            if name not in known:
                yield rule(steps, chosen, f"InstanceGroupNames names {name!r}, which is no instance group")
    if 0 < restricted < len(channels):
        text = "InstanceGroupNames must be given for all channels or for none"
        yield rule(("InputDataConfig",), channels, text)


def _mode(
    at: Steps, channel: Mapping[str, Any], s3: Mapping[str, Any], mode: str | None
) -> Iterator[Violation]:
    data_type = s3.get("S3DataType")
    steps = (*at, "DataSource", "S3DataSource")
    if data_type == "AugmentedManifestFile" and mode in ("File", "FastFile"):
        yield rule((*steps, "S3DataType"), data_type, f"AugmentedManifestFile needs Pipe mode, not {mode}")
    if data_type == "ManifestFile" and mode == "FastFile":
        yield rule((*steps, "S3DataType"), data_type, "FastFile mode needs S3DataType S3Prefix")
    if s3.get("AttributeNames") and data_type != "AugmentedManifestFile":
        text = "AttributeNames needs S3DataType AugmentedManifestFile"
        yield rule((*steps, "AttributeNames"), s3["AttributeNames"], text)
    if channel.get("CompressionType") == "Gzip" and mode in ("File", "FastFile"):
        yield rule((*at, "CompressionType"), "Gzip", f"CompressionType Gzip needs Pipe mode, not {mode}")
    if channel.get("RecordWrapperType") == "RecordIO" and mode in ("File", "FastFile"):
        text = f"RecordWrapperType RecordIO needs Pipe mode, not {mode}"
        yield rule((*at, "RecordWrapperType"), "RecordIO", text)
    if data_type == "AugmentedManifestFile" and not s3.get("AttributeNames"):
        text = "S3DataType AugmentedManifestFile needs AttributeNames"
        yield rule((*steps, "AttributeNames"), s3.get("AttributeNames"), text)


def _named_rules(request: Mapping[str, Any]) -> Iterator[Violation]:
    for field in ("DebugRuleConfigurations", "ProfilerRuleConfigurations"):
        yield from unique((field,), "RuleConfigurationName", request.get(field) or ())
    collections = (request.get("DebugHookConfig") or {}).get("CollectionConfigurations") or ()
    yield from unique(("DebugHookConfig", "CollectionConfigurations"), "CollectionName", collections)
