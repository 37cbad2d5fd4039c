"""Client that an execution uses for its jobs: it calls the endpoint's own operations.

Creating a job goes through the same checks, and the same fault plan, as a request from outside.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from smlaunch.local.api_errors import ApiError
from smlaunch.local.call_log import CallLog
from smlaunch.local.http_messages import Payload, Request, Response
from smlaunch.local.pipelines.definition import JOB_TYPES
from smlaunch.local.request_context import current_context

_USER_AGENT = "smlaunch-via/pipelines"
"""Marks these calls in the call log."""


class Service(Protocol):
    """A service of the endpoint, behind the signature check."""

    def serve(self, request: Request, payload: Payload) -> Response: ...


class TrainingJobs(Protocol):
    """Handlers of operations on training jobs."""

    def describe_training_job(self, params: dict[str, Any]) -> dict[str, Any]: ...
    def stop_training_job(self, params: dict[str, Any]) -> dict[str, Any]: ...


class ProcessingJobs(Protocol):
    """Handlers of operations on processing jobs."""

    def describe_processing_job(self, params: dict[str, Any]) -> dict[str, Any]: ...
    def stop_processing_job(self, params: dict[str, Any]) -> dict[str, Any]: ...


class JobClient:
    """Creates, describes and stops jobs. Its methods take the type of a step, Training or Processing, and
    act for the region and the role of the thread's request context."""

    def __init__(
        self,
        get_service: Callable[[], Service],
        training: TrainingJobs,
        processing: ProcessingJobs,
        call_log: CallLog | None = None,
    ) -> None:
        """``get_service``: returns the SageMaker service, which is created after this client."""
        self._get_service = get_service
        self._call_log = call_log
        self._describe_handlers = {
            "Training": training.describe_training_job,
            "Processing": processing.describe_processing_job,
        }
        self._stop_handlers = {
            "Training": training.stop_training_job,
            "Processing": processing.stop_processing_job,
        }

    def create(self, step_type: str, members: Mapping[str, Any]) -> str:
        """Create a job and return its ARN. Raises ApiError."""
        with self._logged_request(JOB_TYPES[step_type][0], members) as request:
            response = self._get_service().serve(request, Payload(request.stream))
        assert isinstance(response.body, bytes)
        document: dict[str, str] = json.loads(response.body)
        return document[f"{step_type}JobArn"]

    def describe(self, step_type: str, name: str) -> dict[str, Any]:
        """Return the Describe response of a job. Raises ApiError for a job that was deleted. The fault plan
        does not apply: it is for clients' calls, and the service looks itself."""
        params = {f"{step_type}JobName": name}
        with self._logged_request(f"Describe{step_type}Job", params):
            return self._describe_handlers[step_type](params)

    def stop(self, step_type: str, name: str) -> None:
        """Stop a job. Does nothing if it has ended."""
        params = {f"{step_type}JobName": name}
        with suppress(ApiError), self._logged_request(f"Stop{step_type}Job", params):
            self._stop_handlers[step_type](params)

    @contextmanager
    def _logged_request(self, operation: str, members: Mapping[str, Any]) -> Iterator[Request]:
        """Context with the request as a client would send it, which is logged when the context ends."""
        body = json.dumps(members).encode()
        headers = {"x-amz-target": f"SageMaker.{operation}", "user-agent": _USER_AGENT}
        request = Request("POST", "/", headers, io.BytesIO(body))
        status, code = 200, ""
        try:
            yield request
        except ApiError as error:
            status, code = error.status, error.code
            raise
        finally:
            if self._call_log is not None:
                self._call_log.add(request, "sagemaker", body, current_context(), status, code)
