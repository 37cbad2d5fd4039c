"""Detects responses with a good status that did not come from the service: empty, truncated, or a web page.

botocore parses them as a response without members: an empty list, a job without tags. Here they become an
error that botocore retries like a timeout, and in the end a CallError.
"""

from __future__ import annotations

import json
import re
from typing import Any

from smlaunch.aws.interfaces import UNREADABLE, CallError

_OPERATIONS_WITH_ETAG = frozenset(("GetObject", "HeadObject", "PutObject", "UploadPart"))
"""S3 operations whose responses always have an ETag."""

_HTML_BEGINNINGS = (b"<!doctype html", b"<html")
_XML_ROOT = re.compile(rb"\s*(?:<\?xml[^>]*\?>\s*)?<([A-Za-z][\w.-]*)(?:\s[^>]*)?(/?)>")

_RETRYABLE_CODE = "RequestTimeout"
"""Code of an error that botocore's retries take for a transient one, whatever the status."""

_MESSAGE_PREFIX = "smlaunch: "


def validate_responses(client: Any) -> Any:
    """Make a botocore client detect unreadable responses, and return the client."""
    client.meta.events.register("before-parse", _replace_unreadable)
    client.meta.events.register("after-call", _raise_unreadable)
    return client


def _replace_unreadable(operation_model: Any, response_dict: dict[str, Any], **_: object) -> None:
    """Replace a response that botocore could not parse by an error that it retries: a handler for botocore,
    which calls it before it parses a response."""
    status = response_dict["status_code"]
    problem = (
        _response_problem(operation_model, response_dict)
        if status < 300
        else _error_response_problem(operation_model, response_dict)
    )
    if problem is None:
        return
    message = _MESSAGE_PREFIX + problem
    protocol = operation_model.service_model.resolved_protocol
    if protocol in ("json", "rest-json"):
        body = json.dumps({"__type": _RETRYABLE_CODE, "message": message})
    elif protocol in ("rest-xml", "query"):
        error = f"<Error><Code>{_RETRYABLE_CODE}</Code><Message>{message}</Message></Error>"
        body = error if protocol == "rest-xml" else f"<ErrorResponse>{error}</ErrorResponse>"
    else:
        raise CallError(operation_model.name, UNREADABLE, problem)
    response_dict["status_code"] = 500
    response_dict["body"] = body.encode()


def _raise_unreadable(parsed: dict[str, Any], model: Any, **_: object) -> None:
    """Raise a CallError for a marked response. botocore itself still sees the good status."""
    message = str(parsed.get("Error", {}).get("Message", ""))
    if message.startswith(_MESSAGE_PREFIX):
        raise CallError(model.name, UNREADABLE, message.removeprefix(_MESSAGE_PREFIX))


def _response_problem(model: Any, response: dict[str, Any]) -> str | None:
    """Return why the response of a successful request cannot be right; None if it can."""
    if model.service_model.service_name == "s3" and model.name in _OPERATIONS_WITH_ETAG:
        return None if "ETag" in response["headers"] else "the answer has no ETag"
    if model.has_streaming_output:
        return None
    body: bytes = response["body"]
    if body[:64].lstrip().lower().startswith(_HTML_BEGINNINGS):
        return "the answer is a web page"
    if not _has_body(model):
        return None
    if not body.strip():
        return "the answer is empty"
    protocol = model.service_model.resolved_protocol
    if protocol in ("json", "rest-json"):
        return None if _is_json_object(body) else "the answer is no JSON object"
    if protocol in ("rest-xml", "query"):
        return None if _is_complete_xml(body) else "the answer is no XML, or cut off"
    return None


def _error_response_problem(model: Any, response: dict[str, Any]) -> str | None:
    """Return why an error response is unreadable; None for status 500 and above, which is retried anyway."""
    has_error_code = model.service_model.resolved_protocol not in ("json", "rest-json") or _is_json_object(
        response["body"]
    )
    return (
        None
        if has_error_code or response["status_code"] >= 500
        else f"the answer has status {response['status_code']} and no error in it"
    )


def _has_body(model: Any) -> bool:
    members = model.output_shape.members.values() if model.output_shape else ()
    return any("location" not in member.serialization for member in members)


def _is_json_object(body: bytes) -> bool:
    try:
        return isinstance(json.loads(body), dict)
    except ValueError:
        return False


def _is_complete_xml(body: bytes) -> bool:
    """Compare the first and the last tag. Parsing a list of a thousand keys twice would take too long."""
    root = _XML_ROOT.match(body)
    return root is not None and (bool(root[2]) or body.rstrip().endswith(b"</" + root[1] + b">"))
