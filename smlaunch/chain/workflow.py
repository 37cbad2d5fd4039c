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

from smlaunch.api.job_kinds import job_kind_of
from smlaunch.contract import formats
from smlaunch.contract import segment as variables
from smlaunch.contract.formats import FormatError, unknown_members
from smlaunch.contract.run_names import TAG_ATTEMPT, TAG_RUN, TAG_SEGMENT, JobName
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
from smlaunch.job.model import format_duration
from smlaunch.text.format import format_dollars, format_dollars_apart

WORKFLOW_FILE = "workflow.json"
"""In the folder of a run."""

_MIN_TRAINING_SHARE = 0.5
"""Minimum share of a shortened segment that is used for training; the rest is for the last checkpoint."""


# ---- what a run is made of --------------------------------------------------------------------------------


@dataclass(frozen=True)
class SegmentVariant:
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
    def max_runtime_seconds(self) -> int:
        """Seconds after which the service stops the job."""
        return int(self.request["StoppingCondition"]["MaxRuntimeInSeconds"])

    @property
    def stop_after_seconds(self) -> int | None:
        """Seconds from an attempt's start to its planned end; None without a planned end."""
        text = self.request.get("Environment", {}).get(variables.STOP_AFTER_VARIABLE)
        return None if text is None else int(float(text))

    @property
    def min_useful_seconds(self) -> float:
        """Shortest useful job: a shorter one would spend most of its time on startup and its last
        checkpoint."""
        if self.stop_after_seconds is None:
            return 1.0
        return max(
            1.0, min(2.0 * (self.max_runtime_seconds - self.stop_after_seconds), self.max_runtime_seconds / 2)
        )

    @property
    def keep_alive_seconds(self) -> int:
        """Seconds in which the hosts wait for a next job after the run, and are billed."""
        return int(self.request.get("ResourceConfig", {}).get("KeepAlivePeriodInSeconds", 0))

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
    """Training time of all jobs together, failed ones included; None for a run of one job, whose own limit
    is enough."""

    max_cost: float | None = None
    """US dollars of all jobs together; None without a cap, or for a run of one job."""

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

    variants: tuple[SegmentVariant, ...]
    """Ordered by ``first_segment``; the first begins at 1."""

    policy: RunPolicy = RunPolicy()
    checkpoints: str | None = None
    """S3 prefix of all segments; None if the run saves no checkpoints."""

    hash_without_max_runtime: str = ""
    """Of a chain: hash of the job without ``limits.max_runtime``, which may change. Empty for other runs,
    whose request has that limit, and for runs begun by a release before format 1.1."""

    @property
    def is_multi_segment(self) -> bool:
        """Whether the run may have several segments, each of one or more jobs, instead of one job only."""
        return self.policy.chain

    @property
    def is_single_job(self) -> bool:
        """Whether the run is one job, and ends when that job does."""
        policy = self.policy
        planned_end = any(variant.stop_after_seconds is not None for variant in self.variants)
        return not (self.is_multi_segment or policy.attempts > 1 or policy.on_demand_fallback or planned_end)

    @property
    def segment_count(self) -> int | None:
        """Return the number of segments that the run's training time fills, if each has its full length; None
        if unbounded."""
        if not self.is_multi_segment:
            return 1
        remaining_seconds = self.policy.total_seconds
        if remaining_seconds is None:
            return None
        count = 0
        while remaining_seconds > 0:
            count += 1
            remaining_seconds -= variant_of_segment(self, count).max_runtime_seconds
        return count

    def is_of_same_job(self, planned: Workflow) -> bool:
        """Return whether this workflow of an existing run is of the job that was planned again, whatever that
        job's limits are now."""
        own_hash = self.hash_without_max_runtime
        return self.job_hash == planned.job_hash or own_hash == planned.hash_without_max_runtime != ""

    def to_json(self, before: str | bytes | None = None) -> str:
        """``workflow.json``: all that another machine needs to continue the run. ``before``: the document
        that this one replaces; members that a later minor version added to it are kept."""
        stored = {} if before is None else json.loads(before)
        document = asdict(self)
        document["policy"].update(unknown_members(stored.get("policy", {}), document["policy"]))
        document = formats.WORKFLOW.with_version_replacing(document, stored)
        return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=True) + "\n"

    @classmethod
    def from_json(cls, document_text: str | bytes) -> Workflow:
        """Raises JobError for an invalid workflow, or one of an unknown major version."""
        try:
            document = formats.WORKFLOW.upgrade_document(json.loads(document_text), WORKFLOW_FILE)
            document["variants"] = tuple(
                SegmentVariant(**_known_fields(SegmentVariant, row)) for row in document["variants"]
            )
            document["policy"] = RunPolicy(**_known_fields(RunPolicy, document["policy"]))
            workflow = cls(**_known_fields(cls, document))
            workflow._check_members()
            return workflow
        except FormatError as error:
            raise JobError([Problem("", str(error))]) from None
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise _workflow_error(
                f"it is not a workflow ({error}); launch the run again under a new name"
            ) from None

    def _check_members(self) -> None:
        """Raise ValueError for members that no release has written."""
        if not isinstance(self.run, str) or not isinstance(self.checkpoints, (str, type(None))):
            raise ValueError("run and checkpoints are texts")
        if not self.variants or not all(isinstance(variant.request, dict) for variant in self.variants):
            raise ValueError("each of its variants has a request")


def with_limits_of(stored: Workflow, planned: Workflow, *, keeps_prices: bool = False) -> Workflow:
    """Return the stored workflow of a run with the limits and prices of a new plan of the same job. Its
    requests are unchanged: they name what the release that began the run staged for them.

    ``keeps_prices``: the stored ones, where they are known.
    """
    prices = (
        own_price if keeps_prices and own_price is not None else planned_price
        for own_price, planned_price in _price_pairs(stored, planned)
    )
    return replace(
        stored,
        variants=tuple(
            replace(variant, price_per_hour=price)
            for variant, price in zip(stored.variants, prices, strict=True)
        ),
        policy=planned.policy,
        hash_without_max_runtime=planned.hash_without_max_runtime,
    )


def _price_pairs(first: Workflow, second: Workflow) -> list[tuple[float | None, float | None]]:
    """Return the prices per hour that two workflows of a job have for each variant of the first."""
    return [
        (variant.price_per_hour, variant_of_segment(second, variant.first_segment).price_per_hour)
        for variant in first.variants
    ]


def _shown_limits(policy: RunPolicy) -> dict[str, str]:
    """Return the limits that may change for an existing run, by their names in a job."""
    return {
        "max_cost": "none" if policy.max_cost is None else format_dollars(policy.max_cost),
        "max_runtime": "none" if policy.total_seconds is None else format_duration(policy.total_seconds),
        "attempts": str(policy.attempts),
    }


def changed_limits_text(stored: RunPolicy, planned: RunPolicy) -> str:
    """Return a sentence about limits of a run that a new plan of the same job changes; empty without any."""
    texts = [
        f"{name} from {before} to {after}"
        for (name, before), after in zip(
            _shown_limits(stored).items(), _shown_limits(planned).values(), strict=True
        )
        if before != after
    ]
    if not texts:
        return ""
    return f"changed for the jobs that follow: {', '.join(texts)}; a running job keeps its own limits"


def price_texts(stored: Workflow, planned: Workflow, current: Workflow) -> list[str]:
    """Return sentences about the prices of an existing run's hosts: those that a new plan of the same job
    changes, and those of the plan that do not count. ``current``: the stored workflow as it goes on."""
    changes = [f"from {before} to {after}" for before, after in _texts_of_different_prices(stored, current)]
    not_counted = [f"{own} and not {other}" for own, other in _texts_of_different_prices(current, planned)]
    texts = []
    if changes:
        texts.append(
            f"price per hour of all hosts changed {', '.join(changes)}, also for the jobs that have ended"
        )
    if not_counted:
        texts.append(
            f"price per hour of all hosts: the run counts {', '.join(not_counted)}, the plan's; state "
            "compute.price_per_hour to change it"
        )
    return texts


def _texts_of_different_prices(first: Workflow, second: Workflow) -> list[tuple[str, str]]:
    """Return the prices per hour in which two workflows of a job differ, each pair once."""
    different_pairs = [(one, other) for one, other in _price_pairs(first, second) if one != other]
    return [format_dollars_apart(one, other) for one, other in dict.fromkeys(different_pairs)]


def _known_fields(dataclass_type: type[Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of ``document`` that are fields of the class: later minor versions may add more."""
    field_names = {field.name for field in fields(dataclass_type)}
    return {name: value for name, value in document.items() if name in field_names}


def _workflow_error(reason: str) -> JobError:
    return JobError([Problem(WORKFLOW_FILE, reason)])


def variant_of_segment(workflow: Workflow, segment: int, reached_step: int | None = None) -> SegmentVariant:
    """Return the variant (planned request, with its hosts, type and hyperparameters) that a segment, one of
    the run's sequential jobs, uses. A variant with ``until_step`` holds until that step is reached, however
    many segments that takes; others end when the next variant's ``first_segment`` is reached.

    ``segment``: number from 1. ``reached_step``: the run's step when the segment begins, as ``reached_step``
    returns it; None if unknown: then the segment number decides.
    """
    for variant, next_variant in zip(workflow.variants, workflow.variants[1:], strict=False):
        if variant.until_step is not None and reached_step is not None:
            if reached_step < variant.until_step:
                return variant
        elif segment < next_variant.first_segment:
            return variant
    return workflow.variants[-1]


def reached_step(newest_checkpoint_step: int | None, reported_step: int | None) -> int | None:
    """Return the training step that a run has reached: that of its newest committed checkpoint, from which
    the next job continues, or the highest reported one of a script that commits none and saves its own. 0
    before the first; None if unknown."""
    return newest_checkpoint_step or reported_step or newest_checkpoint_step


def build_job_request(
    workflow: Workflow,
    segment: int,
    attempt: int,
    *,
    newest_checkpoint_step: int | None = None,
    reported_step: int | None = None,
    checkpoint_files_digest: str = "",
    spot: bool | None = None,
    seconds_left: float | None = None,
) -> dict[str, Any]:
    """Return the CreateTrainingJob request of one attempt of a segment (one of the run's sequential jobs).
    For the first attempt (1) of a variant's first segment it is the planned one, unchanged.

    ``newest_checkpoint_step``, ``reported_step`` (highest step printed) and ``checkpoint_files_digest``: the
    run's progress so far, written to the Environment, to compute each job's progress later. ``spot``: False
    requests on-demand capacity; None as planned. ``seconds_left``: longest training time of this job.
    """
    # The planned request for this kind of segment, with its limit and planned end.
    variant = variant_of_segment(workflow, segment, reached_step(newest_checkpoint_step, reported_step))
    request = deepcopy(dict(variant.request))
    request[job_kind_of(request).name_field] = str(JobName(workflow.run, segment, attempt))
    tags_of_attempt = {TAG_RUN: workflow.run, TAG_SEGMENT: str(segment), TAG_ATTEMPT: str(attempt)}
    request["Tags"] = [
        {"Key": tag["Key"], "Value": tags_of_attempt.get(tag["Key"], tag["Value"])}
        for tag in request.get("Tags", [])
    ]
    # The run's first job begins with nothing; others get the progress before them.
    if newest_checkpoint_step is not None and (segment, attempt) != (1, 1):
        environment = request.setdefault("Environment", {})
        environment[variables.FROM_STEP_VARIABLE] = str(newest_checkpoint_step)
        if reported_step is not None:
            environment[variables.FROM_REPORTED_VARIABLE] = str(reported_step)
        if checkpoint_files_digest:
            environment[variables.FROM_FILES_VARIABLE] = checkpoint_files_digest
    if spot is False:
        # MaxWaitTimeInSeconds is only allowed for spot training.
        request.pop("EnableManagedSpotTraining", None)
        request["StoppingCondition"].pop("MaxWaitTimeInSeconds", None)
    if seconds_left is not None and seconds_left < variant.max_runtime_seconds:
        _shorten_job(request, variant, limit_seconds=max(1, int(seconds_left)))
    return request


def _shorten_job(request: dict[str, Any], variant: SegmentVariant, limit_seconds: int) -> None:
    """Set a shorter time limit in a job's request, and let its planned end be earlier, too."""
    request["StoppingCondition"]["MaxRuntimeInSeconds"] = limit_seconds
    if variant.stop_after_seconds is None:  # the planned end, in seconds from the start of the job
        return
    # It keeps its distance from the limit, which is for the last checkpoint, unless less than half of a
    # short job would be left to train.
    margin_seconds = variant.max_runtime_seconds - variant.stop_after_seconds
    stop_after_seconds = max(limit_seconds - margin_seconds, int(limit_seconds * _MIN_TRAINING_SHARE))
    request["Environment"][variables.STOP_AFTER_VARIABLE] = str(stop_after_seconds)


# ---- what to do about each way a job can end --------------------------------------------------------------


class JobEnding(str, Enum):
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


RULE_BY_ENDING: Mapping[JobEnding, EndingRule] = {
    JobEnding.COMPLETED: EndingRule(Remedy.CONTINUE, 0),
    JobEnding.TIME_LIMIT: EndingRule(Remedy.CONTINUE, EXIT_LIMIT),
    JobEnding.WAIT_EXCEEDED: EndingRule(Remedy.ON_DEMAND, EXIT_LIMIT),
    JobEnding.STOPPED: EndingRule(Remedy.GIVE_UP, EXIT_STOPPED),
    JobEnding.CAPACITY: EndingRule(
        Remedy.RETRY, EXIT_SERVICE, first_wait_seconds=60.0, max_wait_seconds=900.0
    ),
    JobEnding.SERVICE: EndingRule(
        Remedy.RETRY, EXIT_SERVICE, first_wait_seconds=30.0, max_wait_seconds=300.0
    ),
    JobEnding.CLIENT: EndingRule(Remedy.GIVE_UP, EXIT_BAD_JOB),
    JobEnding.DISK_FULL: EndingRule(Remedy.GIVE_UP, EXIT_MACHINE),
    JobEnding.ALGORITHM: EndingRule(Remedy.RESUME, EXIT_TRAINING_FAILED),
}
"""Source of the classes: SecondaryStatus and FailureReason of DescribeTrainingJob (API reference).
Capacity returns after minutes; earlier retries only use up attempts."""

ENDING_BY_FAILURE_REASON: Mapping[str, JobEnding] = {
    "AlgorithmError": JobEnding.ALGORITHM,
    "ClientError": JobEnding.CLIENT,
    "CapacityError": JobEnding.CAPACITY,
    "InternalServerError": JobEnding.SERVICE,
}
"""By the first word of FailureReason."""

ENDING_BY_SECONDARY_STATUS: Mapping[str, JobEnding] = {
    "MaxRuntimeExceeded": JobEnding.TIME_LIMIT,
    "MaxWaitTimeExceeded": JobEnding.WAIT_EXCEEDED,
}
"""By the SecondaryStatus of a stopped job, if no person stopped it."""


def classify_ending(status: str, secondary_status: str, failure_reason: str) -> JobEnding | None:
    """Return how a training job ended, by the TrainingJobStatus, SecondaryStatus and FailureReason of
    DescribeTrainingJob; None while it runs. FailureReason begins with its class, such as ``ClientError:``; a
    failure without a known class counts as the script's. ``JobEnding.ALGORITHM``: the script failed."""
    if status == "Completed":
        return JobEnding.COMPLETED
    if status == "Stopped":
        return ENDING_BY_SECONDARY_STATUS.get(secondary_status, JobEnding.STOPPED)
    if status == "Failed":
        # The local endpoint reports its full disk so, which is no fault of the job.
        if failure_reason.startswith(f"ClientError: {DISK_FULL}"):
            return JobEnding.DISK_FULL
        return ENDING_BY_FAILURE_REASON.get(failure_reason.partition(":")[0].strip(), JobEnding.ALGORITHM)
    return None
