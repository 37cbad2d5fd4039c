"""What a CreateTrainingJob request asks of the hosts, read out of it once. Pure.

The request has passed the validator and the honesty table before: what is refused never comes here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

DEFAULT_GROUP = "homogeneousCluster"
"""What resourceconfig.json calls the only group of a job without instance groups (training toolkit)."""

DEFAULT_MAX_RUNTIME = 86400
"""Seconds; the API's default when StoppingCondition says nothing."""

DEFAULT_CHECKPOINT_PATH = "/opt/ml/checkpoints/"
CONTRACT_ROOT = "/opt/ml"


@dataclass(frozen=True)
class S3Location:
    """``key`` may be empty, a prefix or one object's key, as the user wrote it."""

    bucket: str
    key: str

    @classmethod
    def parse(cls, uri: str) -> S3Location:
        """``s3://bucket/key``, or the https form the API accepts too."""
        parts = urlsplit(uri, allow_fragments=False)
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        if parts.scheme == "https":
            bucket, _, key = path.lstrip("/").partition("/")
            return cls(bucket, key)
        return cls(parts.netloc, path.removeprefix("/"))

    def below(self, *names: str) -> str:
        """The key of something under this prefix; empty names add nothing."""
        return "/".join([*filter(None, [self.key.rstrip("/")]), *names])


@dataclass(frozen=True)
class ChannelSpec:
    """``data_type``: S3Prefix or ManifestFile. ``mode``: File or FastFile. ``groups``: empty means all."""

    name: str
    uri: str
    data_type: str
    sharded: bool
    mode: str
    content_type: str | None
    shuffle_seed: int | None
    groups: tuple[str, ...]


@dataclass(frozen=True)
class HostSpec:
    label: str
    group: str
    instance_type: str


@dataclass(frozen=True)
class TrainingSpec:
    """Everything the runner needs to know about one job. ``max_runtime`` is in seconds."""

    name: str
    arn: str
    region: str
    image: str
    command: tuple[str, ...]
    given_entrypoint: bool
    hosts: tuple[HostSpec, ...]
    heterogeneous: bool
    channels: tuple[ChannelSpec, ...]
    hyperparameters: Mapping[str, str]
    environment: Mapping[str, str]
    output: S3Location
    compressed: bool
    checkpoints: S3Location | None
    checkpoint_path: str
    max_runtime: int
    isolated_network: bool

    def hosts_of(self, channel: ChannelSpec) -> tuple[str, ...]:
        """The labels of the hosts that get the channel."""
        return tuple(host.label for host in self.hosts if not channel.groups or host.group in channel.groups)


def read_request(request: Mapping[str, Any], arn: str, region: str) -> TrainingSpec:
    """``request``: the members of CreateTrainingJob."""
    algorithm = request["AlgorithmSpecification"]
    entrypoint = algorithm.get("ContainerEntrypoint") or []
    arguments = algorithm.get("ContainerArguments") or []
    output = request["OutputDataConfig"]
    checkpoints = request.get("CheckpointConfig")
    hosts = _hosts(request["ResourceConfig"])
    return TrainingSpec(
        name=request["TrainingJobName"],
        arn=arn,
        region=region,
        image=algorithm.get("TrainingImage") or algorithm.get("AlgorithmName") or "",
        # As docker does it: arguments follow the entry point, and without both a training image gets `train`.
        command=(*entrypoint, *arguments) or ("train",),
        given_entrypoint=bool(entrypoint or arguments),
        hosts=hosts,
        heterogeneous=bool(request["ResourceConfig"].get("InstanceGroups")),
        channels=tuple(
            _channel(channel, algorithm["TrainingInputMode"])
            for channel in request.get("InputDataConfig", [])
        ),
        hyperparameters=dict(request.get("HyperParameters") or {}),
        environment=dict(request.get("Environment") or {}),
        output=S3Location.parse(output["S3OutputPath"]),
        compressed=output.get("CompressionType", "GZIP") != "NONE",
        checkpoints=S3Location.parse(checkpoints["S3Uri"]) if checkpoints else None,
        checkpoint_path=(checkpoints or {}).get("LocalPath") or DEFAULT_CHECKPOINT_PATH,
        max_runtime=(request.get("StoppingCondition") or {}).get("MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME),
        isolated_network=bool(request.get("EnableNetworkIsolation")),
    )


def selected_instance(resources: Mapping[str, Any]) -> tuple[str, int] | None:
    """Which of the InstancePreferences is taken: the first, since capacity never lacks here."""
    preferences = resources.get("InstancePreferences")
    if not preferences:
        return None
    first = preferences[0]
    return first["InstanceType"], first.get("InstanceCount") or resources.get("InstanceCount") or 1


def _hosts(resources: Mapping[str, Any]) -> tuple[HostSpec, ...]:
    selected = selected_instance(resources)
    if selected is not None:
        groups = [(DEFAULT_GROUP, *selected)]
    elif resources.get("InstanceGroups"):
        groups = [
            (group["InstanceGroupName"], group["InstanceType"], group["InstanceCount"])
            for group in resources["InstanceGroups"]
        ]
    else:
        groups = [(DEFAULT_GROUP, resources["InstanceType"], resources["InstanceCount"])]
    members = [(name, kind) for name, kind, count in groups for _ in range(count)]
    return tuple(HostSpec(f"algo-{number}", *member) for number, member in enumerate(members, 1))


def _channel(channel: Mapping[str, Any], default_mode: str) -> ChannelSpec:
    source = channel["DataSource"]["S3DataSource"]
    return ChannelSpec(
        name=channel["ChannelName"],
        uri=source["S3Uri"],
        data_type=source["S3DataType"],
        sharded=source.get("S3DataDistributionType") == "ShardedByS3Key",
        mode=channel.get("InputMode") or default_mode,
        content_type=channel.get("ContentType"),
        shuffle_seed=(channel.get("ShuffleConfig") or {}).get("Seed"),
        groups=tuple(source.get("InstanceGroupNames") or ()),
    )
