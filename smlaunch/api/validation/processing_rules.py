"""Rules of CreateProcessingJob beyond its model.

Sources: the model's documentation in botocore 1.44.5 (LocalPath, compression, Feature Store, preferences)
and the developer guide's byoc-input-and-output (/opt/ml/processing/). Unconfirmed rules are left to the
service.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from smlaunch.api.validation.shared_rules import RequestPath, check_tags, check_volume_key, service_violation
from smlaunch.api.validation.violation import Violation

PROCESSING_ROOT = "/opt/ml/processing/"


def check_processing_job(request: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield what the service would reject about a CreateProcessingJob request. ``request`` matches the
    model's types; members may be missing or unknown."""
    yield from _check_cluster((request.get("ProcessingResources") or {}).get("ClusterConfig") or {})
    for index, member in enumerate(request.get("ProcessingInputs") or ()):
        yield from _check_input(("ProcessingInputs", index), member)
    outputs = (request.get("ProcessingOutputConfig") or {}).get("Outputs") or ()
    for index, member in enumerate(outputs):
        yield from _check_output(("ProcessingOutputConfig", "Outputs", index), member)
    yield from check_tags(request.get("Tags") or ())


def _check_cluster(cluster: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield violations of instance type, preferences and volume in ClusterConfig of a processing job. A
    violation names the rule that the value at a path breaks; rules of the service have a text of their
    own."""
    if not cluster:
        return
    path = ("ProcessingResources", "ClusterConfig")
    instance_type, preferences = cluster.get("InstanceType"), cluster.get("InstancePreferences")
    if instance_type and preferences:
        yield service_violation(
            (*path, "InstanceType"), instance_type, "InstanceType cannot be given with InstancePreferences"
        )
    if not instance_type and not preferences:
        yield Violation((*path, "InstanceType"), None, rule="required", limit=None)
    # A key for the volume cannot be given with instance types that have local disks instead.
    yield from check_volume_key(path, cluster, [cluster, *(preferences or ())])
    for member in ("SelectedInstanceType", "SelectedInstanceCount"):
        if cluster.get(member) is not None:
            yield service_violation(
                (*path, member), cluster[member], f"{member} is an answer of the service, not a request"
            )


def _check_input(path: RequestPath, processing_input: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield violations of local path and compression of the input at ``path`` of a request."""
    s3_input = processing_input.get("S3Input") or {}
    if not s3_input:
        return
    s3_path = (*path, "S3Input")
    yield from _check_local_path(s3_path, s3_input, bool(processing_input.get("AppManaged")))
    if s3_input.get("S3CompressionType") == "Gzip" and s3_input.get("S3InputMode") != "Pipe":
        yield service_violation(
            (*s3_path, "S3CompressionType"), "Gzip", "S3CompressionType Gzip needs S3InputMode Pipe"
        )


def _check_output(path: RequestPath, processing_output: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield violations of local path and feature store of the output at ``path`` of a request. With
    AppManaged the program writes the output itself."""
    is_app_managed = bool(processing_output.get("AppManaged"))
    if processing_output.get("S3Output"):
        yield from _check_local_path((*path, "S3Output"), processing_output["S3Output"], is_app_managed)
    if processing_output.get("FeatureStoreOutput") and not is_app_managed:
        text = "FeatureStoreOutput is only supported when AppManaged is given"
        yield service_violation((*path, "FeatureStoreOutput"), processing_output["FeatureStoreOutput"], text)


def _check_local_path(
    path: RequestPath, s3_member: Mapping[str, Any], is_app_managed: bool
) -> Iterator[Violation]:
    """Yield a violation if the ``LocalPath`` of this S3 input or output is missing or outside
    ``PROCESSING_ROOT``, /opt/ml/processing/. ``path``: of ``s3_member`` in the request. ``is_app_managed``:
    the container accesses S3 itself and needs no local path."""
    local_path, member_path = s3_member.get("LocalPath"), (*path, "LocalPath")
    if local_path is None:
        if not is_app_managed:
            yield Violation(member_path, None, rule="required", limit=None)
    elif not local_path.startswith(PROCESSING_ROOT):
        yield service_violation(member_path, local_path, f"LocalPath must begin with {PROCESSING_ROOT}")
