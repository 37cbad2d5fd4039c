"""The SageMaker operations that run something: training jobs and their tags.

Parameters have passed ``smlaunch.validate`` before they come here. Answers hold what the API model has, with
times as seconds since the epoch. AWS's own words are used where clients are known to read them.
"""

from __future__ import annotations

import base64
import json
import time
from typing import Any

from smlaunch.local import honesty
from smlaunch.local.caller import current
from smlaunch.local.errors import ApiError, validation_error
from smlaunch.local.jobs import states
from smlaunch.local.jobs.manager import JobManager
from smlaunch.local.jobs.spec import DEFAULT_MAX_RUNTIME, selected_instance
from smlaunch.local.store import JobQuery, JobRecord, JobStore, NameTaken, sort_key

_KIND = "training-job"
_TAG_LIMIT = 50

_DESCRIBED = (
    *("HyperParameters", "AlgorithmSpecification", "RoleArn", "InputDataConfig", "OutputDataConfig"),
    *("ResourceConfig", "VpcConfig", "StoppingCondition", "CheckpointConfig", "Environment", "RetryStrategy"),
    *("EnableNetworkIsolation", "EnableInterContainerTrafficEncryption", "EnableManagedSpotTraining"),
    *("DebugHookConfig", "DebugRuleConfigurations", "TensorBoardOutputConfig", "ExperimentConfig"),
    *(
        "ProfilerConfig",
        "ProfilerRuleConfigurations",
        "RemoteDebugConfig",
        "InfraCheckConfig",
        "MlflowConfig",
    ),
)
"""Members of the request that DescribeTrainingJob gives back. Tags are not among them."""


class SageMakerService:
    """One method per operation, named in snake case, as the dispatcher calls them."""

    def __init__(self, store: JobStore, jobs: JobManager) -> None:
        self._store = store
        self._jobs = jobs

    def create_training_job(self, params: dict[str, Any]) -> dict[str, Any]:
        refused = honesty.refusals(params)
        if refused:
            lines = "; ".join(f"{field}: {reason}" for field, reason in refused)
            raise validation_error(f"This endpoint cannot run the job as it is written. {lines}")
        caller = current()
        name = params["TrainingJobName"]
        record = JobRecord(
            kind=_KIND,
            region=caller.region,
            name=name,
            arn=caller.resource_arn("sagemaker", f"{_KIND}/{name.lower()}"),
            owner=self._jobs.owner.id,
            request={key: value for key, value in params.items() if key != "Tags"},
            state=states.begin(time.time()),
            tags={tag["Key"]: tag["Value"] for tag in params.get("Tags") or []},
        )
        try:
            self._store.create(record)
        except NameTaken:
            raise ApiError(
                "ResourceInUse",
                f"Job name must be unique within an AWS account and region, and a job with this name already "
                f"exists ({record.arn})",
            ) from None
        self._jobs.submit(record)
        return {"TrainingJobArn": record.arn}

    def describe_training_job(self, params: dict[str, Any]) -> dict[str, Any]:
        return _describe(self._job(params["TrainingJobName"]))

    def stop_training_job(self, params: dict[str, Any]) -> dict[str, Any]:
        record = self._job(params["TrainingJobName"])
        if record.state.ended:
            raise validation_error(
                f"The request was rejected because the training job is in status {record.state.status}."
            )
        self._jobs.stop(record)
        return {}

    def list_training_jobs(self, params: dict[str, Any]) -> dict[str, Any]:
        if params.get("WarmPoolStatusEquals") or params.get("TrainingPlanArnEquals"):
            return {"TrainingJobSummaries": []}  # no job here has a warm pool or a training plan
        sort_by = params.get("SortBy") or "CreationTime"
        limit = params.get("MaxResults") or 10
        query = JobQuery(
            created_after=params.get("CreationTimeAfter"),
            created_before=params.get("CreationTimeBefore"),
            modified_after=params.get("LastModifiedTimeAfter"),
            modified_before=params.get("LastModifiedTimeBefore"),
            name_contains=params.get("NameContains"),
            status=params.get("StatusEquals"),
            sort_by=sort_by,
            descending=params.get("SortOrder") == "Descending",
            limit=limit + 1,
            after=_read_token(params.get("NextToken"), sort_by),
        )
        found = self._store.query(_KIND, current().region, query)
        answer: dict[str, Any] = {"TrainingJobSummaries": [_summary(record) for record in found[:limit]]}
        if len(found) > limit:
            answer["NextToken"] = _token(sort_by, sort_key(found[limit - 1], sort_by))
        return answer

    def add_tags(self, params: dict[str, Any]) -> dict[str, Any]:
        record = self._resource(params["ResourceArn"])
        added = {tag["Key"]: tag["Value"] for tag in params["Tags"]}
        if len({**record.tags, **added}) > _TAG_LIMIT:
            raise validation_error(f"A resource can have {_TAG_LIMIT} tags at most")
        record = self._store.add_tags(record.arn, added) or record
        return {"Tags": _tags(record)}

    def list_tags(self, params: dict[str, Any]) -> dict[str, Any]:
        tags = _tags(self._resource(params["ResourceArn"]))
        start = _read_offset(params.get("NextToken"))
        end = start + (params.get("MaxResults") or _TAG_LIMIT)
        answer: dict[str, Any] = {"Tags": tags[start:end]}
        if end < len(tags):
            answer["NextToken"] = str(end)
        return answer

    def _job(self, name: str) -> JobRecord:
        record = self._store.get(_KIND, current().region, name)
        if record is None:
            raise validation_error("Requested resource not found.")
        return record

    def _resource(self, arn: str) -> JobRecord:
        record = self._store.by_arn(arn)
        if record is None:
            raise validation_error("Requested resource not found.")
        return record


def _describe(record: JobRecord) -> dict[str, Any]:
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
        **{member: request[member] for member in _DESCRIBED if member in request},
        **record.result,
    }
    answer["StoppingCondition"] = {
        "MaxRuntimeInSeconds": DEFAULT_MAX_RUNTIME,
        **(request.get("StoppingCondition") or {}),
    }
    answer["OutputDataConfig"] = {"CompressionType": "GZIP", "KmsKeyId": "", **request["OutputDataConfig"]}
    selected = selected_instance(request["ResourceConfig"])
    if selected is not None:
        kind, count = selected
        chosen = {"SelectedInstanceType": kind, "SelectedInstanceCount": count}
        answer["ResourceConfig"] = {**request["ResourceConfig"], **chosen}
    if state.training_started is not None:
        answer["TrainingStartTime"] = state.training_started
    if state.training_seconds is not None:
        answer["TrainingEndTime"] = state.training_ended
        answer["TrainingTimeInSeconds"] = state.training_seconds
        answer["BillableTimeInSeconds"] = state.training_seconds
    if state.failure_reason is not None:
        answer["FailureReason"] = state.failure_reason
    return answer


def _summary(record: JobRecord) -> dict[str, Any]:
    summary = {
        "TrainingJobName": record.name,
        "TrainingJobArn": record.arn,
        "CreationTime": record.state.created,
        "LastModifiedTime": record.state.modified,
        "TrainingJobStatus": record.state.status,
        "SecondaryStatus": record.state.secondary,
    }
    if record.state.training_ended is not None:
        summary["TrainingEndTime"] = record.state.training_ended
    return summary


def _tags(record: JobRecord) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in record.tags.items()]


def _token(sort_by: str, after: tuple[str | float, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps([sort_by, *after]).encode()).decode()


def _read_token(token: str | None, sort_by: str) -> tuple[str | float, str] | None:
    """A page goes on only in the order it began in."""
    if not token:
        return None
    try:
        order, value, name = json.loads(base64.urlsafe_b64decode(token))
    except ValueError:
        raise validation_error("Invalid pagination token.") from None
    if order != sort_by:
        raise validation_error("Invalid pagination token: it belongs to a list in another order.")
    return value, name


def _read_offset(token: str | None) -> int:
    if not token:
        return 0
    if not token.isdecimal():
        raise validation_error("Invalid pagination token.")
    return int(token)
