"""What a request asks of the hosts, read out of it once: for all kinds of jobs, and for training jobs. Pure.

The request has passed the validator and the honesty table before: what is refused never comes here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

DEFAULT_GROUP = "homogeneousCluster"
"""What resourceconfig.json calls the only group of a job without instance groups (training toolkit)."""

DEFAULT_MAX_RUNTIME = 86400
"""Seconds; the API's default when StoppingCondition says nothing."""

DEFAULT_CHECKPOINT_PATH = "/opt/ml/checkpoints/"
DEFAULT_TENSORBOARD_PATH = "/opt/ml/output/tensorboard"
CONTRACT_ROOT = "/opt/ml"

Wait = Callable[[str], float | None]
"""Seconds until hosts of an instance type can be had; None: never."""


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
    """``data_type``: S3Prefix, ManifestFile or AugmentedManifestFile. ``mode``: File, FastFile or Pipe.
    ``groups``: empty means all. The last three belong to Pipe mode: the attributes of an augmented manifest
    in the order asked for, whether objects are to be decompressed, and whether to be wrapped as RecordIO.
    ``target``: where its files go, relative to /opt/ml."""

    name: str
    uri: str
    data_type: str
    sharded: bool
    mode: str
    target: str
    content_type: str | None = None
    shuffle_seed: int | None = None
    groups: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    gzipped: bool = False
    wrapped: bool = False


@dataclass(frozen=True)
class HostSpec:
    label: str
    group: str
    instance_type: str


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """Everything the runner needs to know about one job, of whatever kind. Durations are seconds.

    ``command``: what runs where the image does not. Where it does, ``entrypoint`` replaces its own unless it
    is empty, and gets ``arguments``. ``capacity_in``: until its hosts can be had; None: never. ``selected``:
    type and count taken of InstancePreferences. What has a default is not known to every kind.
    """

    name: str
    arn: str
    region: str
    image: str
    command: tuple[str, ...]
    given_entrypoint: bool
    hosts: tuple[HostSpec, ...]
    channels: tuple[ChannelSpec, ...]
    environment: Mapping[str, str]
    max_runtime: int
    isolated_network: bool
    entrypoint: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    max_pending: int | None = None
    spot: bool = False
    retries: int = 0
    metrics: tuple[tuple[str, str], ...] = ()
    selected: tuple[str, int] | None = None
    capacity_in: float | None = 0.0

    @property
    def variables(self) -> dict[str, str]:
        """What the platform tells the hosts of the job by variables."""
        return {}

    @property
    def written(self) -> tuple[S3Location, ...]:
        """Where the job itself writes."""
        return ()

    @property
    def folders(self) -> tuple[str, ...]:
        """Directories that must lie in a host's tree, relative to /opt/ml: the endpoint reads them."""
        return ()

    def hosts_of(self, channel: ChannelSpec) -> tuple[str, ...]:
        """The labels of the hosts that get the channel."""
        return tuple(host.label for host in self.hosts if not channel.groups or host.group in channel.groups)


@dataclass(frozen=True, kw_only=True)
class TrainingSpec(JobSpec):
    """What only a training job has."""

    heterogeneous: bool
    hyperparameters: Mapping[str, str]
    output: S3Location
    compressed: bool
    checkpoints: S3Location | None
    checkpoint_path: str
    max_wait: int | None = None
    tensorboard: S3Location | None = None
    tensorboard_path: str = DEFAULT_TENSORBOARD_PATH

    @property
    def variables(self) -> dict[str, str]:
        return {"TRAINING_JOB_NAME": self.name, "TRAINING_JOB_ARN": self.arn}

    @property
    def written(self) -> tuple[S3Location, ...]:
        output = S3Location(self.output.bucket, self.output.below(self.name))
        return tuple(place for place in (output, self.checkpoints, self.tensorboard) if place)


def read_request(
    request: Mapping[str, Any], arn: str, region: str, wait: Wait = lambda instance_type: 0.0
) -> TrainingSpec:
    """``request``: the members of CreateTrainingJob. ``wait``: what capacity there is."""
    algorithm = request["AlgorithmSpecification"]
    entrypoint = algorithm.get("ContainerEntrypoint") or []
    arguments = algorithm.get("ContainerArguments") or []
    output = request["OutputDataConfig"]
    checkpoints = request.get("CheckpointConfig")
    resources = request["ResourceConfig"]
    selected = selected_instance(resources, wait)
    hosts = _hosts(resources, selected)
    stopping = request.get("StoppingCondition") or {}
    tensorboard = request.get("TensorBoardOutputConfig")
    return TrainingSpec(
        name=request["TrainingJobName"],
        arn=arn,
        region=region,
        image=algorithm.get("TrainingImage") or algorithm.get("AlgorithmName") or "",
        # As docker does it: arguments follow the entry point, and without both a training image gets `train`.
        command=(*entrypoint, *arguments) or ("train",),
        given_entrypoint=bool(entrypoint or arguments),
        entrypoint=tuple(entrypoint),
        arguments=tuple(arguments) if entrypoint or arguments else ("train",),
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
        max_runtime=stopping.get("MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME),
        isolated_network=bool(request.get("EnableNetworkIsolation")),
        max_wait=stopping.get("MaxWaitTimeInSeconds"),
        max_pending=stopping.get("MaxPendingTimeInSeconds"),
        spot=bool(request.get("EnableManagedSpotTraining")),
        retries=(request.get("RetryStrategy") or {}).get("MaximumRetryAttempts", 0),
        metrics=tuple(
            (metric["Name"], metric["Regex"]) for metric in algorithm.get("MetricDefinitions") or ()
        ),
        tensorboard=_tensorboard(tensorboard["S3OutputPath"], request) if tensorboard else None,
        tensorboard_path=(tensorboard or {}).get("LocalPath") or DEFAULT_TENSORBOARD_PATH,
        selected=selected,
        capacity_in=capacity_in(hosts, wait),
    )


def capacity_in(hosts: Sequence[HostSpec], wait: Wait) -> float | None:
    """Seconds until all hosts can be had; None: never."""
    waits = [wait(kind) for kind in {host.instance_type for host in hosts}]
    return None if None in waits else max((seconds for seconds in waits if seconds), default=0.0)


def _tensorboard(uri: str, request: Mapping[str, Any]) -> S3Location:
    where = S3Location.parse(uri)
    return S3Location(where.bucket, where.below(request["TrainingJobName"], "tensorboard-output"))


def selected_instance(resources: Mapping[str, Any], wait: Wait) -> tuple[str, int] | None:
    """Which of the InstancePreferences is taken: the first that can be had now, else the one that can be had
    soonest, else the first."""
    preferences = resources.get("InstancePreferences")
    if not preferences:
        return None

    def seconds(preference: Mapping[str, Any]) -> float:
        found = wait(preference["InstanceType"])
        return math.inf if found is None else found

    chosen = min(preferences, key=seconds)
    return chosen["InstanceType"], chosen.get("InstanceCount") or resources.get("InstanceCount") or 1


def _hosts(resources: Mapping[str, Any], selected: tuple[str, int] | None) -> tuple[HostSpec, ...]:
    if selected is not None:
        groups = [(DEFAULT_GROUP, *selected)]
    elif resources.get("InstanceGroups"):
        groups = [
            (group["InstanceGroupName"], group["InstanceType"], group["InstanceCount"])
            for group in resources["InstanceGroups"]
        ]
    else:
        groups = [(DEFAULT_GROUP, resources["InstanceType"], resources["InstanceCount"])]
    return hosts_of_groups(groups)


def hosts_of_groups(groups: Sequence[tuple[str, str, int]]) -> tuple[HostSpec, ...]:
    """``groups``: name, instance type and number of hosts."""
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
        target=f"input/data/{channel['ChannelName']}",
        content_type=channel.get("ContentType"),
        shuffle_seed=(channel.get("ShuffleConfig") or {}).get("Seed"),
        groups=tuple(source.get("InstanceGroupNames") or ()),
        attributes=tuple(source.get("AttributeNames") or ()),
        gzipped=channel.get("CompressionType") == "Gzip",
        wrapped=channel.get("RecordWrapperType") == "RecordIO",
    )
