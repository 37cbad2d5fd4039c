"""How an execution reaches jobs: by the endpoint's own operations, as any client does.

What is created passes the same checks, and the same fault plan, as a request from outside.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from smlaunch.local.errors import ApiError
from smlaunch.local.messages import Payload, Request, Response
from smlaunch.local.pipelines.definition import JOB_TYPES


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


class JobDoor:
    """``service`` gives the one that requests from outside meet too. ``kind``: a step's type, Training or
    Processing. To be used in a thread whose ``caller`` names the region."""

    def __init__(self, service: Callable[[], Operations], training: Jobs, processing: ProcessingJobs) -> None:
        self._service = service
        self._describe = {
            "Training": training.describe_training_job,
            "Processing": processing.describe_processing_job,
        }
        self._stop = {"Training": training.stop_training_job, "Processing": processing.stop_processing_job}

    def create(self, kind: str, request: Mapping[str, Any]) -> str:
        """The job's ARN. Raises ApiError."""
        operation = JOB_TYPES[kind][0]
        headers = {"x-amz-target": f"SageMaker.{operation}"}
        body = io.BytesIO(json.dumps(request).encode())
        answer = self._service().serve(Request("POST", "/", headers, body), Payload(body))
        assert isinstance(answer.body, bytes)
        document: dict[str, str] = json.loads(answer.body)
        return document[f"{kind}JobArn"]

    def describe(self, kind: str, name: str) -> dict[str, Any]:
        """What Describe answers. No fault plan stands before it: it is the service that looks, not a client.
        Raises ApiError for a job that was deleted."""
        return self._describe[kind]({f"{kind}JobName": name})

    def stop(self, kind: str, name: str) -> None:
        """Nothing happens to a job that has ended."""
        with suppress(ApiError):
            self._stop[kind]({f"{kind}JobName": name})
