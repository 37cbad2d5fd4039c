"""A stored training job as the API shows it: Describe, a list's summary, a search's record. Pure.

Times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smlaunch.local.jobs import warm_pool
from smlaunch.local.jobs.spec import DEFAULT_MAX_RUNTIME
from smlaunch.local.store import JobRecord

DESCRIBED = (
    *("HyperParameters", "AlgorithmSpecification", "RoleArn", "InputDataConfig", "OutputDataConfig"),
    *("ResourceConfig", "VpcConfig", "StoppingCondition", "CheckpointConfig", "Environment", "RetryStrategy"),
    *("EnableNetworkIsolation", "EnableInterContainerTrafficEncryption", "EnableManagedSpotTraining"),
    *("DebugHookConfig", "DebugRuleConfigurations", "TensorBoardOutputConfig", "ExperimentConfig"),
    *("ProfilerConfig", "ProfilerRuleConfigurations", "RemoteDebugConfig", "InfraCheckConfig"),
    "MlflowConfig",
)
"""Members of the request that DescribeTrainingJob gives back. Tags are not among them."""

_NOT_IN_SEARCH = (
    *("MlflowConfig", "InfraCheckConfig", "RemoteDebugConfig", "ProfilerRuleConfigurations"),
    "ProfilingStatus",
)
"""Members of Describe that the shape TrainingJob, which Search answers with, does not have."""


def describe(record: JobRecord, now: float) -> dict[str, Any]:
    state, request = record.state, record.request
    answer: dict[str, Any] = {
        "TrainingJobName": record.name,
        "TrainingJobArn": record.arn,
        "TrainingJobStatus": state.status,
        "SecondaryStatus": state.secondary,
        "CreationTime": state.created,
        "LastModifiedTime": state.modified,
        "SecondaryStatusTransitions": [
            {
                "Status": step.status,
                "StartTime": step.start,
                **({} if step.end is None else {"EndTime": step.end}),
                "StatusMessage": step.message,
            }
            for step in state.transitions
        ],
        "EnableNetworkIsolation": False,
        "EnableInterContainerTrafficEncryption": False,
        "EnableManagedSpotTraining": False,
        "ProfilingStatus": "Disabled",
        **{member: request[member] for member in DESCRIBED if member in request},
        **record.result,
    }
    answer["StoppingCondition"] = {
        "MaxRuntimeInSeconds": DEFAULT_MAX_RUNTIME,
        **(request.get("StoppingCondition") or {}),
    }
    answer["OutputDataConfig"] = {"CompressionType": "GZIP", "KmsKeyId": "", **request["OutputDataConfig"]}
    # What was selected is known once the job has its hosts; the retention may have been updated since.
    answer["ResourceConfig"] = {**record.result.get("ResourceConfig", {}), **request["ResourceConfig"]}
    pool = warm_pool.status(record, now)
    if pool is not None:
        answer["WarmPoolStatus"] = pool
    if state.training_started is not None:
        answer["TrainingStartTime"] = state.training_started
    if state.training_seconds is not None:
        answer["TrainingEndTime"] = state.training_ended
        answer["TrainingTimeInSeconds"] = state.training_seconds
        answer["BillableTimeInSeconds"] = state.billable_seconds
    if state.failure_reason is not None:
        answer["FailureReason"] = state.failure_reason
    return answer


def summary(record: JobRecord, now: float) -> dict[str, Any]:
    """A member of TrainingJobSummaries."""
    found = {
        "TrainingJobName": record.name,
        "TrainingJobArn": record.arn,
        "CreationTime": record.state.created,
        "LastModifiedTime": record.state.modified,
        "TrainingJobStatus": record.state.status,
        "SecondaryStatus": record.state.secondary,
    }
    if record.state.training_ended is not None:
        found["TrainingEndTime"] = record.state.training_ended
    pool = warm_pool.status(record, now)
    if pool is not None:
        found["WarmPoolStatus"] = pool
    plan = training_plan(record.request)
    if plan is not None:
        found["TrainingPlanArn"] = plan
    return found


def searched(record: JobRecord, now: float) -> dict[str, Any]:
    """The shape TrainingJob: Describe's members that it has, and the tags."""
    found = {name: value for name, value in describe(record, now).items() if name not in _NOT_IN_SEARCH}
    return {**found, "Tags": tags(record)}


def tags(record: JobRecord) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in record.tags.items()]


def training_plan(request: Mapping[str, Any]) -> str | None:
    plan: str | None = request["ResourceConfig"].get("TrainingPlanArn")
    return plan
