"""How an execution reaches jobs: by the endpoint's own operations, as any client does.

What is created passes the same checks, and the same fault plan, as a request from outside.
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

_AGENT = "smlaunch-via/pipelines"
"""Who makes the call on the role's behalf, for the record of calls."""


class Operations(Protocol):
    """A service, as requests come to it when their signature is good."""

    def serve(self, request: Request, payload: Payload) -> Response: ...


class Jobs(Protocol):
    """The handlers of the operations on jobs."""

    def describe_training_job(self, params: dict[str, Any]) -> dict[str, Any]: ...
    def stop_training_job(self, params: dict[str, Any]) -> dict[str, Any]: ...


class ProcessingJobs(Protocol):
    def describe_processing_job(self, params: dict[str, Any]) -> dict[str, Any]: ...
    def stop_processing_job(self, params: dict[str, Any]) -> dict[str, Any]: ...


class JobClient:
    """``service`` gives the one that requests from outside meet too. ``kind``: a step's type, Training or
    Processing. ``calls`` records what is asked for. To be used in a thread whose ``caller`` names the region
    and the role."""

    def __init__(
        self,
        service: Callable[[], Operations],
        training: Jobs,
        processing: ProcessingJobs,
        calls: CallLog | None = None,
    ) -> None:
        self._service = service
        self._calls = calls
        self._describe = {
            "Training": training.describe_training_job,
            "Processing": processing.describe_processing_job,
        }
        self._stop = {"Training": training.stop_training_job, "Processing": processing.stop_processing_job}

    def create(self, kind: str, request: Mapping[str, Any]) -> str:
        """The job's ARN. Raises ApiError."""
        with self._recorded(JOB_TYPES[kind][0], request) as created:
            answer = self._service().serve(created, Payload(created.stream))
        assert isinstance(answer.body, bytes)
        document: dict[str, str] = json.loads(answer.body)
        return document[f"{kind}JobArn"]

    def describe(self, kind: str, name: str) -> dict[str, Any]:
        """What Describe answers. No fault plan stands before it: it is the service that looks, not a client.
        Raises ApiError for a job that was deleted."""
        params = {f"{kind}JobName": name}
        with self._recorded(f"Describe{kind}Job", params):
            return self._describe[kind](params)

    def stop(self, kind: str, name: str) -> None:
        """Nothing happens to a job that has ended."""
        params = {f"{kind}JobName": name}
        with suppress(ApiError), self._recorded(f"Stop{kind}Job", params):
            self._stop[kind](params)

    @contextmanager
    def _recorded(self, operation: str, members: Mapping[str, Any]) -> Iterator[Request]:
        """The request as a client would send it. Recorded when it is answered."""
        body = json.dumps(members).encode()
        headers = {"x-amz-target": f"SageMaker.{operation}", "user-agent": _AGENT}
        request = Request("POST", "/", headers, io.BytesIO(body))
        status, code = 200, ""
        try:
            yield request
        except ApiError as error:
            status, code = error.status, error.code
            raise
        finally:
            if self._calls is not None:
                self._calls.add(request, "sagemaker", body, current_context(), status, code)
