"""Build the exact request for a job of any kind. Pure: it adds no default that the plan lacks."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from smlaunch.api.job_kinds import FieldPath, JobKind, set_at_path

_LINE_BREAK_PATTERN = re.compile("[\n\r\x85\u2028\u2029]")
"""What ``.`` excludes in the service's pattern ``.*`` for hyperparameters."""

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


class JobParameters(NamedTuple):
    """Everything that a request contains. Empty members and those that are None are omitted. Times in
    seconds."""

    name: str
    role: str
    image: str
    has_runtime: bool
    """Whether smlaunch's runtime replaces the image's own entry point."""

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
    arguments: tuple[str, ...] = ()
    """Empty for the image's own."""

    instance_preferences: tuple[str, ...] = ()
    """Types in order instead of ``instance_type``, each for ``hosts`` hosts."""

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
    preferences = [{"InstanceType": name} for name in parameters.instance_preferences]
    value_by_field: dict[str, Any] = {
        **kind.constants,
        "name": parameters.name,
        "hyperparameters": {
            # Only smlaunch's runtime decodes texts that were sent as JSON.
            key: hyperparameter_text(value, is_verbatim=not parameters.has_runtime)
            for key, value in parameters.hyperparameters.items()
        },
        "image": parameters.image,
        "args": list(parameters.arguments),
        "role": parameters.role,
        "inputs": [_input_entry(kind, channel) for channel in parameters.channels],
        "output": output_uri,
        # The service takes the first available one of the preferred types; the number of hosts is the same.
        "compute.instance_type": None if preferences else parameters.instance_type,
        "compute.instance_preferences": preferences,
        "compute.hosts": parameters.host_count,
        "compute.volume_gb": parameters.volume_gb,
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
    }
    if not parameters.has_runtime:
        value_by_field["entrypoint"] = None
    return _build_document(kind.request_path_by_field, value_by_field, kind.fields_sent_empty)


def _input_entry(kind: JobKind, channel: InputChannel) -> dict[str, Any]:
    """Return the entry of a request's inputs for this channel."""
    value_by_field = {
        "name": channel.name,
        "uri": channel.uri,
        "local_path": kind.paths.channel_dir(channel.name),
        "data_type": "ManifestFile" if channel.is_manifest else "S3Prefix",
        "mode": channel.mode if channel.mode in kind.input_modes else kind.input_modes[0],
        "split": "ShardedByS3Key" if channel.is_sharded else "FullyReplicated",
        "content_type": channel.content_type,
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
        value = value_by_field[field_name]
        is_absent = value is None or value is False or value in _EMPTY_VALUES
        if not is_absent or field_name in empty_fields:
            set_at_path(document, path, value)
    return document


def hyperparameter_text(value: Any, is_verbatim: bool = False) -> str:
    """Return the API's text of a hyperparameter; reading it as JSON if it is JSON gives the value back.

    Text is sent unchanged, so that ``lr: "1e-3"`` arrives as those four characters, unless a reader would
    parse it as something other than text or a number, or the service would reject its line breaks: then it
    is sent as a JSON string. A number is sent as its job file has it (its ``repr``), if the reader takes that
    for a number. Everything else is JSON. (The SageMaker SDK sends all values as JSON.)
    ``is_verbatim``: another program than smlaunch's reads it, such as an algorithm: text is always sent
    unchanged.
    """
    if isinstance(value, str) and is_verbatim:
        return value
    if isinstance(value, float) and (is_verbatim or _is_json(repr(value))):
        return repr(value)
    if not isinstance(value, str):
        return json.dumps(value)
    has_line_break = _LINE_BREAK_PATTERN.search(value) is not None
    # Numbers stay as they are: a reader gets the same value from their text.
    if has_line_break or _is_json_but_no_number(value):
        return json.dumps(value)
    return value


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _is_json_but_no_number(text: str) -> bool:
    """Return whether the text is JSON other than a number."""
    try:
        value = json.loads(text)
    except ValueError:
        # Also what is a number to JSON and too long for Python: more than 4,300 digits.
        return False
    except RecursionError:
        return True
    return isinstance(value, bool) or not isinstance(value, (int, float))
