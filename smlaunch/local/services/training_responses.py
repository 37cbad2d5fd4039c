"""Responses for training jobs: Describe, entries of a list, records of a search. Pure.

Times are in seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smlaunch.local.job_store import JobRecord
from smlaunch.local.jobs import warm_pool
from smlaunch.local.jobs.spec import DEFAULT_MAX_RUNTIME

DESCRIBED_MEMBERS = (
    *("HyperParameters", "AlgorithmSpecification", "RoleArn", "InputDataConfig", "OutputDataConfig"),
    *("ResourceConfig", "VpcConfig", "StoppingCondition", "CheckpointConfig", "Environment", "RetryStrategy"),
    *("EnableNetworkIsolation", "EnableInterContainerTrafficEncryption", "EnableManagedSpotTraining"),
    *("DebugHookConfig", "DebugRuleConfigurations", "TensorBoardOutputConfig", "ExperimentConfig"),
    *("ProfilerConfig", "ProfilerRuleConfigurations", "RemoteDebugConfig", "InfraCheckConfig"),
    "MlflowConfig",
)
"""Members of the request that DescribeTrainingJob returns. Tags are not among them."""

_NOT_IN_SEARCH = (
    *("MlflowConfig", "InfraCheckConfig", "RemoteDebugConfig", "ProfilerRuleConfigurations"),
    "ProfilingStatus",
)
"""Members of Describe that the shape TrainingJob in the response of Search does not have."""


def describe_job(record: JobRecord, now: float) -> dict[str, Any]:
    """Return the response of DescribeTrainingJob at the time ``now``, in seconds since the epoch."""
    state, request = record.state, record.request
    response: dict[str, Any] = {
        "TrainingJobName": record.name,
        "TrainingJobArn": record.arn,
        "TrainingJobStatus": state.status,
        "SecondaryStatus": state.secondary,
        "CreationTime": state.created,
        "LastModifiedTime": state.modified,
        "SecondaryStatusTransitions": [
            {
                "Status": transition.status,
                "StartTime": transition.start,
                **({} if transition.end is None else {"EndTime": transition.end}),
                "StatusMessage": transition.message,
            }
            for transition in state.transitions
        ],
        "EnableNetworkIsolation": False,
        "EnableInterContainerTrafficEncryption": False,
        "EnableManagedSpotTraining": False,
        "ProfilingStatus": "Disabled",
        **{member: request[member] for member in DESCRIBED_MEMBERS if member in request},
        **record.result,
    }
    response["StoppingCondition"] = {
        "MaxRuntimeInSeconds": DEFAULT_MAX_RUNTIME,
        **(request.get("StoppingCondition") or {}),
    }
    response["OutputDataConfig"] = {"CompressionType": "GZIP", "KmsKeyId": "", **request["OutputDataConfig"]}
    # The result has the selected instance type; the request has the current KeepAlivePeriodInSeconds.
    response["ResourceConfig"] = {**record.result.get("ResourceConfig", {}), **request["ResourceConfig"]}
    pool = warm_pool.pool_status_at(record, now)
    if pool is not None:
        response["WarmPoolStatus"] = pool
    if state.training_started is not None:
        response["TrainingStartTime"] = state.training_started
    if state.training_seconds is not None:
        response["TrainingEndTime"] = state.training_ended
        response["TrainingTimeInSeconds"] = state.training_seconds
        response["BillableTimeInSeconds"] = state.billable_seconds
    if state.failure_reason is not None:
        response["FailureReason"] = state.failure_reason
    return response


def job_list_entry(record: JobRecord, now: float) -> dict[str, Any]:
    """Return an entry of TrainingJobSummaries."""
    entry = {
        "TrainingJobName": record.name,
        "TrainingJobArn": record.arn,
        "CreationTime": record.state.created,
        "LastModifiedTime": record.state.modified,
        "TrainingJobStatus": record.state.status,
        "SecondaryStatus": record.state.secondary,
    }
    if record.state.training_ended is not None:
        entry["TrainingEndTime"] = record.state.training_ended
    pool = warm_pool.pool_status_at(record, now)
    if pool is not None:
        entry["WarmPoolStatus"] = pool
    plan_arn = training_plan_arn(record.request)
    if plan_arn is not None:
        entry["TrainingPlanArn"] = plan_arn
    return entry


def search_document(record: JobRecord, now: float) -> dict[str, Any]:
    """Return the shape TrainingJob: members of Describe, and the tags."""
    document = {
        name: value for name, value in describe_job(record, now).items() if name not in _NOT_IN_SEARCH
    }
    return {**document, "Tags": tags(record)}


def tags(record: JobRecord) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in record.tags.items()]


def training_plan_arn(request: Mapping[str, Any]) -> str | None:
    plan: str | None = request["ResourceConfig"].get("TrainingPlanArn")
    return plan
