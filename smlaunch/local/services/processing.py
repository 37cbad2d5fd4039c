"""The SageMaker operations on processing jobs; parameters and answers as in sagemaker.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smlaunch.local import honesty
from smlaunch.local.caller import current
from smlaunch.local.errors import ApiError, validation_error
from smlaunch.local.jobs.manager import JobManager
from smlaunch.local.jobs.processing import KIND
from smlaunch.local.jobs.spec import DEFAULT_MAX_RUNTIME
from smlaunch.local.services import job_lists
from smlaunch.local.services.creation import create
from smlaunch.local.store import JobRecord, JobStore

DESCRIBED = (
    *("ProcessingInputs", "ProcessingOutputConfig", "ProcessingResources", "StoppingCondition"),
    *("AppSpecification", "Environment", "NetworkConfig", "RoleArn", "ExperimentConfig"),
)
"""Members of the request that DescribeProcessingJob gives back."""


class ProcessingJobs:
    """One method per operation, named in snake case, as the dispatcher calls them."""

    def __init__(self, store: JobStore, jobs: JobManager) -> None:
        self._store = store
        self._jobs = jobs

    def create_processing_job(self, params: dict[str, Any]) -> dict[str, Any]:
        refused = honesty.processing_refusals(params, self._jobs.runs_images)
        record = create(self._store, self._jobs, KIND, params["ProcessingJobName"], params, refused)
        self._jobs.submit(record)
        return {"ProcessingJobArn": record.arn}

    def describe_processing_job(self, params: dict[str, Any]) -> dict[str, Any]:
        record = self._job(params)
        described = {member: record.request[member] for member in DESCRIBED if member in record.request}
        answer = {**_common(record), **described, **record.result}
        answer["StoppingCondition"] = {
            "MaxRuntimeInSeconds": DEFAULT_MAX_RUNTIME,
            **(record.request.get("StoppingCondition") or {}),
        }
        if record.state.training_started is not None:
            answer["ProcessingStartTime"] = record.state.training_started
        return answer

    def list_processing_jobs(self, params: dict[str, Any]) -> dict[str, Any]:
        found, token = job_lists.page(params, self._store, KIND, current().region)
        return {"ProcessingJobSummaries": [_summary(record) for record in found], **token}

    def stop_processing_job(self, params: dict[str, Any]) -> dict[str, Any]:
        record = self._job(params)
        if record.state.ended:
            raise validation_error(
                f"The request was rejected because the processing job is in status {record.state.status}."
            )
        self._jobs.stop(record)
        return {}

    def delete_processing_job(self, params: dict[str, Any]) -> dict[str, Any]:
        record = self._job(params)
        if not record.state.ended:
            raise ApiError(
                "ResourceInUse",
                f"Processing job {record.name} is in status {record.state.status}; only a job that is "
                "Completed, Failed or Stopped can be deleted",
            )
        self._jobs.settle(record.arn)  # a job of the same name may be created right after
        self._store.delete(record.arn)
        return {}

    def _job(self, params: Mapping[str, Any]) -> JobRecord:
        name = params["ProcessingJobName"]
        record = self._store.get(KIND, current().region, name)
        if record is None:
            raise validation_error(f"Could not find requested job with name: {name}")
        return record


def _common(record: JobRecord) -> dict[str, Any]:
    """What Describe and a list's summary both have."""
    state = record.state
    found: dict[str, Any] = {
        "ProcessingJobName": record.name,
        "ProcessingJobArn": record.arn,
        "ProcessingJobStatus": state.status,
        "CreationTime": state.created,
        "LastModifiedTime": state.modified,
    }
    if state.training_ended is not None:
        found["ProcessingEndTime"] = state.training_ended
    if state.failure_reason is not None:
        found["FailureReason"] = state.failure_reason
    return found


def _summary(record: JobRecord) -> dict[str, Any]:
    """A member of ProcessingJobSummaries."""
    message = {name: record.result[name] for name in ("ExitMessage",) if name in record.result}
    return {**_common(record), **message}
