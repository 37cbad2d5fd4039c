"""The SageMaker operations that run something: training jobs, their tags, and the search for them.

Parameters have passed ``smlaunch.validate`` before they come here. Answers hold what the API model has, with
times as seconds since the epoch. AWS's own words are used where clients are known to read them.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from smlaunch.local import honesty
from smlaunch.local.caller import current
from smlaunch.local.errors import ApiError, validation_error
from smlaunch.local.jobs import states, warm_pool
from smlaunch.local.jobs.manager import JobManager
from smlaunch.local.services import search, training_answers
from smlaunch.local.settings import Settings
from smlaunch.local.store import JobQuery, JobRecord, JobStore, NameTaken, sort_key

_KIND = "training-job"
_TAG_LIMIT = 50
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
        if refused:
            lines = "; ".join(f"{field}: {reason}" for field, reason in refused)
            raise validation_error(f"This endpoint cannot run the job as it is written. {lines}")
        caller = current()
        name = params["TrainingJobName"]
        now = time.time()
        share = self._settings.spot_billable_share if params.get("EnableManagedSpotTraining") else 1.0
        record = JobRecord(
            kind=_KIND,
            region=caller.region,
            name=name,
            arn=caller.resource_arn("sagemaker", f"{_KIND}/{name.lower()}"),
            owner=self._jobs.owner.id,
            request={key: value for key, value in params.items() if key != "Tags"},
            state=states.begin(now, share),
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
        warm_pool.take(self._store, record, now)
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
        record = self._store.get(_KIND, current().region, name)
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
        now = time.time()
        pool, plan = params.get("WarmPoolStatusEquals"), params.get("TrainingPlanArnEquals")
        found: list[JobRecord] = []
        for record in self._all(query):
            status = warm_pool.status(record, now) if pool else None
            if pool and (status is None or status["Status"] != pool):
                continue
            if plan and training_answers.training_plan(record.request) != plan:
                continue
            found.append(record)
            if len(found) > limit:
                break
        summaries = [training_answers.summary(record, now) for record in found[:limit]]
        answer: dict[str, Any] = {"TrainingJobSummaries": summaries}
        if len(found) > limit:
            answer["NextToken"] = _token(sort_by, sort_key(found[limit - 1], sort_by))
        return answer

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
        documents = (training_answers.searched(record, now) for record in self._all(JobQuery(limit=500)))
        try:
            found = search.in_order(
                (one for one in documents if search.matches(expression, one)), order, descending
            )
        except search.BadSearch as error:
            raise validation_error(str(error)) from None
        start = _read_offset(params.get("NextToken"))
        end = start + (params.get("MaxResults") or _SEARCH_PAGE)
        answer: dict[str, Any] = {
            "Results": [{"TrainingJob": document} for document in found[start:end]],
            "TotalHits": {"Value": len(found), "Relation": "EqualTo"},
        }
        if end < len(found):
            answer["NextToken"] = str(end)
        return answer

    def add_tags(self, params: dict[str, Any]) -> dict[str, Any]:
        record = self._resource(params["ResourceArn"])
        added = {tag["Key"]: tag["Value"] for tag in params["Tags"]}
        if len({**record.tags, **added}) > _TAG_LIMIT:
            raise validation_error(f"A resource can have {_TAG_LIMIT} tags at most")
        record = self._store.add_tags(record.arn, added) or record
        return {"Tags": training_answers.tags(record)}

    def delete_tags(self, params: dict[str, Any]) -> dict[str, Any]:
        record = self._resource(params["ResourceArn"])
        gone = set(params["TagKeys"])

        def without(record: JobRecord) -> JobRecord:
            return replace(record, tags={key: value for key, value in record.tags.items() if key not in gone})

        self._store.change(record.arn, without)
        return {}

    def list_tags(self, params: dict[str, Any]) -> dict[str, Any]:
        tags = training_answers.tags(self._resource(params["ResourceArn"]))
        start = _read_offset(params.get("NextToken"))
        end = start + (params.get("MaxResults") or _TAG_LIMIT)
        answer: dict[str, Any] = {"Tags": tags[start:end]}
        if end < len(tags):
            answer["NextToken"] = str(end)
        return answer

    def _all(self, query: JobQuery) -> Iterator[JobRecord]:
        """Every job a query asks for, page after page."""
        while page := self._store.query(_KIND, current().region, query):
            yield from page
            if len(page) < query.limit:
                return
            query = replace(query, after=sort_key(page[-1], query.sort_by))

    def _job(self, name: str) -> JobRecord:
        record = self._store.get(_KIND, current().region, name)
        if record is None:
            raise validation_error(_NOT_FOUND)
        return record

    def _resource(self, arn: str) -> JobRecord:
        record = self._store.by_arn(arn)
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
