"""SageMaker's operations on training jobs, and Search.

Parameters are validated before (json_service.py). Responses have the members of the API model, with times in
seconds since the epoch. Messages that clients are known to parse have AWS's wording.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from smlaunch.local import support
from smlaunch.local.api_errors import ApiError, validation_error
from smlaunch.local.job_store import JobQuery, JobRecord, JobStore
from smlaunch.local.jobs import warm_pool
from smlaunch.local.jobs.manager import JobManager
from smlaunch.local.jobs.training import KIND
from smlaunch.local.request_context import current_context
from smlaunch.local.services import job_pages, search_expression, training_responses
from smlaunch.local.services.job_creation import create_job
from smlaunch.local.settings import Settings

_RESULTS_PER_PAGE = 100
_MAX_CONDITIONS = 50
_NOT_FOUND = "Requested resource not found."


class TrainingJobOperations:
    """One method for each operation, for JsonService."""

    def __init__(self, store: JobStore, jobs: JobManager, settings: Settings) -> None:
        self._store = store
        self._jobs = jobs
        self._settings = settings

    def create_training_job(self, params: dict[str, Any]) -> dict[str, Any]:
        rejections = support.training_rejections(params, self._jobs.can_mount_anywhere)
        billable_share = (
            self._settings.spot_billable_share if params.get("EnableManagedSpotTraining") else 1.0
        )
        name = params["TrainingJobName"]
        record = create_job(self._store, self._jobs, KIND, name, params, rejections, billable_share)
        warm_pool.take_matching_pool(self._store, record, record.state.created)
        self._jobs.submit(record)
        return {"TrainingJobArn": record.arn}

    def describe_training_job(self, params: dict[str, Any]) -> dict[str, Any]:
        return training_responses.describe_job(self._job(params["TrainingJobName"]), time.time())

    def stop_training_job(self, params: dict[str, Any]) -> dict[str, Any]:
        record = self._job(params["TrainingJobName"])
        if record.state.has_ended:
            raise validation_error(
                f"The request was rejected because the training job is in status {record.state.status}."
            )
        self._jobs.stop(record)
        return {}

    def update_training_job(self, params: dict[str, Any]) -> dict[str, Any]:
        """Update the warm pool's KeepAlivePeriodInSeconds, and members that are only recorded."""
        record = self._job(params["TrainingJobName"])
        resources = params.get("ResourceConfig")
        recorded_members = {
            member: params[member]
            for member in ("ProfilerConfig", "ProfilerRuleConfigurations", "RemoteDebugConfig")
            if member in params
        }
        if recorded_members and record.state.has_ended:
            raise validation_error(
                f"{', '.join(recorded_members)} cannot be updated when the training job is in status "
                f"{record.state.status}"
            )

        def updated(record: JobRecord) -> JobRecord:
            """Return the job's record with the members of the request."""
            request = dict(record.request)
            for member, value in recorded_members.items():
                old = request.get(member)
                request[member] = {**old, **value} if isinstance(old, dict) else value
            record = replace(record, request=request)
            if resources is None:
                return record
            retained = warm_pool.change_keep_alive(record, resources["KeepAlivePeriodInSeconds"], time.time())
            if retained is None:
                raise validation_error(
                    "KeepAlivePeriodInSeconds cannot be updated: the training job has no warm pool that is "
                    "in use or available"
                )
            return retained

        self._store.change(record.arn, updated)
        return {"TrainingJobArn": record.arn}

    def delete_training_job(self, params: dict[str, Any]) -> dict[str, Any]:
        """Delete a job that has ended and has no warm pool. Raises ApiError otherwise."""
        name = params["TrainingJobName"]
        record = self._store.get(KIND, current_context().region, name)
        if record is None:
            raise ApiError("ResourceNotFound", _NOT_FOUND)
        pool = warm_pool.pool_status_at(record, time.time())
        if not record.state.has_ended:
            raise ApiError(
                "ResourceInUse",
                f"Training job {name} is in status {record.state.status}; only a job that is Completed, "
                "Failed or Stopped can be deleted",
            )
        if pool is not None and pool["Status"] == "Available":
            raise ApiError(
                "ResourceInUse",
                f"Training job {name} retains a warm pool that is Available; update its "
                "KeepAlivePeriodInSeconds to 0 first",
            )
        self._jobs.wait_for_cleanup(record.arn)  # a job of the same name may be created at once
        self._store.delete(record.arn)
        return {}

    def list_training_jobs(self, params: dict[str, Any]) -> dict[str, Any]:
        now = time.time()
        wanted_pool_status, wanted_plan_arn = (
            params.get("WarmPoolStatusEquals"),
            params.get("TrainingPlanArnEquals"),
        )

        def matches(record: JobRecord) -> bool:
            warm_pool_status = warm_pool.pool_status_at(record, now) if wanted_pool_status else None
            if wanted_pool_status and (
                warm_pool_status is None or warm_pool_status["Status"] != wanted_pool_status
            ):
                return False
            return (
                not wanted_plan_arn or training_responses.training_plan_arn(record.request) == wanted_plan_arn
            )

        records, token = job_pages.page_of_jobs(params, self._store, KIND, current_context().region, matches)
        return {
            "TrainingJobSummaries": [training_responses.job_list_entry(record, now) for record in records],
            **token,
        }

    def search(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return a page of the training jobs that match an expression (Search), sorted by one property."""
        if params["Resource"] != "TrainingJob":
            raise validation_error(f"This endpoint can search for TrainingJob only, not {params['Resource']}")
        if params.get("VisibilityConditions"):
            reason = support.OTHER_OPERATION_SUPPORT["Search.VisibilityConditions"].note
            raise validation_error(f"VisibilityConditions is not supported by this endpoint: {reason}")
        if params.get("CrossAccountFilterOption") == "CrossAccount":
            return {"Results": [], "TotalHits": {"Value": 0, "Relation": "EqualTo"}}
        expression = params.get("SearchExpression") or {}
        if _count_conditions(expression) > _MAX_CONDITIONS:
            raise validation_error(f"SearchExpression has more than {_MAX_CONDITIONS} conditions")
        now = time.time()
        order = params.get("SortBy") or "LastModifiedTime"
        descending = params.get("SortOrder", "Descending") == "Descending"
        records = job_pages.all_records(self._store, KIND, current_context().region, JobQuery(limit=500))
        documents = (training_responses.search_document(record, now) for record in records)
        try:
            documents_found = search_expression.sort_documents(
                (document for document in documents if search_expression.matches(expression, document)),
                order,
                descending,
            )
        except search_expression.InvalidSearch as error:
            raise validation_error(str(error)) from None
        start = job_pages.parse_offset(params.get("NextToken"))
        end = start + (params.get("MaxResults") or _RESULTS_PER_PAGE)
        response: dict[str, Any] = {
            "Results": [{"TrainingJob": document} for document in documents_found[start:end]],
            "TotalHits": {"Value": len(documents_found), "Relation": "EqualTo"},
        }
        if end < len(documents_found):
            response["NextToken"] = str(end)
        return response

    def _job(self, name: str) -> JobRecord:
        record = self._store.get(KIND, current_context().region, name)
        if record is None:
            raise validation_error(_NOT_FOUND)
        return record


def _count_conditions(expression: dict[str, Any]) -> int:
    nested = expression.get("NestedFilters") or ()
    return (
        len(expression.get("Filters") or ())
        + len(nested)
        + sum(len(entry.get("Filters") or ()) for entry in nested)
        + sum(1 + _count_conditions(entry) for entry in expression.get("SubExpressions") or ())
    )
