"""Client that an execution uses for its jobs: it calls the endpoint's own operations.

Creating a job goes through the same checks, and the same fault plan, as a request from outside.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from smlaunch.api.job_kinds import JobKind
from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.front.call_log import CallLog
from smlaunch.local.front.http_messages import Payload, Request, Response
from smlaunch.local.front.request_context import current_request_context
from smlaunch.local.json_types import JsonMapping, JsonObject

_USER_AGENT = "smlaunch-via/pipelines"
"""Marks these calls in the call log."""


class Service(Protocol):
    """A service of the endpoint, behind the signature check."""

    def serve(self, request: Request, payload: Payload) -> Response: ...


class JobOperations(Protocol):
    """Handlers of operations on jobs of one kind."""

    @property
    def job_kind(self) -> JobKind: ...
    def describe_job(self, params: JsonObject) -> JsonObject: ...
    def stop_job(self, params: JsonObject) -> JsonObject: ...


class JobClient:
    """Creates, describes and stops jobs. Its methods take the type of a step, Training or Processing, and
    act for the region and the role of the thread's request context."""

    sagemaker_service: Service
    """Set when that service is created, which needs this client."""

    def __init__(self, operations: Iterable[JobOperations], call_log: CallLog | None = None) -> None:
        self._call_log = call_log
        self._operations_by_step_type = {handler.job_kind.name: handler for handler in operations}

    def create_job(self, step_type: str, arguments: JsonMapping) -> str:
        """Create a job and return its ARN. Raises ApiError."""
        kind = self._operations_by_step_type[step_type].job_kind
        with self._log_request_at_end(kind.create_operation, arguments) as request:
            response = self.sagemaker_service.serve(request, Payload(request.stream))
        assert isinstance(response.body, bytes)
        document: dict[str, str] = json.loads(response.body)
        return document[kind.arn_field]

    def describe_job(self, step_type: str, name: str) -> JsonObject:
        """Return the Describe response of a job. Raises ApiError for a job that was deleted. The fault plan
        does not apply: it is for clients' calls, and the service looks itself."""
        operations = self._operations_by_step_type[step_type]
        params = {operations.job_kind.name_field: name}
        with self._log_request_at_end(operations.job_kind.describe_operation, params):
            return operations.describe_job(params)

    def stop_job(self, step_type: str, name: str) -> None:
        """Stop a job. Does nothing if it has ended."""
        operations = self._operations_by_step_type[step_type]
        params = {operations.job_kind.name_field: name}
        with suppress(ApiError), self._log_request_at_end(operations.job_kind.stop_operation, params):
            operations.stop_job(params)

    @contextmanager
    def _log_request_at_end(self, operation: str, arguments: JsonMapping) -> Iterator[Request]:
        """Context with the request as a client would send it, which is logged when the context ends."""
        body = json.dumps(arguments).encode()
        headers = {"x-amz-target": f"SageMaker.{operation}", "user-agent": _USER_AGENT}
        request = Request("POST", "/", headers, io.BytesIO(body))
        http_status, error_code = 200, ""
        try:
            yield request
        except ApiError as error:
            http_status, error_code = error.status, error.code
            raise
        finally:
            if self._call_log is not None:
                self._call_log.append_call(
                    request, "sagemaker", body, current_request_context(), http_status, error_code
                )
