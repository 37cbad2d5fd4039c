"""What all exports share: a run's requests with their open places, and how far the run may go.

A plan's requests are for one run, whose name is known. An orchestrator starts many, and names each when it
starts it. So a request becomes a template: what differs from run to run and from job to job is a ``Text`` or
a ``Number`` with places in it, and each export writes those in its own language. ``fill`` gives the request
back, the same that ``planning.workflow.request_for`` makes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from smlaunch.errors import ERROR_NAMES, JobError, Problem
from smlaunch.planning.plan import Plan
from smlaunch.planning.storage import Layout
from smlaunch.planning.workflow import Policy, Variant, Workflow, request_for
from smlaunch.protocol import segment as variables
from smlaunch.protocol.names import TAG_ATTEMPT, TAG_RUN, TAG_SEGMENT, TaskName
from smlaunch.request import PROCESSING, name_member, operation_of

ERRORS = ERROR_NAMES

ITEMS_FILE = "items.json"


class Place(str, Enum):
    """What is not known before a run, or a job of it, begins."""

    RUN = "run"
    SEGMENT = "segment"
    ATTEMPT = "attempt"
    STEP = "step"
    """The newest committed step when the job is asked for."""

    REPORTED = "reported"
    """The highest step that jobs before have reported."""

    LIMIT = "limit"
    """Seconds after which the service stops the job."""

    STOP_AFTER = "stop_after"
    """Seconds after which the job ends itself."""

    DRIVER = "driver"
    """The orchestrator's execution that asks for the job, by its ARN where it has one."""


@dataclass(frozen=True)
class Text:
    """One text made of several pieces."""

    words: tuple[str | Place, ...]


@dataclass(frozen=True)
class Number:
    place: Place


Template = Mapping[str, Any]
"""A request, for a training or a processing job, some of whose values, at any depth, are a ``Text`` or a
``Number``."""

NAME = Text((Place.RUN, "-s", Place.SEGMENT, "-a", Place.ATTEMPT))
"""``str(TaskName(...))``, piece by piece."""


@dataclass(frozen=True)
class Stage:
    """One variant of the workflow. ``template`` is its request; ``on_demand`` the same without spot, None
    where it has none or may not leave it.

    Seconds: ``max_runtime`` of a whole job, ``margin`` between its planned end and that (None without one),
    ``least`` that a job is worth starting for.
    """

    first_segment: int
    until_step: int | None
    template: Template
    on_demand: Template | None
    max_runtime: int
    margin: int | None
    least: int

    def stop_after(self, limit: int) -> int | None:
        """Of a job that may take ``limit`` seconds; None without a planned end."""
        return None if self.margin is None else limit - self.margin


@dataclass(frozen=True)
class Flow:
    """``run``: its name where it is fixed; None lets the orchestrator name each. ``checkpoints``:
    None where nobody keeps any. ``training`` and ``billed``: seconds that
    all jobs together may train, or be billed for; None without a cap. ``parts``: a flow for each part of a
    run in parts, whose stages are then the parts'; ``items``: the address for a list of what these differ in.
    ``pace``: how long waits take, compared with a region.
    """

    title: str
    run: str | None
    workflow: Workflow
    stages: tuple[Stage, ...]
    checkpoints: Text | None = None
    training: int | None = None
    billed: int | None = None
    role: str = ""
    region: str = ""
    account: str = ""
    parts: tuple[Flow, ...] = ()
    items: str = ""
    pace: float = 1.0

    @property
    def policy(self) -> Policy:
        return self.workflow.policy

    @property
    def processing(self) -> bool:
        """Whether its one job is a processing job."""
        return operation_of(self.stages[0].template) == PROCESSING

    @property
    def partition(self) -> str:
        """Of ARNs: aws, aws-cn, aws-us-gov."""
        return self.role.split(":")[1] if self.role.startswith("arn:") else "aws"

    def owner_of(self, bucket: str) -> str:
        """The account that a bucket of the run has to belong to."""
        environment = self.workflow.variants[0].request.get("Environment", {})
        return variables.owners_in(environment).get(bucket) or self.account

    def seconds(self, seconds: float) -> int:
        """A wait, at the pace of where the flow is to run; at least one second, unless it is none."""
        return math.ceil(seconds * self.pace) if seconds > 0 else 0


def flow_of(plan: Plan, *, run: str | None = None, pace: float = 1.0) -> Flow:
    """``run``: the run's fixed name; None lets every execution name its own.

    Raises JobError for what no orchestrator can do as the plan has it, every problem by its field.
    """
    problems = list(_problems(plan))
    if problems:
        raise JobError(problems)
    parts = tuple(flow_of(part, run=run and part.run, pace=pace) for part in plan.parts)
    workflow = plan.workflow
    own_place = plan.job.checkpoints is not None and plan.job.checkpoints.uri is not None
    checkpoints = _prefix(workflow, run, own_place)
    return Flow(
        title=plan.job.program,
        run=run,
        workflow=workflow,
        stages=tuple(_stage(workflow, variant, checkpoints) for variant in workflow.variants),
        checkpoints=checkpoints,
        training=workflow.policy.total_seconds,
        billed=billed_seconds(workflow),
        role=plan.surroundings.role or "",
        region=plan.surroundings.region,
        account=plan.surroundings.account,
        parts=parts,
        items=Layout(plan.surroundings.bucket, plan.run).parts + ITEMS_FILE if parts else "",
        pace=pace,
    )


def billed_seconds(workflow: Workflow) -> int | None:
    """What ``max_cost`` pays for. Only one price makes seconds of it; ``_problems`` refuses several."""
    cap, price = workflow.policy.max_cost, workflow.variants[0].price_per_hour
    return None if cap is None or not price else int(cap / price * 3600)


def _problems(plan: Plan) -> Sequence[Problem]:
    found: list[Problem] = []
    workflow = plan.workflow
    for one in [plan, *plan.parts]:
        prices = {variant.price_per_hour for variant in one.workflow.variants}
        if one.workflow.policy.max_cost is not None and (len(prices) > 1 or not all(prices)):
            found.append(
                Problem(
                    "limits.max_cost",
                    "segments of different prices, or of one that nobody knows, cannot be added up by an "
                    "orchestrator, which has no multiplication; leave it out and cap limits.max_runtime, or "
                    "use `smlaunch run`, which counts them",
                )
            )
            break
    for variant in workflow.variants:
        # Up to a quarter, whatever is worth a job has room for the whole margin: no share of it is needed.
        margin = 0 if variant.stop_after is None else variant.max_runtime - variant.stop_after
        if margin > math.ceil(variant.max_runtime / 4):
            found.append(
                Problem(
                    "limits.segment",
                    f"{margin} s of a segment's {variant.max_runtime} lie after its planned end, more than a "
                    "quarter, and an orchestrator cannot halve what is left for the last one; make segments "
                    "longer",
                )
            )
        found += [
            Problem(f"hyperparameters.{key}", "a name that ends in .$ is a path to an orchestrator")
            for key in variant.request.get("HyperParameters", {})
            if key.endswith(".$")
        ]
    return tuple(dict.fromkeys(found))


# ---- templates ------------------------------------------------------------------------------------------


def _prefix(workflow: Workflow, run: str | None, own_place: bool) -> Text | None:
    """Where a run keeps its checkpoints, ending in a slash. One that the user named is shared by all
    executions, and each gets a folder of its own there: a second one would find the first one's end."""
    if workflow.checkpoints is None:
        return None
    uri = workflow.checkpoints.rstrip("/") + "/"
    if run is not None:
        return Text((uri,))
    if own_place:
        return Text((uri, Place.RUN, "/"))
    return _with_run(uri, workflow.run)


def _with_run(text: str, run: str) -> Text:
    """``s3://bucket/smlaunch/<run>/...`` with the place of the run in it; as it is where that is not."""
    head, found, tail = text.partition(f"/smlaunch/{run}/")
    return Text((f"{head}/smlaunch/", Place.RUN, f"/{tail}")) if found else Text((text,))


def _with_job(uri: str, run: str) -> Text:
    """A processing job's output: in a folder called after the run's first job, wherever that folder is."""
    job = TaskName(run, 1, 1)
    head, found, tail = uri.rpartition(f"/{job}/")
    if not found:
        return _with_run(uri, run)
    return Text((*_with_run(head + "/", run).words, Place.RUN, str(job)[len(run) :], f"/{tail}"))


def _stage(workflow: Workflow, variant: Variant, checkpoints: Text | None) -> Stage:
    alone = replace(workflow, variants=(replace(variant, first_segment=1, until_step=None),))
    fallback = variant.spot and workflow.policy.on_demand_fallback
    stop_after = variant.stop_after
    return Stage(
        first_segment=variant.first_segment,
        until_step=variant.until_step,
        template=_template(alone, checkpoints, None),
        on_demand=_template(alone, checkpoints, False) if fallback else None,
        max_runtime=variant.max_runtime,
        margin=None if stop_after is None else variant.max_runtime - stop_after,
        least=math.ceil(min(variant.least_seconds, variant.max_runtime)),
    )


def _template(workflow: Workflow, checkpoints: Text | None, spot: bool | None) -> Template:
    """From the request of a second attempt, which has all that later ones have."""
    request = request_for(workflow, 1, 2, step=0, spot=spot)
    places = {TAG_RUN: Place.RUN, TAG_SEGMENT: Place.SEGMENT, TAG_ATTEMPT: Place.ATTEMPT}
    request[name_member(request)] = NAME
    request["Tags"] = [
        {"Key": tag["Key"], "Value": Text((places[tag["Key"]],)) if tag["Key"] in places else tag["Value"]}
        for tag in request["Tags"]
    ]
    environment = request["Environment"]
    environment[variables.RUN] = Text((Place.RUN,))
    environment[variables.DRIVER] = Text((Place.DRIVER,))
    environment[variables.FROM_STEP] = Text((Place.STEP,))
    if checkpoints is not None and not workflow.single:
        environment[variables.FROM_REPORTED] = Text((Place.REPORTED,))
    if variables.STOP_AFTER in environment:
        environment[variables.STOP_AFTER] = Text((Place.STOP_AFTER,))
    if checkpoints is not None:
        environment[variables.CHECKPOINTS_URI] = checkpoints
    if "CheckpointConfig" in request:
        request["CheckpointConfig"]["S3Uri"] = checkpoints
    if operation_of(request) == PROCESSING:
        for output in request["ProcessingOutputConfig"]["Outputs"]:
            output["S3Output"]["S3Uri"] = _with_job(output["S3Output"]["S3Uri"], workflow.run)
    else:
        output = request["OutputDataConfig"]
        output["S3OutputPath"] = _with_run(output["S3OutputPath"], workflow.run)
    policy = workflow.policy
    if policy.total_seconds is not None or policy.max_cost is not None:
        request["StoppingCondition"]["MaxRuntimeInSeconds"] = Number(Place.LIMIT)
    made: dict[str, Any] = mapped(request, _closed)
    return made


def _closed(value: Text | Number) -> Any:
    """Plain text where nothing is open."""
    if isinstance(value, Number) or any(isinstance(word, Place) for word in value.words):
        return value
    return "".join(value.words)


def mapped(value: Any, write: Callable[[Text | Number], Any]) -> Any:
    """The same structure with every ``Text`` and ``Number`` written by ``write``."""
    if isinstance(value, (Text, Number)):
        return write(value)
    if isinstance(value, Mapping):
        return {key: mapped(item, write) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [mapped(item, write) for item in value]
    return value


def fill(template: Template, values: Mapping[Place, str | int]) -> dict[str, Any]:
    """The request of one job."""

    def write(value: Text | Number) -> str | int:
        if isinstance(value, Number):
            return int(values[value.place])
        return "".join(str(values[word]) if isinstance(word, Place) else word for word in value.words)

    request: dict[str, Any] = mapped(template, write)
    return request
