"""How long a run waits for services that say "not now": one table for the driver and for what is exported."""

from __future__ import annotations

from dataclasses import dataclass

TRANSIENT = frozenset(
    (
        *("Throttling", "ThrottlingException", "ThrottledException", "TooManyRequestsException"),
        *("RequestLimitExceeded", "RequestThrottled", "SlowDown"),
        *("InternalFailure", "InternalError", "InternalServerError", "InternalServerException"),
        *("ServiceUnavailable", "ServiceUnavailableException", "RequestTimeout"),
    )
)
"""Worth another try as they are. Creating is safe to repeat: a job's name can be taken only once."""


@dataclass(frozen=True)
class Patience:
    """Full jitter: each wait is random between 0 and ``first`` doubled with every try, at most ``longest``.

    Seconds. ``total`` bounds all waits together.
    """

    first: float = 1.0
    longest: float = 30.0
    total: float = 300.0

    def delay(self, tries: int, waited: float, chance: float) -> float | None:
        """How long to wait after ``tries`` failed ones; None: give up. ``chance`` is uniform in [0, 1)."""
        if waited >= self.total:
            return None
        ceiling = min(self.longest, self.first * 2.0 ** min(tries - 1, 30))
        return min(max(ceiling * chance, self.first / 10), self.total - waited)

    @property
    def tries(self) -> int:
        """How many waits ``total`` has room for, were each as long as it may be."""
        count, waited = 0, 0.0
        while (delay := self.delay(count + 1, waited, 1.0)) is not None:
            count, waited = count + 1, waited + delay
        return count


CREATE_PATIENCE = Patience(first=1.0, longest=30.0, total=600.0)
"""CreateTrainingJob is limited to about one a second per account: many clients at once wait for minutes."""

QUOTA_PATIENCE = Patience(first=60.0, longest=300.0, total=86400.0)
"""Instances count against the quota until a job has let go of them, and others may hold it for hours: a chain
that is under way waits for them (seconds, in a region)."""
