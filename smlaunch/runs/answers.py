"""What comes back with a good status and is no answer of the service: nothing at all, half of it, a web page.

botocore reads such things as an answer without members: a list of nothing, a job without tags. Here they
become what botocore tries again like an answer that took too long, and in the end a CallError.
"""

from __future__ import annotations

import json
import re
from typing import Any

from smlaunch.ports import UNREADABLE, CallError

_WITH_ETAG = frozenset(("GetObject", "HeadObject", "PutObject", "UploadPart"))
"""Answers of S3 that have an ETag, whatever else is in them."""

_PAGES = (b"<!doctype html", b"<html")
_ROOT = re.compile(rb"\s*(?:<\?xml[^>]*\?>\s*)?<([A-Za-z][\w.-]*)(?:\s[^>]*)?(/?)>")

_AGAIN = "RequestTimeout"
"""The code of an error that botocore's retries take for one that passes, whatever the status."""

_MARK = "smlaunch: "


def checked(client: Any) -> Any:
    """The botocore client, which takes nothing for an answer that is none."""
    client.meta.events.register("before-parse", _check)
    client.meta.events.register("after-call", _raise)
    return client


def _check(operation_model: Any, response_dict: dict[str, Any], **_: object) -> None:
    status = response_dict["status_code"]
    why = (
        _fault(operation_model, response_dict)
        if status < 300
        else _fault_of_error(operation_model, response_dict)
    )
    if why is None:
        return
    message = _MARK + why
    protocol = operation_model.service_model.resolved_protocol
    if protocol in ("json", "rest-json"):
        body = json.dumps({"__type": _AGAIN, "message": message})
    elif protocol in ("rest-xml", "query"):
        error = f"<Error><Code>{_AGAIN}</Code><Message>{message}</Message></Error>"
        body = error if protocol == "rest-xml" else f"<ErrorResponse>{error}</ErrorResponse>"
    else:
        raise CallError(operation_model.name, UNREADABLE, why)
    response_dict["status_code"] = 500
    response_dict["body"] = body.encode()


def _raise(parsed: dict[str, Any], model: Any, **_: object) -> None:
    """To botocore itself the status is a good one still."""
    message = str(parsed.get("Error", {}).get("Message", ""))
    if message.startswith(_MARK):
        raise CallError(model.name, UNREADABLE, message.removeprefix(_MARK))


def _fault(model: Any, response: dict[str, Any]) -> str | None:
    if model.service_model.service_name == "s3" and model.name in _WITH_ETAG:
        return None if "ETag" in response["headers"] else "the answer has no ETag"
    if model.has_streaming_output:
        return None
    body: bytes = response["body"]
    if body[:64].lstrip().lower().startswith(_PAGES):
        return "the answer is a web page"
    if not _has_body(model):
        return None
    if not body.strip():
        return "the answer is empty"
    protocol = model.service_model.resolved_protocol
    if protocol in ("json", "rest-json"):
        return None if _is_object(body) else "the answer is no JSON object"
    if protocol in ("rest-xml", "query"):
        return None if _is_whole(body) else "the answer is no XML, or cut off"
    return None


def _fault_of_error(model: Any, response: dict[str, Any]) -> str | None:
    """From 500 on the status says enough: it is tried again. Of others the code has to be known."""
    told = model.service_model.resolved_protocol not in ("json", "rest-json") or _is_object(response["body"])
    return (
        None
        if told or response["status_code"] >= 500
        else f"the answer has status {response['status_code']} and no error in it"
    )


def _has_body(model: Any) -> bool:
    members = model.output_shape.members.values() if model.output_shape else ()
    return any("location" not in member.serialization for member in members)


def _is_object(body: bytes) -> bool:
    try:
        return isinstance(json.loads(body), dict)
    except ValueError:
        return False


def _is_whole(body: bytes) -> bool:
    """By its first and its last tag: to parse a list of a thousand keys twice would take too long."""
    root = _ROOT.match(body)
    return root is not None and (bool(root[2]) or body.rstrip().endswith(b"</" + root[1] + b">"))
