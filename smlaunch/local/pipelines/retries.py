"""Retry policies of a step: which error they are for, how long they wait, and when they give up. Pure.

Source: the developer guide's page on retry policies and the SDK, version 2 (workflow/retry.py): MaxAttempts
counts retries, from 1 to 20, and ExpireAfterMin minutes from the first failure, up to 14,400.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from smlaunch.local.api_errors import ApiError
from smlaunch.local.pipelines.expressions import Steps, present

THROTTLING = "Step.THROTTLING"
SERVICE_FAULT = "Step.SERVICE_FAULT"
RESOURCE_LIMIT = "SageMaker.RESOURCE_LIMIT"
JOB_INTERNAL_ERROR = "SageMaker.JOB_INTERNAL_ERROR"
CAPACITY_ERROR = "SageMaker.CAPACITY_ERROR"
KINDS = (SERVICE_FAULT, THROTTLING, RESOURCE_LIMIT, JOB_INTERNAL_ERROR, CAPACITY_ERROR)

_THROTTLED = frozenset({"ThrottlingException", "Throttling", "TooManyRequestsException"})
_REASONS = {"InternalServerError": JOB_INTERNAL_ERROR, "CapacityError": CAPACITY_ERROR}
_BOUNDS: Mapping[str, tuple[float, float]] = {
    "IntervalSeconds": (0, float("inf")),
    "BackoffRate": (0, float("inf")),
    "MaxAttempts": (1, 20),
    "ExpireAfterMin": (1, 14_400),
}
_WHOLE = frozenset({"IntervalSeconds", "MaxAttempts", "ExpireAfterMin"})


@dataclass(frozen=True)
class RetryPolicy:
    """Seconds; ``attempts`` are retries, None where ``expires`` bounds them."""

    kinds: frozenset[str]
    interval: float = 1.0
    backoff: float = 2.0
    attempts: int | None = 5
    expires: float | None = None

    def wait(self, retry: int, since_first: float) -> float | None:
        """Seconds before retry number ``retry`` (from 1), ``since_first`` seconds after the first failure;
        None when there is to be none."""
        if self.attempts is not None and retry > self.attempts:
            return None
        seconds = self.interval * self.backoff ** min(retry - 1, 1000) if self.interval else 0.0
        if self.expires is not None and since_first + seconds > self.expires:
            return None
        return seconds


def of_error(error: ApiError) -> str | None:
    """The class of an error that the job's creation ended in."""
    if error.code in _THROTTLED:
        return THROTTLING
    if error.code == "ResourceLimitExceeded":
        return RESOURCE_LIMIT
    return SERVICE_FAULT if error.status >= 500 else None


def of_reason(failure_reason: str) -> str | None:
    """The class of a job's FailureReason; None for failures that are the job's own."""
    return _REASONS.get(failure_reason.partition(":")[0].strip())


def read(document: Mapping[str, Any]) -> RetryPolicy:
    """``document`` has no ``problems``."""
    document = present(document)
    expires = document.get("ExpireAfterMin")
    return RetryPolicy(
        frozenset(_kinds(document)),
        float(document.get("IntervalSeconds", 1)),
        float(document.get("BackoffRate", 2.0)),
        None if expires is not None else int(document.get("MaxAttempts", 5)),
        None if expires is None else 60.0 * expires,
    )


def problems(document: Any, path: Steps) -> Iterator[tuple[Steps, str]]:
    if not isinstance(document, Mapping):
        yield path, "an object is needed"
        return
    document = present(document)
    for name in sorted(document.keys() - _BOUNDS.keys() - {"ExceptionType"}):
        yield (*path, name), "is unknown"
    kinds = _kinds(document)
    if not isinstance(kinds, list) or not kinds:
        yield (*path, "ExceptionType"), f"a list is needed, of {', '.join(KINDS)}"
    else:
        for kind in kinds:
            if kind not in KINDS:
                yield (*path, "ExceptionType"), f"{kind!r} is none of {', '.join(KINDS)}"
    if "MaxAttempts" in document and "ExpireAfterMin" in document:
        yield path, "MaxAttempts and ExpireAfterMin cannot both be given"
    for name, (least, most) in _BOUNDS.items():
        value = document.get(name, least)
        kind = int if name in _WHOLE else (int, float)
        if isinstance(value, bool) or not isinstance(value, kind) or not least <= value <= most:
            bound = f"from {least:g} to {most:g}" if most != float("inf") else f"of at least {least:g}"
            yield (*path, name), f"{value!r} is no {'whole ' if kind is int else ''}number {bound}"


def _kinds(document: Mapping[str, Any]) -> Any:
    """The SDK writes a list, the published JSON schema of definitions has a single string."""
    kinds = document.get("ExceptionType")
    return [kinds] if isinstance(kinds, str) else kinds
