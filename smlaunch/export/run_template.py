"""Template of a run, shared by all exports: requests with variables, and the limits of the run.

The requests of a plan are for one run with a known name. An orchestrator starts many runs and names each of
them. So a request becomes a template: values that differ between runs and jobs are a ``TextTemplate`` or a
``NumberTemplate`` with job variables, and each export writes these in its own language.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from smlaunch.api.job_kinds import JobKind, get_at_path, job_kind_of, output_addresses, set_at_path
from smlaunch.chain.workflow import RunPolicy, SegmentVariant, Workflow, build_job_request
from smlaunch.contract import segment as env_variables
from smlaunch.contract.run_names import TAG_ATTEMPT, TAG_RUN, TAG_SEGMENT, JobName
from smlaunch.errors import ERROR_NAMES, JobError, Problem
from smlaunch.planner.input_channels import RunS3Layout
from smlaunch.planner.plan import RunPlan

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
    """Template of one variant of the workflow: the request of consecutive segments, and its time limits."""

    first_segment: int
    until_step: int | None
    request: RequestTemplate
    on_demand_request: RequestTemplate | None
    """The request without spot; None where the variant is not on spot or has no on-demand fallback."""

    max_runtime_seconds: int
    """Limit of a full segment."""

    end_margin_seconds: int | None
    """Time between the planned end of a job and its limit; None without a planned end."""

    min_job_seconds: int
    """A job is not started for less time."""

    def planned_end_seconds(self, max_runtime_seconds: int) -> int | None:
        """Seconds until the planned end of a job with this limit; None without a planned end."""
        return None if self.end_margin_seconds is None else max_runtime_seconds - self.end_margin_seconds


@dataclass(frozen=True)
class TemplateSegment:
    """One job of a run whose jobs are known in advance, with its time limit in seconds."""

    number: int
    """Counted from 1."""

    variant_index: int
    variant: VariantTemplate
    max_runtime_seconds: int

    @property
    def planned_end_seconds(self) -> int | None:
        """Seconds until the job ends itself; None without a planned end."""
        return self.variant.planned_end_seconds(self.max_runtime_seconds)


@dataclass(frozen=True)
class RunTemplate:
    """Template of a run."""

    title: str
    fixed_run_id: str | None
    """Fixed run id; None: the orchestrator names each run."""

    workflow: Workflow
    variants: tuple[VariantTemplate, ...]
    checkpoints_prefix: TextTemplate | None = None
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
    def kind(self) -> JobKind:
        return job_kind_of(self.variants[0].request)

    @property
    def partition(self) -> str:
        """Partition of ARNs: aws, aws-cn, aws-us-gov."""
        return self.role.split(":")[1] if self.role.startswith("arn:") else "aws"

    def bucket_owner(self, bucket: str) -> str:
        """Account that must own a bucket of the run."""
        environment = self.workflow.variants[0].request.get("Environment", {})
        return env_variables.parse_bucket_owners(environment).get(bucket) or self.account

    def iter_segments(self) -> Iterator[TemplateSegment]:
        """Yield the jobs into which the training time of a run is divided, each with its time limit: all
        segments of a chain (jobs in a row) if none fails, or the single job. Yields nothing for a chain
        without a limit. A variant is the request of consecutive segments.

        The last one gets the time that remains, unless that is too short for a job (``min_job_seconds``).
        """
        remaining_seconds = (
            self.max_training_seconds
            if self.workflow.is_multi_segment
            else self.variants[0].max_runtime_seconds
        )
        segment_number = 1
        while remaining_seconds is not None and remaining_seconds > 0:
            # The newest variant that has begun; the first one begins at segment 1.
            variant_index = max(
                index
                for index, variant in enumerate(self.variants)
                if variant.first_segment <= segment_number
            )
            variant = self.variants[variant_index]
            max_runtime_seconds = min(variant.max_runtime_seconds, remaining_seconds)
            if max_runtime_seconds < variant.min_job_seconds and segment_number > 1:
                return
            yield TemplateSegment(segment_number, variant_index, variant, max_runtime_seconds)
            remaining_seconds -= max_runtime_seconds
            segment_number += 1

    def scale_seconds(self, seconds: float) -> int:
        """Scale the seconds of a wait by ``time_scale``, rounded up; 0 stays 0."""
        return math.ceil(seconds * self.time_scale) if seconds > 0 else 0


def build_run_template(
    plan: RunPlan, *, fixed_run_id: str | None = None, time_scale: float = 1.0
) -> RunTemplate:
    """Build the template of a planned run. ``fixed_run_id``: None makes every execution a new run.

    Raises JobError with everything in the plan that no orchestrator can do, each problem by its field.
    """
    problems = list(_unsupported_field_problems(plan))
    if problems:
        raise JobError(problems)
    shards = tuple(
        build_run_template(shard, fixed_run_id=fixed_run_id and shard.run, time_scale=time_scale)
        for shard in plan.shard_plans
    )
    workflow = _without_limits_that_cannot_be_counted(plan.workflow)
    is_user_prefix = plan.job.checkpoints is not None and plan.job.checkpoints.uri is not None
    checkpoints_prefix = _checkpoints_prefix(workflow, fixed_run_id, is_user_prefix)
    return RunTemplate(
        title=plan.job.program,
        fixed_run_id=fixed_run_id,
        workflow=workflow,
        variants=tuple(
            _variant_template(workflow, variant, checkpoints_prefix) for variant in workflow.variants
        ),
        checkpoints_prefix=checkpoints_prefix,
        max_training_seconds=workflow.policy.total_seconds,
        max_billed_seconds=max_billed_seconds(workflow),
        role=plan.facts.role or "",
        region=plan.facts.region,
        account=plan.facts.account,
        shards=shards,
        items_uri=RunS3Layout(plan.facts.bucket, plan.run, plan.facts.bucket_prefix).export_prefix
        + ITEMS_FILE
        if shards
        else "",
        time_scale=time_scale,
    )


def _without_limits_that_cannot_be_counted(workflow: Workflow) -> Workflow:
    """The workflow with the caps that an orchestrator can count: the service's answer about a processing job,
    for example, has no number of seconds, so that each attempt has the whole time limit. ``_price_problems``
    refuses a cap on the cost of several attempts."""
    if job_kind_of(workflow.variants[0].request).reports_seconds:
        return workflow
    return replace(workflow, policy=replace(workflow.policy, total_seconds=None, max_cost=None))


def max_billed_seconds(workflow: Workflow) -> int | None:
    """Seconds of jobs that ``max_cost`` pays for. Workflows with several prices are refused before."""
    max_cost, first_variant = workflow.policy.max_cost, workflow.variants[0]
    if max_cost is None or not first_variant.price_per_hour:
        return None
    return int(max_cost / first_variant.price_per_hour * 3600) - first_variant.keep_alive_seconds


def _unsupported_field_problems(plan: RunPlan) -> Sequence[Problem]:
    """Return a problem for each field of the job that no orchestrator (Step Functions, Airflow, a pipeline)
    can carry out. A chain is a run of several segments, which are jobs in a row; a variant of its workflow is
    the request of consecutive segments."""
    problems = [
        *_price_problems(plan),
        *_host_problems(plan),
        *(problem for variant in plan.workflow.variants for problem in _variant_problems(variant)),
    ]
    return tuple(dict.fromkeys(problems))  # each problem once: variants may share it


def _price_problems(plan: RunPlan) -> Iterator[Problem]:
    """Yield a problem if the cost of a run, or of one of its shards, cannot be limited."""
    for workflow in [plan.workflow, *(shard_plan.workflow for shard_plan in plan.shard_plans)]:
        if workflow.policy.max_cost is None:
            continue
        kind = job_kind_of(workflow.variants[0].request)
        if not kind.reports_seconds:
            yield Problem(
                "limits.max_cost",
                f"an orchestrator cannot count the time of several attempts of a {kind.noun}; leave it or "
                "limits.attempts out, or use `smlaunch run`",
            )
            return
        hourly_prices = {variant.price_per_hour for variant in workflow.variants}  # None: not known
        has_one_known_price = len(hourly_prices) == 1 and all(hourly_prices)
        if not has_one_known_price:
            yield Problem(
                "limits.max_cost",
                "an orchestrator cannot add up the cost of segments with different or unknown prices; "
                "leave it out and set limits.max_runtime, or use `smlaunch run`",
            )
            return


def _host_problems(plan: RunPlan) -> Iterator[Problem]:
    """Yield a problem for a chain of several hosts that train independently of each other."""
    max_hosts = max((segment.hosts for segment in plan.segments), default=1)
    if plan.workflow.is_multi_segment and plan.strategy == "share-nothing" and max_hosts > 1:
        yield Problem(
            "compute.hosts",
            "a chain of several hosts that train independently has an outcome for each host, and an "
            "orchestrator reads the leader's alone; use split_via: jobs, one host, or `smlaunch run`",
        )


def _variant_problems(variant: SegmentVariant) -> Iterator[Problem]:
    """Yield the problems of the request of consecutive segments (jobs in a row): its planned end, its
    hyperparameters. A job ends itself at its planned end, a margin before its time limit, in which it saves
    and uploads."""
    # With a margin of up to a quarter, every job that is worth starting has time for the full margin.
    end_margin_seconds = (
        0 if variant.stop_after_seconds is None else variant.max_runtime_seconds - variant.stop_after_seconds
    )
    if end_margin_seconds > math.ceil(variant.max_runtime_seconds / 4):
        yield Problem(
            "limits.segment",
            f"{end_margin_seconds} s of a segment's {variant.max_runtime_seconds} lie after its "
            "planned end, more than a quarter, and an orchestrator cannot shorten the margin of the "
            "last segment; make segments longer",
        )
    for key in variant.request.get("HyperParameters", {}):
        if key.endswith(".$"):
            yield Problem(f"hyperparameters.{key}", "Step Functions reads a name that ends in .$ as a path")


# ---- templates ------------------------------------------------------------------------------------------


def _checkpoints_prefix(
    workflow: Workflow, fixed_run_id: str | None, is_user_prefix: bool
) -> TextTemplate | None:
    """Return the S3 prefix of a run's checkpoints, ending in a slash; None without checkpoints.

    ``fixed_run_id``: None if each execution of the export is a new run with its own prefix: otherwise it
    would find the files of the execution before it, and take its training for finished.
    ``is_user_prefix``: the user gave the prefix; executions get folders below it.
    """
    if workflow.checkpoints is None:
        return None
    uri = workflow.checkpoints.rstrip("/") + "/"
    if fixed_run_id is not None:
        return TextTemplate((uri,))
    if is_user_prefix:
        return TextTemplate((uri, JobVariable.RUN, "/"))
    # The default prefix: it contains the run id of the plan, which becomes a variable.
    return _replace_run_id(uri, workflow.run)


def _replace_run_id(text: str, run: str) -> TextTemplate:
    """Replace the run id in ``s3://bucket/smlaunch/<run>/...`` by its variable; other texts stay."""
    head, separator, tail = text.partition(f"/smlaunch/{run}/")
    return (
        TextTemplate((f"{head}/smlaunch/", JobVariable.RUN, f"/{tail}"))
        if separator
        else TextTemplate((text,))
    )


def _replace_job_name(uri: str, run: str) -> TextTemplate:
    """Replace the run id in the output address of a processing job, whose folder is named after the job."""
    first_job = JobName(run, 1, 1)
    head, separator, tail = uri.rpartition(f"/{first_job}/")
    if not separator:
        return _replace_run_id(uri, run)
    return TextTemplate(
        (*_replace_run_id(head + "/", run).pieces, JobVariable.RUN, str(first_job)[len(run) :], f"/{tail}")
    )


def _variant_template(
    workflow: Workflow, variant: SegmentVariant, checkpoints_prefix: TextTemplate | None
) -> VariantTemplate:
    """Return the template of a variant, which is the request of consecutive segments (jobs in a row): its
    request, and where the job allows it the same request on demand, for when no spot capacity comes."""
    single_variant_workflow = replace(
        workflow, variants=(replace(variant, first_segment=1, until_step=None),)
    )
    has_fallback = variant.is_spot and workflow.policy.on_demand_fallback
    stop_after_seconds = variant.stop_after_seconds  # the planned end of a job
    return VariantTemplate(
        first_segment=variant.first_segment,
        until_step=variant.until_step,
        request=_build_request_template(single_variant_workflow, checkpoints_prefix, uses_spot=None),
        on_demand_request=_build_request_template(
            single_variant_workflow, checkpoints_prefix, uses_spot=False
        )
        if has_fallback
        else None,
        max_runtime_seconds=variant.max_runtime_seconds,
        end_margin_seconds=None
        if stop_after_seconds is None
        else variant.max_runtime_seconds - stop_after_seconds,
        min_job_seconds=math.ceil(min(variant.min_useful_seconds, variant.max_runtime_seconds)),
    )


def _build_request_template(
    workflow: Workflow, checkpoints_prefix: TextTemplate | None, *, uses_spot: bool | None
) -> RequestTemplate:
    """Return the request of a workflow in which values that differ between runs and jobs (run id, segment,
    attempt, newest step) are variables: the orchestrator fills them in before each job. ``uses_spot``: None
    for the job's own choice."""
    # The request of a second attempt has all members that later ones have.
    request = build_job_request(workflow, segment=1, attempt=2, newest_checkpoint_step=0, spot=uses_spot)
    request[job_kind_of(request).name_field] = JOB_NAME_TEMPLATE
    request["Tags"] = [{**tag, "Value": _tag_template(tag)} for tag in request["Tags"]]
    _insert_environment_variables(request["Environment"], workflow, checkpoints_prefix)
    if "CheckpointConfig" in request:
        request["CheckpointConfig"]["S3Uri"] = checkpoints_prefix
    _insert_output_variables(request, workflow.run)
    if workflow.policy.total_seconds is not None or workflow.policy.max_cost is not None:
        # The last job gets the time that is left of the run's limit.
        request["StoppingCondition"]["MaxRuntimeInSeconds"] = NumberTemplate(JobVariable.MAX_RUNTIME)
    request_template: dict[str, Any] = map_template_values(request, _to_plain_text)
    return request_template


def _tag_template(tag: Mapping[str, str]) -> TextTemplate | str:
    """Return the value of a job's tag: a variable for the tags that say which job of which run it is."""
    variable = {
        TAG_RUN: JobVariable.RUN,
        TAG_SEGMENT: JobVariable.SEGMENT,
        TAG_ATTEMPT: JobVariable.ATTEMPT,
    }.get(tag["Key"])
    return tag["Value"] if variable is None else TextTemplate((variable,))


def _insert_environment_variables(
    environment: dict[str, Any], workflow: Workflow, checkpoints_prefix: TextTemplate | None
) -> None:
    """Put job variables (values that differ from job to job) into the environment of a request's containers,
    through which the launcher in the container learns which job it is in, who drives the run, and how far
    earlier jobs came."""
    environment[env_variables.RUN_VARIABLE] = TextTemplate((JobVariable.RUN,))
    environment[env_variables.DRIVER_VARIABLE] = TextTemplate((JobVariable.DRIVER,))
    environment[env_variables.FROM_STEP_VARIABLE] = TextTemplate((JobVariable.COMMITTED_STEP,))
    if checkpoints_prefix is not None and not workflow.is_single_job:
        # The highest step of earlier jobs: lets a job recognize that it only repeats their steps.
        environment[env_variables.FROM_REPORTED_VARIABLE] = TextTemplate((JobVariable.REPORTED_STEP,))
    if env_variables.STOP_AFTER_VARIABLE in environment:  # the seconds until the job's planned end
        environment[env_variables.STOP_AFTER_VARIABLE] = TextTemplate((JobVariable.STOP_AFTER,))
    if checkpoints_prefix is not None:
        environment[env_variables.CHECKPOINTS_URI_VARIABLE] = checkpoints_prefix


def _insert_output_variables(request: dict[str, Any], run_id: str) -> None:
    """Replace the run id in the output addresses of a request by its variable."""
    kind = job_kind_of(request)
    replace_run = _replace_job_name if kind.output_suffix else _replace_run_id
    for path in output_addresses(kind, request):
        set_at_path(request, path, replace_run(get_at_path(request, path), run_id))


def _to_plain_text(value: TextTemplate | NumberTemplate) -> Any:
    """Return plain text for a template without variables; any other template as it is."""
    if isinstance(value, NumberTemplate) or any(isinstance(piece, JobVariable) for piece in value.pieces):
        return value
    return "".join(value.pieces)


def map_template_values(node: Any, convert: Callable[[TextTemplate | NumberTemplate], Any]) -> Any:
    """Return a copy of nested mappings and lists (a request) in which ``convert`` has replaced every
    TextTemplate and NumberTemplate: values with variables that are known only when a job starts."""
    if isinstance(node, (TextTemplate, NumberTemplate)):
        return convert(node)
    if isinstance(node, Mapping):
        return {key: map_template_values(item, convert) for key, item in node.items()}
    if isinstance(node, (list, tuple)):
        return [map_template_values(item, convert) for item in node]
    return node
