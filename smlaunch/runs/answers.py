"""What comes back with a good status and is no answer of the service: nothing at all, half of it, a web page.

botocore reads such things as an answer without members: a list of nothing, a job without tags.
``check_answer`` is its event ``before-parse``, and raises a CallError instead, a failure like any other.
"""

from __future__ import annotations

import json
from typing import Any

from smlaunch.ports import UNREADABLE, CallError

_WITH_ETAG = frozenset(("GetObject", "HeadObject", "PutObject", "UploadPart"))
"""Answers of S3 that have an ETag, whatever else is in them."""

_PAGES = (b"<!doctype html", b"<html")


def check_answer(operation_model: Any, response_dict: dict[str, Any], **_: object) -> None:
    if response_dict["status_code"] >= 300:
        return  # an error; its status says enough where its body does not
    why = _fault(operation_model, response_dict)
    if why is not None:
        raise CallError(operation_model.name, UNREADABLE, why, 0)


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
    if model.service_model.resolved_protocol in ("json", "rest-json"):
        try:
            if isinstance(json.loads(body), dict):
                return None
        except ValueError:
            pass
        return "the answer is no JSON object"
    return None


def _has_body(model: Any) -> bool:
    members = model.output_shape.members.values() if model.output_shape else ()
    return any("location" not in member.serialization for member in members)
