"""Translates descriptions of jobs of other kinds to those of training jobs, which all other code expects.

A kind without secondary status gets its status instead, except for a job that was stopped at its time limit.
The exit message of a failed job has the runtime's report of the first failure, which says more than its
FailureReason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smlaunch.api.job_kinds import TRAINING, FieldPath, JobKind, get_at_path, set_at_path

_ALGORITHM_ERROR_PREFIX = "AlgorithmError: "

_SHARED_MEMBERS = ("CreationTime", "LastModifiedTime", "FailureReason")


def describe_as_training_job(kind: JobKind, description: Mapping[str, Any]) -> dict[str, Any]:
    """Return a response of Describe in the form of DescribeTrainingJob's, so that other code need not tell
    kinds of jobs apart."""
    if kind is TRAINING:
        return {key: value for key, value in description.items() if key != "ResponseMetadata"}
    status, end_time = description[kind.status_field], description.get(kind.end_time_field)
    training_job: dict[str, Any] = {
        TRAINING.name_field: description[kind.name_field],
        TRAINING.arn_field: description[kind.arn_field],
        TRAINING.status_field: status,
        "SecondaryStatus": _derive_secondary_status(kind, description),
        # Its members have the same names in all kinds; 1 is the default.
        "ResourceConfig": {"InstanceCount": 1, **(get_at_path(description, kind.resources) or {})},
        "LogGroup": kind.log_group,
        # Only creation and end are known.
        "SecondaryStatusTransitions": [
            {"Status": name, "StartTime": time, "StatusMessage": ""}
            for name, time in (("InProgress", description.get("CreationTime")), (status, end_time))
            if time is not None
        ],
        TRAINING.start_time_field: description.get(kind.start_time_field),
        TRAINING.end_time_field: end_time,
        **{name: description.get(name) for name in _SHARED_MEMBERS},
    }
    failure_reason = str(description.get("FailureReason", ""))
    exit_message = description.get("ExitMessage")
    if exit_message and failure_reason.startswith(_ALGORITHM_ERROR_PREFIX):
        # The script's own exit message says more, so it comes before the service's reason.
        service_reason = failure_reason.removeprefix(_ALGORITHM_ERROR_PREFIX)
        training_job["FailureReason"] = f"{_ALGORITHM_ERROR_PREFIX}{exit_message}{service_reason}"
    # What the job was created with: its inputs, by which its run is found, its network, its keys.
    _copy_fields(description, kind.request_path_by_field, training_job, TRAINING.request_path_by_field)
    inputs_path = TRAINING.request_path_by_field["inputs"]
    channels: list[dict[str, Any]] = []
    for job_input in get_at_path(training_job, inputs_path) or ():
        channels.append({})
        _copy_fields(job_input, kind.input_path_by_field, channels[-1], TRAINING.input_path_by_field)
    set_at_path(training_job, inputs_path, channels)
    return {name: value for name, value in training_job.items() if value is not None}


def _copy_fields(
    source: Mapping[str, Any],
    source_path_by_field: Mapping[str, FieldPath],
    copy: dict[str, Any],
    path_by_field: Mapping[str, FieldPath],
) -> None:
    """Copy the fields that both tables have, from where the one says to where the other does."""
    for field, path in source_path_by_field.items():
        value = get_at_path(source, path)
        if value is not None and field in path_by_field:
            set_at_path(copy, path_by_field[field], value)


def _derive_secondary_status(kind: JobKind, description: Mapping[str, Any]) -> str:
    """Return MaxRuntimeExceeded for a job that was stopped at its time limit, else the status."""
    status: str = description[kind.status_field]
    max_runtime_seconds = get_at_path(description, ("StoppingCondition", "MaxRuntimeInSeconds"))
    started_at, ended_at = description.get(kind.start_time_field), description.get(kind.end_time_field)
    if status != "Stopped" or not max_runtime_seconds or not started_at or not ended_at:
        return status
    has_used_all_time = (ended_at - started_at).total_seconds() >= max_runtime_seconds
    return "MaxRuntimeExceeded" if has_used_all_time else status
