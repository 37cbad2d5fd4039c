"""The json-1.1 protocol: one operation per method of a plain Python object.

Requests are checked by smlaunch.validate, whose tables are generated from botocore's service models, before
the object sees them. So the endpoint needs no model of a hundred kilobytes in memory to serve them.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from typing import Any

from smlaunch.local.errors import ApiError, validation_error
from smlaunch.local.messages import Payload, Request, Response
from smlaunch.validate import Violation, aws_message, check, operations

_BODY_LIMIT = 64 << 20
_CONTENT_TYPE = "application/x-amz-json-1.1"
_PYTHON_NAMES = {
    bool: "BOOLEAN",
    int: "NUMBER",
    float: "DECIMAL",
    str: "STRING",
    list: "LIST",
    dict: "STRUCTURE",
}


class JsonErrors:
    protocol = "json"

    def error(self, error: ApiError, request_id: str) -> Response:
        document = {"__type": error.code, "message": error.message}
        headers = {"Content-Type": _CONTENT_TYPE, "x-amzn-ErrorType": error.code}
        return Response(error.status, headers, json.dumps(document).encode())


class JsonService(JsonErrors):
    """``handlers`` have a method ``create_training_job(params) -> result`` for each operation they provide.

    Parameters and results are the API's own members in dicts; times in a result may be datetimes or seconds
    since the epoch. Methods raise ApiError.
    """

    def __init__(self, service: str, *handlers: object) -> None:
        self._service = service
        self._handlers = handlers

    def serve(self, request: Request, payload: Payload) -> Response:
        operation = request.headers.get("x-amz-target", "").rpartition(".")[2]
        known = operations(self._service)
        method = self._method(operation) if operation in known else None
        if method is None:
            offered = sorted(name for name in known if self._method(name) is not None)
            text = f"The local endpoint has no {self._service}:{operation}; it has {', '.join(offered)}"
            raise ApiError("UnknownOperationException", text)
        parameters = _parse(payload.read(_BODY_LIMIT))
        _require_valid(check(operation, parameters, self._service))
        result = method(_without_nulls(parameters))
        body = json.dumps(result or {}, default=_render, separators=(",", ":"))
        return Response(200, {"Content-Type": _CONTENT_TYPE}, body.encode())

    def _method(self, operation: str) -> Any:
        """None when no handler provides it."""
        name = method_name(operation)
        return next((getattr(one, name) for one in self._handlers if hasattr(one, name)), None)


def method_name(operation: str) -> str:
    """``CreateTrainingJob`` → ``create_training_job``"""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", operation).lower()


def _parse(body: bytes) -> dict[str, Any]:
    try:
        parameters = json.loads(body or b"{}", parse_constant=_no_constant)
    except ValueError as error:
        raise ApiError("SerializationException", f"The body is not JSON: {error}") from None
    if not isinstance(parameters, dict):
        raise ApiError("SerializationException", "The body is not a JSON object")
    return parameters


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number in JSON")


def _require_valid(violations: list[Violation]) -> None:
    wrong_types = [violation for violation in violations if violation.rule == "type"]
    if wrong_types:
        texts = [
            f"{_PYTHON_NAMES.get(type(violation.value), 'VALUE')}_VALUE can not be converted to"
            f" {violation.limit} at '{violation.dotted()}'"
            for violation in wrong_types
        ]
        raise ApiError("SerializationException", "; ".join(texts))
    if violations:
        raise validation_error(aws_message(violations))


def _without_nulls(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """JSON's null means that a member is absent; handlers need not know."""
    return {name: _clean(value) for name, value in parameters.items() if value is not None}


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return _without_nulls(value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value


def _render(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.timestamp()
    raise TypeError(f"{type(value).__name__} cannot be part of an answer: {value!r}")
