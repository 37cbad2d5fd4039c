"""The json-1.1 protocol: each operation is a method of a handler object.

Requests are validated before they reach the handler, with tables generated from botocore's service models. So
the endpoint does not load these models, which take much memory.
"""

from __future__ import annotations

import json
from typing import Any

from smlaunch.api.job_kinds import method_name
from smlaunch.api.validation.request_check import check_request, checkable_operations
from smlaunch.api.validation.violation import Violation, aws_message
from smlaunch.local.front.api_errors import ApiError, validation_error
from smlaunch.local.front.http_messages import Payload, Request, Response
from smlaunch.local.json_types import JsonMapping, JsonObject

_MAX_BODY_BYTES = 64 << 20
_CONTENT_TYPE = "application/x-amz-json-1.1"
_SERVICE_NAME_BY_TYPE = {
    bool: "BOOLEAN",
    int: "NUMBER",
    float: "DECIMAL",
    str: "STRING",
    list: "LIST",
    dict: "STRUCTURE",
}


class JsonErrors:
    error_format = "json"

    def error_response(self, error: ApiError, request_id: str) -> Response:
        document = {"__type": error.code, "message": error.message}
        headers = {"Content-Type": _CONTENT_TYPE, "x-amzn-ErrorType": error.code}
        return Response(error.status, headers, json.dumps(document).encode())


class JsonService(JsonErrors):
    """A service whose ``handlers`` have a method ``create_training_job(params) -> result`` for each
    operation.

    Parameters and results are dicts with the fields of the API; times in a result are seconds since the
    epoch. Methods raise ApiError.
    """

    def __init__(self, service: str, *handlers: object) -> None:
        self._service = service
        self._handlers = handlers

    def serve(self, request: Request, payload: Payload) -> Response:
        """Respond to a request in AWS's JSON protocol: its header names the operation, its body is a JSON
        object with the parameters. Raises ApiError."""
        operation = request.headers.get("x-amz-target", "").rpartition(".")[2]
        model_operations = checkable_operations(self._service)
        method = self._find_method(operation) if operation in model_operations else None
        if method is None:
            supported = sorted(name for name in model_operations if self._find_method(name) is not None)
            message = f"The local endpoint has no {self._service}:{operation}; it has {', '.join(supported)}"
            raise ApiError("UnknownOperationException", message)
        parameters = _parse_json_object(payload.read_all(_MAX_BODY_BYTES))
        _raise_for_violations(check_request(operation, parameters, self._service))
        result = method(_without_nulls(parameters))
        body = json.dumps(result or {}, separators=(",", ":"))
        return Response(200, {"Content-Type": _CONTENT_TYPE}, body.encode())

    def _find_method(self, operation: str) -> Any:
        """Return the method for an operation; None when no handler has it. A handler with a ``job_kind`` has
        the operations on its jobs, named without the kind: ``create_job``."""
        for handler in self._handlers:
            kind = getattr(handler, "job_kind", None)
            name = method_name(operation if kind is None else operation.replace(f"{kind.name}Job", "Job"))
            if hasattr(handler, name):
                return getattr(handler, name)
        return None


def _parse_json_object(body: bytes) -> JsonObject:
    """Return the parameters of a request; none for an empty body. Raises ApiError."""
    try:
        parameters = json.loads(body or b"{}", parse_constant=_reject_constant)
    except ValueError as error:
        raise ApiError("SerializationException", f"The body is not JSON: {error}") from None
    if not isinstance(parameters, dict):
        raise ApiError("SerializationException", "The body is not a JSON object")
    return parameters


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number in JSON")


def _raise_for_violations(violations: list[Violation]) -> None:
    """Raise ApiError if a request violates the API model: with the error and the words of the service, which
    reports wrong types before anything else."""
    wrong_types = [violation for violation in violations if violation.rule == "type"]
    if wrong_types:
        texts = [
            f"{_SERVICE_NAME_BY_TYPE.get(type(violation.value), 'VALUE')}_VALUE can not be converted to"
            f" {violation.limit} at '{violation.dotted_path()}'"  # limit: the type that the model requires
            for violation in wrong_types
        ]
        raise ApiError("SerializationException", "; ".join(texts))
    if violations:
        raise validation_error(aws_message(violations))


def _without_nulls(parameters: JsonMapping) -> JsonObject:
    """Remove fields that are null, which means the same as a missing field."""
    return {name: _without_nested_nulls(value) for name, value in parameters.items() if value is not None}


def _without_nested_nulls(value: Any) -> Any:
    """Return a JSON value without the fields that are null in it, at any depth."""
    if isinstance(value, dict):
        return _without_nulls(value)
    if isinstance(value, list):
        return [_without_nested_nulls(item) for item in value]
    return value
