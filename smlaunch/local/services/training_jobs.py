"""SageMaker's operations on training jobs, and Search.

Parameters are validated before (json_service.py). Responses have the fields of the API model, with times in
seconds since the epoch. Messages that clients are known to parse have AWS's wording.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from smlaunch.api.job_kinds import TRAINING
from smlaunch.local import api_support, request_rejections
from smlaunch.local.endpoint_settings import Settings
from smlaunch.local.front.api_errors import ApiError, validation_error
from smlaunch.local.front.request_context import current_request_context
from smlaunch.local.jobs import warm_pool
from smlaunch.local.jobs.job_manager import JobManager
from smlaunch.local.json_types import JsonMapping, JsonObject
from smlaunch.local.services import job_listing_pages, search_expression, training_responses
from smlaunch.local.services.job_operations import JobOperations
from smlaunch.local.stores.job_store import JobQuery, JobRecord, JobStore

_RESULTS_PER_PAGE = 100
_MAX_CONDITIONS = 50


class TrainingJobOperations(JobOperations):
    job_kind = TRAINING
    missing_job_message = "Requested resource not found."
    missing_job_code_of_delete = "ResourceNotFound"

    def __init__(self, store: JobStore, jobs: JobManager, settings: Settings) -> None:
        super().__init__(store, jobs)
        self._settings = settings

    def create_job(self, params: JsonObject) -> JsonObject:
        rejections = request_rejections.training_rejections(params, self._job_manager.can_mount_anywhere)
        billable_share = (
            self._settings.spot_billable_share if params.get("EnableManagedSpotTraining") else 1.0
        )
        record = self._create_job(params, rejections, billable_share)
        warm_pool.take_matching_pool(self._job_store, record, record.state.created)
        return self._submit_job(record)

    def describe_job(self, params: JsonObject) -> JsonObject:
        return training_responses.describe_training_job_response(self._get_job_record(params), time.time())

    def update_job(self, params: JsonObject) -> JsonObject:
        """Respond to UpdateTrainingJob: change how long the warm pool (the instances kept for a next job)
        lives, and fields of the request that this endpoint records without effect. Raises ApiError."""
        record = self._get_job_record(params)
        new_fields: JsonObject = {
            name: params[name]
            for name in ("ProfilerConfig", "ProfilerRuleConfigurations", "RemoteDebugConfig")
            if name in params
        }
        if new_fields and record.state.has_ended:
            raise validation_error(
                f"{', '.join(new_fields)} cannot be updated when the training job is in status "
                f"{record.state.status}"
            )
        new_keep_alive_seconds = (params.get("ResourceConfig") or {}).get("KeepAlivePeriodInSeconds")
        self._job_store.update_job(
            record.arn, lambda stored: _change_training_job(stored, new_fields, new_keep_alive_seconds)
        )
        return {"TrainingJobArn": record.arn}

    def _check_deletable(self, record: JobRecord) -> None:
        warm_pool_status = warm_pool.pool_status_at(record, time.time())  # None without a warm pool
        if warm_pool_status is not None and warm_pool_status["Status"] == "Available":
            raise ApiError(
                "ResourceInUse",
                f"Training job {record.name} retains a warm pool that is Available; update its "
                "KeepAlivePeriodInSeconds to 0 first",
            )

    def _matches_list_filters(self, record: JobRecord, params: JsonMapping, now: float) -> bool:
        """Return whether a job matches those filters of ListTrainingJobs that other kinds of jobs do not
        have."""
        wanted_pool_status = params.get("WarmPoolStatusEquals")
        if wanted_pool_status:
            warm_pool_status = warm_pool.pool_status_at(record, now)
            if warm_pool_status is None or warm_pool_status["Status"] != wanted_pool_status:
                return False
        wanted_plan_arn = params.get("TrainingPlanArnEquals")
        return not wanted_plan_arn or training_responses.training_plan_arn(record.request) == wanted_plan_arn

    def _summarize(self, record: JobRecord, now: float) -> JsonObject:
        return training_responses.training_job_summary(record, now)

    def search(self, params: JsonObject) -> JsonObject:
        """Respond to Search: a page of the training jobs that match a SearchExpression, sorted by one
        property. Raises ApiError."""
        if params["Resource"] != "TrainingJob":
            raise validation_error(f"This endpoint can search for TrainingJob only, not {params['Resource']}")
        if params.get("VisibilityConditions"):
            # The table of what this endpoint supports has the reason for what it rejects.
            reason = api_support.OTHER_OPERATION_SUPPORT["Search.VisibilityConditions"].note
            raise validation_error(f"VisibilityConditions is not supported by this endpoint: {reason}")
        if params.get("CrossAccountFilterOption") == "CrossAccount":  # there are no other accounts here
            return {"Results": [], "TotalHits": {"Value": 0, "Relation": "EqualTo"}}
        expression = params.get("SearchExpression") or {}
        if _count_conditions(expression) > _MAX_CONDITIONS:
            raise validation_error(f"SearchExpression has more than {_MAX_CONDITIONS} conditions")
        sort_property = params.get("SortBy") or "LastModifiedTime"
        is_descending = params.get("SortOrder", "Descending") == "Descending"
        try:
            # A page needs all of them: the order is that of the whole result.
            documents = search_expression.sort_documents(
                self._find_matching_documents(expression), sort_property, is_descending
            )
        except search_expression.InvalidSearch as error:
            raise validation_error(str(error)) from None
        page_start = job_listing_pages.parse_offset(params.get("NextToken"))
        page_end = page_start + (params.get("MaxResults") or _RESULTS_PER_PAGE)
        response: JsonObject = {
            "Results": [{"TrainingJob": document} for document in documents[page_start:page_end]],
            "TotalHits": {"Value": len(documents), "Relation": "EqualTo"},
        }
        if page_end < len(documents):
            response["NextToken"] = str(page_end)
        return response

    def _find_matching_documents(self, expression: JsonObject) -> Iterator[search_expression.Document]:
        """Yield the training jobs that match a SearchExpression, in the form of Search's results."""
        self._job_manager.clean_up_if_dead(self._job_store.owners_of_unfinished_jobs())
        now = time.time()
        for record in job_listing_pages.iterate_job_records(
            self._job_store, TRAINING.arn_resource, current_request_context().region, JobQuery(limit=500)
        ):
            document = training_responses.search_result(record, now)
            if search_expression.document_matches(expression, document):
                yield document


def _change_training_job(
    record: JobRecord, new_fields: JsonObject, new_keep_alive_seconds: int | None
) -> JobRecord:
    """Return a training job's record with other fields of its request (objects are merged), and with another
    KeepAlivePeriodInSeconds of its warm pool; None leaves that. Raises ApiError if it has no warm pool."""
    job_request = dict(record.request)
    for name, value in new_fields.items():
        old_value = job_request.get(name)
        job_request[name] = {**old_value, **value} if isinstance(old_value, dict) else value
    record = replace(record, request=job_request)
    if new_keep_alive_seconds is None:
        return record
    # None if there is no warm pool any more at this time.
    changed_record = warm_pool.change_keep_alive(record, new_keep_alive_seconds, time.time())
    if changed_record is None:
        raise validation_error(
            "KeepAlivePeriodInSeconds cannot be updated: the training job has no warm pool that is "
            "in use or available"
        )
    return changed_record


def _count_conditions(expression: JsonObject) -> int:
    """Return the number of conditions of a SearchExpression: all of its filters, nested filters and
    subexpressions, and what these consist of."""
    filters = expression.get("Filters") or ()
    nested_filters = expression.get("NestedFilters") or ()
    subexpressions = expression.get("SubExpressions") or ()
    return (
        len(filters)
        + sum(1 + len(nested_filter.get("Filters") or ()) for nested_filter in nested_filters)
        + sum(1 + _count_conditions(subexpression) for subexpression in subexpressions)
    )
