"""Translates descriptions of processing jobs to those of training jobs, which all other code expects.

A processing job has no secondary status: its status is used instead, except for a job that was stopped at its
time limit. The exit message of a failed job has the runtime's report of the first failure, which says more
than its FailureReason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smlaunch.aws.interfaces import JobSummary

LOG_GROUP = "/aws/sagemaker/ProcessingJobs"

_ALGORITHM_ERROR = "AlgorithmError: "


def as_training_job(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return DescribeProcessingJob's response in the form of DescribeTrainingJob's."""
    status = description["ProcessingJobStatus"]
    cluster = description["ProcessingResources"]["ClusterConfig"]
    training_job: dict[str, Any] = {
        "TrainingJobName": description["ProcessingJobName"],
        "TrainingJobArn": description["ProcessingJobArn"],
        "TrainingJobStatus": status,
        "SecondaryStatus": _secondary_status(status, description),
        "ResourceConfig": {"InstanceCount": 1, **cluster},
        "LogGroup": LOG_GROUP,
    }
    shared_members = (
        "CreationTime",
        "LastModifiedTime",
        "StoppingCondition",
        "RoleArn",
        "Environment",
        "FailureReason",
    )
    training_job |= {name: description[name] for name in shared_members if name in description}
    transitions = [
        ("InProgress", description.get("CreationTime")),
        (status, description.get("ProcessingEndTime")),
    ]
    training_job["SecondaryStatusTransitions"] = [
        {"Status": name, "StartTime": time, "StatusMessage": ""}
        for name, time in transitions
        if time is not None
    ]
    for name in ("Start", "End"):
        if f"Processing{name}Time" in description:
            training_job[f"Training{name}Time"] = description[f"Processing{name}Time"]
    reason, message = str(description.get("FailureReason", "")), description.get("ExitMessage")
    if message and reason.startswith(_ALGORITHM_ERROR):
        training_job["FailureReason"] = f"{_ALGORITHM_ERROR}{message}{reason.removeprefix(_ALGORITHM_ERROR)}"
    outputs = (description.get("ProcessingOutputConfig") or {}).get("Outputs") or ()
    if outputs and outputs[0].get("S3Output"):
        training_job["OutputDataConfig"] = {"S3OutputPath": outputs[0]["S3Output"]["S3Uri"]}
    return training_job


def _secondary_status(status: str, description: Mapping[str, Any]) -> str:
    limit = (description.get("StoppingCondition") or {}).get("MaxRuntimeInSeconds")
    started_at, ended_at = description.get("ProcessingStartTime"), description.get("ProcessingEndTime")
    if (
        status == "Stopped"
        and limit
        and started_at
        and ended_at
        and (ended_at - started_at).total_seconds() >= limit
    ):
        return "MaxRuntimeExceeded"
    return status


def job_summary(row: Mapping[str, Any]) -> JobSummary:
    """Return the summary of a row of ListProcessingJobs."""
    ended = row.get("ProcessingEndTime")
    return JobSummary(
        row["ProcessingJobName"],
        row["ProcessingJobArn"],
        row["ProcessingJobStatus"],
        row["CreationTime"].timestamp(),
        ended.timestamp() if ended else None,
    )
