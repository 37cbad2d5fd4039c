"""A run as data: the exact request of every job it may need, and the rules for what follows on what.

The driver in a client, and whatever a run is exported to, read the same workflow: which request comes next,
and what to do about each way a job can end, is written down here and nowhere else. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any

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
from smlaunch.protocol import segment as variables
from smlaunch.protocol.names import TAG_ATTEMPT, TAG_RUN, TAG_SEGMENT, TaskName
from smlaunch.request import name_member

VERSION = "1.0"

_SHORTEST_SHARE = 0.5
"""Of a shortened segment at least so much is left for training; the rest is for the last checkpoint."""


# ---- what a run is made of --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """The request of one segment's first attempt; later segments repeat it until another variant begins.

    ``first_segment`` counts from 1. ``price_per_hour``: US dollars for all hosts together; None when nobody
    knows it. ``until_step``: the training step after which the next variant begins, whatever the segment's
    number; it stands in the request's Environment too.
    """

    first_segment: int
    request: Mapping[str, Any]
    price_per_hour: float | None = None
    until_step: int | None = None

    @property
    def max_runtime(self) -> int:
        """Seconds after which the service stops the job."""
        return int(self.request["StoppingCondition"]["MaxRuntimeInSeconds"])

    @property
    def stop_after(self) -> int | None:
        """Seconds from its start after which an attempt ends itself; None when it has no planned end."""
        text = self.request.get("Environment", {}).get(variables.STOP_AFTER)
        return None if text is None else int(float(text))

    @property
    def least_seconds(self) -> float:
        """A job shorter than this would spend most of its time on its start and its last checkpoint."""
        if self.stop_after is None:
            return 1.0
        return max(1.0, min(2.0 * (self.max_runtime - self.stop_after), self.max_runtime / 2))

    @property
    def spot(self) -> bool:
        return bool(self.request.get("EnableManagedSpotTraining"))


@dataclass(frozen=True)
class Policy:
    """How far a run may go.

    ``chain``: a segment may follow on another; without it the run is one job. ``attempts``: so many jobs in a
    row that make no progress end the run. ``total_seconds``: training time of all jobs together; None leaves
    it to each job's own limit. ``max_cost``: US dollars. ``on_demand_fallback``: a segment that spot capacity
    did not come for is tried again on demand. ``keep``: how many committed checkpoints are kept across
    segments.
    """

    chain: bool = False
    attempts: int = 1
    total_seconds: int | None = None
    max_cost: float | None = None
    on_demand_fallback: bool = False
    keep: int = 3


@dataclass(frozen=True)
class Workflow:
    """``variants`` in order of ``first_segment``, the first of which is 1. ``checkpoints``: the S3 prefix all
    segments share; None where nobody keeps any. ``job_hash`` is every job's tag."""

    run: str
    job_hash: str
    variants: tuple[Variant, ...]
    policy: Policy = Policy()
    checkpoints: str | None = None

    @property
    def single(self) -> bool:
        """Whether the run is one job, and ends as that job does."""
        policy = self.policy
        planned_end = any(variant.stop_after is not None for variant in self.variants)
        return not (policy.chain or policy.attempts > 1 or policy.on_demand_fallback or planned_end)

    @property
    def segments(self) -> int | None:
        """How many segments the training time fills, if each runs as long as it may; None when unbounded."""
        total = self.policy.total_seconds
        if not self.policy.chain or total is None:
            return None if self.policy.chain else 1
        count = 0
        while total > 0:
            count += 1
            total -= variant_for(self, count).max_runtime
        return count

    def to_json(self) -> str:
        """``chain.json``: all that is needed to go on with the run from another machine."""
        document = {"version": VERSION, **asdict(self)}
        return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=True) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Workflow:
        """Raises JobError for what is no workflow, or one of an unknown major version."""
        try:
            document = json.loads(text)
            version = str(document.pop("version"))
            if version.split(".")[0] != VERSION.split(".")[0]:
                raise _unreadable(f"it has version {version}, and this smlaunch reads {VERSION}; update it")
            document["variants"] = tuple(Variant(**_known(Variant, row)) for row in document["variants"])
            document["policy"] = Policy(**_known(Policy, document["policy"]))
            return cls(**_known(cls, document))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _unreadable(
                f"it is not a workflow ({error}); launch the run again under a new name"
            ) from None


def _known(kind: type[Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Later minor versions may bring members that this one does not know."""
    names = {field.name for field in fields(kind)}
    return {key: value for key, value in row.items() if key in names}


def _unreadable(why: str) -> JobError:
    return JobError([Problem("chain.json", why)])


def variant_for(workflow: Workflow, segment: int, step: int | None = None) -> Variant:
    """What a segment runs. ``step``: the newest committed one when it begins, 0 before the first; None where
    nobody can know it: then the numbers decide.

    A variant with ``until_step`` holds until that step is reached, however many segments that takes; others
    give way when the next one's number has come.
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
    reported: int | None = None,
    files: str = "",
    spot: bool | None = None,
    seconds_left: float | None = None,
) -> dict[str, Any]:
    """The request of one job. For attempt 1 of a variant's first segment it is the plan's own, unchanged.

    A known ``step``, and the highest one ``reported`` or a digest of the checkpoint ``files``, stand in later
    requests' Environment, where they are read again to see what a job added. ``spot`` False asks for
    on-demand capacity instead; None is as planned. ``seconds_left``: the job may train no longer than this;
    its planned end moves with its limit, so that it still ends at a checkpoint.
    """
    variant = variant_for(workflow, segment, step)
    request = deepcopy(dict(variant.request))
    request[name_member(request)] = str(TaskName(workflow.run, segment, attempt))
    own = {TAG_RUN: workflow.run, TAG_SEGMENT: str(segment), TAG_ATTEMPT: str(attempt)}
    request["Tags"] = [
        {"Key": tag["Key"], "Value": own.get(tag["Key"], tag["Value"])} for tag in request.get("Tags", [])
    ]
    if step is not None and (segment, attempt) != (1, 1):
        environment = request.setdefault("Environment", {})
        environment[variables.FROM_STEP] = str(step)
        if reported is not None:
            environment[variables.FROM_REPORTED] = str(reported)
        if files:
            environment[variables.FROM_FILES] = files
    if spot is False:
        request.pop("EnableManagedSpotTraining", None)
        request["StoppingCondition"].pop("MaxWaitTimeInSeconds", None)
    if seconds_left is not None and seconds_left < variant.max_runtime:
        limit = max(1, int(seconds_left))
        request["StoppingCondition"]["MaxRuntimeInSeconds"] = limit
        if variant.stop_after is not None:
            margin = variant.max_runtime - variant.stop_after
            stop_after = max(limit - margin, int(limit * _SHORTEST_SHARE))
            request["Environment"][variables.STOP_AFTER] = str(stop_after)
    return request


# ---- what to do about each way a job can end --------------------------------------------------------------


class Ending(str, Enum):
    """How a job ended, as far as deciding about the next one goes."""

    COMPLETED = "completed"
    TIME = "time"
    """MaxRuntime passed."""
    STARVED = "starved"
    """MaxWaitTime passed: spot capacity did not come, or did not last."""
    STOPPED = "stopped"
    """By a person, or by whatever calls StopTrainingJob."""
    CAPACITY = "capacity"
    SERVICE = "service"
    CLIENT = "client"
    """Data, permission, image: the job cannot work as written."""
    MACHINE = "machine"
    """The local endpoint's disk is full."""
    ALGORITHM = "algorithm"
    """The script failed."""


class Remedy(str, Enum):
    CONTINUE = "continue"
    """The next segment, from the newest checkpoint."""
    RETRY = "retry"
    """The same segment again, as it was."""
    RESUME = "resume"
    """The same segment again, from the newest checkpoint."""
    ON_DEMAND = "on-demand"
    """The same segment again without spot, when the policy allows it."""
    GIVE_UP = "give-up"


@dataclass(frozen=True)
class Rule:
    """``exit_code``: what the run ends with when the remedy is not allowed, or used up. ``first_wait`` and
    ``longest_wait``: seconds before the next job, doubled with every attempt."""

    remedy: Remedy
    exit_code: int
    first_wait: float = 0.0
    longest_wait: float = 0.0

    def wait(self, attempt: int) -> float:
        """Seconds to let pass after attempt number ``attempt`` has ended so."""
        return min(self.longest_wait, self.first_wait * 2.0 ** min(attempt - 1, 20))


RULES: Mapping[Ending, Rule] = {
    Ending.COMPLETED: Rule(Remedy.CONTINUE, 0),
    Ending.TIME: Rule(Remedy.CONTINUE, EXIT_LIMIT),
    Ending.STARVED: Rule(Remedy.ON_DEMAND, EXIT_LIMIT),
    Ending.STOPPED: Rule(Remedy.GIVE_UP, EXIT_STOPPED),
    Ending.CAPACITY: Rule(Remedy.RETRY, EXIT_SERVICE, first_wait=60.0, longest_wait=900.0),
    Ending.SERVICE: Rule(Remedy.RETRY, EXIT_SERVICE, first_wait=30.0, longest_wait=300.0),
    Ending.CLIENT: Rule(Remedy.GIVE_UP, EXIT_BAD_JOB),
    Ending.MACHINE: Rule(Remedy.GIVE_UP, EXIT_MACHINE),
    Ending.ALGORITHM: Rule(Remedy.RESUME, EXIT_TRAINING_FAILED),
}
"""Source of the classes: SecondaryStatus and FailureReason of DescribeTrainingJob (API reference); capacity
comes back in minutes rather than seconds, so that trying sooner only spends attempts."""

FAILURE_CLASSES: Mapping[str, Ending] = {
    "AlgorithmError": Ending.ALGORITHM,
    "ClientError": Ending.CLIENT,
    "CapacityError": Ending.CAPACITY,
    "InternalServerError": Ending.SERVICE,
}
"""What FailureReason begins with."""

STOP_CLASSES: Mapping[str, Ending] = {
    "MaxRuntimeExceeded": Ending.TIME,
    "MaxWaitTimeExceeded": Ending.STARVED,
}
"""SecondaryStatus of a job that is Stopped, where it was not a person."""


def ending_of(status: str, secondary: str, reason: str) -> Ending | None:
    """TrainingJobStatus, SecondaryStatus and FailureReason in one word; None while the job runs. A failure
    without a known reason is taken for the script's own."""
    if status == "Completed":
        return Ending.COMPLETED
    if status == "Stopped":
        return STOP_CLASSES.get(secondary, Ending.STOPPED)
    if status == "Failed":
        if reason.startswith(f"ClientError: {DISK_FULL}"):
            return Ending.MACHINE
        return FAILURE_CLASSES.get(reason.partition(":")[0].strip(), Ending.ALGORITHM)
    return None
