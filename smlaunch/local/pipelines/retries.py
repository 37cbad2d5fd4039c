"""Retry policies of a step: parse them, classify errors, and compute waits. Pure.

Source: the developer guide's page on retry policies and the SDK, version 2 (workflow/retry.py): MaxAttempts
counts retries, from 1 to 20, and ExpireAfterMin minutes from the first failure, up to 14,400.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from smlaunch.local.api_errors import ApiError
from smlaunch.local.pipelines.expressions import DocumentPath, without_nulls

THROTTLING = "Step.THROTTLING"
SERVICE_FAULT = "Step.SERVICE_FAULT"
RESOURCE_LIMIT = "SageMaker.RESOURCE_LIMIT"
JOB_INTERNAL_ERROR = "SageMaker.JOB_INTERNAL_ERROR"
CAPACITY_ERROR = "SageMaker.CAPACITY_ERROR"
EXCEPTION_TYPES = (SERVICE_FAULT, THROTTLING, RESOURCE_LIMIT, JOB_INTERNAL_ERROR, CAPACITY_ERROR)

_THROTTLING_CODES = frozenset({"ThrottlingException", "Throttling", "TooManyRequestsException"})
_TYPES_BY_REASON = {"InternalServerError": JOB_INTERNAL_ERROR, "CapacityError": CAPACITY_ERROR}
"""By the first word of a FailureReason."""
_BOUNDS: Mapping[str, tuple[float, float]] = {
    "IntervalSeconds": (0, float("inf")),
    "BackoffRate": (0, float("inf")),
    "MaxAttempts": (1, 20),
    "ExpireAfterMin": (1, 14_400),
}
"""Least and greatest value of each number."""
_INTEGER_MEMBERS = frozenset({"IntervalSeconds", "MaxAttempts", "ExpireAfterMin"})
_MAX_EXPONENT = 1000
"""Keeps the power a finite number."""


@dataclass(frozen=True)
class RetryPolicy:
    """When to retry a step after some types of errors."""

    exception_types: frozenset[str]
    """Members of ``EXCEPTION_TYPES``."""
    interval_seconds: float = 1.0
    """Wait before the first retry."""
    backoff_rate: float = 2.0
    """Each further wait is this many times the one before."""
    max_retries: int | None = 5
    """None for a policy with ``expire_after_seconds``."""
    expire_after_seconds: float | None = None
    """No retry starts later than this after the first failure; None without a limit."""

    def compute_wait(self, retry: int, seconds_since_first_failure: float) -> float | None:
        """Return the seconds to wait before a retry, numbered from 1; None if there is no such retry."""
        if self.max_retries is not None and retry > self.max_retries:
            return None
        exponent = min(retry - 1, _MAX_EXPONENT)
        wait_seconds = self.interval_seconds * self.backoff_rate**exponent if self.interval_seconds else 0.0
        expire_after_seconds = self.expire_after_seconds
        if (
            expire_after_seconds is not None
            and seconds_since_first_failure + wait_seconds > expire_after_seconds
        ):
            return None
        return wait_seconds


def classify_error(error: ApiError) -> str | None:
    """Return the exception type of an error of a job's creation; None if no policy covers it."""
    if error.code in _THROTTLING_CODES:
        return THROTTLING
    if error.code == "ResourceLimitExceeded":
        return RESOURCE_LIMIT
    return SERVICE_FAULT if error.status >= 500 else None


def classify_failure_reason(failure_reason: str) -> str | None:
    """Return the exception type of a job's FailureReason; None for a failure of the job's own program."""
    return _TYPES_BY_REASON.get(failure_reason.partition(":")[0].strip())


def parse_policy(document: Mapping[str, Any]) -> RetryPolicy:
    """Parse a document without problems."""
    document = without_nulls(document)
    expire_after_minutes = document.get("ExpireAfterMin")
    return RetryPolicy(
        frozenset(_get_exception_types(document)),
        float(document.get("IntervalSeconds", 1)),
        float(document.get("BackoffRate", 2.0)),
        None if expire_after_minutes is not None else int(document.get("MaxAttempts", 5)),
        None if expire_after_minutes is None else 60.0 * expire_after_minutes,
    )


def find_problems(document: Any, path: DocumentPath) -> Iterator[tuple[DocumentPath, str]]:
    """Yield all errors in a policy, each with its path."""
    if not isinstance(document, Mapping):
        yield path, "must be an object"
        return
    document = without_nulls(document)
    for name in sorted(document.keys() - _BOUNDS.keys() - {"ExceptionType"}):
        yield (*path, name), "is not a known member"
    type_path = (*path, "ExceptionType")
    exception_types = _get_exception_types(document)
    if not isinstance(exception_types, list) or not exception_types:
        yield type_path, f"must be a list of {', '.join(EXCEPTION_TYPES)}"
    else:
        for exception_type in exception_types:
            if exception_type not in EXCEPTION_TYPES:
                yield type_path, f"{exception_type!r} is not one of {', '.join(EXCEPTION_TYPES)}"
    if "MaxAttempts" in document and "ExpireAfterMin" in document:
        yield path, "MaxAttempts and ExpireAfterMin cannot both be set"
    for name, (least, greatest) in _BOUNDS.items():
        value = document.get(name, least)
        number_type = int if name in _INTEGER_MEMBERS else (int, float)
        is_number = isinstance(value, number_type) and not isinstance(value, bool)
        if not is_number or not least <= value <= greatest:
            noun = "an integer" if number_type is int else "a number"
            bounds = (
                f"from {least:g} to {greatest:g}" if greatest != float("inf") else f"of at least {least:g}"
            )
            yield (*path, name), f"{value!r} is not {noun} {bounds}"


def _get_exception_types(document: Mapping[str, Any]) -> Any:
    """Return ExceptionType as a list, which the SDK writes; the published JSON schema of definitions has a
    single string."""
    exception_types = document.get("ExceptionType")
    return [exception_types] if isinstance(exception_types, str) else exception_types
