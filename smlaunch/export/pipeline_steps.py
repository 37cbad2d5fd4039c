"""One job of a pipeline as a step: its request with references for variables, its retries, its cache."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smlaunch.api.request import name_member
from smlaunch.contract import segment as variables
from smlaunch.contract.progress import LINE_PREFIX
from smlaunch.contract.progress import METRIC_KIND as METRIC_LINE
from smlaunch.export.pipeline_file import OPERATORS, PipelineStep, Requirement
from smlaunch.export.run_template import (
    JobVariable,
    NumberTemplate,
    RunTemplate,
    TextTemplate,
    VariantTemplate,
    map_open_values,
)
from smlaunch.planner.plan import Plan
from smlaunch.planner.retry_policy import CREATE_BACKOFF, QUOTA_BACKOFF
from smlaunch.planner.workflow import ENDING_RULES, Ending

FINISHED_METRIC = variables.FINISHED_METRIC
MAX_SEGMENTS = 100
"""Segments of one chain; a limit of smlaunch, like pipeline_gates.MAX_STEPS."""

OUTPUT_NAME = "output"
"""Name of the only output of a processing job (request.create_processing_job)."""

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
    plan: Plan
    template: RunTemplate

    @property
    def name(self) -> str:
        return self.step.name

    @property
    def is_chain(self) -> bool:
        return self.template.policy.chain

    @property
    def segments(self) -> list[tuple[VariantTemplate, int]]:
        """Variant and time limit in seconds of every segment; at most one more than MAX_SEGMENTS."""
        return list(_segments(self.template))

    def segment_name(self, segment: int) -> str:
        """Name of the step of one segment."""
        if self.name and not self.is_chain:
            return self.name
        return self.generated_name("Segment", segment)

    def generated_name(self, kind: str, number: int | None = None) -> str:
        """Name of a generated step. It has a capital letter, so it differs from all names of users."""
        return "-".join(str(word) for word in (self.name, kind, number) if word not in ("", None))


def join_text(pieces: tuple[TextPiece, ...]) -> Any:
    """One text of several pieces. Adjacent strings are joined; a single piece is returned as it is."""
    joined: list[TextPiece] = []
    for piece in pieces:
        if isinstance(piece, str) and joined and isinstance(joined[-1], str):
            joined[-1] += piece
        elif piece != "":
            joined.append(piece)
    return joined[0] if len(joined) == 1 else {"Std:Join": {"On": "", "Values": joined}}


def run_name_pieces(job: PlannedStep, cached_runs: Mapping[str, str]) -> tuple[TextPiece, ...]:
    """Run id of a step in an execution. ``cached_runs``: fixed run ids of cached steps."""
    if job.name in cached_runs:
        return (cached_runs[job.name],)
    return (_EXECUTION_ID, f"-{job.name}") if job.name else (_EXECUTION_ID,)


def cached_run_name(job: PlannedStep, cached_runs: Mapping[str, str]) -> str:
    """Fixed run id of a cached step: cached arguments must not contain the execution, and different jobs
    must not share a prefix. ``cached_runs``: run ids of the steps it reads from."""
    input_runs = {
        name: [cached_runs.get(source.step), source.folder] for name, source in job.step.inputs.items()
    }
    upload_contents = [upload.content for upload in job.plan.uploads]
    text = json.dumps([build_arguments(job, 1, ("",), {}), input_runs, upload_contents], sort_keys=True)
    return f"{job.name}-{hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]}"


def build_job_step(
    job: PlannedStep,
    segment: int,
    name: str,
    run: tuple[TextPiece, ...],
    results: Mapping[str, StepResult],
    depends_on: list[str],
) -> dict[str, Any]:
    """Build the step of one segment.

    ``results``: of the steps that it needs, by name. ``depends_on``: steps that it must wait for and does not
    refer to.
    """
    step: dict[str, Any] = {
        "Name": name,
        "Type": "Processing" if job.template.is_processing else "Training",
        "Arguments": build_arguments(job, segment, run, results),
    }
    if depends_on:
        step["DependsOn"] = depends_on
    step["RetryPolicies"] = _retry_policies(job.template)
    if job.step.cache_seconds is not None:
        step["CacheConfig"] = {"Enabled": True, "ExpireAfter": iso_duration(job.step.cache_seconds)}
    files = property_file_names(job)
    if files:
        step["PropertyFiles"] = [
            {"PropertyFileName": file_name, "OutputName": OUTPUT_NAME, "FilePath": file}
            for file, file_name in files.items()
        ]
    return step


def build_arguments(
    job: PlannedStep, segment: int, run: tuple[TextPiece, ...], results: Mapping[str, StepResult]
) -> dict[str, Any]:
    """Arguments of CreateTrainingJob or CreateProcessingJob, without the name, which the service
    generates."""
    variant, max_runtime_seconds = job.segments[segment - 1]
    pieces_by_variable: dict[JobVariable, tuple[TextPiece, ...]] = {
        JobVariable.RUN: run,
        JobVariable.SEGMENT: (str(segment),),
        JobVariable.ATTEMPT: ("1",),
        JobVariable.COMMITTED_STEP: ("0",),
        JobVariable.REPORTED_STEP: ("",),
        JobVariable.STOP_AFTER: (str(variant.stop_after(max_runtime_seconds)),),
        JobVariable.DRIVER: ({"Get": "Execution.PipelineExecutionArn"},),
    }

    def to_text(value: TextTemplate | NumberTemplate) -> Any:
        if isinstance(value, NumberTemplate):
            return max_runtime_seconds  # the only number variable
        piece_groups = [
            pieces_by_variable[piece] if isinstance(piece, JobVariable) else (piece,)
            for piece in value.pieces
        ]
        return join_text(tuple(piece for piece_group in piece_groups for piece in piece_group))

    arguments: dict[str, Any] = map_open_values(variant.request, to_text)
    del arguments[name_member(arguments)]
    environment = arguments["Environment"]
    # A pipeline cannot read the newest step between two jobs, and job names have no segment and attempt.
    for variable in (variables.FROM_STEP_VARIABLE, variables.FROM_REPORTED_VARIABLE):
        environment.pop(variable, None)
    if job.step.cache_seconds is not None:
        del environment[variables.DRIVER_VARIABLE]  # any execution may reuse the result
    environment[variables.SEGMENT_VARIABLE] = str(segment)
    environment[variables.ATTEMPT_VARIABLE] = "1"
    if job.is_chain:
        environment[variables.REPORT_FINISHED_VARIABLE] = "1"
        if job.step.requirements:
            environment[variables.REQUIRED_METRICS_VARIABLE] = " ".join(_unmet_values(job.step.requirements))
    _add_metrics(job, arguments)
    for channel, source in job.step.inputs.items():
        if source.step in results:
            uri_pieces: tuple[TextPiece, ...] = (results[source.step].uri, source.folder)
            _channel_source(arguments, channel)["S3Uri"] = join_text(uri_pieces)
    return arguments


def _channel_source(arguments: Mapping[str, Any], channel: str) -> dict[str, Any]:
    """Return the mapping that contains the address of a channel."""
    training_sources = {
        channel_definition["ChannelName"]: channel_definition["DataSource"]
        for channel_definition in arguments.get("InputDataConfig", ())
    }
    if channel in training_sources:
        source: dict[str, Any] = training_sources[channel]["S3DataSource"]
    else:
        processing_inputs = {
            channel_definition["InputName"]: channel_definition["S3Input"]
            for channel_definition in arguments["ProcessingInputs"]
        }
        source = processing_inputs[channel]
    return source


def _add_metrics(job: PlannedStep, arguments: dict[str, Any]) -> None:
    """Add definitions of the metrics that conditions use. A built-in algorithm has fixed metrics."""
    if job.template.is_processing or job.plan.job.algorithm is not None:
        return
    regex_by_metric = (
        {FINISHED_METRIC: LINE_PREFIX + variables.FINISHED_LINE_PREFIX + "([01])"} if job.is_chain else {}
    )
    for requirement in job.step.requirements:
        line = f"{METRIC_LINE} (?:.* )?"
        if job.is_chain:
            line = f"(?:{line}|{variables.REQUIRED_LINE_PREFIX})"
        name = re.escape(requirement.value_name)
        regex_by_metric[_metric_name(job, requirement)] = f"{LINE_PREFIX}{line}{name}=([0-9eE.+-]+)"
    algorithm = arguments["AlgorithmSpecification"]
    definitions = list(algorithm.get("MetricDefinitions", []))
    defined_names = {metric["Name"] for metric in definitions}
    definitions += [
        {"Name": name, "Regex": regex} for name, regex in regex_by_metric.items() if name not in defined_names
    ]
    if definitions:
        algorithm["MetricDefinitions"] = definitions


def _metric_name(job: PlannedStep, requirement: Requirement) -> str:
    """Name of a required metric. A chain uses a metric of smlaunch, which also has a first value."""
    is_own_metric = job.is_chain and job.plan.job.algorithm is None
    return (
        f"{variables.INTERNAL_METRIC_PREFIX}{requirement.value_name}"
        if is_own_metric
        else requirement.value_name
    )


def _unmet_values(requires: Sequence[Requirement]) -> Iterator[str]:
    """Yield ``name=value`` for each metric, with a value that does not meet its first requirement."""
    first_requirements: dict[str, Requirement] = {}
    for requirement in requires:
        first_requirements.setdefault(requirement.value_name, requirement)
    for name, requirement in first_requirements.items():
        distance = max(1.0, abs(requirement.threshold))
        value = requirement.threshold + (-distance if requirement.operator in (">=", ">") else distance)
        yield f"{name}={value!r}"


# ---- results and conditions -----------------------------------------------------------------------------


@dataclass(frozen=True)
class StepResult:
    """Result of a job. ``step``: name of the pipeline step; ``uri``: reference to its output or model."""

    step: str
    uri: Mapping[str, str]


def step_result(job: PlannedStep, step: str) -> StepResult:
    if job.template.is_processing:
        property_path = f"ProcessingOutputConfig.Outputs['{OUTPUT_NAME}'].S3Output.S3Uri"
    else:
        property_path = "ModelArtifacts.S3ModelArtifacts"
    return StepResult(step, {"Get": f"Steps.{step}.{property_path}"})


def is_training_finished(step: str) -> dict[str, Any]:
    """Condition: the training was finished in a segment."""
    return _condition(">=", _metric_reference(step, FINISHED_METRIC), 1)


def requirement_met(job: PlannedStep, requirement: Requirement, step: str) -> dict[str, Any]:
    return _condition(requirement.operator, _required_value(job, requirement, step), requirement.threshold)


def requirement_failed(job: PlannedStep, requirement: Requirement, step: str) -> dict[str, Any]:
    """The opposite of ``requirement_met``; conditions have no Not for all operators."""
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
    if job.template.is_processing:
        file, _, path = requirement.value_name.partition(":")
        file_name = property_file_names(job)[file]
        file_reference = {"Get": f"Steps.{step}.PropertyFiles.{file_name}"}
        return {"Std:JsonGet": {"PropertyFile": file_reference, "Path": path}}
    return _metric_reference(step, _metric_name(job, requirement))


def _metric_reference(step: str, name: str) -> dict[str, Any]:
    return {"Get": f"Steps.{step}.FinalMetricDataList['{name}'].Value"}


def _condition(operator: str, value: Mapping[str, Any], bound: float) -> dict[str, Any]:
    return {"Type": OPERATORS[operator], "LeftValue": value, "RightValue": bound}


def property_file_names(job: PlannedStep) -> dict[str, str]:
    """Names of the property files of a step, by output file."""
    if not job.template.is_processing:
        return {}
    files = dict.fromkeys(requirement.value_name.partition(":")[0] for requirement in job.step.requirements)
    return {file: f"file-{number}" for number, file in enumerate(files, 1)}


# ---- segments and retries --------------------------------------------------------------------------------


def _segments(template: RunTemplate) -> Iterator[tuple[VariantTemplate, int]]:
    """Yield the variant and the longest run time, in seconds, of each segment of a run."""
    remaining_seconds = (
        template.max_training_seconds if template.policy.chain else template.variants[0].max_runtime_seconds
    )
    number = 1
    while remaining_seconds is not None and number <= MAX_SEGMENTS + 1:
        variant = [candidate for candidate in template.variants if candidate.first_segment <= number][-1]
        max_runtime_seconds = min(variant.max_runtime_seconds, remaining_seconds)
        if max_runtime_seconds < variant.min_seconds and number > 1:
            return
        yield variant, max_runtime_seconds
        remaining_seconds -= max_runtime_seconds
        number += 1
        if remaining_seconds <= 0:
            return


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
            ENDING_RULES[ending].first_wait_seconds for ending in (Ending.SERVICE, Ending.CAPACITY)
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
