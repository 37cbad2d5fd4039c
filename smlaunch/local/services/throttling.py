"""A service wrapper that throttles some calls, as a fault plan says."""

from __future__ import annotations

import threading
from collections import Counter

from smlaunch.local.fault_injection import FaultPlan
from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.front.http_messages import Payload, Request, Response
from smlaunch.local.front.request_dispatcher import Service

_THROTTLING_ERRORS = {
    "s3": ("SlowDown", "Please reduce your request rate.", 503),
    "sts": ("Throttling", "Rate exceeded", 400),
    "iam": ("Throttling", "Rate exceeded", 400),
}


class ThrottledService:
    """Passes calls on to a service, except for those that the plan throttles.

    The operation's name comes from a header, the path, or ``Action`` in the query; operations of S3 have no
    name and match only the pattern ``*``. Calls are counted for each operation.
    """

    def __init__(self, name: str, service: Service, plan: FaultPlan) -> None:
        self._refusal = _THROTTLING_ERRORS.get(name, ("ThrottlingException", "Rate exceeded", 400))
        self._service = service
        self._plan = plan
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()

    def serve(self, request: Request, payload: Payload) -> Response:
        operation = request.named_operation or request.query.get("Action", "")
        with self._lock:
            self._calls[operation] += 1
            call_number = self._calls[operation]
        if self._plan.should_throttle(operation, call_number):
            raise ApiError(*self._refusal)
        return self._service.serve(request, payload)

    def error_response(self, error: ApiError, request_id: str) -> Response:
        return self._service.error_response(error, request_id)
