"""The parts of a request that the hosts need, read once: for all kinds of jobs, and for training jobs. Pure.

The request was validated before and contains only supported fields (see support.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

DEFAULT_GROUP = "homogeneousCluster"
"""The group in resourceconfig.json of a job without instance groups (training toolkit)."""

DEFAULT_MAX_RUNTIME = 86400
"""Seconds; the API's default if the request has no StoppingCondition."""

DEFAULT_CHECKPOINT_PATH = "/opt/ml/checkpoints/"
DEFAULT_TENSORBOARD_PATH = "/opt/ml/output/tensorboard"
CONTRACT_ROOT = "/opt/ml"

CapacityWait = Callable[[str], float | None]
"""Returns the seconds until hosts of an instance type are available, or None if they never are."""


@dataclass(frozen=True)
class S3Location:
    """A bucket with a key."""

    bucket: str
    key: str
    """An object's key, a prefix, or empty; as the user wrote it."""

    @classmethod
    def parse(cls, uri: str) -> S3Location:
        """Parse ``s3://bucket/key``, or the https form that the API accepts too."""
        parts = urlsplit(uri, allow_fragments=False)
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        if parts.scheme == "https":
            bucket, _, key = path.lstrip("/").partition("/")
            return cls(bucket, key)
        return cls(parts.netloc, path.removeprefix("/"))

    def key_below(self, *names: str) -> str:
        """Return the key of something under this prefix; empty names are skipped."""
        return "/".join([*filter(None, [self.key.rstrip("/")]), *names])


@dataclass(frozen=True)
class ChannelSpec:
    """An input channel."""

    name: str
    uri: str
    data_type: str
    """S3Prefix, ManifestFile or AugmentedManifestFile."""
    is_sharded: bool
    """Whether each host gets a part of the objects (ShardedByS3Key)."""
    mode: str
    """File, FastFile or Pipe."""
    target: str
    """Directory of the channel's files, relative to /opt/ml."""
    content_type: str | None = None
    shuffle_seed: int | None = None
    groups: tuple[str, ...] = ()
    """Instance groups that get the channel; empty means all."""
    attribute_names: tuple[str, ...] = ()
    """In Pipe mode: attributes of an augmented manifest, in the requested order."""
    is_gzipped: bool = False
    """In Pipe mode: whether objects are decompressed."""
    is_recordio_wrapped: bool = False
    """In Pipe mode: whether objects are wrapped as RecordIO records."""


@dataclass(frozen=True)
class HostSpec:
    """One host of a job, as the request asks for it."""

    name: str
    """algo-1, algo-2, ..."""
    group: str
    """Instance group."""
    instance_type: str


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """What the runner needs to know about a job of any kind. Durations are in seconds. Fields with a default
    do not exist in the requests of every kind."""

    name: str
    arn: str
    region: str
    image: str
    command: tuple[str, ...]
    """The command where no image is run."""
    has_entrypoint: bool
    """Whether the request gives the command."""
    hosts: tuple[HostSpec, ...]
    channels: tuple[ChannelSpec, ...]
    environment: Mapping[str, str]
    max_runtime: int
    isolated_network: bool
    """EnableNetworkIsolation."""
    entrypoint: tuple[str, ...] = ()
    """Replaces the entry point of an image, unless it is empty."""
    arguments: tuple[str, ...] = ()
    """Arguments for the entry point of an image."""
    max_pending: int | None = None
    """MaxPendingTimeInSeconds."""
    is_spot: bool = False
    """EnableManagedSpotTraining."""
    max_retries: int = 0
    """Attempts after an InternalServerError."""
    metric_definitions: tuple[tuple[str, str], ...] = ()
    """Name and regular expression of each metric."""
    selected_instance: tuple[str, int] | None = None
    """Instance type and count selected from InstancePreferences."""
    capacity_wait: float | None = 0.0
    """Seconds until the hosts are available; None: never."""

    @property
    def platform_variables(self) -> dict[str, str]:
        """Environment variables that the platform sets on the hosts."""
        return {}

    @property
    def output_locations(self) -> tuple[S3Location, ...]:
        """S3 locations to which the job writes."""
        return ()

    @property
    def required_folders(self) -> tuple[str, ...]:
        """Directories, relative to /opt/ml, that must be in a host's own tree because the endpoint reads
        them."""
        return ()

    def hosts_of(self, channel: ChannelSpec) -> tuple[str, ...]:
        """Return the names of the hosts that get a channel."""
        return tuple(host.name for host in self.hosts if not channel.groups or host.group in channel.groups)


@dataclass(frozen=True, kw_only=True)
class TrainingSpec(JobSpec):
    """What the runner needs to know about a training job."""

    has_instance_groups: bool
    """Whether the request has InstanceGroups."""
    hyperparameters: Mapping[str, str]
    output: S3Location
    compresses_output: bool
    """Whether model and output are uploaded as archives (tar.gz)."""
    checkpoints: S3Location | None
    checkpoint_path: str
    max_wait: int | None = None
    """MaxWaitTimeInSeconds."""
    tensorboard: S3Location | None = None
    tensorboard_path: str = DEFAULT_TENSORBOARD_PATH

    @property
    def platform_variables(self) -> dict[str, str]:
        return {"TRAINING_JOB_NAME": self.name, "TRAINING_JOB_ARN": self.arn}

    @property
    def output_locations(self) -> tuple[S3Location, ...]:
        output = S3Location(self.output.bucket, self.output.key_below(self.name))
        return tuple(location for location in (output, self.checkpoints, self.tensorboard) if location)


def read_training_request(
    request: Mapping[str, Any], arn: str, region: str, instance_wait: CapacityWait = lambda instance_type: 0.0
) -> TrainingSpec:
    """Read the members of CreateTrainingJob. ``instance_wait`` tells how long hosts are unavailable."""
    algorithm = request["AlgorithmSpecification"]
    entrypoint = algorithm.get("ContainerEntrypoint") or []
    arguments = algorithm.get("ContainerArguments") or []
    output = request["OutputDataConfig"]
    checkpoints = request.get("CheckpointConfig")
    resources = request["ResourceConfig"]
    selected_instance = choose_instance(resources, instance_wait)
    hosts = _hosts(resources, selected_instance)
    stopping = request.get("StoppingCondition") or {}
    tensorboard = request.get("TensorBoardOutputConfig")
    return TrainingSpec(
        name=request["TrainingJobName"],
        arn=arn,
        region=region,
        image=algorithm.get("TrainingImage") or algorithm.get("AlgorithmName") or "",
        # As in Docker, arguments follow the entry point; without both, a training image gets `train`.
        command=(*entrypoint, *arguments) or ("train",),
        has_entrypoint=bool(entrypoint or arguments),
        entrypoint=tuple(entrypoint),
        arguments=tuple(arguments) if entrypoint or arguments else ("train",),
        hosts=hosts,
        has_instance_groups=bool(request["ResourceConfig"].get("InstanceGroups")),
        channels=tuple(
            _channel(channel, algorithm["TrainingInputMode"])
            for channel in request.get("InputDataConfig", [])
        ),
        hyperparameters=dict(request.get("HyperParameters") or {}),
        environment=dict(request.get("Environment") or {}),
        output=S3Location.parse(output["S3OutputPath"]),
        compresses_output=output.get("CompressionType", "GZIP") != "NONE",
        checkpoints=S3Location.parse(checkpoints["S3Uri"]) if checkpoints else None,
        checkpoint_path=(checkpoints or {}).get("LocalPath") or DEFAULT_CHECKPOINT_PATH,
        max_runtime=stopping.get("MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME),
        isolated_network=bool(request.get("EnableNetworkIsolation")),
        max_wait=stopping.get("MaxWaitTimeInSeconds"),
        max_pending=stopping.get("MaxPendingTimeInSeconds"),
        is_spot=bool(request.get("EnableManagedSpotTraining")),
        max_retries=(request.get("RetryStrategy") or {}).get("MaximumRetryAttempts", 0),
        metric_definitions=tuple(
            (metric["Name"], metric["Regex"]) for metric in algorithm.get("MetricDefinitions") or ()
        ),
        tensorboard=_tensorboard(tensorboard["S3OutputPath"], request) if tensorboard else None,
        tensorboard_path=(tensorboard or {}).get("LocalPath") or DEFAULT_TENSORBOARD_PATH,
        selected_instance=selected_instance,
        capacity_wait=capacity_wait_of_hosts(hosts, instance_wait),
    )


def capacity_wait_of_hosts(hosts: Sequence[HostSpec], instance_wait: CapacityWait) -> float | None:
    """Return the seconds until all hosts are available; None: never."""
    waits = [instance_wait(instance_type) for instance_type in {host.instance_type for host in hosts}]
    return None if None in waits else max((seconds for seconds in waits if seconds), default=0.0)


def _tensorboard(uri: str, request: Mapping[str, Any]) -> S3Location:
    location = S3Location.parse(uri)
    return S3Location(location.bucket, location.key_below(request["TrainingJobName"], "tensorboard-output"))


def choose_instance(resources: Mapping[str, Any], instance_wait: CapacityWait) -> tuple[str, int] | None:
    """Choose the instance type and count from InstancePreferences: the first that is available now,
    otherwise the one that is available soonest, otherwise the first. None if the request has no
    preferences."""
    preferences = resources.get("InstancePreferences")
    if not preferences:
        return None

    def wait_seconds(preference: Mapping[str, Any]) -> float:
        seconds_or_none = instance_wait(preference["InstanceType"])
        return math.inf if seconds_or_none is None else seconds_or_none

    choice = min(preferences, key=wait_seconds)
    return choice["InstanceType"], choice.get("InstanceCount") or resources.get("InstanceCount") or 1


def _hosts(resources: Mapping[str, Any], selected_instance: tuple[str, int] | None) -> tuple[HostSpec, ...]:
    if selected_instance is not None:
        groups = [(DEFAULT_GROUP, *selected_instance)]
    elif resources.get("InstanceGroups"):
        groups = [
            (group["InstanceGroupName"], group["InstanceType"], group["InstanceCount"])
            for group in resources["InstanceGroups"]
        ]
    else:
        groups = [(DEFAULT_GROUP, resources["InstanceType"], resources["InstanceCount"])]
    return hosts_of_groups(groups)


def hosts_of_groups(groups: Sequence[tuple[str, str, int]]) -> tuple[HostSpec, ...]:
    """Return the hosts of groups, given as (name, instance type, number of hosts)."""
    members = [(name, kind) for name, kind, count in groups for _ in range(count)]
    return tuple(HostSpec(f"algo-{number}", *member) for number, member in enumerate(members, 1))


def _channel(channel: Mapping[str, Any], default_mode: str) -> ChannelSpec:
    source = channel["DataSource"]["S3DataSource"]
    return ChannelSpec(
        name=channel["ChannelName"],
        uri=source["S3Uri"],
        data_type=source["S3DataType"],
        is_sharded=source.get("S3DataDistributionType") == "ShardedByS3Key",
        mode=channel.get("InputMode") or default_mode,
        target=f"input/data/{channel['ChannelName']}",
        content_type=channel.get("ContentType"),
        shuffle_seed=(channel.get("ShuffleConfig") or {}).get("Seed"),
        groups=tuple(source.get("InstanceGroupNames") or ()),
        attribute_names=tuple(source.get("AttributeNames") or ()),
        is_gzipped=channel.get("CompressionType") == "Gzip",
        is_recordio_wrapped=channel.get("RecordWrapperType") == "RecordIO",
    )
