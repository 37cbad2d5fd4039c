"""Conditions of requests on an object: If-Match and the like."""

from __future__ import annotations

from collections.abc import Mapping

from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.front.http_messages import Request
from smlaunch.local.services.s3.responses import not_implemented_error, parse_http_date
from smlaunch.local.stores.object_store import ObjectInfo, WritePrecondition


def precondition_of_write(request: Request) -> WritePrecondition | None:
    """Return a function that checks a write's If-Match and If-None-Match headers against the object that the
    write would replace; None without such headers. The store calls it in the write's transaction, so that no
    other write comes in between."""
    if_match, if_none_match = request.headers.get("if-match"), request.headers.get("if-none-match")
    if if_none_match not in (None, "*"):
        raise not_implemented_error("If-None-Match with anything but * on a write")
    if if_match is None and if_none_match is None:
        return None

    def check_existing_object(existing_object: ObjectInfo | None) -> None:
        """Raise ApiError unless the object that a write would replace (None: there is none) meets the write's
        If-Match and If-None-Match headers."""
        if if_none_match and existing_object is not None:  # its only value is *: any object
            raise _precondition_failed_error("If-None-Match")
        if if_match and existing_object is None:
            raise ApiError("NoSuchKey", "The specified key does not exist.", 404)
        if if_match and existing_object is not None and not _etag_matches(if_match, existing_object.etag):
            raise _precondition_failed_error("If-Match")

    return check_existing_object


def precondition_of_delete(if_match: str | None) -> WritePrecondition | None:
    """Return a function that checks the ETag which a request to delete expects (``if_match``; None: any)
    against the object that would be deleted. The store calls it in the transaction of the deletion."""
    if if_match is None:
        return None

    def check_existing_object(existing_object: ObjectInfo | None) -> None:
        if existing_object is None or not _etag_matches(if_match, existing_object.etag):
            raise _precondition_failed_error("If-Match")

    return check_existing_object


def check_copy_conditions(request: Request, source_object: ObjectInfo) -> None:
    prefix = "x-amz-copy-source-"
    headers = {
        name[len(prefix) :]: value for name, value in request.headers.items() if name.startswith(prefix)
    }
    if not should_send_object(headers, source_object):
        raise _precondition_failed_error("x-amz-copy-source-If-None-Match or -Modified-Since")


def should_send_object(headers: Mapping[str, str], object_info: ObjectInfo) -> bool:
    """Return whether the conditional headers of a GET, HEAD or copy (If-Match, If-None-Match,
    If-Modified-Since, If-Unmodified-Since) ask for the object; False: the client's copy is up to date (304
    Not Modified). Raises ApiError for a failed If-Match or If-Unmodified-Since. ``headers``: names in lower
    case."""
    if_match, if_none_match = headers.get("if-match"), headers.get("if-none-match")
    modified_at = int(object_info.modified)  # HTTP dates have whole seconds
    if if_match is not None and not _etag_matches(if_match, object_info.etag):
        raise _precondition_failed_error("If-Match")
    # By RFC 9110, 13.2.2, a condition on the ETag takes the place of the one on the date.
    unmodified_since = parse_http_date(headers.get("if-unmodified-since", ""))
    if if_match is None and unmodified_since is not None and modified_at > unmodified_since:
        raise _precondition_failed_error("If-Unmodified-Since")
    if if_none_match is not None:
        return not _etag_matches(if_none_match, object_info.etag)
    modified_since = parse_http_date(headers.get("if-modified-since", ""))
    return modified_since is None or modified_at > modified_since


def _etag_matches(condition: str, etag: str) -> bool:
    return any(
        candidate.strip().removeprefix("W/").strip('"') in ("*", etag) for candidate in condition.split(",")
    )


def _precondition_failed_error(condition: str) -> ApiError:
    message = "At least one of the pre-conditions you specified did not hold"
    return ApiError("PreconditionFailed", message, 412, Condition=condition)
