"""The operations that all kinds of jobs have."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

from smlaunch.api.job_kinds import JobKind
from smlaunch.local.front.api_errors import ApiError, validation_error
from smlaunch.local.front.request_context import current_request_context
from smlaunch.local.jobs import job_state
from smlaunch.local.jobs.job_manager import JobManager
from smlaunch.local.jobs.job_spec import DEFAULT_MAX_RUNTIME
from smlaunch.local.json_types import JsonMapping, JsonObject
from smlaunch.local.services import job_listing_pages
from smlaunch.local.stores.job_store import JobNameTaken, JobRecord, JobStore


class JobOperations:
    """One method for each operation, for JsonService: ``stop_job`` is StopTrainingJob for training jobs."""

    job_kind: ClassVar[JobKind]
    missing_job_message: ClassVar[str]
    """With ``{name}``."""

    missing_job_code_of_delete: ClassVar[str] = "ValidationException"

    def __init__(self, store: JobStore, jobs: JobManager) -> None:
        self._job_store = store
        self._job_manager = jobs

    def describe_job(self, params: JsonObject) -> JsonObject:
        raise NotImplementedError

    def stop_job(self, params: JsonObject) -> JsonObject:
        record = self._get_job_record(params)
        if record.state.has_ended:
            raise validation_error(
                f"The request was rejected because the {self.job_kind.noun} is in status "
                f"{record.state.status}."
            )
        self._job_manager.stop(record)
        return {}

    def delete_job(self, params: JsonObject) -> JsonObject:
        """Delete a job that has ended. Raises ApiError for any other."""
        record = self._get_job_record(params, self.missing_job_code_of_delete)
        if not record.state.has_ended:
            raise ApiError(
                "ResourceInUse",
                f"{self.job_kind.noun.capitalize()} {record.name} is in status {record.state.status}; only a "
                "job that is Completed, Failed or Stopped can be deleted",
            )
        self._check_deletable(record)
        # Wait until the job's files are removed: a job of the same name may be created at once.
        self._job_manager.wait_for_cleanup(record.arn)
        self._job_store.delete_job(record.arn)
        return {}

    def list_jobs(self, params: JsonObject) -> JsonObject:
        self._job_manager.clean_up_if_dead(self._job_store.owners_of_unfinished_jobs())
        now = time.time()
        records, token = job_listing_pages.list_jobs_of_page(
            params,
            self._job_store,
            self.job_kind.arn_resource,
            current_request_context().region,
            lambda record: self._matches_list_filters(record, params, now),
        )
        return {self.job_kind.summaries_field: [self._summarize(job, now) for job in records], **token}

    def _check_deletable(self, record: JobRecord) -> None:
        """Raise ApiError if something of a job that has ended is still in use."""

    def _matches_list_filters(self, record: JobRecord, params: JsonMapping, now: float) -> bool:
        """Return whether a job matches the filters of List that only jobs of this kind have."""
        return True

    def _summarize(self, record: JobRecord, now: float) -> JsonObject:
        """Return the job's entry in the response of List, at a time in seconds since the epoch."""
        return summarize_job_of_any_kind(self.job_kind, record)

    def _create_job(
        self, params: JsonMapping, rejections: Sequence[tuple[str, str]], billable_share: float = 1.0
    ) -> JobRecord:
        """Store a new job and return it. Raises ApiError if there are ``rejections``, as (field, reason), and
        if the name is in use."""
        if rejections:
            lines = "; ".join(f"{field}: {reason}" for field, reason in rejections)
            raise validation_error(f"This endpoint cannot run the job as it is. {lines}")
        caller, kind = current_request_context(), self.job_kind
        name = params[kind.name_field]
        record = JobRecord(
            kind=kind.arn_resource,
            region=caller.region,
            name=name,
            arn=caller.resource_arn("sagemaker", f"{kind.arn_resource}/{name.lower()}"),
            endpoint_id=self._job_manager.registration.id,
            request={key: value for key, value in params.items() if key != "Tags"},
            state=job_state.initial_state(time.time(), billable_share),
            tags={tag["Key"]: tag["Value"] for tag in params.get("Tags") or []},
        )
        try:
            self._job_store.insert_job(record)
        except JobNameTaken:
            raise ApiError(
                "ResourceInUse",
                f"Job name must be unique within an AWS account and region, and a job with this name already "
                f"exists ({record.arn})",
            ) from None
        return record

    def _submit_job(self, record: JobRecord) -> JsonObject:
        """Start a new job and return the response of Create."""
        self._job_manager.submit(record)
        return {self.job_kind.arn_field: record.arn}

    def _get_job_record(
        self, params: JsonMapping, missing_job_code: str = "ValidationException"
    ) -> JobRecord:
        """Return the job that a request names. A job of an endpoint that has died fails first. Raises
        ApiError with the code ``missing_job_code`` if the job does not exist."""
        kind, name = self.job_kind, params[self.job_kind.name_field]
        record = self._job_store.get_job(kind.arn_resource, current_request_context().region, name)
        if record is None:
            raise ApiError(missing_job_code, self.missing_job_message.format(name=name))
        has_changed = not record.state.has_ended and self._job_manager.clean_up_if_dead([record.endpoint_id])
        if has_changed:
            return self._job_store.get_job_by_arn(record.arn) or record
        return record


def summarize_job_of_any_kind(kind: JobKind, record: JobRecord) -> JsonObject:
    """Return the fields that Describe's response and an entry of a list have in common."""
    state = record.state
    summary: JsonObject = {
        kind.name_field: record.name,
        kind.arn_field: record.arn,
        kind.status_field: state.status,
        "CreationTime": state.created,
        "LastModifiedTime": state.modified,
    }
    if state.training_ended is not None:
        summary[kind.end_time_field] = state.training_ended
    return summary


def describe_job_of_any_kind(
    kind: JobKind, record: JobRecord, repeated_request_fields: Sequence[str]
) -> JsonObject:
    """Return the fields of Describe's response that jobs of all kinds have: the summary, some fields of the
    request, what the job's end has added (``record.result``) and its state."""
    state, request = record.state, record.request
    response = {
        **summarize_job_of_any_kind(kind, record),
        **{name: request[name] for name in repeated_request_fields if name in request},
        **record.result,
    }
    response["StoppingCondition"] = {
        "MaxRuntimeInSeconds": DEFAULT_MAX_RUNTIME,
        **(request.get("StoppingCondition") or {}),
    }
    if state.training_started is not None:  # None for a job that ended before it had hosts
        response[kind.start_time_field] = state.training_started
    if state.failure_reason is not None:
        response["FailureReason"] = state.failure_reason
    return response
