"""The query protocol of STS and IAM: form-encoded requests, XML answers."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from smlaunch.local.caller import current
from smlaunch.local.errors import ApiError
from smlaunch.local.messages import Payload, Request, Response
from smlaunch.local.services.json_service import method_name

_BODY_LIMIT = 1 << 20


class QueryErrors:
    protocol = "query"

    def error(self, error: ApiError, request_id: str) -> Response:
        kind = "Sender" if error.status < 500 else "Receiver"
        fields = {"Type": kind, "Code": error.code, "Message": error.message}
        document = {"ErrorResponse": {"Error": fields, "RequestId": request_id}}
        return Response(error.status, {"Content-Type": "text/xml"}, to_xml(document))


class QueryService(QueryErrors):
    """``handler`` has a method ``get_role(params) -> result`` for each operation it provides.

    Parameters are text; repeated ones (``ActionNames.member.1``) come as lists under their first name.
    """

    def __init__(self, namespace: str, handler: object) -> None:
        self._namespace = namespace
        self._handler = handler

    def serve(self, request: Request, payload: Payload) -> Response:
        fields = dict(parse_qsl(payload.read(_BODY_LIMIT).decode("utf-8", "replace"), keep_blank_values=True))
        fields = {**request.query, **fields}
        action = fields.get("Action", "")
        name = method_name(action)
        method = getattr(self._handler, name, None) if name.isidentifier() and name[0] != "_" else None
        if method is None:
            text = f"The local endpoint does not provide the action {action!r} of this service"
            raise ApiError("InvalidAction", text)
        result = method(_gathered(fields))
        answer = {
            f"{action}Result": result,
            "ResponseMetadata": {"RequestId": current().request_id},
        }
        document = to_xml({f"{action}Response": answer}, self._namespace)
        return Response(200, {"Content-Type": "text/xml"}, document)


def required(params: Mapping[str, Any], name: str) -> Any:
    """A parameter that must be there; the query protocol's requests have no tables to check them by."""
    if not params.get(name):
        text = (
            f"1 validation error detected: Value null at '{name[0].lower()}{name[1:]}' failed to satisfy"
            " constraint: Member must not be null"
        )
        raise ApiError("ValidationError", text)
    return params[name]


def to_xml(document: Mapping[str, Any], namespace: str = "", item: str = "member") -> bytes:
    """One root element. Mappings become elements, lists ``<member>`` elements, None is left out."""
    (name, value), *_ = document.items()
    attribute = f' xmlns="{escape(namespace)}"' if namespace else ""
    body = _inner(value, item)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{name}{attribute}>{body}</{name}>'.encode()


def _inner(value: Any, item: str) -> str:
    if isinstance(value, Mapping):
        return "".join(
            f"<{key}>{_inner(held, item)}</{key}>" for key, held in value.items() if held is not None
        )
    if isinstance(value, (list, tuple)):
        return "".join(f"<{item}>{_inner(held, item)}</{item}>" for held in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return escape(str(value), {"\r": "&#13;"})


def _gathered(fields: Mapping[str, str]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for name, value in fields.items():
        first, *rest = name.split(".")
        if rest:
            params.setdefault(first, []).append(value)
        else:
            params[first] = value
    return params
