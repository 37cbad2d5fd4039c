"""What the local endpoint rejects in a request that creates a job, beyond SageMaker's own rules. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator

from smlaunch.api.job_kinds import PROCESSING
from smlaunch.api.validation.java_patterns import python_metric_pattern
from smlaunch.local.api_support import TRAINING_JOB_SUPPORT, SupportTable, support_rows, values_at_dotted_path
from smlaunch.local.json_types import JsonMapping

Rejection = tuple[str, str]
"""Path of a field with list indices, such as ``InputDataConfig[0].CompressionType``, and the reason."""

_RESERVED_ML_FOLDERS = frozenset({"input", "model", "output", "code"})
_SYSTEM_FOLDERS = frozenset(
    """
    bin boot dev dev/shm etc home lib lib32 lib64 media mnt opt proc root run sbin srv sys tmp usr usr/bin
    usr/lib usr/local var
    """.split()  # noqa: SIM905  a list of twenty quoted words reads worse
)
"""Directories that a host needs, or that contain such. Directories inside them may be mounted over."""


def training_rejections(request: JsonMapping, mounts_any_path: bool = True) -> list[Rejection]:
    """Return (path of the field, reason) for everything in a CreateTrainingJob request that makes the local
    endpoint reject it. A path has list indices, such as ``InputDataConfig[0].CompressionType``.
    ``mounts_any_path``: whether a host can have a directory at any path (not at isolation level plain)."""
    return [
        *_rejections_by_support_rows(TRAINING_JOB_SUPPORT, request),
        *_synchronized_directory_rejections(request, mounts_any_path),
        *_metric_regex_rejections(request),
        *_gzip_manifest_rejections(request),
    ]


def _synchronized_directory_rejections(request: JsonMapping, mounts_any_path: bool) -> Iterator[Rejection]:
    """Yield (field, reason) for directories of a training job that cannot be synchronized with S3.
    ``mounts_any_path``: whether a host can have a directory outside /opt/ml."""
    # Each field with the folders of /opt/ml that its directory must not use: input, model, output and code.
    for field_name, reserved_ml_folders in (
        ("CheckpointConfig", _RESERVED_ML_FOLDERS),
        # SageMaker's default for TensorBoard is /opt/ml/output/tensorboard.
        ("TensorBoardOutputConfig", _RESERVED_ML_FOLDERS - {"output"}),
    ):
        local_path = (request.get(field_name) or {}).get("LocalPath")
        if local_path is None:
            continue
        path_problem = _local_path_problem(local_path, reserved_ml_folders, mounts_any_path)
        if path_problem is not None:
            yield f"{field_name}.LocalPath", f"{local_path}: {path_problem}"


def _local_path_problem(
    local_path: str, reserved_ml_folders: Collection[str], mounts_any_path: bool
) -> str | None:
    """Explain why a directory of a job's hosts (LocalPath of a request) cannot be synchronized with S3; None
    when it can. ``reserved_ml_folders``: names in /opt/ml that SageMaker uses itself; ``mounts_any_path``:
    whether a host can have a directory outside /opt/ml."""
    components = [name for name in local_path.split("/") if name not in ("", ".")]
    if not local_path.startswith("/") or ".." in components:
        return "an absolute path without `..` is required"
    if components[:2] == ["opt", "ml"]:
        is_unreserved = len(components) > 2 and components[2] not in reserved_ml_folders
        if is_unreserved:
            return None
        return "the training contract has another use for this directory; use /opt/ml/checkpoints"
    is_root = not components
    # Below most system directories (etc, usr/bin, ...) a mount is harmless; all of /proc and /sys is the
    # kernel's.
    if is_root or "/".join(components) in _SYSTEM_FOLDERS or components[0] in ("proc", "sys"):
        return "a system directory cannot be mounted over; use a directory of your own"
    if not mounts_any_path:
        return (
            "at isolation level plain the directory has to be below /opt/ml/; use /opt/ml/checkpoints, "
            "or another level (`smlaunch doctor` shows which work here)"
        )
    return None


def _metric_regex_rejections(request: JsonMapping) -> Iterator[Rejection]:
    """Yield (field, reason) for metric definitions whose regular expression cannot be compiled."""
    metric_definitions = (request.get("AlgorithmSpecification") or {}).get("MetricDefinitions") or ()
    for index, metric_definition in enumerate(metric_definitions):
        regex_problem = _regex_problem(metric_definition["Regex"])
        if regex_problem is not None:
            yield f"AlgorithmSpecification.MetricDefinitions[{index}].Regex", regex_problem


def _regex_problem(regex: str) -> str | None:
    try:
        re.compile(python_metric_pattern(regex))
    except re.error as error:
        return f"{regex!r} is not a valid regular expression for Python: {error}"
    return None


def _gzip_manifest_rejections(request: JsonMapping) -> Iterator[Rejection]:
    """Yield (field, reason) for input channels that combine gzip with an augmented manifest."""
    for index, channel in enumerate(request.get("InputDataConfig") or ()):
        s3_source = (channel.get("DataSource") or {}).get("S3DataSource") or {}
        is_augmented_manifest = s3_source.get("S3DataType") == "AugmentedManifestFile"
        if is_augmented_manifest and channel.get("CompressionType") == "Gzip":
            reason = "Gzip: its effect on an augmented manifest is not documented; leave it out"
            yield f"InputDataConfig[{index}].CompressionType", reason


def processing_rejections(request: JsonMapping, runs_images: bool = False) -> list[Rejection]:
    """Return (path of the field, reason) for everything in a CreateProcessingJob request that makes the local
    endpoint reject it. A path has list indices, such as ``ProcessingInputs[0].S3Input``. ``runs_images``:
    whether the executor runs container images, and with them their own entry points."""
    rejections = _rejections_by_support_rows(support_rows(PROCESSING, runs_images), request)
    if not runs_images and not (request.get("AppSpecification") or {}).get("ContainerEntrypoint"):
        reason = "it is required, because this endpoint does not run images; the executor `containers` does"
        rejections.append(("AppSpecification.ContainerEntrypoint", reason))
    rejections += _processing_directory_rejections(request)
    return rejections


def _processing_directory_rejections(request: JsonMapping) -> Iterator[Rejection]:
    """Yield (field, reason) for the inputs and outputs of a processing job that have no S3 location, or whose
    directory on the host cannot be used or is another one's directory too. Those that the program transfers
    itself (AppManaged) are not checked."""
    first_field_by_local_path: dict[str, str] = {}
    for s3_field, entry in _inputs_and_outputs_by_s3_field(request).items():
        # s3_field: such as ProcessingInputs[0].S3Input; entry: the input or output that it belongs to.
        s3_location = entry.get(s3_field.rpartition(".")[2])
        if not s3_location:
            # An input or output that has one of these two instead is rejected by the support matrix.
            if not entry.get("DatasetDefinition") and not entry.get("FeatureStoreOutput"):
                yield s3_field, "it is required unless AppManaged is true"
            continue
        local_path = s3_location.get("LocalPath") or ""
        if ".." in local_path.split("/"):
            yield f"{s3_field}.LocalPath", f"{local_path}: a path without `..` is required"
        first_field = first_field_by_local_path.setdefault(posixpath.normpath(local_path), s3_field)
        if first_field != s3_field:
            yield (
                f"{s3_field}.LocalPath",
                f"{local_path}: {first_field} has the same path, and the result of both is not documented",
            )


def _inputs_and_outputs_by_s3_field(request: JsonMapping) -> dict[str, JsonMapping]:
    """Return the inputs and outputs of a processing job by the path of their S3 field, such as
    ``ProcessingInputs[0].S3Input``, without those that the program transfers itself (AppManaged)."""
    inputs = request.get("ProcessingInputs") or ()
    outputs = (request.get("ProcessingOutputConfig") or {}).get("Outputs") or ()
    entry_by_s3_field = {f"ProcessingInputs[{index}].S3Input": entry for index, entry in enumerate(inputs)}
    for index, entry in enumerate(outputs):
        entry_by_s3_field[f"ProcessingOutputConfig.Outputs[{index}].S3Output"] = entry
    return {field: entry for field, entry in entry_by_s3_field.items() if not entry.get("AppManaged")}


def _rejections_by_support_rows(row_by_path: SupportTable, request: JsonMapping) -> list[Rejection]:
    """Return (path of the field with list indices, reason) for each field and value of a request that the
    support matrix rejects. Its rows say what this endpoint does with a field, here by dotted path without
    indices. A row's ``note`` is the reason for a rejected field; its ``rejected_values`` have a reason
    each."""
    rejections = []
    for row_path, support_row in row_by_path.items():
        for field_path, value in values_at_dotted_path(request, row_path):
            if support_row.level == "rejected":
                rejections.append((field_path, support_row.note))
            elif isinstance(value, str) and value in support_row.rejected_values:
                rejections.append((field_path, f"{value}: {support_row.rejected_values[value]}"))
    return rejections
