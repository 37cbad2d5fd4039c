"""Pages of lists of jobs, the same for all kinds of jobs."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from smlaunch.local.front.api_errors import validation_error
from smlaunch.local.stores.job_store import JobQuery, JobRecord, JobStore, job_sort_key

_JOBS_PER_PAGE = 10
"""The API's default of MaxResults."""


def list_jobs_of_page(
    params: Mapping[str, Any],
    store: JobStore,
    kind: str,
    region: str,
    matches: Callable[[JobRecord], bool] = lambda record: True,
) -> tuple[list[JobRecord], dict[str, str]]:
    """Return the jobs of one page of ListTrainingJobs and the like, and {"NextToken": ...} if there are more.

    ``matches``: a further filter, beside the store's. Raises ApiError for a token of another list.
    """
    sort_by = params.get("SortBy") or "CreationTime"
    limit = params.get("MaxResults") or _JOBS_PER_PAGE
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
        after_key=_parse_page_token(params.get("NextToken"), sort_by),
    )
    records: list[JobRecord] = []
    for record in filter(matches, iterate_job_records(store, kind, region, query)):
        if len(records) == limit:
            return records, {"NextToken": _format_page_token(sort_by, job_sort_key(records[-1], sort_by))}
        records.append(record)
    return records, {}


def iterate_job_records(store: JobStore, kind: str, region: str, query: JobQuery) -> Iterator[JobRecord]:
    """Yield all jobs of a query, page by page."""
    while records := store.query_jobs(kind, region, query):
        yield from records
        if len(records) < query.limit:
            return
        query = replace(query, after_key=job_sort_key(records[-1], query.sort_by))


def _format_page_token(sort_by: str, after: tuple[str | float, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps([sort_by, *after]).encode()).decode()


def _parse_page_token(token: str | None, sort_by: str) -> tuple[str | float, str] | None:
    """Parse the NextToken of a list of jobs: the sort key after which the page begins, which is what the last
    job of the page before has in the field ``sort_by``, and its name. None for the first page. Raises
    ApiError for an invalid token, or one of a list in another order."""
    if not token:
        return None
    try:
        # A token is the JSON list [SortBy, its value in the last job, that job's name] in base64.
        token_sort_by, last_sort_value, last_name = json.loads(base64.urlsafe_b64decode(token))
    except ValueError:
        raise validation_error("Invalid pagination token.") from None
    if token_sort_by != sort_by:
        raise validation_error("Invalid pagination token: it belongs to a list in another order.")
    return last_sort_value, last_name


def parse_offset(token: str | None) -> int:
    """Parse the token of a list whose tokens are offsets. Raises ApiError."""
    if not token:
        return 0
    if not token.isdecimal():
        raise validation_error("Invalid pagination token.")
    return int(token)
