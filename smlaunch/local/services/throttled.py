"""A service in front of which a fault plan stands: some calls are told to come again."""

from __future__ import annotations

import threading
from collections import Counter
from urllib.parse import parse_qsl

from smlaunch.local.dispatch import Service
from smlaunch.local.errors import ApiError
from smlaunch.local.faults import FaultPlan
from smlaunch.local.messages import Payload, Request, Response

_REFUSALS = {
    "s3": ("SlowDown", "Please reduce your request rate.", 503),
    "sts": ("Throttling", "Rate exceeded", 400),
    "iam": ("Throttling", "Rate exceeded", 400),
}


class Throttled:
    """Operations are known by the header that names them, or by ``Action`` in the address; S3's have no name
    and match only a plan for ``*``. Calls are counted per operation."""

    def __init__(self, name: str, service: Service, plan: FaultPlan) -> None:
        self._refusal = _REFUSALS.get(name, ("ThrottlingException", "Rate exceeded", 400))
        self._service = service
        self._plan = plan
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()

    def serve(self, request: Request, payload: Payload) -> Response:
        operation = _operation(request)
        with self._lock:
            self._calls[operation] += 1
            call = self._calls[operation]
        if self._plan.throttles(operation, call):
            raise ApiError(*self._refusal)
        return self._service.serve(request, payload)

    def error(self, error: ApiError, request_id: str) -> Response:
        return self._service.error(error, request_id)


def _operation(request: Request) -> str:
    target = request.headers.get("x-amz-target", "")
    if target:
        return target.rpartition(".")[2]
    if "/operation/" in request.path:
        return request.path.rpartition("/")[2]
    return dict(parse_qsl(request.target.partition("?")[2])).get("Action", "")
