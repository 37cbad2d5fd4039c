"""A run as data: the exact request of every possible job, and the rules for what follows each ending.

The driver in a client and every export read the same workflow: which request comes next, and how to react
to each ending of a job, is defined only here. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum
from typing import Any

from smlaunch.api.request import name_member
from smlaunch.contract import formats
from smlaunch.contract import segment as variables
from smlaunch.contract.formats import FormatError, unknown_members
from smlaunch.contract.names import TAG_ATTEMPT, TAG_RUN, TAG_SEGMENT, JobName
from smlaunch.errors import (
    DISK_FULL,
    EXIT_BAD_JOB,
    EXIT_LIMIT,
    EXIT_MACHINE,
    EXIT_SERVICE,
    EXIT_STOPPED,
    EXIT_TRAINING_FAILED,
    JobError,
    Problem,
)

WORKFLOW_FILE = "workflow.json"
"""In the folder of a run."""

_SHORTEST_SHARE = 0.5
"""Minimum share of a shortened segment that is used for training; the rest is for the last checkpoint."""


# ---- what a run is made of --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """The request of a segment's first attempt; later segments repeat it until another variant begins."""

    first_segment: int
    """Counted from 1."""

    request: Mapping[str, Any]
    price_per_hour: float | None = None
    """US dollars for all hosts; None if unknown."""

    until_step: int | None = None
    """Training step after which the next variant begins, whatever the segment's number; also in the
    request's Environment."""

    @property
    def max_runtime(self) -> int:
        """Seconds after which the service stops the job."""
        return int(self.request["StoppingCondition"]["MaxRuntimeInSeconds"])

    @property
    def stop_after(self) -> int | None:
        """Seconds from an attempt's start to its planned end; None without a planned end."""
        text = self.request.get("Environment", {}).get(variables.STOP_AFTER_VARIABLE)
        return None if text is None else int(float(text))

    @property
    def min_seconds(self) -> float:
        """Shortest useful job: a shorter one would spend most of its time on startup and its last
        checkpoint."""
        if self.stop_after is None:
            return 1.0
        return max(1.0, min(2.0 * (self.max_runtime - self.stop_after), self.max_runtime / 2))

    @property
    def is_spot(self) -> bool:
        return bool(self.request.get("EnableManagedSpotTraining"))


@dataclass(frozen=True)
class RunPolicy:
    """Bounds of a run."""

    chain: bool = False
    """A run may have several segments; otherwise it is one job."""

    attempts: int = 1
    """Number of jobs in a row without progress that ends the run."""

    total_seconds: int | None = None
    """Training time of all jobs together; None leaves it to each job's limit."""

    max_cost: float | None = None
    """US dollars."""

    on_demand_fallback: bool = False
    """A segment that lacked spot capacity is retried on demand."""

    keep: int = 3
    """Number of committed checkpoints to keep across segments."""


@dataclass(frozen=True)
class Workflow:
    """Everything that drives a run."""

    run: str
    job_hash: str
    """Tag of every job."""

    variants: tuple[Variant, ...]
    """Ordered by ``first_segment``; the first begins at 1."""

    policy: RunPolicy = RunPolicy()
    checkpoints: str | None = None
    """S3 prefix of all segments; None if the run saves no checkpoints."""

    @property
    def is_chain(self) -> bool:
        """Whether the run may have several segments, each of one or more jobs, instead of one job only."""
        return self.policy.chain

    @property
    def is_single_job(self) -> bool:
        """Whether the run is one job, and ends when that job does."""
        policy = self.policy
        planned_end = any(variant.stop_after is not None for variant in self.variants)
        return not (self.is_chain or policy.attempts > 1 or policy.on_demand_fallback or planned_end)

    @property
    def segment_count(self) -> int | None:
        """Number of segments that the training time fills, if each has its full length; None if unbounded."""
        total = self.policy.total_seconds
        if not self.is_chain or total is None:
            return None if self.is_chain else 1
        count = 0
        while total > 0:
            count += 1
            total -= variant_for(self, count).max_runtime
        return count

    def to_json(self, before: str | bytes | None = None) -> str:
        """``workflow.json``: all that another machine needs to continue the run. ``before``: the document
        that this one replaces; members that a later minor version added to it are kept."""
        stored = {} if before is None else json.loads(before)
        document = asdict(self)
        document["policy"].update(unknown_members(stored.get("policy", {}), document["policy"]))
        document = formats.WORKFLOW.stamp_replacement(document, stored)
        return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=True) + "\n"

    @classmethod
    def from_json(cls, document_text: str | bytes) -> Workflow:
        """Raises JobError for an invalid workflow, or one of an unknown major version."""
        try:
            document = formats.WORKFLOW.upgrade_document(json.loads(document_text), WORKFLOW_FILE)
            document["variants"] = tuple(
                Variant(**_known_fields(Variant, row)) for row in document["variants"]
            )
            document["policy"] = RunPolicy(**_known_fields(RunPolicy, document["policy"]))
            return cls(**_known_fields(cls, document))
        except FormatError as error:
            raise JobError([Problem("", str(error))]) from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _unreadable(
                f"it is not a workflow ({error}); launch the run again under a new name"
            ) from None


def with_caps_of(stored: Workflow, planned: Workflow) -> Workflow:
    """The stored workflow of a run with the caps and prices of a new plan of the same job. Its requests are
    unchanged: they name what the release that began the run staged for them."""
    variants = tuple(
        replace(variant, price_per_hour=variant_for(planned, variant.first_segment).price_per_hour)
        for variant in stored.variants
    )
    return replace(stored, variants=variants, policy=planned.policy)


def _known_fields(kind: type[Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of ``kind`` in ``row``: later minor versions may add members."""
    names = {field.name for field in fields(kind)}
    return {key: value for key, value in row.items() if key in names}


def _unreadable(reason: str) -> JobError:
    return JobError([Problem(WORKFLOW_FILE, reason)])


def variant_for(workflow: Workflow, segment: int, step: int | None = None) -> Variant:
    """The variant that a segment runs. ``step``: newest committed step when it begins, 0 before the first;
    None if unknown: then the segment number decides.

    A variant with ``until_step`` holds until that step is reached, however many segments that takes;
    others end when the next variant's ``first_segment`` is reached.
    """
    for variant, following in zip(workflow.variants, workflow.variants[1:], strict=False):
        if variant.until_step is not None and step is not None:
            if step < variant.until_step:
                return variant
        elif segment < following.first_segment:
            return variant
    return workflow.variants[-1]


def request_for(
    workflow: Workflow,
    segment: int,
    attempt: int,
    *,
    step: int | None = None,
    reported_step: int | None = None,
    files_digest: str = "",
    spot: bool | None = None,
    seconds_left: float | None = None,
) -> dict[str, Any]:
    """The request of one job. For attempt 1 of a variant's first segment it is the planned one, unchanged.

    ``step``, ``reported_step`` and ``files_digest``: progress so far, written to later requests'
    Environment, from which the progress of each job is computed later. ``spot``: False requests on-demand
    capacity; None as planned. ``seconds_left``: longest training time; the planned end moves with it, so
    that the job still ends at a checkpoint.
    """
    variant = variant_for(workflow, segment, step)
    request = deepcopy(dict(variant.request))
    request[name_member(request)] = str(JobName(workflow.run, segment, attempt))
    own_tags = {TAG_RUN: workflow.run, TAG_SEGMENT: str(segment), TAG_ATTEMPT: str(attempt)}
    request["Tags"] = [
        {"Key": tag["Key"], "Value": own_tags.get(tag["Key"], tag["Value"])}
        for tag in request.get("Tags", [])
    ]
    if step is not None and (segment, attempt) != (1, 1):
        environment = request.setdefault("Environment", {})
        environment[variables.FROM_STEP_VARIABLE] = str(step)
        if reported_step is not None:
            environment[variables.FROM_REPORTED_VARIABLE] = str(reported_step)
        if files_digest:
            environment[variables.FROM_FILES_VARIABLE] = files_digest
    if spot is False:
        request.pop("EnableManagedSpotTraining", None)
        request["StoppingCondition"].pop("MaxWaitTimeInSeconds", None)
    if seconds_left is not None and seconds_left < variant.max_runtime:
        limit_seconds = max(1, int(seconds_left))
        request["StoppingCondition"]["MaxRuntimeInSeconds"] = limit_seconds
        if variant.stop_after is not None:
            margin_seconds = variant.max_runtime - variant.stop_after
            stop_after = max(limit_seconds - margin_seconds, int(limit_seconds * _SHORTEST_SHARE))
            request["Environment"][variables.STOP_AFTER_VARIABLE] = str(stop_after)
    return request


# ---- what to do about each way a job can end --------------------------------------------------------------


class Ending(str, Enum):
    """How a job ended, as far as the next action depends on it."""

    COMPLETED = "completed"
    TIME_LIMIT = "time"
    """The service stopped it at its MaxRuntimeInSeconds."""
    WAIT_EXCEEDED = "starved"
    """The service stopped it at its MaxWaitTimeInSeconds: no spot capacity, or it was interrupted."""
    STOPPED = "stopped"
    """By a person, or another call of StopTrainingJob."""
    CAPACITY = "capacity"
    SERVICE = "service"
    CLIENT = "client"
    """Data, permission, image: the job cannot work as written."""
    DISK_FULL = "machine"
    """The local endpoint's disk is full."""
    ALGORITHM = "algorithm"
    """The script failed."""


class Remedy(str, Enum):
    """What to do after an ending."""

    CONTINUE = "continue"
    """Submit the next segment, from the newest checkpoint."""
    RETRY = "retry"
    """Submit the same segment again, unchanged."""
    RESUME = "resume"
    """Submit the same segment again, from the newest checkpoint."""
    ON_DEMAND = "on-demand"
    """Submit the same segment again without spot, if the policy allows it."""
    GIVE_UP = "give-up"


@dataclass(frozen=True)
class EndingRule:
    """What to do after an ending."""

    remedy: Remedy
    exit_code: int
    """Exit code of the run if the remedy is not allowed or all attempts are used."""

    first_wait_seconds: float = 0.0
    """Wait before the next job after the first attempt; doubles with each attempt."""

    max_wait_seconds: float = 0.0
    """Longest wait before the next job."""

    def wait_seconds(self, attempt: int) -> float:
        """Seconds to wait before the next job, after this attempt ended."""
        return min(self.max_wait_seconds, self.first_wait_seconds * 2.0 ** min(attempt - 1, 20))


ENDING_RULES: Mapping[Ending, EndingRule] = {
    Ending.COMPLETED: EndingRule(Remedy.CONTINUE, 0),
    Ending.TIME_LIMIT: EndingRule(Remedy.CONTINUE, EXIT_LIMIT),
    Ending.WAIT_EXCEEDED: EndingRule(Remedy.ON_DEMAND, EXIT_LIMIT),
    Ending.STOPPED: EndingRule(Remedy.GIVE_UP, EXIT_STOPPED),
    Ending.CAPACITY: EndingRule(Remedy.RETRY, EXIT_SERVICE, first_wait_seconds=60.0, max_wait_seconds=900.0),
    Ending.SERVICE: EndingRule(Remedy.RETRY, EXIT_SERVICE, first_wait_seconds=30.0, max_wait_seconds=300.0),
    Ending.CLIENT: EndingRule(Remedy.GIVE_UP, EXIT_BAD_JOB),
    Ending.DISK_FULL: EndingRule(Remedy.GIVE_UP, EXIT_MACHINE),
    Ending.ALGORITHM: EndingRule(Remedy.RESUME, EXIT_TRAINING_FAILED),
}
"""Source of the classes: SecondaryStatus and FailureReason of DescribeTrainingJob (API reference).
Capacity returns after minutes; earlier retries only use up attempts."""

ENDING_BY_FAILURE: Mapping[str, Ending] = {
    "AlgorithmError": Ending.ALGORITHM,
    "ClientError": Ending.CLIENT,
    "CapacityError": Ending.CAPACITY,
    "InternalServerError": Ending.SERVICE,
}
"""By the first word of FailureReason."""

ENDING_BY_STOP: Mapping[str, Ending] = {
    "MaxRuntimeExceeded": Ending.TIME_LIMIT,
    "MaxWaitTimeExceeded": Ending.WAIT_EXCEEDED,
}
"""By the SecondaryStatus of a stopped job, if no person stopped it."""


def classify_ending(status: str, secondary_status: str, reason: str) -> Ending | None:
    """Ending of a job by TrainingJobStatus, SecondaryStatus and FailureReason; None while it runs. A
    failure without a known class counts as the script's."""
    if status == "Completed":
        return Ending.COMPLETED
    if status == "Stopped":
        return ENDING_BY_STOP.get(secondary_status, Ending.STOPPED)
    if status == "Failed":
        if reason.startswith(f"ClientError: {DISK_FULL}"):
            return Ending.DISK_FULL
        return ENDING_BY_FAILURE.get(reason.partition(":")[0].strip(), Ending.ALGORITHM)
    return None
