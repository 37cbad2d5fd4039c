"""SageMaker's operations on processing jobs; see training_jobs.py for the conventions."""

from __future__ import annotations

from smlaunch.api.job_kinds import PROCESSING
from smlaunch.local import request_rejections
from smlaunch.local.json_types import JsonObject
from smlaunch.local.services.job_operations import (
    JobOperations,
    describe_job_of_any_kind,
    summarize_job_of_any_kind,
)
from smlaunch.local.stores.job_store import JobRecord

DESCRIBED_MEMBERS = (
    *("ProcessingInputs", "ProcessingOutputConfig", "ProcessingResources", "StoppingCondition"),
    *("AppSpecification", "Environment", "NetworkConfig", "RoleArn", "ExperimentConfig"),
)
"""Members of the request that DescribeProcessingJob returns."""


class ProcessingJobOperations(JobOperations):
    job_kind = PROCESSING
    missing_job_message = "Could not find requested job with name: {name}"

    def create_job(self, params: JsonObject) -> JsonObject:
        rejections = request_rejections.processing_rejections(params, self._job_manager.runs_images)
        return self._submit_job(self._create_job(params, rejections))

    def describe_job(self, params: JsonObject) -> JsonObject:
        return describe_job_of_any_kind(PROCESSING, self._get_job_record(params), DESCRIBED_MEMBERS)

    def _summarize(self, record: JobRecord, now: float) -> JsonObject:
        optional_fields = {
            "FailureReason": record.state.failure_reason,
            "ExitMessage": record.result.get("ExitMessage"),
        }
        return summarize_job_of_any_kind(PROCESSING, record) | {
            name: value for name, value in optional_fields.items() if value is not None
        }
