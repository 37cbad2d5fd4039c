"""One job of a pipeline as a step: its request with references for variables, its retries, its cache."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from smlaunch.api.job_kinds import JobKind, get_at_path, set_at_path
from smlaunch.api.retry_policy import CREATE_BACKOFF, QUOTA_BACKOFF
from smlaunch.chain.workflow import RULE_BY_ENDING, JobEnding
from smlaunch.contract import segment as env_variables
from smlaunch.contract.progress_line import LINE_PREFIX
from smlaunch.contract.progress_line import METRIC_KIND as METRIC_LINE
from smlaunch.export.pipeline_file import OPERATORS, PipelineStep, Requirement
from smlaunch.export.run_template import (
    JobVariable,
    NumberTemplate,
    RunTemplate,
    TemplateSegment,
    TextTemplate,
    map_template_values,
)
from smlaunch.planner.plan import RunPlan

FINISHED_METRIC = env_variables.FINISHED_METRIC
MAX_SEGMENTS = 100
"""Segments of one chain; a limit of smlaunch, like pipeline_step_order.MAX_STEPS."""

_MAX_RETRIES = 20
_BACKOFF_RATE = 2.0
_EXECUTION_ID = {"Get": "Execution.PipelineExecutionId"}
_HASH_DIGITS = 8

TextPiece = str | Mapping[str, Any]
"""A literal piece of a text, or a reference."""


@dataclass(frozen=True)
class PlannedStep:
    """A pipeline step with the plan of its job."""

    step: PipelineStep
    plan: RunPlan
    template: RunTemplate

    @property
    def name(self) -> str:
        return self.step.name

    @property
    def is_chain(self) -> bool:
        return self.template.workflow.is_multi_segment

    @property
    def segments(self) -> list[TemplateSegment]:
        """All segments of a chain, or the single job; at most one more than MAX_SEGMENTS."""
        return list(islice(self.template.iter_segments(), MAX_SEGMENTS + 1))

    def segment_name(self, segment: int) -> str:
        """Name of the step of one segment."""
        if self.name and not self.is_chain:
            return self.name
        return self.generated_name("Segment", segment)

    def generated_name(self, kind: str, number: int | None = None) -> str:
        """Name of a generated step. It has a capital letter, so it differs from all names of users."""
        return "-".join(str(word) for word in (self.name, kind, number) if word not in ("", None))


def join_text_pieces(pieces: tuple[TextPiece, ...]) -> Any:
    """Return the text of several pieces: a plain string if all are literal, a single reference, or the
    pipeline function ``Std:Join``. A piece is a literal text, or a reference to a value of the execution."""
    joined_pieces: list[TextPiece] = []
    for piece in pieces:
        if isinstance(piece, str) and joined_pieces and isinstance(joined_pieces[-1], str):
            joined_pieces[-1] += piece  # neighbouring literals become one
        elif piece != "":
            joined_pieces.append(piece)
    return joined_pieces[0] if len(joined_pieces) == 1 else {"Std:Join": {"On": "", "Values": joined_pieces}}


def run_id_pieces_of(job: PlannedStep, cached_runs: Mapping[str, str]) -> tuple[TextPiece, ...]:
    """Run id of a step in an execution. ``cached_runs``: fixed run ids of cached steps."""
    if job.name in cached_runs:
        return (cached_runs[job.name],)
    return (_EXECUTION_ID, f"-{job.name}") if job.name else (_EXECUTION_ID,)


def cached_run_id(job: PlannedStep, cached_runs: Mapping[str, str]) -> str:
    """Fixed run id of a cached step: cached arguments must not contain the execution, and different jobs
    must not share a prefix. ``cached_runs``: run ids of the steps it reads from."""
    input_runs = {
        name: [cached_runs.get(source.step), source.folder] for name, source in job.step.inputs.items()
    }
    upload_contents = [upload.content for upload in job.plan.uploads]
    text = json.dumps(
        [build_request_arguments(job, 1, ("",), {}), input_runs, upload_contents], sort_keys=True
    )
    return f"{job.name}-{hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]}"


def build_job_step(
    planned_step: PlannedStep,
    segment_number: int,
    step_name: str,
    run_id_pieces: tuple[TextPiece, ...],
    result_by_step: Mapping[str, StepResult],
    awaited_step_names: list[str],
) -> dict[str, Any]:
    """Build the Training or Processing step of one segment of a job: of a chain each segment is a job and a
    step of its own. ``run_id_pieces``: texts and references that make up the run id.

    ``result_by_step``: references to the outputs of the steps that it reads, by step name.
    ``awaited_step_names``: steps that it waits for without reading their output.
    """
    step: dict[str, Any] = {
        "Name": step_name,
        "Type": planned_step.template.kind.name,
        "Arguments": build_request_arguments(planned_step, segment_number, run_id_pieces, result_by_step),
    }
    if awaited_step_names:
        step["DependsOn"] = awaited_step_names
    step["RetryPolicies"] = _retry_policies(planned_step.template)
    if planned_step.step.cache_seconds is not None:
        step["CacheConfig"] = {"Enabled": True, "ExpireAfter": iso_duration(planned_step.step.cache_seconds)}
    # JSON files, in its only output, that the conditions of the pipeline read.
    output_name = planned_step.template.kind.constants.get("output_name")
    name_by_output_file = property_file_names(planned_step)
    if name_by_output_file:
        step["PropertyFiles"] = [
            {"PropertyFileName": property_file_name, "OutputName": output_name, "FilePath": output_file}
            for output_file, property_file_name in name_by_output_file.items()
        ]
    return step


def build_request_arguments(
    planned_step: PlannedStep,
    segment_number: int,
    run_id_pieces: tuple[TextPiece, ...],
    result_by_step: Mapping[str, StepResult],
) -> dict[str, Any]:
    """Return the arguments of CreateTrainingJob or CreateProcessingJob for one segment, without the job name,
    which the service generates. ``run_id_pieces``: texts and references that make up the run id.
    ``result_by_step``: outputs of the steps that the job reads, by step name."""
    request = _fill_request_template(planned_step, segment_number, run_id_pieces)
    del request[planned_step.template.kind.name_field]
    _complete_environment(planned_step, segment_number, request["Environment"])
    _add_metrics(planned_step, request)
    for channel, step_output in planned_step.step.inputs.items():
        if step_output.step in result_by_step:
            uri_pieces: tuple[TextPiece, ...] = (result_by_step[step_output.step].uri, step_output.folder)
            _set_input_uri(planned_step.template.kind, request, channel, join_text_pieces(uri_pieces))
    return request


def _fill_request_template(
    planned_step: PlannedStep, segment_number: int, run_id_pieces: tuple[TextPiece, ...]
) -> dict[str, Any]:
    """Return the request of a segment (one job), in which the job variables of the template are replaced by
    literal values or references to the execution. A pipeline cannot compute values between jobs: attempt and
    steps stay those of a first job."""
    segment = planned_step.segments[segment_number - 1]
    pieces_by_job_variable: dict[JobVariable, tuple[TextPiece, ...]] = {
        JobVariable.RUN: run_id_pieces,
        JobVariable.SEGMENT: (str(segment_number),),
        JobVariable.ATTEMPT: ("1",),
        JobVariable.COMMITTED_STEP: ("0",),
        JobVariable.REPORTED_STEP: ("",),
        JobVariable.STOP_AFTER: (str(segment.planned_end_seconds),),
        JobVariable.DRIVER: ({"Get": "Execution.PipelineExecutionArn"},),
    }

    def to_argument(value: TextTemplate | NumberTemplate) -> Any:
        """Return what stands in the request for a value with job variables (run id, attempt, ...): a text, or
        a reference. ``pieces_by_job_variable``: literals and references of each variable in this segment."""
        if isinstance(value, NumberTemplate):
            return segment.max_runtime_seconds  # the only number variable
        argument_pieces: list[TextPiece] = []
        for piece in value.pieces:
            argument_pieces += pieces_by_job_variable[piece] if isinstance(piece, JobVariable) else (piece,)
        return join_text_pieces(tuple(argument_pieces))

    request: dict[str, Any] = map_template_values(segment.variant.request, to_argument)
    return request


def _complete_environment(
    planned_step: PlannedStep, segment_number: int, environment: dict[str, Any]
) -> None:
    """Change the environment of a job's containers to what a pipeline can tell them: it cannot read the
    newest step between two jobs (FROM_STEP, FROM_REPORTED), and the names that it gives to jobs have no
    segment and attempt. A chain's job prints whether training has finished, and values that fail its
    requirements, for conditions that read metrics never printed."""
    for variable in (env_variables.FROM_STEP_VARIABLE, env_variables.FROM_REPORTED_VARIABLE):
        environment.pop(variable, None)
    if planned_step.step.cache_seconds is not None:
        # The execution that starts the job: requests must be the same for its result to be reused.
        del environment[env_variables.DRIVER_VARIABLE]
    environment[env_variables.SEGMENT_VARIABLE] = str(segment_number)
    environment[env_variables.ATTEMPT_VARIABLE] = "1"
    if planned_step.is_chain:
        environment[env_variables.REPORT_FINISHED_VARIABLE] = "1"
        if planned_step.step.requirements:
            environment[env_variables.REQUIRED_METRICS_VARIABLE] = " ".join(
                _unmet_metric_values(planned_step.step.requirements)
            )


def _set_input_uri(kind: JobKind, arguments: Mapping[str, Any], channel: str, uri: Any) -> None:
    for entry in get_at_path(arguments, kind.request_path_by_field["inputs"]):
        if get_at_path(entry, kind.input_path_by_field["name"]) == channel:
            set_at_path(entry, kind.input_path_by_field["uri"], uri)


def _add_metrics(planned_step: PlannedStep, request: dict[str, Any]) -> None:
    """Add to a request the metric definitions (name and regex of a log line) that the pipeline's conditions
    read. Some kinds of jobs have no metrics, and those of a built-in algorithm are fixed."""
    request_path = planned_step.template.kind.metric_definitions
    if not request_path or planned_step.plan.job.algorithm is not None:
        return
    regex_by_metric = _required_metric_regexes(planned_step)
    metric_definitions = list(get_at_path(request, request_path) or [])
    defined_names = {metric["Name"] for metric in metric_definitions}
    metric_definitions += [
        {"Name": metric_name, "Regex": regex}
        for metric_name, regex in regex_by_metric.items()
        if metric_name not in defined_names  # the user's own definition wins
    ]
    if metric_definitions:
        set_at_path(request, request_path, metric_definitions)


def _required_metric_regexes(planned_step: PlannedStep) -> dict[str, str]:
    """Return the regex of the log line for each metric that a condition on a training step reads, by metric:
    whether a chain's training has finished (0 or 1), and the metrics of its requirements. The log line is
    ``smlaunch: metric NAME=VALUE``; in a chain also ``smlaunch: required NAME=VALUE``."""
    regex_by_metric: dict[str, str] = {}
    if planned_step.is_chain:
        regex_by_metric[FINISHED_METRIC] = LINE_PREFIX + env_variables.FINISHED_LINE_PREFIX + "([01])"
    for requirement in planned_step.step.requirements:
        line_regex = f"{METRIC_LINE} (?:.* )?"
        if planned_step.is_chain:
            # Or the line with values that do not meet the requirements, which every segment prints first.
            line_regex = f"(?:{line_regex}|{env_variables.REQUIRED_LINE_PREFIX})"
        printed_name = re.escape(requirement.value_name)
        regex_by_metric[_metric_name_of(planned_step, requirement)] = (
            f"{LINE_PREFIX}{line_regex}{printed_name}=([0-9eE.+-]+)"
        )
    return regex_by_metric


def _metric_name_of(job: PlannedStep, requirement: Requirement) -> str:
    """Name of a required metric. A chain uses a metric of smlaunch, which also has a first value."""
    is_own_metric = job.is_chain and job.plan.job.algorithm is None
    return (
        f"{env_variables.INTERNAL_METRIC_PREFIX}{requirement.value_name}"
        if is_own_metric
        else requirement.value_name
    )


def _unmet_metric_values(requirements: Sequence[Requirement]) -> Iterator[str]:
    """Yield ``name=value`` for each required metric, with a value that does not meet its first requirement.
    A chain's job prints these first: a condition cannot read a metric that was never printed."""
    first_requirement_by_metric: dict[str, Requirement] = {}
    for requirement in requirements:
        first_requirement_by_metric.setdefault(requirement.value_name, requirement)
    for metric_name, requirement in first_requirement_by_metric.items():
        distance = max(1.0, abs(requirement.threshold))
        is_lower_bound = requirement.operator in (">=", ">")
        # Above the threshold fails "<=" and "<", and "==" as well.
        unmet_value = requirement.threshold + (-distance if is_lower_bound else distance)
        yield f"{metric_name}={unmet_value!r}"


# ---- results and conditions -----------------------------------------------------------------------------


@dataclass(frozen=True)
class StepResult:
    """Result of a job. ``step``: name of the pipeline step; ``uri``: reference to its output or model."""

    step: str
    uri: Mapping[str, str]


def step_result(planned_step: PlannedStep, step_name: str) -> StepResult:
    """Return a reference to what a step of the pipeline writes, such as
    ``Steps.<step>.ModelArtifacts.S3ModelArtifacts``: the trained model, or the output of a processing job."""
    kind = planned_step.template.kind
    property_reference = f"Steps.{step_name}"
    for member in kind.model_artifacts or kind.request_path_by_field["output"]:
        if isinstance(member, int):  # an entry of a list, which references call by its name
            property_reference += f"['{kind.constants.get('output_name')}']"
        else:
            property_reference += f".{member}"
    return StepResult(step_name, {"Get": property_reference})


def training_finished_condition(step: str) -> dict[str, Any]:
    """Condition: the training was finished in a segment."""
    return _condition(">=", _metric_reference(step, FINISHED_METRIC), 1)


def requirement_met_condition(job: PlannedStep, requirement: Requirement, step: str) -> dict[str, Any]:
    return _condition(requirement.operator, _required_value(job, requirement, step), requirement.threshold)


def requirement_failed_condition(job: PlannedStep, requirement: Requirement, step: str) -> dict[str, Any]:
    """The opposite of ``requirement_met_condition``; conditions have no Not for all operators."""
    value, bound = _required_value(job, requirement, step), requirement.threshold
    opposite = [_condition(operator, value, bound) for operator in _OPPOSITES[requirement.operator]]
    return opposite[0] if len(opposite) == 1 else {"Type": "Or", "Conditions": opposite}


_OPPOSITES: Mapping[str, tuple[str, ...]] = {
    ">=": ("<",),
    "<=": (">",),
    ">": ("<=",),
    "<": (">=",),
    "==": ("<", ">"),
}


def _required_value(job: PlannedStep, requirement: Requirement, step: str) -> dict[str, Any]:
    if not job.template.kind.metric_definitions:
        file, _, path = requirement.value_name.partition(":")
        file_name = property_file_names(job)[file]
        file_reference = {"Get": f"Steps.{step}.PropertyFiles.{file_name}"}
        return {"Std:JsonGet": {"PropertyFile": file_reference, "Path": path}}
    return _metric_reference(step, _metric_name_of(job, requirement))


def _metric_reference(step: str, name: str) -> dict[str, Any]:
    return {"Get": f"Steps.{step}.FinalMetricDataList['{name}'].Value"}


def _condition(operator: str, value: Mapping[str, Any], bound: float) -> dict[str, Any]:
    return {"Type": OPERATORS[operator], "LeftValue": value, "RightValue": bound}


def property_file_names(planned_step: PlannedStep) -> dict[str, str]:
    """Return the name of a property file for each JSON file in the job's output that requirements read, by
    that file. Pipelines can read values only of declared property files. Jobs with metrics need none."""
    if planned_step.template.kind.metric_definitions:
        return {}
    required_files = [
        requirement.value_name.partition(":")[0] for requirement in planned_step.step.requirements
    ]
    return {file: f"file-{number}" for number, file in enumerate(dict.fromkeys(required_files), 1)}


# ---- segments and retries --------------------------------------------------------------------------------


def _retry_policies(template: RunTemplate) -> list[dict[str, Any]]:
    """Retry policies of a step. Service errors and capacity errors share one policy, because each policy
    counts its own attempts; it uses the longer first wait."""
    create, quota = CREATE_BACKOFF, QUOTA_BACKOFF
    policies = [
        {
            "ExceptionType": ["Step.SERVICE_FAULT", "Step.THROTTLING"],
            "IntervalSeconds": template.scale_seconds(create.first_seconds),
            "BackoffRate": _BACKOFF_RATE,
            "ExpireAfterMin": int(create.total_seconds // 60),
        },
        {
            "ExceptionType": ["SageMaker.RESOURCE_LIMIT"],
            "IntervalSeconds": template.scale_seconds(quota.max_seconds),
            "BackoffRate": 1.0,
            "ExpireAfterMin": int(quota.total_seconds // 60),
        },
    ]
    max_retries = template.policy.attempts - 1
    if max_retries > 0:
        first_seconds = max(
            RULE_BY_ENDING[ending].first_wait_seconds for ending in (JobEnding.SERVICE, JobEnding.CAPACITY)
        )
        policies.append(
            {
                "ExceptionType": ["SageMaker.JOB_INTERNAL_ERROR", "SageMaker.CAPACITY_ERROR"],
                "IntervalSeconds": template.scale_seconds(first_seconds),
                "BackoffRate": _BACKOFF_RATE,
                "MaxAttempts": min(_MAX_RETRIES, max_retries),
            }
        )
    return policies


def iso_duration(seconds: int) -> str:
    """Format whole minutes as an ISO duration: P30D, PT12H, PT90M."""
    for unit_seconds, pattern in ((86400, "P{}D"), (3600, "PT{}H"), (60, "PT{}M")):
        if seconds % unit_seconds == 0:
            return pattern.format(seconds // unit_seconds)
    raise ValueError(f"{seconds} s is not a number of whole minutes")
