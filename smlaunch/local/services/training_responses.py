"""Responses for training jobs: Describe, entries of a list, records of a search. Pure.

Times are in seconds since the epoch.
"""

from __future__ import annotations

from smlaunch.api.job_kinds import TRAINING
from smlaunch.local.jobs import warm_pool
from smlaunch.local.json_types import JsonMapping, JsonObject
from smlaunch.local.services.job_operations import describe_job_of_any_kind, summarize_job_of_any_kind
from smlaunch.local.stores.job_store import JobRecord

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


def describe_training_job_response(record: JobRecord, now: float) -> JsonObject:
    """Return the response of DescribeTrainingJob at the time ``now``, in seconds since the epoch: fields of
    the request, the state, and what the end of the job has added (``record.result``, in the response's
    form)."""
    state, request = record.state, record.request
    response: JsonObject = {
        "SecondaryStatus": state.secondary,
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
        # These replace the defaults above.
        **describe_job_of_any_kind(TRAINING, record, DESCRIBED_MEMBERS),
    }
    response["OutputDataConfig"] = {"CompressionType": "GZIP", "KmsKeyId": "", **request["OutputDataConfig"]}
    # The result has the selected instance type; the request has the current KeepAlivePeriodInSeconds.
    response["ResourceConfig"] = {**record.result.get("ResourceConfig", {}), **request["ResourceConfig"]}
    warm_pool_status = warm_pool.pool_status_at(record, now)
    if warm_pool_status is not None:
        response["WarmPoolStatus"] = warm_pool_status
    if state.training_seconds is not None:  # training has ended
        response["TrainingTimeInSeconds"] = state.training_seconds
        response["BillableTimeInSeconds"] = state.billable_seconds
    return response


def training_job_summary(record: JobRecord, now: float) -> JsonObject:
    """Return a job's entry in TrainingJobSummaries (ListTrainingJobs) at the time ``now``, in seconds since
    the epoch."""
    entry = {**summarize_job_of_any_kind(TRAINING, record), "SecondaryStatus": record.state.secondary}
    warm_pool_status = warm_pool.pool_status_at(record, now)
    if warm_pool_status is not None:
        entry["WarmPoolStatus"] = warm_pool_status
    plan_arn = training_plan_arn(record.request)  # a training plan is reserved capacity
    if plan_arn is not None:
        entry["TrainingPlanArn"] = plan_arn
    return entry


def search_result(record: JobRecord, now: float) -> JsonObject:
    """Return the shape TrainingJob: members of Describe, and the tags."""
    document = {
        name: value
        for name, value in describe_training_job_response(record, now).items()
        if name not in _NOT_IN_SEARCH
    }
    return {**document, "Tags": tags(record)}


def tags(record: JobRecord) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in record.tags.items()]


def training_plan_arn(request: JsonMapping) -> str | None:
    plan: str | None = request["ResourceConfig"].get("TrainingPlanArn")
    return plan
