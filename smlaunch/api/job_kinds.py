"""The kinds of jobs: one table of what the API calls the same thing in each kind.

Requests, their validation, runs, exports and the local endpoint read it. A new kind is one more ``JobKind``
(docs/extending.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from smlaunch.api.validation.processing_rules import check_processing_job
from smlaunch.api.validation.training_rules import check_training_job
from smlaunch.api.validation.violation import Violation
from smlaunch.catalog.registry import Registry
from smlaunch.contract.sagemaker_paths import RUNTIME_ARCHIVE, RUNTIME_CHANNEL, Paths, ProcessingPaths

FieldPath = tuple[str | int, ...]
"""Field names and list indices, from the top of a request or of a description."""

TERMINAL_STATUSES = ("Completed", "Failed", "Stopped")
"""Statuses of a job of any kind that has ended."""


def _parse_paths(dotted_path_by_field: Mapping[str, str]) -> dict[str, FieldPath]:
    """Return the paths that are written with dots: ``Outputs.0.S3Output`` is ("Outputs", 0, "S3Output")."""
    return {
        field_name: tuple(int(part) if part.isdigit() else part for part in dotted_path.split("."))
        for field_name, dotted_path in dotted_path_by_field.items()
    }


@dataclass(frozen=True, eq=False)
class JobKind:
    """A kind of job: its operations in the API, and where their requests and responses have what."""

    name: str
    """As in the names of the API: ``Create<name>Job``, ``<name>JobStatus``."""

    request_path_by_field: Mapping[str, FieldPath]
    """Where the Create request has a field of the job, or a value of ``constants``, in the request's order.
    Fields that the kind lacks are not among them."""

    input_path_by_field: Mapping[str, FieldPath]
    """Where an entry of the request's inputs has a field of an input."""

    input_modes: tuple[str, ...]
    """The first one stands in a request for modes that the kind lacks, which the plan rejects."""

    resources: FieldPath
    """The object with instance type, instance count and volume. Describe has it too."""

    constants: Mapping[str, Any]
    """Values that are the same in all requests that have them, by their keys in ``request_path_by_field``."""

    output_suffix: str = ""
    """What a request's output address has after the run's, with ``{job}``; empty where the service adds the
    job's name itself."""

    fields_sent_empty: frozenset[str] = frozenset()
    """Fields that a request has even if they are empty."""

    paths: Paths = field(default_factory=Paths)
    """Of a host's directories and files."""

    has_secondary_status: bool = False
    """Whether Describe tells more than the status: by whom the job was stopped."""

    has_quotas: bool = False
    """Whether the account's quotas for hosts of this kind are read, and a plan is checked against them."""

    check_rules: Callable[[Mapping[str, Any]], Iterator[Violation]] = lambda request: iter(())
    """Yields violations of the service's rules beyond its model, by a request of the right types."""

    verb: str = "Run"
    """What a job does, for names in exports."""

    max_runtime_seconds: int | None = None
    """How long the service lets a job run; None if that is not known."""

    max_inputs: int | None = None
    """Of one job, smlaunch's own counted; None if that is not known."""

    model_artifacts: FieldPath = ()
    """Where Describe has the address of the archive that a job has trained. Empty for a kind that trains
    no model, whose results are files at the request's output."""

    exit_message: FieldPath = ()
    """Where Describe says which host failed, and why, for a kind whose FailureReason does not."""

    description_defaults: Mapping[str, Any] = field(default_factory=dict)
    """Fields that Describe may lack, besides FailureReason, with values that stand for none."""

    @property
    def has_checkpoints(self) -> bool:
        """Whether the service stores checkpoints, by which a job can be continued by another one."""
        return "checkpoints.uri" in self.request_path_by_field

    @property
    def metric_definitions(self) -> FieldPath:
        """Where the request has the metrics that the service reads from the log; empty for a kind without
        metrics, of which conditions read the files that it writes."""
        return self.request_path_by_field.get("metrics", ())

    @property
    def reports_seconds(self) -> bool:
        """Whether Describe says how long a job has run, and for how long it is billed."""
        return "BillableTimeInSeconds" in self.description_defaults

    @property
    def trains_model(self) -> bool:
        return bool(self.model_artifacts)

    @property
    def copies_all_inputs(self) -> bool:
        """Whether every input is copied to the hosts before the job begins."""
        return self.input_modes == ("File",)

    @property
    def noun(self) -> str:
        """Such as ``training job``."""
        return self.arn_resource.replace("-", " ")

    @property
    def arn_resource(self) -> str:
        """Such as ``training-job``: an ARN ends in it, a slash, and the job's name in lower case."""
        return method_name(f"{self.name}Job").replace("_", "-")

    @property
    def log_group(self) -> str:
        return f"/aws/sagemaker/{self.name}Jobs"

    @property
    def create_operation(self) -> str:
        return f"Create{self.name}Job"

    @property
    def describe_operation(self) -> str:
        return f"Describe{self.name}Job"

    @property
    def stop_operation(self) -> str:
        return f"Stop{self.name}Job"

    @property
    def list_operation(self) -> str:
        return f"List{self.name}Jobs"

    @property
    def summaries_field(self) -> str:
        """The list in the response of List."""
        return f"{self.name}JobSummaries"

    @property
    def name_field(self) -> str:
        return f"{self.name}JobName"

    @property
    def arn_field(self) -> str:
        return f"{self.name}JobArn"

    @property
    def status_field(self) -> str:
        return f"{self.name}JobStatus"

    @property
    def start_time_field(self) -> str:
        return f"{self.name}StartTime"

    @property
    def end_time_field(self) -> str:
        return f"{self.name}EndTime"


def method_name(operation: str) -> str:
    """Return boto3's name of an operation: ``CreateTrainingJob`` → ``create_training_job``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", operation).lower()


def get_at_path(document: Mapping[str, Any], path: FieldPath) -> Any:
    """Return the value at a path of a request or description; None if it or a part of the path is missing."""
    value: Any = document
    for key_or_index in path:
        if isinstance(key_or_index, int):
            value = value[key_or_index] if key_or_index < len(value) else None
        else:
            value = value.get(key_or_index)
        if value is None:
            return None
    return value


def set_at_path(document: dict[str, Any], path: FieldPath, value: Any) -> None:
    """Set the value at a path of a request. Missing objects on the way are made, and lists of one object."""
    container: Any = document
    for key_or_index, next_key_or_index in pairwise(path):
        if isinstance(key_or_index, str):
            missing_container: Any = [{}] if isinstance(next_key_or_index, int) else {}
            container = container.setdefault(key_or_index, missing_container)
        else:
            container = container[key_or_index]
    container[path[-1]] = value


def output_addresses(kind: JobKind, request: Mapping[str, Any]) -> Iterator[FieldPath]:
    """Yield where a request, or members of one, states the addresses of its outputs: of each, for a kind that
    has several."""
    path = kind.request_path_by_field["output"]
    if 0 not in path:
        paths = [path]
    else:
        list_path, path_in_entry = path[: path.index(0)], path[path.index(0) + 1 :]
        entries = get_at_path(request, list_path) or ()
        paths = [(*list_path, index, *path_in_entry) for index in range(len(entries))]
    yield from (path for path in paths if get_at_path(request, path) is not None)


def folders_of_entries(kind: JobKind, request: Mapping[str, Any]) -> Iterator[tuple[FieldPath, str]]:
    """Yield the inputs and outputs, by their paths, of which a request, or members of one, states the folder
    on the hosts, and the folder. A training job's have none."""
    output_path = kind.request_path_by_field.get("output_path", ())
    index_place = output_path.index(0) if output_path else 0
    for list_path, path_in_entry in (
        (kind.request_path_by_field["inputs"], kind.input_path_by_field.get("local_path", ())),
        (output_path[:index_place], output_path[index_place + 1 :]),
    ):
        for index, entry in enumerate((path_in_entry and get_at_path(request, list_path)) or ()):
            folder = get_at_path(entry, path_in_entry)
            if folder is not None:
                yield (*list_path, index), folder


def runtime_entrypoint(paths: Paths) -> list[str]:
    """Return the command that starts smlaunch's runtime, which must be process 1 to receive SIGTERM."""
    return ["python3", f"{paths.channel_dir(RUNTIME_CHANNEL)}/{RUNTIME_ARCHIVE}"]


TRAINING = JobKind(
    "Training",
    request_path_by_field=_parse_paths(
        {
            "name": "TrainingJobName",
            "hyperparameters": "HyperParameters",
            "image": "AlgorithmSpecification.TrainingImage",
            "image_registry_access": (
                "AlgorithmSpecification.TrainingImageConfig.TrainingRepositoryAccessMode"
            ),
            "image_registry_credentials": (
                "AlgorithmSpecification.TrainingImageConfig.TrainingRepositoryAuthConfig."
                "TrainingRepositoryCredentialsProviderArn"
            ),
            "input_mode": "AlgorithmSpecification.TrainingInputMode",
            "container.entrypoint": "AlgorithmSpecification.ContainerEntrypoint",
            "args": "AlgorithmSpecification.ContainerArguments",
            "metrics": "AlgorithmSpecification.MetricDefinitions",
            "role": "RoleArn",
            "inputs": "InputDataConfig",
            "output": "OutputDataConfig.S3OutputPath",
            "output.kms_key": "OutputDataConfig.KmsKeyId",
            "output.compression": "OutputDataConfig.CompressionType",
            "compute.instance_type": "ResourceConfig.InstanceType",
            "compute.instance_preferences": "ResourceConfig.InstancePreferences",
            "compute.instance_groups": "ResourceConfig.InstanceGroups",
            "compute.hosts": "ResourceConfig.InstanceCount",
            "compute.volume_gb": "ResourceConfig.VolumeSizeInGB",
            "compute.volume_kms_key": "ResourceConfig.VolumeKmsKeyId",
            "compute.training_plan": "ResourceConfig.TrainingPlanArn",
            "compute.keep_alive": "ResourceConfig.KeepAlivePeriodInSeconds",
            "limits.max_runtime": "StoppingCondition.MaxRuntimeInSeconds",
            "limits.max_wait": "StoppingCondition.MaxWaitTimeInSeconds",
            "limits.max_pending": "StoppingCondition.MaxPendingTimeInSeconds",
            "environment": "Environment",
            "tags": "Tags",
            "checkpoints.uri": "CheckpointConfig.S3Uri",
            "checkpoints.local_path": "CheckpointConfig.LocalPath",
            "security_groups": "VpcConfig.SecurityGroupIds",
            "subnets": "VpcConfig.Subnets",
            "network_isolation": "EnableNetworkIsolation",
            "encrypt_traffic": "EnableInterContainerTrafficEncryption",
            "compute.spot": "EnableManagedSpotTraining",
            "retries": "RetryStrategy.MaximumRetryAttempts",
            "remote_debug": "RemoteDebugConfig.EnableRemoteDebug",
        }
    ),
    input_path_by_field=_parse_paths(
        {
            "name": "ChannelName",
            "data_type": "DataSource.S3DataSource.S3DataType",
            "uri": "DataSource.S3DataSource.S3Uri",
            "split": "DataSource.S3DataSource.S3DataDistributionType",
            "attributes": "DataSource.S3DataSource.AttributeNames",
            "instance_groups": "DataSource.S3DataSource.InstanceGroupNames",
            "file_system": "DataSource.FileSystemDataSource.FileSystemId",
            "file_system_type": "DataSource.FileSystemDataSource.FileSystemType",
            "directory": "DataSource.FileSystemDataSource.DirectoryPath",
            "access": "DataSource.FileSystemDataSource.FileSystemAccessMode",
            "mode": "InputMode",
            "content_type": "ContentType",
            "compression": "CompressionType",
            "record_wrapper": "RecordWrapperType",
            "shuffle_seed": "ShuffleConfig.Seed",
        }
    ),
    input_modes=("File", "FastFile", "Pipe"),
    constants={"input_mode": "File", "image_registry_access": "Vpc"},
    resources=("ResourceConfig",),
    has_secondary_status=True,
    has_quotas=True,
    check_rules=check_training_job,
    verb="Train",
    max_runtime_seconds=28 * 86_400,
    max_inputs=20,
    model_artifacts=("ModelArtifacts", "S3ModelArtifacts"),
    description_defaults={
        "SecondaryStatus": "",
        "TrainingTimeInSeconds": 0,
        "BillableTimeInSeconds": 0,
        "EnableManagedSpotTraining": False,
        "ModelArtifacts": {"S3ModelArtifacts": ""},
    },
)

_PROCESSING_PATHS = ProcessingPaths()

PROCESSING = JobKind(
    "Processing",
    request_path_by_field=_parse_paths(
        {
            "name": "ProcessingJobName",
            "inputs": "ProcessingInputs",
            "output_name": "ProcessingOutputConfig.Outputs.0.OutputName",
            "output": "ProcessingOutputConfig.Outputs.0.S3Output.S3Uri",
            "output_path": "ProcessingOutputConfig.Outputs.0.S3Output.LocalPath",
            "upload_mode": "ProcessingOutputConfig.Outputs.0.S3Output.S3UploadMode",
            "output.kms_key": "ProcessingOutputConfig.KmsKeyId",
            "compute.instance_type": "ProcessingResources.ClusterConfig.InstanceType",
            "compute.instance_preferences": "ProcessingResources.ClusterConfig.InstancePreferences",
            "compute.hosts": "ProcessingResources.ClusterConfig.InstanceCount",
            "compute.volume_gb": "ProcessingResources.ClusterConfig.VolumeSizeInGB",
            "compute.volume_kms_key": "ProcessingResources.ClusterConfig.VolumeKmsKeyId",
            "limits.max_runtime": "StoppingCondition.MaxRuntimeInSeconds",
            "image": "AppSpecification.ImageUri",
            "container.entrypoint": "AppSpecification.ContainerEntrypoint",
            "args": "AppSpecification.ContainerArguments",
            "environment": "Environment",
            "role": "RoleArn",
            "tags": "Tags",
            "security_groups": "NetworkConfig.VpcConfig.SecurityGroupIds",
            "subnets": "NetworkConfig.VpcConfig.Subnets",
            "network_isolation": "NetworkConfig.EnableNetworkIsolation",
            "encrypt_traffic": "NetworkConfig.EnableInterContainerTrafficEncryption",
        }
    ),
    input_path_by_field=_parse_paths(
        {
            "name": "InputName",
            "uri": "S3Input.S3Uri",
            "local_path": "S3Input.LocalPath",
            "data_type": "S3Input.S3DataType",
            "mode": "S3Input.S3InputMode",
            "split": "S3Input.S3DataDistributionType",
        }
    ),
    input_modes=("File",),
    resources=("ProcessingResources", "ClusterConfig"),
    output_suffix="/{job}/output/",
    fields_sent_empty=frozenset({"inputs"}),
    paths=_PROCESSING_PATHS,
    constants={
        "output_name": "output",
        "output_path": _PROCESSING_PATHS.output_data,
        "upload_mode": "EndOfJob",
    },
    check_rules=check_processing_job,
    verb="Process",
    max_runtime_seconds=9 * 86_400,
    has_quotas=True,
    max_inputs=10,
    exit_message=("ExitMessage",),
    description_defaults={"ExitMessage": "none"},
)

JOB_KINDS = Registry[JobKind](
    "smlaunch.job_kinds",
    "kind of job",
    "smlaunch.api.job_kinds:JobKind",
    {kind.create_operation: kind for kind in (TRAINING, PROCESSING)},
)
"""By the operation that creates a job."""


def register_job_kind(kind: JobKind) -> None:
    """Add a kind for this process. Raises ValueError if its name is taken."""
    JOB_KINDS.register(kind.create_operation, kind)


def job_kind_of(request: Mapping[str, Any]) -> JobKind:
    """Return the kind of job that a request creates, by the member with the job's name."""
    return next((kind for kind in JOB_KINDS.values() if kind.name_field in request), TRAINING)


def job_name_of(request: Mapping[str, Any]) -> str:
    """Return the name of the job that a request creates."""
    return str(request[job_kind_of(request).name_field])
