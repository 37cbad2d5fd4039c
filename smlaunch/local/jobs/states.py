"""The life of a training job: a pure state machine with SageMaker's primary and secondary statuses.

    InProgress   Starting -> Downloading -> Training -> Uploading
                    `-> Pending -> Starting          capacity is waited for
                 Training -> Interrupted -> Starting  a spot interruption; all begins again
                 Training -> Restarting -> Starting   RetryStrategy, after an InternalServerError
    Stopping     Stopping
    Stopped      Stopped | MaxRuntimeExceeded | MaxWaitTimeExceeded
    Completed    Completed
    Failed       Failed

Source: API model (SecondaryStatusTransition) and the developer guide's model-managed-spot-training. Times are
seconds since the epoch; a clock that goes backwards never makes a transition end before it began.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

StopCause = Literal["user", "max_runtime", "max_wait", "max_pending"]

REASON_LIMIT: Final = 1024

_RUNNING: Final = frozenset({"Pending", "Starting", "Downloading", "Training", "Uploading"}) | {
    "Interrupted",
    "Restarting",
}
_PRIMARY: Final[Mapping[str, str]] = {
    **dict.fromkeys(_RUNNING, "InProgress"),
    "Stopping": "Stopping",
    "Completed": "Completed",
    "Failed": "Failed",
    "Stopped": "Stopped",
    "MaxRuntimeExceeded": "Stopped",
    "MaxWaitTimeExceeded": "Stopped",
}
_NEXT: Final[Mapping[str, frozenset[str]]] = {
    "Pending": frozenset({"Starting", "Stopping", "Failed"}),
    "Starting": frozenset({"Pending", "Downloading", "Interrupted", "Restarting", "Stopping", "Failed"}),
    "Downloading": frozenset({"Training", "Interrupted", "Restarting", "Stopping", "Failed"}),
    "Training": frozenset({"Uploading", "Interrupted", "Restarting", "Stopping", "Failed"}),
    "Uploading": frozenset({"Completed", "Restarting", "Stopping", "Failed"}),
    "Interrupted": frozenset({"Starting", "Restarting", "Stopping", "Failed"}),
    "Restarting": frozenset({"Starting", "Stopping", "Failed"}),
    "Stopping": frozenset({"Stopped", "MaxRuntimeExceeded", "MaxWaitTimeExceeded", "Failed"}),
}
_END: Final[Mapping[StopCause, str]] = {
    "user": "Stopped",
    "max_runtime": "MaxRuntimeExceeded",
    "max_wait": "MaxWaitTimeExceeded",
    # The documentation says only that the job is stopped; no status is named after it.
    "max_pending": "Stopped",
}
_ON_HOSTS: Final = frozenset({"Downloading", "Training", "Uploading"})
MESSAGES: Final[Mapping[str, str]] = {
    "Pending": "Waiting for capacity",
    "Starting": "Starting the training job",
    "Downloading": "Downloading input data",
    "Training": "Training image download completed. Training in progress.",
    "Uploading": "Uploading generated training model",
    "Interrupted": "Training job interrupted",
    "Restarting": "Restarting the training job",
    "Stopping": "Stopping the training job",
    "Completed": "Training job completed",
    "Failed": "Training job failed",
    "Stopped": "Training job stopped",
    "MaxRuntimeExceeded": "Training job runtime exceeded MaxRuntimeInSeconds provided",
    "MaxWaitTimeExceeded": "Training job exceeded MaxWaitTimeInSeconds provided",
}
"""What StatusMessage says. AWS calls these texts subject to change."""


NO_CAPACITY: Final = "Insufficient capacity error from EC2 while launching instances, retrying!"
"""The StatusMessage of Starting while hosts cannot be had (API model, SecondaryStatusTransition)."""


class IllegalTransition(RuntimeError):
    """A step SageMaker's statuses do not know; a fault of the endpoint, never of the job."""


@dataclass(frozen=True)
class Transition:
    status: str
    start: float
    end: float | None
    message: str


@dataclass(frozen=True)
class JobState:
    """Where a job stands. ``training_started`` and ``training_ended`` bound the billed time, of which
    ``billable_share`` is paid (less than 1 on spot)."""

    secondary: str
    transitions: tuple[Transition, ...]
    created: float
    modified: float
    training_started: float | None = None
    training_ended: float | None = None
    failure_reason: str | None = None
    stop_cause: StopCause | None = None
    billable_share: float = 1.0

    @property
    def status(self) -> str:
        return _PRIMARY[self.secondary]

    @property
    def ended(self) -> bool:
        return self.secondary not in _NEXT

    @property
    def training_seconds(self) -> int | None:
        """Whole seconds, begun ones counted, that the job had hosts: all attempts together, without the time
        between them. None until the job has ended, or when it never had any."""
        if self.training_started is None or self.training_ended is None:
            return None
        return math.ceil(self.seconds_in(_ON_HOSTS, self.training_ended))

    @property
    def billable_seconds(self) -> int | None:
        seconds = self.training_seconds
        return None if seconds is None else math.ceil(seconds * self.billable_share)

    def seconds_in(self, statuses: frozenset[str], now: float) -> float:
        """Seconds spent in any of ``statuses`` until ``now``; what follows as Stopping belongs to them."""
        total = 0.0
        counted = False
        for step in self.transitions:
            counted = step.status in statuses or (step.status == "Stopping" and counted)
            if counted:
                total += max(0.0, (now if step.end is None else step.end) - step.start)
        return total

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> JobState:
        steps = tuple(Transition(**step) for step in document["transitions"])
        return cls(**{**document, "transitions": steps})


def begin(now: float, billable_share: float = 1.0) -> JobState:
    """A job that was just accepted."""
    first = Transition("Starting", now, None, MESSAGES["Starting"])
    return JobState("Starting", (first,), now, now, billable_share=billable_share)


def move(state: JobState, secondary: str, now: float, message: str | None = None) -> JobState:
    """The job goes on to ``secondary``. Raises IllegalTransition where SageMaker knows no such step."""
    if secondary not in _NEXT.get(state.secondary, frozenset()):
        raise IllegalTransition(f"{state.secondary} -> {secondary}")
    now = max(now, state.transitions[-1].start)
    ended = secondary not in _NEXT
    closed = replace(state.transitions[-1], end=now)
    step = Transition(secondary, now, now if ended else None, message or MESSAGES[secondary])
    started = state.training_started
    if started is None and secondary == "Downloading":
        started = now
    return replace(
        state,
        secondary=secondary,
        transitions=(*state.transitions[:-1], closed, step),
        modified=now,
        training_started=started,
        training_ended=now if ended and started is not None else None,
    )


def tell(state: JobState, message: str, now: float) -> JobState:
    """The job goes on as it is, with another StatusMessage."""
    *earlier, step = state.transitions
    return replace(
        state,
        transitions=(*earlier, replace(step, message=message)),
        modified=max(now, state.modified),
    )


def stop(state: JobState, cause: StopCause, now: float, message: str | None = None) -> JobState:
    """Asks a job to stop. The first cause counts; asking again changes nothing."""
    if state.secondary == "Stopping":
        return state
    return replace(move(state, "Stopping", now, message), stop_cause=cause)


def finish(state: JobState, now: float) -> JobState:
    """All is done: Completed, or, when the job was being stopped, the status of the cause."""
    if state.stop_cause is None:
        return move(state, "Completed", now)
    return move(state, _END[state.stop_cause], now)


def fail(state: JobState, reason: str, now: float) -> JobState:
    """``reason`` becomes FailureReason, cut to the API's 1,024 characters."""
    return replace(move(state, "Failed", now), failure_reason=reason[:REASON_LIMIT])


def algorithm_error(text: str, exit_code: int) -> str:
    """FailureReason in AWS's words, cut so that the exit code at its end survives."""
    tail = f", exit code: {exit_code}"
    head = "AlgorithmError: "
    return head + text.strip()[: REASON_LIMIT - len(head) - len(tail)] + tail
