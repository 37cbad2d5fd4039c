"""Template of a run, shared by all exports: requests with variables, and the limits of the run.

The requests of a plan are for one run with a known name. An orchestrator starts many runs and names each of
them. So a request becomes a template: values that differ between runs and jobs are a ``TextTemplate`` or a
``NumberTemplate`` with job variables, and each export writes these in its own language. ``fill_template``
returns the request of one job, the same as ``planner.workflow.request_for``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from smlaunch.api.request import CREATE_PROCESSING_JOB, name_member, operation_of
from smlaunch.contract import segment as variables
from smlaunch.contract.names import TAG_ATTEMPT, TAG_RUN, TAG_SEGMENT, JobName
from smlaunch.errors import ERROR_NAMES, JobError, Problem
from smlaunch.planner.input_channels import RunLayout
from smlaunch.planner.plan import Plan
from smlaunch.planner.workflow import RunPolicy, Variant, Workflow, request_for

ORCHESTRATOR_ERRORS = ERROR_NAMES

ITEMS_FILE = "items.json"


class JobVariable(str, Enum):
    """A value that is known only when a run, or one of its jobs, starts."""

    RUN = "run"
    SEGMENT = "segment"
    ATTEMPT = "attempt"
    COMMITTED_STEP = "step"
    """The newest committed step when the job is created."""

    REPORTED_STEP = "reported"
    """The highest step that earlier jobs have reported."""

    MAX_RUNTIME = "limit"
    """Seconds after which the service stops the job."""

    STOP_AFTER = "stop_after"
    """Seconds after which the job ends itself."""

    DRIVER = "driver"
    """The orchestrator's execution that creates the job: its ARN where it has one."""


@dataclass(frozen=True)
class TextTemplate:
    """A text of literal pieces and job variables."""

    pieces: tuple[str | JobVariable, ...]


@dataclass(frozen=True)
class NumberTemplate:
    """A number that is a job variable."""

    variable: JobVariable


RequestTemplate = Mapping[str, Any]
"""A request for a training or processing job; values at any depth may be a ``TextTemplate`` or
``NumberTemplate``."""

JOB_NAME_TEMPLATE = TextTemplate((JobVariable.RUN, "-s", JobVariable.SEGMENT, "-a", JobVariable.ATTEMPT))
"""Template of a job name."""


@dataclass(frozen=True)
class VariantTemplate:
    """Template of one variant of the workflow: its request and its time limits."""

    first_segment: int
    until_step: int | None
    request: RequestTemplate
    on_demand_request: RequestTemplate | None
    """The request without spot; None where the variant is not on spot or has no on-demand fallback."""

    max_runtime_seconds: int
    """Limit of a full segment."""

    margin_seconds: int | None
    """Time between the planned end of a job and its limit; None without a planned end."""

    min_seconds: int
    """A job is not started for less time."""

    def stop_after(self, max_runtime_seconds: int) -> int | None:
        """Seconds until the planned end of a job with this limit; None without a planned end."""
        return None if self.margin_seconds is None else max_runtime_seconds - self.margin_seconds


@dataclass(frozen=True)
class RunTemplate:
    """Template of a run."""

    title: str
    run: str | None
    """Fixed run id; None: the orchestrator names each run."""

    workflow: Workflow
    variants: tuple[VariantTemplate, ...]
    checkpoints: TextTemplate | None = None
    """S3 prefix of the checkpoints, ending in a slash; None without checkpoints."""

    max_training_seconds: int | None = None
    """Limit of all jobs together; None without one."""

    max_billed_seconds: int | None = None
    """Limit of all jobs together; None without one."""

    role: str = ""
    region: str = ""
    account: str = ""
    shards: tuple[RunTemplate, ...] = ()
    """Templates of the shards of a sharded run."""

    items_uri: str = ""
    """Address of the list of values in which the shards differ."""

    time_scale: float = 1.0
    """Duration of waits, relative to a region."""

    @property
    def policy(self) -> RunPolicy:
        return self.workflow.policy

    @property
    def is_processing(self) -> bool:
        """Whether the run is one processing job."""
        return operation_of(self.variants[0].request) == CREATE_PROCESSING_JOB

    @property
    def partition(self) -> str:
        """Partition of ARNs: aws, aws-cn, aws-us-gov."""
        return self.role.split(":")[1] if self.role.startswith("arn:") else "aws"

    def bucket_owner(self, bucket: str) -> str:
        """Account that must own a bucket of the run."""
        environment = self.workflow.variants[0].request.get("Environment", {})
        return variables.parse_bucket_owners(environment).get(bucket) or self.account

    def scale_seconds(self, seconds: float) -> int:
        """Scale the seconds of a wait by ``time_scale``, rounded up; 0 stays 0."""
        return math.ceil(seconds * self.time_scale) if seconds > 0 else 0


def build_run_template(plan: Plan, *, run: str | None = None, time_scale: float = 1.0) -> RunTemplate:
    """Build the template of a planned run. ``run``: fixed run id; None: every execution is a new run.

    Raises JobError with everything in the plan that no orchestrator can do, each problem by its field.
    """
    problems = list(_find_problems(plan))
    if problems:
        raise JobError(problems)
    shards = tuple(
        build_run_template(shard, run=run and shard.run, time_scale=time_scale) for shard in plan.shard_plans
    )
    workflow = plan.workflow
    is_shared_prefix = plan.job.checkpoints is not None and plan.job.checkpoints.uri is not None
    checkpoints = _checkpoints_prefix(workflow, run, is_shared_prefix)
    return RunTemplate(
        title=plan.job.program,
        run=run,
        workflow=workflow,
        variants=tuple(_variant_template(workflow, variant, checkpoints) for variant in workflow.variants),
        checkpoints=checkpoints,
        max_training_seconds=workflow.policy.total_seconds,
        max_billed_seconds=max_billed_seconds(workflow),
        role=plan.facts.role or "",
        region=plan.facts.region,
        account=plan.facts.account,
        shards=shards,
        items_uri=RunLayout(plan.facts.bucket, plan.run).file_lists_prefix + ITEMS_FILE if shards else "",
        time_scale=time_scale,
    )


def max_billed_seconds(workflow: Workflow) -> int | None:
    """Seconds that ``max_cost`` pays for. ``_find_problems`` refuses workflows with several prices."""
    cap, price = workflow.policy.max_cost, workflow.variants[0].price_per_hour
    return None if cap is None or not price else int(cap / price * 3600)


def _find_problems(plan: Plan) -> Sequence[Problem]:
    """Return a problem for each thing that the plan needs and no orchestrator can do."""
    problems: list[Problem] = []
    workflow = plan.workflow
    for shard in [plan, *plan.shard_plans]:
        prices = {variant.price_per_hour for variant in shard.workflow.variants}
        if shard.workflow.policy.max_cost is not None and (len(prices) > 1 or not all(prices)):
            problems.append(
                Problem(
                    "limits.max_cost",
                    "an orchestrator cannot add up the cost of segments with different or unknown prices; "
                    "leave it out and set limits.max_runtime, or use `smlaunch run`",
                )
            )
            break
    hosts = [segment.hosts for segment in plan.segments]
    if workflow.policy.chain and plan.strategy == "share-nothing" and max(hosts, default=1) > 1:
        problems.append(
            Problem(
                "compute.hosts",
                "a chain of several hosts that train independently has an outcome for each host, and an "
                "orchestrator reads the leader's alone; use split_via: jobs, one host, or `smlaunch run`",
            )
        )
    for variant in workflow.variants:
        # With a margin of up to a quarter, every job that is worth starting has time for the full margin.
        margin_seconds = 0 if variant.stop_after is None else variant.max_runtime - variant.stop_after
        if margin_seconds > math.ceil(variant.max_runtime / 4):
            problems.append(
                Problem(
                    "limits.segment",
                    f"{margin_seconds} s of a segment's {variant.max_runtime} lie after its planned "
                    "end, more than a quarter, and an orchestrator cannot shorten the margin of the last "
                    "segment; make segments longer",
                )
            )
        problems += [
            Problem(f"hyperparameters.{key}", "Step Functions reads a name that ends in .$ as a path")
            for key in variant.request.get("HyperParameters", {})
            if key.endswith(".$")
        ]
    return tuple(dict.fromkeys(problems))


# ---- templates ------------------------------------------------------------------------------------------


def _checkpoints_prefix(workflow: Workflow, run: str | None, is_shared_prefix: bool) -> TextTemplate | None:
    """S3 prefix of a run's checkpoints, ending in a slash.

    A prefix that the user gave is shared by all executions, so each execution gets a folder there; otherwise
    the second execution would find the outcome of the first one.
    """
    if workflow.checkpoints is None:
        return None
    uri = workflow.checkpoints.rstrip("/") + "/"
    if run is not None:
        return TextTemplate((uri,))
    if is_shared_prefix:
        return TextTemplate((uri, JobVariable.RUN, "/"))
    return _open_run_name(uri, workflow.run)


def _open_run_name(text: str, run: str) -> TextTemplate:
    """Replace the run id in ``s3://bucket/smlaunch/<run>/...`` by its variable; other texts stay."""
    head, separator, tail = text.partition(f"/smlaunch/{run}/")
    return (
        TextTemplate((f"{head}/smlaunch/", JobVariable.RUN, f"/{tail}"))
        if separator
        else TextTemplate((text,))
    )


def _open_job_name(uri: str, run: str) -> TextTemplate:
    """Replace the run id in the output address of a processing job, whose folder is named after the job."""
    first_job = JobName(run, 1, 1)
    head, separator, tail = uri.rpartition(f"/{first_job}/")
    if not separator:
        return _open_run_name(uri, run)
    return TextTemplate(
        (*_open_run_name(head + "/", run).pieces, JobVariable.RUN, str(first_job)[len(run) :], f"/{tail}")
    )


def _variant_template(
    workflow: Workflow, variant: Variant, checkpoints: TextTemplate | None
) -> VariantTemplate:
    single_variant_workflow = replace(
        workflow, variants=(replace(variant, first_segment=1, until_step=None),)
    )
    has_fallback = variant.is_spot and workflow.policy.on_demand_fallback
    stop_after = variant.stop_after
    return VariantTemplate(
        first_segment=variant.first_segment,
        until_step=variant.until_step,
        request=_request_template(single_variant_workflow, checkpoints, None),
        on_demand_request=_request_template(single_variant_workflow, checkpoints, False)
        if has_fallback
        else None,
        max_runtime_seconds=variant.max_runtime,
        margin_seconds=None if stop_after is None else variant.max_runtime - stop_after,
        min_seconds=math.ceil(min(variant.min_seconds, variant.max_runtime)),
    )


def _request_template(
    workflow: Workflow, checkpoints: TextTemplate | None, spot: bool | None
) -> RequestTemplate:
    """Build a template from the request of a second attempt, which has all members that later ones have."""
    request = request_for(workflow, 1, 2, step=0, spot=spot)
    variable_by_tag = {
        TAG_RUN: JobVariable.RUN,
        TAG_SEGMENT: JobVariable.SEGMENT,
        TAG_ATTEMPT: JobVariable.ATTEMPT,
    }
    request[name_member(request)] = JOB_NAME_TEMPLATE
    request["Tags"] = [
        {
            "Key": tag["Key"],
            "Value": TextTemplate((variable_by_tag[tag["Key"]],))
            if tag["Key"] in variable_by_tag
            else tag["Value"],
        }
        for tag in request["Tags"]
    ]
    environment = request["Environment"]
    environment[variables.RUN_VARIABLE] = TextTemplate((JobVariable.RUN,))
    environment[variables.DRIVER_VARIABLE] = TextTemplate((JobVariable.DRIVER,))
    environment[variables.FROM_STEP_VARIABLE] = TextTemplate((JobVariable.COMMITTED_STEP,))
    if checkpoints is not None and not workflow.is_single_job:
        environment[variables.FROM_REPORTED_VARIABLE] = TextTemplate((JobVariable.REPORTED_STEP,))
    if variables.STOP_AFTER_VARIABLE in environment:
        environment[variables.STOP_AFTER_VARIABLE] = TextTemplate((JobVariable.STOP_AFTER,))
    if checkpoints is not None:
        environment[variables.CHECKPOINTS_URI_VARIABLE] = checkpoints
    if "CheckpointConfig" in request:
        request["CheckpointConfig"]["S3Uri"] = checkpoints
    if operation_of(request) == CREATE_PROCESSING_JOB:
        for output in request["ProcessingOutputConfig"]["Outputs"]:
            output["S3Output"]["S3Uri"] = _open_job_name(output["S3Output"]["S3Uri"], workflow.run)
    else:
        output = request["OutputDataConfig"]
        output["S3OutputPath"] = _open_run_name(output["S3OutputPath"], workflow.run)
    policy = workflow.policy
    if policy.total_seconds is not None or policy.max_cost is not None:
        request["StoppingCondition"]["MaxRuntimeInSeconds"] = NumberTemplate(JobVariable.MAX_RUNTIME)
    closed_request: dict[str, Any] = map_open_values(request, _plain_if_constant)
    return closed_request


def _plain_if_constant(value: TextTemplate | NumberTemplate) -> Any:
    """Return plain text for a template without variables."""
    if isinstance(value, NumberTemplate) or any(isinstance(word, JobVariable) for word in value.pieces):
        return value
    return "".join(value.pieces)


def map_open_values(value: Any, convert: Callable[[TextTemplate | NumberTemplate], Any]) -> Any:
    """Return the same structure with every template value replaced by ``convert(value)``."""
    if isinstance(value, (TextTemplate, NumberTemplate)):
        return convert(value)
    if isinstance(value, Mapping):
        return {key: map_open_values(item, convert) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [map_open_values(item, convert) for item in value]
    return value


def fill_template(template: RequestTemplate, values: Mapping[JobVariable, str | int]) -> dict[str, Any]:
    """Return the request of one job."""

    def fill_value(value: TextTemplate | NumberTemplate) -> str | int:
        if isinstance(value, NumberTemplate):
            return int(values[value.variable])
        return "".join(str(values[word]) if isinstance(word, JobVariable) else word for word in value.pieces)

    request: dict[str, Any] = map_open_values(template, fill_value)
    return request
