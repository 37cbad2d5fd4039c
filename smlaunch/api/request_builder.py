"""Build the exact request for a job of any kind. Pure: it adds no default that the plan lacks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from smlaunch.api.file_system_folder import FileSystemFolder
from smlaunch.api.hyperparameter_text import hyperparameter_text
from smlaunch.api.job_kinds import FieldPath, JobKind, get_at_path, runtime_entrypoint, set_at_path

_EMPTY_VALUES: tuple[Any, ...] = ([], {})


class InputChannel(NamedTuple):
    """An input of a job."""

    name: str
    uri: str
    """An S3 prefix, or the address of a manifest."""

    mode: Literal["File", "FastFile", "Pipe"] = "File"
    is_sharded: bool = False
    """Every object goes to exactly one host (ShardedByS3Key)."""

    content_type: str | None = None
    is_manifest: bool = False
    file_system: FileSystemFolder | None = None
    """The folder that is mounted, instead of data in S3."""

    access: str = "ro"
    """To the file system: ro or rw."""

    attributes: tuple[str, ...] = ()
    """Of an augmented manifest."""

    shuffle_seed: int | None = None
    record_wrapper: str | None = None
    is_gzipped: bool = False
    instance_groups: tuple[str, ...] = ()
    """Names of the groups whose hosts get it; empty for all hosts."""

    @property
    def data_type(self) -> str:
        """How the service reads ``uri``."""
        if self.attributes:
            return "AugmentedManifestFile"
        return "ManifestFile" if self.is_manifest else "S3Prefix"


class OtherOutput(NamedTuple):
    """An output of a processing job, beside that of every job."""

    name: str
    path: str
    uri: str | None
    """None: beside the job's output."""

    upload: str
    """EndOfJob or Continuous."""


class JobParameters(NamedTuple):
    """Everything that a request contains. Empty members and those that are None are omitted. Times in
    seconds."""

    name: str
    role: str
    image: str
    has_runtime: bool
    """Whether smlaunch's runtime replaces the image's own entry point, or ``entrypoint`` of the job."""

    hyperparameters: Mapping[str, Any]
    """JSON values, converted to the API's text here."""

    channels: tuple[InputChannel, ...]
    output_uri: str
    instance_type: str
    host_count: int
    volume_gb: int
    """Per host."""

    max_runtime_seconds: int
    is_spot: bool = False
    max_wait_seconds: int | None = None
    """Only with spot."""

    checkpoints: tuple[str, str] | None = None
    """S3 prefix and local directory."""

    environment: Mapping[str, str] = MappingProxyType({})
    network_isolation: bool = False
    encrypt_traffic: bool = False
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    tags: Mapping[str, str] = MappingProxyType({})
    entrypoint: tuple[str, ...] = ()
    """Without the runtime; empty for the image's own."""

    arguments: tuple[str, ...] = ()
    """Empty for the image's own."""

    registry_credentials: str | None = None
    """ARN of the function that returns the credentials of the image's registry."""

    metrics: tuple[tuple[str, str], ...] = ()
    """Name and regular expression of each metric."""

    other_outputs: tuple[OtherOutput, ...] = ()
    output_kms_key: str | None = None
    output_compression: str | None = None
    """GZIP or NONE."""

    volume_kms_key: str | None = None
    training_plan: str | None = None
    retries: int | None = None
    """After internal errors of the service."""

    has_remote_debug: bool = False

    instance_preferences: tuple[str, ...] = ()
    """Types in order instead of ``instance_type``, each for ``hosts`` hosts."""

    instance_groups: tuple[tuple[str, str, int], ...] = ()
    """Name, type and number of hosts of each group, instead of ``instance_type`` and ``hosts``."""

    keep_alive_seconds: int | None = None
    """How long hosts wait for the next job."""

    max_pending_seconds: int | None = None
    """How long the job waits for capacity."""


def build_job_request(kind: JobKind, parameters: JobParameters) -> dict[str, Any]:
    """Return the keyword arguments of boto3's method that creates a job of this kind. Members that would be
    empty are left out, and parameters that the kind lacks are ignored. Without an entry point the image's own
    program runs, such as an algorithm of AWS."""
    s3_prefix, local_path = parameters.checkpoints or (None, None)
    output_uri = parameters.output_uri
    if kind.output_suffix:
        output_uri = output_uri.rstrip("/") + kind.output_suffix.format(job=parameters.name)
    entrypoint = runtime_entrypoint(kind.paths) if parameters.has_runtime else list(parameters.entrypoint)
    preferences = [{"InstanceType": name} for name in parameters.instance_preferences]
    groups = [
        {"InstanceGroupName": name, "InstanceType": instance_type, "InstanceCount": host_count}
        for name, instance_type, host_count in parameters.instance_groups
        if "compute.instance_groups" in kind.request_path_by_field
    ]
    value_by_field: dict[str, Any] = {
        **kind.constants,
        "name": parameters.name,
        "hyperparameters": {
            # Only smlaunch's runtime decodes texts that were sent as JSON.
            key: hyperparameter_text(value, is_verbatim=not parameters.has_runtime)
            for key, value in parameters.hyperparameters.items()
        },
        "image": parameters.image,
        "image_registry_credentials": parameters.registry_credentials,
        "metrics": [{"Name": name, "Regex": regex} for name, regex in parameters.metrics],
        "container.entrypoint": entrypoint,
        "args": list(parameters.arguments),
        "role": parameters.role,
        "inputs": [_input_entry(kind, channel) for channel in parameters.channels],
        "output": output_uri,
        "output.kms_key": parameters.output_kms_key,
        "output.compression": parameters.output_compression,
        # The service takes the first available one of the preferred types; the number of hosts is the same.
        "compute.instance_type": None if preferences or groups else parameters.instance_type,
        "compute.instance_preferences": preferences,
        "compute.instance_groups": groups,
        "compute.hosts": None if groups else parameters.host_count,
        "compute.volume_gb": parameters.volume_gb,
        "compute.volume_kms_key": parameters.volume_kms_key,
        "compute.training_plan": parameters.training_plan,
        "compute.keep_alive": parameters.keep_alive_seconds,
        "compute.spot": parameters.is_spot,
        "limits.max_runtime": parameters.max_runtime_seconds,
        "limits.max_wait": parameters.max_wait_seconds,
        "limits.max_pending": parameters.max_pending_seconds,
        "environment": dict(parameters.environment),
        "tags": [{"Key": key, "Value": value} for key, value in parameters.tags.items()],
        "checkpoints.uri": s3_prefix,
        "checkpoints.local_path": local_path,
        "security_groups": list(parameters.security_groups),
        "subnets": list(parameters.subnets),
        "network_isolation": parameters.network_isolation,
        "encrypt_traffic": parameters.encrypt_traffic,
        "retries": parameters.retries,
        "remote_debug": parameters.has_remote_debug,
    }
    if parameters.registry_credentials is None:
        value_by_field["image_registry_access"] = None
    document = _build_document(kind.request_path_by_field, value_by_field, kind.fields_sent_empty)
    if "output_name" in kind.constants:
        _add_outputs(kind, document, parameters)
    return document


def _add_outputs(kind: JobKind, request: dict[str, Any], parameters: JobParameters) -> None:
    """Add the other outputs to a request, behind the output of every job."""
    list_path = kind.request_path_by_field["output_name"][:-2]
    for output in parameters.other_outputs:
        default_uri = f"{parameters.output_uri.rstrip('/')}/{parameters.name}/{output.name}/"
        values = {
            "output_name": output.name,
            "output": output.uri or default_uri,
            "output_path": output.path,
            "upload_mode": output.upload,
        }
        entry: dict[str, Any] = {}
        for field_name, value in values.items():
            set_at_path(entry, kind.request_path_by_field[field_name][len(list_path) + 1 :], value)
        get_at_path(request, list_path).append(entry)


def _input_entry(kind: JobKind, channel: InputChannel) -> dict[str, Any]:
    """Return the entry of a request's inputs for this channel."""
    # The plan rejects a file system for a kind that cannot mount one.
    folder = channel.file_system if "file_system" in kind.input_path_by_field else None
    value_by_field: dict[str, Any] = {
        "name": channel.name,
        "local_path": kind.paths.channel_dir(channel.name),
        "mode": channel.mode if channel.mode in kind.input_modes else kind.input_modes[0],
        "content_type": channel.content_type,
        "compression": "Gzip" if channel.is_gzipped else None,
        "record_wrapper": channel.record_wrapper,
        "shuffle_seed": channel.shuffle_seed,
    }
    if folder is not None:
        value_by_field |= {
            "file_system": folder.id,
            "file_system_type": folder.type,
            "directory": folder.directory,
            "access": channel.access,
        }
    else:
        value_by_field |= {
            "uri": channel.uri,
            "data_type": channel.data_type,
            "split": "ShardedByS3Key" if channel.is_sharded else "FullyReplicated",
            "attributes": list(channel.attributes),
            "instance_groups": list(channel.instance_groups),
        }
    return _build_document(kind.input_path_by_field, value_by_field)


def _build_document(
    path_by_field: Mapping[str, FieldPath],
    value_by_field: Mapping[str, Any],
    empty_fields: Collection[str] = (),
) -> dict[str, Any]:
    """Return the object with these values at these paths, without those that are None, False or empty."""
    document: dict[str, Any] = {}
    for field_name, path in path_by_field.items():
        value = value_by_field.get(field_name)
        is_absent = value is None or value is False or value in _EMPTY_VALUES
        if not is_absent or field_name in empty_fields:
            set_at_path(document, path, value)
    return document
