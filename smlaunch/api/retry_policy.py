"""Backoff for transient service errors: one table for the driver and the exports."""

from __future__ import annotations

from typing import NamedTuple

TRANSIENT_ERRORS = frozenset(
    (
        *("Throttling", "ThrottlingException", "ThrottledException", "TooManyRequestsException"),
        *("RequestLimitExceeded", "RequestThrottled", "SlowDown"),
        *("InternalFailure", "InternalError", "InternalServerError", "InternalServerException"),
        *("ServiceUnavailable", "ServiceUnavailableException", "RequestTimeout"),
    )
)
"""Error codes that are worth a retry. Creating is safe to repeat: a job's name is unique."""


class BackoffPolicy(NamedTuple):
    """Exponential backoff with full jitter: each delay is random between 0 and a doubling ceiling.
    Seconds."""

    first_seconds: float = 1.0
    """Ceiling of the first delay; doubles with each retry."""

    max_seconds: float = 30.0
    """Largest ceiling."""

    total_seconds: float = 300.0
    """Bound of all delays together."""

    def next_delay(self, failed_tries: int, waited_seconds: float, random_fraction: float) -> float | None:
        """Seconds to wait after ``failed_tries``; None to give up. ``random_fraction``: uniform in [0, 1)."""
        if waited_seconds >= self.total_seconds:
            return None
        ceiling = min(self.max_seconds, self.first_seconds * 2.0 ** min(failed_tries - 1, 30))
        return min(
            max(ceiling * random_fraction, self.first_seconds / 10), self.total_seconds - waited_seconds
        )

    @property
    def max_retries(self) -> int:
        """Number of retries within ``total_seconds`` if every delay is the longest possible."""
        count, waited = 0, 0.0
        while (delay := self.next_delay(count + 1, waited, 1.0)) is not None:
            count, waited = count + 1, waited + delay
        return count


CREATE_BACKOFF = BackoffPolicy(first_seconds=1.0, max_seconds=30.0, total_seconds=600.0)
"""CreateTrainingJob is limited to about one call per second and account: many clients wait for minutes."""

QUOTA_BACKOFF = BackoffPolicy(first_seconds=60.0, max_seconds=300.0, total_seconds=86400.0)
"""Instances count against the quota until their job has released them, which may take hours for other
jobs: a running chain waits for them (seconds, in a region)."""
