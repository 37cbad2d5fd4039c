"""The parts of a request that the hosts need, read once: for all kinds of jobs, and for training jobs. Pure.

The request was validated before and contains only supported fields (see support.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from smlaunch.local.json_types import JsonMapping

DEFAULT_GROUP = "homogeneousCluster"
"""The group in resourceconfig.json of a job without instance groups (training toolkit)."""

DEFAULT_MAX_RUNTIME = 86400
"""Seconds; the API's default if the request has no StoppingCondition."""

DEFAULT_CHECKPOINT_PATH = "/opt/ml/checkpoints/"
DEFAULT_TENSORBOARD_PATH = "/opt/ml/output/tensorboard"
OPT_ML_ROOT = "/opt/ml"

SecondsUntilAvailable = Callable[[str], float | None]
"""Returns the seconds until hosts of an instance type are available, or None if they never are."""


class SelectedInstance(NamedTuple):
    """The one of a request's InstancePreferences that its hosts have."""

    instance_type: str
    instance_count: int


class InstanceGroupSpec(NamedTuple):
    """Hosts of the same type."""

    name: str
    instance_type: str
    host_count: int


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

    @property
    def folder_prefix(self) -> str:
        """The key with a slash at its end; empty if it is empty."""
        return self.join_key("")

    def join_key(self, *names: str) -> str:
        """Return the key of something under this prefix; empty names are skipped."""
        return "/".join([*filter(None, [self.key.rstrip("/")]), *names])


@dataclass(frozen=True)
class ChannelSpec:
    """An input channel."""

    name: str
    s3_uri: str
    data_type: str
    """S3Prefix, ManifestFile or AugmentedManifestFile."""
    is_sharded: bool
    """Whether each host gets a part of the objects (ShardedByS3Key)."""
    input_mode: str
    """File, FastFile or Pipe."""
    target_folder: str
    """Directory of the channel's files, relative to /opt/ml."""
    content_type: str | None = None
    shuffle_seed: int | None = None
    instance_groups: tuple[str, ...] = ()
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
    instance_group: str
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
    max_runtime_seconds: int
    network_isolation: bool
    """EnableNetworkIsolation."""
    entrypoint: tuple[str, ...] = ()
    """Replaces the entry point of an image, unless it is empty."""
    arguments: tuple[str, ...] = ()
    """Arguments for the entry point of an image."""
    max_pending_seconds: int | None = None
    """MaxPendingTimeInSeconds."""
    is_spot: bool = False
    """EnableManagedSpotTraining."""
    max_retries: int = 0
    """Attempts after an InternalServerError."""
    metric_definitions: tuple[tuple[str, str], ...] = ()
    """Name and regular expression of each metric."""
    selected_instance: SelectedInstance | None = None
    """None for a request without InstancePreferences."""
    capacity_wait_seconds: float | None = 0.0
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
        """Directories, relative to /opt/ml, that must be in a host's own tree because the local endpoint
        reads them."""
        return ()

    def host_names_for_channel(self, channel: ChannelSpec) -> tuple[str, ...]:
        """Return the names of the hosts that get a channel."""
        return tuple(
            host.name
            for host in self.hosts
            if not channel.instance_groups or host.instance_group in channel.instance_groups
        )


@dataclass(frozen=True, kw_only=True)
class TrainingSpec(JobSpec):
    """What the runner needs to know about a training job."""

    has_instance_groups: bool
    """Whether the request has InstanceGroups."""
    hyperparameters: Mapping[str, str]
    output_location: S3Location
    compresses_output: bool
    """Whether model and output are uploaded as archives (tar.gz)."""
    checkpoint_location: S3Location | None
    checkpoint_path: str
    max_wait_seconds: int | None = None
    """MaxWaitTimeInSeconds."""
    tensorboard_location: S3Location | None = None
    tensorboard_path: str = DEFAULT_TENSORBOARD_PATH

    @property
    def platform_variables(self) -> dict[str, str]:
        return {"TRAINING_JOB_NAME": self.name, "TRAINING_JOB_ARN": self.arn}

    @property
    def output_locations(self) -> tuple[S3Location, ...]:
        output = S3Location(self.output_location.bucket, self.output_location.join_key(self.name))
        return tuple(
            location for location in (output, self.checkpoint_location, self.tensorboard_location) if location
        )


def read_training_request(
    request: JsonMapping,
    arn: str,
    region: str,
    seconds_until_available: SecondsUntilAvailable = lambda instance_type: 0.0,
) -> TrainingSpec:
    """Return the content of a CreateTrainingJob request, which is valid, as the job's runner uses it.
    ``seconds_until_available(instance_type)`` returns None for hosts that are never available."""
    algorithm = request["AlgorithmSpecification"]
    entrypoint = algorithm.get("ContainerEntrypoint") or []
    # As in Docker, arguments follow the entry point; without both, a training image gets `train`.
    arguments = algorithm.get("ContainerArguments") or ([] if entrypoint else ["train"])
    output_config = request["OutputDataConfig"]
    checkpoint_config = request.get("CheckpointConfig") or {}
    resources = request["ResourceConfig"]
    selected_instance = choose_preferred_instance(resources, seconds_until_available)
    hosts = _read_hosts(resources, selected_instance)
    stopping_condition = request.get("StoppingCondition") or {}
    tensorboard_config = request.get("TensorBoardOutputConfig") or {}
    return TrainingSpec(
        name=request["TrainingJobName"],
        arn=arn,
        region=region,
        image=algorithm.get("TrainingImage") or algorithm.get("AlgorithmName") or "",
        command=(*entrypoint, *arguments),
        has_entrypoint=bool(entrypoint or algorithm.get("ContainerArguments")),
        entrypoint=tuple(entrypoint),
        arguments=tuple(arguments),
        hosts=hosts,
        has_instance_groups=bool(resources.get("InstanceGroups")),
        channels=tuple(
            _read_channel(channel, algorithm["TrainingInputMode"])
            for channel in request.get("InputDataConfig", [])
        ),
        hyperparameters=dict(request.get("HyperParameters") or {}),
        environment=dict(request.get("Environment") or {}),
        output_location=S3Location.parse(output_config["S3OutputPath"]),
        compresses_output=output_config.get("CompressionType", "GZIP") != "NONE",
        checkpoint_location=S3Location.parse(checkpoint_config["S3Uri"]) if checkpoint_config else None,
        checkpoint_path=checkpoint_config.get("LocalPath") or DEFAULT_CHECKPOINT_PATH,
        max_runtime_seconds=stopping_condition.get("MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME),
        network_isolation=bool(request.get("EnableNetworkIsolation")),
        max_wait_seconds=stopping_condition.get("MaxWaitTimeInSeconds"),
        max_pending_seconds=stopping_condition.get("MaxPendingTimeInSeconds"),
        is_spot=bool(request.get("EnableManagedSpotTraining")),
        max_retries=(request.get("RetryStrategy") or {}).get("MaximumRetryAttempts", 0),
        metric_definitions=tuple(
            (metric["Name"], metric["Regex"]) for metric in algorithm.get("MetricDefinitions") or ()
        ),
        tensorboard_location=_tensorboard_location(request),
        tensorboard_path=tensorboard_config.get("LocalPath") or DEFAULT_TENSORBOARD_PATH,
        selected_instance=selected_instance,
        capacity_wait_seconds=seconds_until_all_available(hosts, seconds_until_available),
    )


def seconds_until_all_available(
    hosts: Sequence[HostSpec], seconds_until_available: SecondsUntilAvailable
) -> float | None:
    """Return the seconds until all hosts are available; None: never."""
    longest_wait_seconds = 0.0
    for instance_type in {host.instance_type for host in hosts}:
        wait_seconds = seconds_until_available(instance_type)
        if wait_seconds is None:
            return None
        longest_wait_seconds = max(longest_wait_seconds, wait_seconds)
    return longest_wait_seconds


def _tensorboard_location(request: JsonMapping) -> S3Location | None:
    tensorboard_config = request.get("TensorBoardOutputConfig")
    if not tensorboard_config:
        return None
    location = S3Location.parse(tensorboard_config["S3OutputPath"])
    return S3Location(location.bucket, location.join_key(request["TrainingJobName"], "tensorboard-output"))


def choose_preferred_instance(
    resources: JsonMapping, seconds_until_available: SecondsUntilAvailable
) -> SelectedInstance | None:
    """Choose the instance type and count from InstancePreferences: the first that is available now,
    otherwise the one that is available soonest, otherwise the first. None if the request has no
    preferences."""
    preferences = resources.get("InstancePreferences")
    if not preferences:
        return None

    def wait_seconds(preference: JsonMapping) -> float:
        seconds = seconds_until_available(preference["InstanceType"])
        return math.inf if seconds is None else seconds

    chosen_preference = min(preferences, key=wait_seconds)
    instance_count = chosen_preference.get("InstanceCount") or resources.get("InstanceCount") or 1
    return SelectedInstance(chosen_preference["InstanceType"], instance_count)


def _read_hosts(resources: JsonMapping, selected_instance: SelectedInstance | None) -> tuple[HostSpec, ...]:
    """Return the hosts that a request's ResourceConfig asks for, by InstancePreferences, of which one was
    selected (else None), by InstanceGroups, or by an InstanceType and an InstanceCount."""
    if selected_instance is not None:
        groups = [InstanceGroupSpec(DEFAULT_GROUP, *selected_instance)]
    elif resources.get("InstanceGroups"):
        groups = [
            InstanceGroupSpec(group["InstanceGroupName"], group["InstanceType"], group["InstanceCount"])
            for group in resources["InstanceGroups"]
        ]
    else:
        groups = [InstanceGroupSpec(DEFAULT_GROUP, resources["InstanceType"], resources["InstanceCount"])]
    return hosts_of_groups(groups)


def hosts_of_groups(groups: Sequence[InstanceGroupSpec]) -> tuple[HostSpec, ...]:
    """Return the hosts of a job, which are numbered through all groups: algo-1, algo-2, ..."""
    group_of_each_host = [group for group in groups for _ in range(group.host_count)]
    return tuple(
        HostSpec(f"algo-{host_number}", group.name, group.instance_type)
        for host_number, group in enumerate(group_of_each_host, 1)
    )


def _read_channel(channel_document: JsonMapping, default_mode: str) -> ChannelSpec:
    """Return an entry of the request's InputDataConfig, as the job's runner uses it. ``default_mode``: the
    job's TrainingInputMode, for a channel without InputMode."""
    s3_source = channel_document["DataSource"]["S3DataSource"]
    return ChannelSpec(
        name=channel_document["ChannelName"],
        s3_uri=s3_source["S3Uri"],
        data_type=s3_source["S3DataType"],
        is_sharded=s3_source.get("S3DataDistributionType") == "ShardedByS3Key",
        input_mode=channel_document.get("InputMode") or default_mode,
        target_folder=f"input/data/{channel_document['ChannelName']}",
        content_type=channel_document.get("ContentType"),
        shuffle_seed=(channel_document.get("ShuffleConfig") or {}).get("Seed"),
        instance_groups=tuple(s3_source.get("InstanceGroupNames") or ()),
        attribute_names=tuple(s3_source.get("AttributeNames") or ()),
        is_gzipped=channel_document.get("CompressionType") == "Gzip",
        is_recordio_wrapped=channel_document.get("RecordWrapperType") == "RecordIO",
    )
