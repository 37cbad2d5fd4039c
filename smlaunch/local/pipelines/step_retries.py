"""Retry policies of a step: parse them, classify errors, and compute waits. Pure.

Source: the developer guide's page on retry policies and the SDK, version 2 (workflow/retry.py): MaxAttempts
counts retries, from 1 to 20, and ExpireAfterMin minutes from the first failure, up to 14,400.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.json_types import JsonMapping
from smlaunch.local.pipelines.expressions import DocumentPath, without_nulls

THROTTLING = "Step.THROTTLING"
SERVICE_FAULT = "Step.SERVICE_FAULT"
RESOURCE_LIMIT = "SageMaker.RESOURCE_LIMIT"
JOB_INTERNAL_ERROR = "SageMaker.JOB_INTERNAL_ERROR"
CAPACITY_ERROR = "SageMaker.CAPACITY_ERROR"
EXCEPTION_TYPES = (SERVICE_FAULT, THROTTLING, RESOURCE_LIMIT, JOB_INTERNAL_ERROR, CAPACITY_ERROR)

_THROTTLING_CODES = frozenset({"ThrottlingException", "Throttling", "TooManyRequestsException"})
_EXCEPTION_TYPE_BY_REASON = {"InternalServerError": JOB_INTERNAL_ERROR, "CapacityError": CAPACITY_ERROR}
"""By the first word of a FailureReason."""
_BOUNDS_BY_NUMBER_FIELD: Mapping[str, tuple[float, float]] = {
    "IntervalSeconds": (0, float("inf")),
    "BackoffRate": (0, float("inf")),
    "MaxAttempts": (1, 20),
    "ExpireAfterMin": (1, 14_400),
}
"""Least and greatest value of each number."""
_INTEGER_FIELDS = frozenset({"IntervalSeconds", "MaxAttempts", "ExpireAfterMin"})
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

    def seconds_before_retry(self, retry_number: int, seconds_since_first_failure: float) -> float | None:
        """Return the seconds to wait before a retry of a step by this policy; None if the policy allows no
        such retry. ``retry_number`` counts from 1. Each wait is ``backoff_rate`` times the one before."""
        if self.max_retries is not None and retry_number > self.max_retries:
            return None
        exponent = min(retry_number - 1, _MAX_EXPONENT)  # the power must stay a finite number
        wait_seconds = self.interval_seconds * self.backoff_rate**exponent if self.interval_seconds else 0.0
        seconds_from_failure = seconds_since_first_failure + wait_seconds  # to the retry
        if self.expire_after_seconds is not None and seconds_from_failure > self.expire_after_seconds:
            return None
        return wait_seconds


def classify_error(error: ApiError) -> str | None:
    """Return the exception type, as retry policies of pipelines name it, of an error of a job's creation, for
    example Step.THROTTLING; None if no policy can cover the error."""
    if error.code in _THROTTLING_CODES:  # ThrottlingException and others
        return THROTTLING
    if error.code == "ResourceLimitExceeded":
        return RESOURCE_LIMIT
    if error.status >= 500:  # HTTP status
        return SERVICE_FAULT
    return None


def classify_failure_reason(failure_reason: str) -> str | None:
    """Return the exception type of a job's FailureReason; None for a failure of the job's own program."""
    return _EXCEPTION_TYPE_BY_REASON.get(failure_reason.partition(":")[0].strip())


def parse_retry_policy(document: JsonMapping) -> RetryPolicy:
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


def find_retry_policy_problems(document: Any, path: DocumentPath) -> Iterator[tuple[DocumentPath, str]]:
    """Yield (path, sentence) for every error in a retry policy at ``path`` of a pipeline's definition, such
    as ``{"ExceptionType": ["SageMaker.CAPACITY_ERROR"], "IntervalSeconds": 60, "MaxAttempts": 3}``."""
    if not isinstance(document, Mapping):
        yield path, "must be an object"
        return
    document = without_nulls(document)
    for name in sorted(document.keys() - _BOUNDS_BY_NUMBER_FIELD.keys() - {"ExceptionType"}):
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
    for name in _BOUNDS_BY_NUMBER_FIELD:  # IntervalSeconds, MaxAttempts, ...
        if name in document:
            number_problem = _find_number_problem(name, document[name])
            if number_problem is not None:
                yield (*path, name), number_problem


def _find_number_problem(name: str, value: Any) -> str | None:
    """Return why ``value`` cannot be the number ``name`` of a retry policy, such as MaxAttempts; None if it
    can."""
    minimum, maximum = _BOUNDS_BY_NUMBER_FIELD[name]
    number_type = int if name in _INTEGER_FIELDS else (int, float)
    is_number = isinstance(value, number_type) and not isinstance(value, bool)
    if is_number and minimum <= value <= maximum:
        return None
    type_text = "an integer" if number_type is int else "a number"
    bounds_text = f"of at least {minimum:g}"
    if maximum != float("inf"):
        bounds_text = f"from {minimum:g} to {maximum:g}"
    return f"{value!r} is not {type_text} {bounds_text}"


def _get_exception_types(document: JsonMapping) -> Any:
    """Return ExceptionType as a list, which the SDK writes; the published JSON schema of definitions has a
    single string."""
    exception_types = document.get("ExceptionType")
    return [exception_types] if isinstance(exception_types, str) else exception_types
