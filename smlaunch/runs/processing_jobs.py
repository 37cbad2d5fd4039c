"""Processing jobs in the words of training jobs, which following and telling go by. Translation only.

A processing job has no secondary status: its status stands for it, but for one that was stopped after all the
time it was given. When it failed, the exit message, where
the runtime says who failed and why, says more than its FailureReason does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smlaunch.ports import JobSummary

LOG_GROUP = "/aws/sagemaker/ProcessingJobs"

_ALGORITHM = "AlgorithmError: "


def as_training(answer: Mapping[str, Any]) -> dict[str, Any]:
    """DescribeProcessingJob's answer as that of DescribeTrainingJob, as far as both have the same."""
    status = answer["ProcessingJobStatus"]
    cluster = answer["ProcessingResources"]["ClusterConfig"]
    found: dict[str, Any] = {
        "TrainingJobName": answer["ProcessingJobName"],
        "TrainingJobArn": answer["ProcessingJobArn"],
        "TrainingJobStatus": status,
        "SecondaryStatus": _secondary(status, answer),
        "ResourceConfig": {"InstanceCount": 1, **cluster},
        "LogGroup": LOG_GROUP,
    }
    same = (
        "CreationTime",
        "LastModifiedTime",
        "StoppingCondition",
        "RoleArn",
        "Environment",
        "FailureReason",
    )
    found |= {name: answer[name] for name in same if name in answer}
    steps = [("InProgress", answer.get("CreationTime")), (status, answer.get("ProcessingEndTime"))]
    found["SecondaryStatusTransitions"] = [
        {"Status": name, "StartTime": at, "StatusMessage": ""} for name, at in steps if at is not None
    ]
    for name in ("Start", "End"):
        if f"Processing{name}Time" in answer:
            found[f"Training{name}Time"] = answer[f"Processing{name}Time"]
    reason, message = str(answer.get("FailureReason", "")), answer.get("ExitMessage")
    if message and reason.startswith(_ALGORITHM):
        found["FailureReason"] = f"{_ALGORITHM}{message}{reason.removeprefix(_ALGORITHM)}"
    outputs = (answer.get("ProcessingOutputConfig") or {}).get("Outputs") or ()
    if outputs and outputs[0].get("S3Output"):
        found["OutputDataConfig"] = {"S3OutputPath": outputs[0]["S3Output"]["S3Uri"]}
    return found


def _secondary(status: str, answer: Mapping[str, Any]) -> str:
    limit = (answer.get("StoppingCondition") or {}).get("MaxRuntimeInSeconds")
    began, ended = answer.get("ProcessingStartTime"), answer.get("ProcessingEndTime")
    if status == "Stopped" and limit and began and ended and (ended - began).total_seconds() >= limit:
        return "MaxRuntimeExceeded"
    return status


def summary_of(row: Mapping[str, Any]) -> JobSummary:
    """A row of ListProcessingJobs."""
    ended = row.get("ProcessingEndTime")
    return JobSummary(
        row["ProcessingJobName"],
        row["ProcessingJobArn"],
        row["ProcessingJobStatus"],
        row["CreationTime"].timestamp(),
        ended.timestamp() if ended else None,
    )
