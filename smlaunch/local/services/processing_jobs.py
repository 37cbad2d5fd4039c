"""SageMaker's operations on processing jobs; see training_jobs.py for the conventions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smlaunch.local import support
from smlaunch.local.api_errors import ApiError, validation_error
from smlaunch.local.job_store import JobRecord, JobStore
from smlaunch.local.jobs.manager import JobManager
from smlaunch.local.jobs.processing import KIND
from smlaunch.local.jobs.spec import DEFAULT_MAX_RUNTIME
from smlaunch.local.request_context import current_context
from smlaunch.local.services import job_pages
from smlaunch.local.services.job_creation import create_job

DESCRIBED_MEMBERS = (
    *("ProcessingInputs", "ProcessingOutputConfig", "ProcessingResources", "StoppingCondition"),
    *("AppSpecification", "Environment", "NetworkConfig", "RoleArn", "ExperimentConfig"),
)
"""Members of the request that DescribeProcessingJob returns."""


class ProcessingJobOperations:
    """One method for each operation, for JsonService."""

    def __init__(self, store: JobStore, jobs: JobManager) -> None:
        self._store = store
        self._jobs = jobs

    def create_processing_job(self, params: dict[str, Any]) -> dict[str, Any]:
        rejections = support.processing_rejections(params, self._jobs.runs_images)
        record = create_job(self._store, self._jobs, KIND, params["ProcessingJobName"], params, rejections)
        self._jobs.submit(record)
        return {"ProcessingJobArn": record.arn}

    def describe_processing_job(self, params: dict[str, Any]) -> dict[str, Any]:
        record = self._job(params)
        request_members = {
            member: record.request[member] for member in DESCRIBED_MEMBERS if member in record.request
        }
        response = {**_common_members(record), **request_members, **record.result}
        response["StoppingCondition"] = {
            "MaxRuntimeInSeconds": DEFAULT_MAX_RUNTIME,
            **(record.request.get("StoppingCondition") or {}),
        }
        if record.state.training_started is not None:
            response["ProcessingStartTime"] = record.state.training_started
        return response

    def list_processing_jobs(self, params: dict[str, Any]) -> dict[str, Any]:
        records, token = job_pages.page_of_jobs(params, self._store, KIND, current_context().region)
        return {"ProcessingJobSummaries": [_summary(record) for record in records], **token}

    def stop_processing_job(self, params: dict[str, Any]) -> dict[str, Any]:
        record = self._job(params)
        if record.state.has_ended:
            raise validation_error(
                f"The request was rejected because the processing job is in status {record.state.status}."
            )
        self._jobs.stop(record)
        return {}

    def delete_processing_job(self, params: dict[str, Any]) -> dict[str, Any]:
        record = self._job(params)
        if not record.state.has_ended:
            raise ApiError(
                "ResourceInUse",
                f"Processing job {record.name} is in status {record.state.status}; only a job that is "
                "Completed, Failed or Stopped can be deleted",
            )
        self._jobs.wait_for_cleanup(record.arn)  # a job of the same name may be created at once
        self._store.delete(record.arn)
        return {}

    def _job(self, params: Mapping[str, Any]) -> JobRecord:
        name = params["ProcessingJobName"]
        record = self._store.get(KIND, current_context().region, name)
        if record is None:
            raise validation_error(f"Could not find requested job with name: {name}")
        return record


def _common_members(record: JobRecord) -> dict[str, Any]:
    """Return the members that Describe and an entry of a list have in common."""
    state = record.state
    members: dict[str, Any] = {
        "ProcessingJobName": record.name,
        "ProcessingJobArn": record.arn,
        "ProcessingJobStatus": state.status,
        "CreationTime": state.created,
        "LastModifiedTime": state.modified,
    }
    if state.training_ended is not None:
        members["ProcessingEndTime"] = state.training_ended
    if state.failure_reason is not None:
        members["FailureReason"] = state.failure_reason
    return members


def _summary(record: JobRecord) -> dict[str, Any]:
    """Return an entry of ProcessingJobSummaries."""
    message = {name: record.result[name] for name in ("ExitMessage",) if name in record.result}
    return {**_common_members(record), **message}
