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
    client.meta.events.register("before-parse", _replace_unreadable_response)
    client.meta.events.register("after-call", _raise_on_unreadable_response)
    return client


def _replace_unreadable_response(operation_model: Any, response_dict: dict[str, Any], **_: object) -> None:
    """Replace a response that did not come from the service (but from a proxy) by an error that botocore
    retries: a handler for botocore, which calls it before it parses a response. ``operation_model`` is
    botocore's; ``response_dict``, which is changed, has status_code, headers and body."""
    http_status = response_dict["status_code"]
    if http_status < 300:
        problem = _find_problem_of_success_response(operation_model, response_dict)
    else:
        problem = _find_problem_of_error_response(operation_model, response_dict)
    if problem is None:
        return
    # By the prefix, _raise_on_unreadable_response recognizes it when botocore's retries are used up.
    body = _retryable_error_body(operation_model.service_model.resolved_protocol, _MESSAGE_PREFIX + problem)
    if body is None:
        raise CallError(operation_model.name, UNREADABLE, problem)  # without retries
    # botocore now parses this response as an error of the service.
    response_dict["status_code"] = 500
    response_dict["body"] = body.encode()


def _retryable_error_body(protocol: str, message: str) -> str | None:
    """Return the body of an error response that botocore retries, in the form of the service's protocol; None
    for a protocol whose errors are not known here."""
    if protocol in ("json", "rest-json"):
        return json.dumps({"__type": _RETRYABLE_CODE, "message": message})
    error_element = f"<Error><Code>{_RETRYABLE_CODE}</Code><Message>{message}</Message></Error>"
    if protocol == "rest-xml":
        return error_element
    return f"<ErrorResponse>{error_element}</ErrorResponse>" if protocol == "query" else None


def _raise_on_unreadable_response(parsed: dict[str, Any], model: Any, **_: object) -> None:
    """Raise a CallError for a marked response. botocore itself still sees the good status."""
    message = str(parsed.get("Error", {}).get("Message", ""))
    if message.startswith(_MESSAGE_PREFIX):
        raise CallError(model.name, UNREADABLE, message.removeprefix(_MESSAGE_PREFIX))


def _find_problem_of_success_response(operation_model: Any, response: dict[str, Any]) -> str | None:
    """Return why a response with a status below 300 cannot be the service's: it is empty, truncated or a web
    page; None if it can. ``operation_model`` is botocore's."""
    # S3's responses to these operations always have an ETag, whatever their bodies are.
    if operation_model.service_model.service_name == "s3" and operation_model.name in _OPERATIONS_WITH_ETAG:
        return None if "ETag" in response["headers"] else "the answer has no ETag"
    if operation_model.has_streaming_output:
        return None  # the body is still to be read, and may be anything
    body: bytes = response["body"]
    if body[:64].lstrip().lower().startswith(_HTML_BEGINNINGS):
        return "the answer is a web page"
    if not _expects_body(operation_model):  # a response without members, or with all of them in headers
        return None
    if not body.strip():
        return "the answer is empty"
    protocol = operation_model.service_model.resolved_protocol
    if protocol in ("json", "rest-json"):
        return None if _is_json_object(body) else "the answer is no JSON object"
    if protocol in ("rest-xml", "query"):
        return None if _is_complete_xml(body) else "the answer is no XML, or cut off"
    return None


def _find_problem_of_error_response(operation_model: Any, response: dict[str, Any]) -> str | None:
    """Return why a response with a status from 300 on cannot be the service's error; None if it can, and from
    500 on, as it is retried anyway. ``operation_model`` is botocore's."""
    http_status = response["status_code"]
    expects_json = operation_model.service_model.resolved_protocol in ("json", "rest-json")
    # XML is not checked: S3's errors may have no body.
    if http_status >= 500 or not expects_json or _is_json_object(response["body"]):
        return None
    return f"the answer has status {http_status} and no error in it"


def _expects_body(operation_model: Any) -> bool:
    """Return whether the operation's responses have members in their bodies, and not all in headers."""
    output_shape = operation_model.output_shape
    members = output_shape.members.values() if output_shape else ()
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
