"""The query protocol of STS, IAM and older clients of CloudWatch: form-encoded requests, XML responses."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from smlaunch.api.job_kinds import method_name
from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.front.http_messages import Payload, Request, Response
from smlaunch.local.front.request_context import current_request_context
from smlaunch.local.json_types import JsonMapping, JsonObject
from smlaunch.local.services.xml_encoding import xml_document

MAX_BODY_BYTES = 1 << 20
_XML_HEADERS = {"Content-Type": "text/xml"}


class QueryErrors:
    error_format = "query"

    def error_response(self, error: ApiError, request_id: str) -> Response:
        kind = "Sender" if error.status < 500 else "Receiver"
        fields = {"Type": kind, "Code": error.code, "Message": error.message}
        document = {"Error": fields, "RequestId": request_id}
        return Response(error.status, dict(_XML_HEADERS), xml_document("ErrorResponse", document))


class QueryService(QueryErrors):
    """A service whose ``handler`` has a method ``get_role(params) -> result`` for each operation.

    Parameters are strings; repeated ones (``ActionNames.member.1``) are lists under their first name.
    """

    def __init__(self, namespace: str, handler: object) -> None:
        self._namespace = namespace
        self._handler = handler

    def serve(self, request: Request, payload: Payload) -> Response:
        operation, params = parse_query_request(request, payload.read_all(MAX_BODY_BYTES))
        method = find_operation_method(self._handler, operation)
        if method is None:
            message = f"The local endpoint does not provide the action {operation!r} of this service"
            raise ApiError("InvalidAction", message)
        return query_response(operation, method(params), self._namespace)


def find_operation_method(handler: object, operation: str) -> Any:
    """Return the handler's method for an operation: ``get_role`` for GetRole; None without one."""
    name = method_name(operation)
    return getattr(handler, name, None) if name.isidentifier() and name[0] != "_" else None


def query_response(operation: str, result: JsonMapping, namespace: str) -> Response:
    document = {
        f"{operation}Result": result,
        "ResponseMetadata": {"RequestId": current_request_context().request_id},
    }
    body = xml_document(f"{operation}Response", document, namespace, list_item_tag="member")
    return Response(200, dict(_XML_HEADERS), body)


def required_parameter(params: JsonMapping, name: str) -> Any:
    """Return a required parameter. Raises ApiError. There are no validation tables for this protocol."""
    if not params.get(name):
        message = (
            f"1 validation error detected: Value null at '{name[0].lower()}{name[1:]}' failed to satisfy"
            " constraint: Member must not be null"
        )
        raise ApiError("ValidationError", message)
    return params[name]


def parse_query_request(request: Request, body: bytes) -> tuple[str, JsonObject]:
    """Return the operation of a request, and its parameters as one document: the field
    ``MetricData.member.1.Value=3`` becomes ``{"MetricData": [{"Value": "3"}]}``. Fields are in the query and
    in the body, a form."""
    fields = {**request.query, **dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))}
    root: JsonObject = {}
    for name, value in fields.items():
        current_dict = root
        # "member" stands before the number of a list's item, and says nothing.
        *parent_names, last_name = [part for part in name.split(".") if part != "member"] or [name]
        for parent in parent_names:
            child = current_dict.setdefault(parent, {})
            # ``a=1`` and ``a.b=2`` contradict each other: the second is written to a dict that nobody reads.
            current_dict = child if isinstance(child, dict) else {}
        current_dict[last_name] = value
    document = _replace_numbered_dicts_by_lists(root)  # {"1": a, "2": b} becomes [a, b]
    return fields.get("Action", ""), document if isinstance(document, dict) else {}  # a list: only numbers


def _replace_numbered_dicts_by_lists(node: Any) -> Any:
    """Return a document in which each dict whose keys are numbers, ``{"1": a, "2": b}``, is the list ``[a,
    b]``."""
    if not isinstance(node, dict):
        return node
    if node and all(key.isdecimal() for key in node):
        return [_replace_numbered_dicts_by_lists(node[key]) for key in sorted(node, key=int)]
    return {key: _replace_numbered_dicts_by_lists(value) for key, value in node.items()}
