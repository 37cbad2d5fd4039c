"""Pages of lists of jobs, the same for all kinds of jobs."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from smlaunch.local.api_errors import validation_error
from smlaunch.local.job_store import JobQuery, JobRecord, JobStore, sort_key

_JOBS_PER_PAGE = 10
"""The API's default of MaxResults."""


def page_of_jobs(
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
        after_key=_read_token(params.get("NextToken"), sort_by),
    )
    records: list[JobRecord] = []
    for record in filter(matches, all_records(store, kind, region, query)):
        if len(records) == limit:
            return records, {"NextToken": _token(sort_by, sort_key(records[-1], sort_by))}
        records.append(record)
    return records, {}


def all_records(store: JobStore, kind: str, region: str, query: JobQuery) -> Iterator[JobRecord]:
    """Yield all jobs of a query, page by page."""
    while records := store.query(kind, region, query):
        yield from records
        if len(records) < query.limit:
            return
        query = replace(query, after_key=sort_key(records[-1], query.sort_by))


def _token(sort_by: str, after: tuple[str | float, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps([sort_by, *after]).encode()).decode()


def _read_token(token: str | None, sort_by: str) -> tuple[str | float, str] | None:
    """Parse a token. Raises ApiError if it belongs to a list in another order."""
    if not token:
        return None
    try:
        order, value, name = json.loads(base64.urlsafe_b64decode(token))
    except ValueError:
        raise validation_error("Invalid pagination token.") from None
    if order != sort_by:
        raise validation_error("Invalid pagination token: it belongs to a list in another order.")
    return value, name


def parse_offset(token: str | None) -> int:
    """Parse the token of a list whose tokens are offsets. Raises ApiError."""
    if not token:
        return 0
    if not token.isdecimal():
        raise validation_error("Invalid pagination token.")
    return int(token)
