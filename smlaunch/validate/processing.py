"""What CreateProcessingJob refuses although its model allows it.

Sources: the model's prose in botocore 1.44.5 (LocalPath, compression, Feature Store, preferences) and the
developer guide's byoc-input-and-output (/opt/ml/processing/). Only rules that these state are here; what is
merely believed is left to the service.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from smlaunch.validate.rules import Steps, rule, tags, volume_key
from smlaunch.validate.violation import Violation

ROOT = "/opt/ml/processing/"


def check_processing_job(request: Mapping[str, Any]) -> Iterator[Violation]:
    """``request`` has the model's types; members may be missing or too many."""
    yield from _cluster((request.get("ProcessingResources") or {}).get("ClusterConfig") or {})
    for index, given in enumerate(request.get("ProcessingInputs") or ()):
        yield from _input(("ProcessingInputs", index), given)
    outputs = (request.get("ProcessingOutputConfig") or {}).get("Outputs") or ()
    for index, given in enumerate(outputs):
        yield from _output(("ProcessingOutputConfig", "Outputs", index), given)
    yield from tags(request.get("Tags") or ())


def _cluster(cluster: Mapping[str, Any]) -> Iterator[Violation]:
    if not cluster:
        return
    at = ("ProcessingResources", "ClusterConfig")
    kind, preferences = cluster.get("InstanceType"), cluster.get("InstancePreferences")
    if kind and preferences:
        yield rule((*at, "InstanceType"), kind, "InstanceType cannot be given with InstancePreferences")
    if not kind and not preferences:
        yield Violation((*at, "InstanceType"), None, "required", None)
    yield from volume_key(at, cluster, [cluster, *(preferences or ())])
    for field in ("SelectedInstanceType", "SelectedInstanceCount"):
        if cluster.get(field) is not None:
            yield rule((*at, field), cluster[field], f"{field} is an answer of the service, not a request")


def _input(at: Steps, given: Mapping[str, Any]) -> Iterator[Violation]:
    s3 = given.get("S3Input") or {}
    if not s3:
        return
    steps = (*at, "S3Input")
    yield from _local_path(steps, s3, bool(given.get("AppManaged")))
    if s3.get("S3CompressionType") == "Gzip" and s3.get("S3InputMode") != "Pipe":
        yield rule((*steps, "S3CompressionType"), "Gzip", "S3CompressionType Gzip needs S3InputMode Pipe")


def _output(at: Steps, given: Mapping[str, Any]) -> Iterator[Violation]:
    managed = bool(given.get("AppManaged"))
    if given.get("S3Output"):
        yield from _local_path((*at, "S3Output"), given["S3Output"], managed)
    if given.get("FeatureStoreOutput") and not managed:
        text = "FeatureStoreOutput is only supported when AppManaged is given"
        yield rule((*at, "FeatureStoreOutput"), given["FeatureStoreOutput"], text)


def _local_path(at: Steps, s3: Mapping[str, Any], managed: bool) -> Iterator[Violation]:
    path, steps = s3.get("LocalPath"), (*at, "LocalPath")
    if path is None:
        if not managed:
            yield Violation(steps, None, "required", None)
    elif not path.startswith(ROOT):
        yield rule(steps, path, f"LocalPath must begin with {ROOT}")
