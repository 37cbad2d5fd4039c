"""Lists of jobs, page after page, the same for all kinds of jobs."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from smlaunch.local.errors import validation_error
from smlaunch.local.store import JobQuery, JobRecord, JobStore, sort_key

_PAGE = 10
"""Jobs on a page when MaxResults does not say; the API's default."""


def page(
    params: Mapping[str, Any],
    store: JobStore,
    kind: str,
    region: str,
    wanted: Callable[[JobRecord], bool] = lambda record: True,
) -> tuple[list[JobRecord], dict[str, str]]:
    """The jobs of one page of ListTrainingJobs and its like, and the NextToken as the answer has it.

    ``wanted``: what is asked beyond the store's own conditions. Raises a ValidationException for a token that
    does not belong to this list.
    """
    sort_by = params.get("SortBy") or "CreationTime"
    limit = params.get("MaxResults") or _PAGE
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
    found: list[JobRecord] = []
    for record in filter(wanted, every(store, kind, region, query)):
        if len(found) == limit:
            return found, {"NextToken": _token(sort_by, sort_key(found[-1], sort_by))}
        found.append(record)
    return found, {}


def every(store: JobStore, kind: str, region: str, query: JobQuery) -> Iterator[JobRecord]:
    """Every job a query asks for, page after page."""
    while records := store.query(kind, region, query):
        yield from records
        if len(records) < query.limit:
            return
        query = replace(query, after=sort_key(records[-1], query.sort_by))


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


def offset(token: str | None) -> int:
    """Where the page begins of a list that is not the store's own."""
    if not token:
        return 0
    if not token.isdecimal():
        raise validation_error("Invalid pagination token.")
    return int(token)
