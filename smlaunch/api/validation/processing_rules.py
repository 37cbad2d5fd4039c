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

ROOT = "/opt/ml/processing/"


def check_processing_job(request: Mapping[str, Any]) -> Iterator[Violation]:
    """``request`` matches the model's types; members may be missing or unknown."""
    yield from _check_cluster((request.get("ProcessingResources") or {}).get("ClusterConfig") or {})
    for index, item in enumerate(request.get("ProcessingInputs") or ()):
        yield from _check_input(("ProcessingInputs", index), item)
    outputs = (request.get("ProcessingOutputConfig") or {}).get("Outputs") or ()
    for index, item in enumerate(outputs):
        yield from _check_output(("ProcessingOutputConfig", "Outputs", index), item)
    yield from check_tags(request.get("Tags") or ())


def _check_cluster(cluster: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield violations of instance type, preferences and volume."""
    if not cluster:
        return
    path = ("ProcessingResources", "ClusterConfig")
    instance_type, preferences = cluster.get("InstanceType"), cluster.get("InstancePreferences")
    if instance_type and preferences:
        yield service_violation(
            (*path, "InstanceType"), instance_type, "InstanceType cannot be given with InstancePreferences"
        )
    if not instance_type and not preferences:
        yield Violation((*path, "InstanceType"), None, "required", None)
    yield from check_volume_key(path, cluster, [cluster, *(preferences or ())])
    for field in ("SelectedInstanceType", "SelectedInstanceCount"):
        if cluster.get(field) is not None:
            yield service_violation(
                (*path, field), cluster[field], f"{field} is an answer of the service, not a request"
            )


def _check_input(path: RequestPath, processing_input: Mapping[str, Any]) -> Iterator[Violation]:
    """Local path and compression of an input."""
    s3 = processing_input.get("S3Input") or {}
    if not s3:
        return
    s3_path = (*path, "S3Input")
    yield from _check_local_path(s3_path, s3, bool(processing_input.get("AppManaged")))
    if s3.get("S3CompressionType") == "Gzip" and s3.get("S3InputMode") != "Pipe":
        yield service_violation(
            (*s3_path, "S3CompressionType"), "Gzip", "S3CompressionType Gzip needs S3InputMode Pipe"
        )


def _check_output(path: RequestPath, processing_output: Mapping[str, Any]) -> Iterator[Violation]:
    """Local path and feature store of an output."""
    is_app_managed = bool(processing_output.get("AppManaged"))
    if processing_output.get("S3Output"):
        yield from _check_local_path((*path, "S3Output"), processing_output["S3Output"], is_app_managed)
    if processing_output.get("FeatureStoreOutput") and not is_app_managed:
        text = "FeatureStoreOutput is only supported when AppManaged is given"
        yield service_violation((*path, "FeatureStoreOutput"), processing_output["FeatureStoreOutput"], text)


def _check_local_path(path: RequestPath, s3: Mapping[str, Any], is_app_managed: bool) -> Iterator[Violation]:
    """Yield a violation if the ``LocalPath`` of this S3 input or output is missing or outside ``ROOT``.
    ``path``: of ``s3`` in the request. ``is_app_managed``: the container accesses S3 itself and needs no
    local path."""
    local_path, path_of_member = s3.get("LocalPath"), (*path, "LocalPath")
    if local_path is None:
        if not is_app_managed:
            yield Violation(path_of_member, None, "required", None)
    elif not local_path.startswith(ROOT):
        yield service_violation(path_of_member, local_path, f"LocalPath must begin with {ROOT}")
