"""The states of a training job: a pure state machine with SageMaker's primary and secondary statuses.

    InProgress   Starting -> Downloading -> Training -> Uploading
                    `-> Pending -> Starting          the job waits for capacity
                 Training -> Interrupted -> Starting  a spot interruption; a new attempt begins
                 Training -> Restarting -> Starting   RetryStrategy, after an InternalServerError
    Stopping     Stopping
    Stopped      Stopped | MaxRuntimeExceeded | MaxWaitTimeExceeded
    Completed    Completed
    Failed       Failed

Source: API model (SecondaryStatusTransition) and the developer guide's model-managed-spot-training. Times
are in seconds since the epoch. If the clock goes backwards, a transition still never ends before it began.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final, Literal

from smlaunch.local.json_types import JsonMapping, JsonObject

StopCause = Literal["user", "max_runtime", "max_wait", "max_pending"]

MAX_REASON_CHARACTERS: Final = 1024
"""Characters of FailureReason, by the API model."""

_IN_PROGRESS_STATUSES: Final = frozenset({"Pending", "Starting", "Downloading", "Training", "Uploading"}) | {
    "Interrupted",
    "Restarting",
}
_PRIMARY_BY_SECONDARY_STATUS: Final[Mapping[str, str]] = {
    **dict.fromkeys(_IN_PROGRESS_STATUSES, "InProgress"),
    "Stopping": "Stopping",
    "Completed": "Completed",
    "Failed": "Failed",
    "Stopped": "Stopped",
    "MaxRuntimeExceeded": "Stopped",
    "MaxWaitTimeExceeded": "Stopped",
}
"""The primary status (TrainingJobStatus) of each secondary status."""
_NEXT_STATUSES_BY_STATUS: Final[Mapping[str, frozenset[str]]] = {
    "Pending": frozenset({"Starting", "Stopping", "Failed"}),
    "Starting": frozenset({"Pending", "Downloading", "Interrupted", "Restarting", "Stopping", "Failed"}),
    "Downloading": frozenset({"Training", "Interrupted", "Restarting", "Stopping", "Failed"}),
    "Training": frozenset({"Uploading", "Interrupted", "Restarting", "Stopping", "Failed"}),
    "Uploading": frozenset({"Completed", "Restarting", "Stopping", "Failed"}),
    "Interrupted": frozenset({"Starting", "Restarting", "Stopping", "Failed"}),
    "Restarting": frozenset({"Starting", "Stopping", "Failed"}),
    "Stopping": frozenset({"Stopped", "MaxRuntimeExceeded", "MaxWaitTimeExceeded", "Failed"}),
}
"""The secondary statuses that may follow each; a final status has no entry."""
_STATUS_BY_STOP_CAUSE: Final[Mapping[StopCause, str]] = {
    "user": "Stopped",
    "max_runtime": "MaxRuntimeExceeded",
    "max_wait": "MaxWaitTimeExceeded",
    # The documentation says only that the job is stopped; no status is named after it.
    "max_pending": "Stopped",
}
"""The final secondary status of a stopped job."""
_STATUSES_WITH_HOSTS: Final = frozenset({"Downloading", "Training", "Uploading"})
STATUS_MESSAGES: Final[Mapping[str, str]] = {
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
"""The StatusMessage of each secondary status. AWS calls these texts subject to change."""


NO_CAPACITY_MESSAGE: Final = "Insufficient capacity error from EC2 while launching instances, retrying!"
"""The StatusMessage of Starting while no hosts are available (API model, SecondaryStatusTransition)."""


class IllegalTransition(RuntimeError):
    """A transition that SageMaker does not have; an error of the endpoint, never of the job."""


@dataclass(frozen=True)
class Transition:
    """One entry of SecondaryStatusTransitions."""

    status: str
    """The secondary status."""
    start: float
    """Seconds since the epoch."""
    end: float | None
    """None while the job is in this status."""
    message: str
    """The StatusMessage."""


@dataclass(frozen=True)
class JobState:
    """The status of a job with its history. The job store saves it as JSON under these names."""

    secondary: str
    """The secondary status."""
    transitions: tuple[Transition, ...]
    created: float
    """Seconds since the epoch."""
    modified: float
    """Time of the last change."""
    training_started: float | None = None
    """Begin of the first download. From here to ``training_ended`` the job is billed while it has hosts."""
    training_ended: float | None = None
    """End of the job; None if it never had hosts."""
    failure_reason: str | None = None
    stop_cause: StopCause | None = None
    """The first request to stop, if there was one."""
    billable_share: float = 1.0
    """Share of the training time that is billed; less than 1 for managed spot training."""

    @property
    def status(self) -> str:
        """The primary status, TrainingJobStatus."""
        return _PRIMARY_BY_SECONDARY_STATUS[self.secondary]

    @property
    def has_ended(self) -> bool:
        """Whether the status is final."""
        return self.secondary not in _NEXT_STATUSES_BY_STATUS

    @property
    def training_seconds(self) -> int | None:
        """TrainingTimeInSeconds: the time with hosts, rounded up, of all attempts together without the
        pauses between them. None until the job has ended, and for a job that never had hosts."""
        if self.training_started is None or self.training_ended is None:
            return None
        return math.ceil(self.seconds_in_statuses(_STATUSES_WITH_HOSTS, self.training_ended))

    @property
    def billable_seconds(self) -> int | None:
        """BillableTimeInSeconds; None like ``training_seconds``."""
        seconds = self.training_seconds
        return None if seconds is None else math.ceil(seconds * self.billable_share)

    def seconds_in_statuses(self, statuses: frozenset[str], now: float) -> float:
        """Return the seconds that the job has spent in any of these secondary statuses until ``now`` (seconds
        since the epoch). A Stopping status that follows one of them counts too: the hosts still run."""
        total_seconds = 0.0
        is_previous_counted = False
        for transition in self.transitions:
            is_counted = transition.status in statuses
            if transition.status == "Stopping":
                is_counted = is_counted or is_previous_counted
            if is_counted:
                end = now if transition.end is None else transition.end  # None: the current status
                total_seconds += max(0.0, end - transition.start)
            is_previous_counted = is_counted
        return total_seconds

    def to_dict(self) -> JsonObject:
        """Return the JSON form that the job store saves."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: JsonMapping) -> JobState:
        """Build a state from the form that ``to_dict`` returns."""
        transitions = tuple(Transition(**transition) for transition in document["transitions"])
        return cls(**{**document, "transitions": transitions})


def initial_state(now: float, billable_share: float = 1.0) -> JobState:
    """Return the state of a job that was just accepted."""
    first = Transition("Starting", now, None, STATUS_MESSAGES["Starting"])
    return JobState("Starting", (first,), now, now, billable_share=billable_share)


def move_to_status(
    state: JobState, secondary_status: str, now: float, message: str | None = None
) -> JobState:
    """Return the state of a job after it moves to another secondary status (``state.secondary`` is the
    present one), such as Downloading, at the time ``now`` (seconds since the epoch). ``message`` is its
    StatusMessage, None for the usual one. Raises IllegalTransition if SageMaker has no such transition."""
    if secondary_status not in _NEXT_STATUSES_BY_STATUS.get(state.secondary, frozenset()):
        raise IllegalTransition(f"{state.secondary} -> {secondary_status}")
    now = max(now, state.transitions[-1].start)  # the clock may have gone backwards
    is_final = secondary_status not in _NEXT_STATUSES_BY_STATUS  # it has no next ones
    *earlier_transitions, current_transition = state.transitions
    new_transition = Transition(
        status=secondary_status,
        start=now,
        end=now if is_final else None,
        message=message or STATUS_MESSAGES[secondary_status],
    )
    training_start_time = state.training_started
    if training_start_time is None and secondary_status == "Downloading":
        training_start_time = now  # TrainingStartTime includes the download (API model)
    return replace(
        state,
        secondary=secondary_status,
        transitions=(*earlier_transitions, replace(current_transition, end=now), new_transition),
        modified=now,  # LastModifiedTime
        training_started=training_start_time,
        training_ended=now if is_final and training_start_time is not None else None,
    )


def with_message(state: JobState, message: str, now: float) -> JobState:
    """Return the state with another StatusMessage for the current status."""
    *earlier, current = state.transitions
    return replace(
        state,
        transitions=(*earlier, replace(current, message=message)),
        modified=max(now, state.modified),
    )


def request_stop(state: JobState, cause: StopCause, now: float, message: str | None = None) -> JobState:
    """Return the state of a job that is asked to stop. Only the first cause counts; a second request changes
    nothing."""
    if state.secondary == "Stopping":
        return state
    return replace(move_to_status(state, "Stopping", now, message), stop_cause=cause)


def complete_or_stop(state: JobState, now: float) -> JobState:
    """Return the final state of a job that did not fail: Completed, or the status for its stop cause."""
    if state.stop_cause is None:
        return move_to_status(state, "Completed", now)
    return move_to_status(state, _STATUS_BY_STOP_CAUSE[state.stop_cause], now)


def fail(state: JobState, failure_reason: str, now: float) -> JobState:
    """Return the Failed state. ``failure_reason`` becomes FailureReason, cut to the API's 1,024
    characters."""
    return replace(
        move_to_status(state, "Failed", now), failure_reason=failure_reason[:MAX_REASON_CHARACTERS]
    )


def algorithm_error(text: str, exit_code: int) -> str:
    """Return a FailureReason in AWS's format, cut in the middle so that it still ends with the exit code."""
    suffix = f", exit code: {exit_code}"
    prefix = "AlgorithmError: "
    return prefix + text.strip()[: MAX_REASON_CHARACTERS - len(prefix) - len(suffix)] + suffix
