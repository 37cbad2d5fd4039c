"""The SageMaker operations on training jobs, and the search for them.

Parameters have passed ``smlaunch.validate`` before they come here. Answers hold what the API model has, with
times as seconds since the epoch. AWS's own words are used where clients are known to read them.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from smlaunch.local import honesty
from smlaunch.local.caller import current
from smlaunch.local.errors import ApiError, validation_error
from smlaunch.local.jobs import warm_pool
from smlaunch.local.jobs.manager import JobManager
from smlaunch.local.jobs.training import KIND
from smlaunch.local.services import job_lists, search, training_answers
from smlaunch.local.services.creation import create
from smlaunch.local.settings import Settings
from smlaunch.local.store import JobQuery, JobRecord, JobStore

_SEARCH_PAGE = 100
_EXPRESSION_LIMIT = 50
_NOT_FOUND = "Requested resource not found."


class SageMakerService:
    """One method per operation, named in snake case, as the dispatcher calls them."""

    def __init__(self, store: JobStore, jobs: JobManager, settings: Settings) -> None:
        self._store = store
        self._jobs = jobs
        self._settings = settings

    def create_training_job(self, params: dict[str, Any]) -> dict[str, Any]:
        refused = honesty.refusals(params, self._jobs.shows_anywhere)
        share = self._settings.spot_billable_share if params.get("EnableManagedSpotTraining") else 1.0
        name = params["TrainingJobName"]
        record = create(self._store, self._jobs, KIND, name, params, refused, share)
        warm_pool.take(self._store, record, record.state.created)
        self._jobs.submit(record)
        return {"TrainingJobArn": record.arn}

    def describe_training_job(self, params: dict[str, Any]) -> dict[str, Any]:
        return training_answers.describe(self._job(params["TrainingJobName"]), time.time())

    def stop_training_job(self, params: dict[str, Any]) -> dict[str, Any]:
        record = self._job(params["TrainingJobName"])
        if record.state.ended:
            raise validation_error(
                f"The request was rejected because the training job is in status {record.state.status}."
            )
        self._jobs.stop(record)
        return {}

    def update_training_job(self, params: dict[str, Any]) -> dict[str, Any]:
        """The warm pool's retention, and what Debugger, Profiler and remote debugging are recorded as."""
        record = self._job(params["TrainingJobName"])
        resources = params.get("ResourceConfig")
        recorded = {
            member: params[member]
            for member in ("ProfilerConfig", "ProfilerRuleConfigurations", "RemoteDebugConfig")
            if member in params
        }
        if recorded and record.state.ended:
            raise validation_error(
                f"{', '.join(recorded)} cannot be updated when the training job is in status "
                f"{record.state.status}"
            )

        def changed(record: JobRecord) -> JobRecord:
            request = dict(record.request)
            for member, value in recorded.items():
                old = request.get(member)
                request[member] = {**old, **value} if isinstance(old, dict) else value
            record = replace(record, request=request)
            if resources is None:
                return record
            kept = warm_pool.retain(record, resources["KeepAlivePeriodInSeconds"], time.time())
            if kept is None:
                raise validation_error(
                    "KeepAlivePeriodInSeconds cannot be updated: the training job has no warm pool that is "
                    "in use or available"
                )
            return kept

        self._store.change(record.arn, changed)
        return {"TrainingJobArn": record.arn}

    def delete_training_job(self, params: dict[str, Any]) -> dict[str, Any]:
        name = params["TrainingJobName"]
        record = self._store.get(KIND, current().region, name)
        if record is None:
            raise ApiError("ResourceNotFound", _NOT_FOUND)
        pool = warm_pool.status(record, time.time())
        if not record.state.ended:
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
        self._jobs.settle(record.arn)  # a job of the same name may be created right after
        self._store.delete(record.arn)
        return {}

    def list_training_jobs(self, params: dict[str, Any]) -> dict[str, Any]:
        now = time.time()
        pool, plan = params.get("WarmPoolStatusEquals"), params.get("TrainingPlanArnEquals")

        def wanted(record: JobRecord) -> bool:
            status = warm_pool.status(record, now) if pool else None
            if pool and (status is None or status["Status"] != pool):
                return False
            return not plan or training_answers.training_plan(record.request) == plan

        found, token = job_lists.page(params, self._store, KIND, current().region, wanted)
        return {"TrainingJobSummaries": [training_answers.summary(record, now) for record in found], **token}

    def search(self, params: dict[str, Any]) -> dict[str, Any]:
        if params["Resource"] != "TrainingJob":
            raise validation_error(f"This endpoint can search for TrainingJob only, not {params['Resource']}")
        if params.get("VisibilityConditions"):
            reason = honesty.OTHER_OPERATIONS["Search.VisibilityConditions"].sentence
            raise validation_error(f"VisibilityConditions cannot be given to this endpoint: {reason}")
        if params.get("CrossAccountFilterOption") == "CrossAccount":
            return {"Results": [], "TotalHits": {"Value": 0, "Relation": "EqualTo"}}
        expression = params.get("SearchExpression") or {}
        if _size(expression) > _EXPRESSION_LIMIT:
            raise validation_error(f"SearchExpression has more than {_EXPRESSION_LIMIT} conditions")
        now = time.time()
        order = params.get("SortBy") or "LastModifiedTime"
        descending = params.get("SortOrder", "Descending") == "Descending"
        records = job_lists.every(self._store, KIND, current().region, JobQuery(limit=500))
        documents = (training_answers.searched(record, now) for record in records)
        try:
            found = search.in_order(
                (one for one in documents if search.matches(expression, one)), order, descending
            )
        except search.BadSearch as error:
            raise validation_error(str(error)) from None
        start = job_lists.offset(params.get("NextToken"))
        end = start + (params.get("MaxResults") or _SEARCH_PAGE)
        answer: dict[str, Any] = {
            "Results": [{"TrainingJob": document} for document in found[start:end]],
            "TotalHits": {"Value": len(found), "Relation": "EqualTo"},
        }
        if end < len(found):
            answer["NextToken"] = str(end)
        return answer

    def _job(self, name: str) -> JobRecord:
        record = self._store.get(KIND, current().region, name)
        if record is None:
            raise validation_error(_NOT_FOUND)
        return record


def _size(expression: dict[str, Any]) -> int:
    nested = expression.get("NestedFilters") or ()
    return (
        len(expression.get("Filters") or ())
        + len(nested)
        + sum(len(entry.get("Filters") or ()) for entry in nested)
        + sum(1 + _size(entry) for entry in expression.get("SubExpressions") or ())
    )
