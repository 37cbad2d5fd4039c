"""The query protocol of STS and IAM: form-encoded requests, XML responses."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from smlaunch.api.job_kinds import method_name
from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.front.http_messages import Payload, Request, Response
from smlaunch.local.front.request_context import current_request_context

_MAX_BODY_BYTES = 1 << 20


class QueryErrors:
    error_format = "query"

    def error_response(self, error: ApiError, request_id: str) -> Response:
        kind = "Sender" if error.status < 500 else "Receiver"
        fields = {"Type": kind, "Code": error.code, "Message": error.message}
        document = {"ErrorResponse": {"Error": fields, "RequestId": request_id}}
        return Response(error.status, {"Content-Type": "text/xml"}, to_xml(document))


class QueryService(QueryErrors):
    """A service whose ``handler`` has a method ``get_role(params) -> result`` for each operation.

    Parameters are strings; repeated ones (``ActionNames.member.1``) are lists under their first name.
    """

    def __init__(self, namespace: str, handler: object) -> None:
        self._namespace = namespace
        self._handler = handler

    def serve(self, request: Request, payload: Payload) -> Response:
        fields = dict(
            parse_qsl(payload.read_all(_MAX_BODY_BYTES).decode("utf-8", "replace"), keep_blank_values=True)
        )
        fields = {**request.query, **fields}
        action = fields.get("Action", "")
        name = method_name(action)
        method = getattr(self._handler, name, None) if name.isidentifier() and name[0] != "_" else None
        if method is None:
            message = f"The local endpoint does not provide the action {action!r} of this service"
            raise ApiError("InvalidAction", message)
        result = method(_group_numbered_parameters(fields))
        response = {
            f"{action}Result": result,
            "ResponseMetadata": {"RequestId": current_request_context().request_id},
        }
        body = to_xml({f"{action}Response": response}, self._namespace)
        return Response(200, {"Content-Type": "text/xml"}, body)


def required_parameter(params: Mapping[str, Any], name: str) -> Any:
    """Return a required parameter. Raises ApiError. There are no validation tables for this protocol."""
    if not params.get(name):
        message = (
            f"1 validation error detected: Value null at '{name[0].lower()}{name[1:]}' failed to satisfy"
            " constraint: Member must not be null"
        )
        raise ApiError("ValidationError", message)
    return params[name]


def to_xml(document: Mapping[str, Any], namespace: str = "", list_item_tag: str = "member") -> bytes:
    """Encode a document with one root element. Mappings become elements, lists ``<member>`` elements; None is
    omitted."""
    (name, value), *_ = document.items()
    attribute = f' xmlns="{escape(namespace)}"' if namespace else ""
    body = _encode_element_content(value, list_item_tag)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{name}{attribute}>{body}</{name}>'.encode()


def _encode_element_content(value: Any, list_item_tag: str) -> str:
    """Return a value of a response as XML, without the element around it. Members that are None are left out.
    ``list_item_tag``: the tag of the items of a list."""
    if isinstance(value, Mapping):
        return "".join(
            f"<{key}>{_encode_element_content(child, list_item_tag)}</{key}>"
            for key, child in value.items()
            if child is not None
        )
    if isinstance(value, (list, tuple)):
        return "".join(
            f"<{list_item_tag}>{_encode_element_content(child, list_item_tag)}</{list_item_tag}>"
            for child in value
        )
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return escape(str(value), {"\r": "&#13;"})  # a parser would turn a bare carriage return into a newline


def _group_numbered_parameters(fields: Mapping[str, str]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for name, value in fields.items():
        group, *suffix = name.split(".")
        if suffix:
            params.setdefault(group, []).append(value)
        else:
            params[group] = value
    return params
