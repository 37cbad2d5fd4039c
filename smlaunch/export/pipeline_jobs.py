"""One job of a pipeline as a step: its request with references in the open places, its retries, its cache."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smlaunch.export.flow import Flow, Number, Place, Stage, Text, mapped
from smlaunch.export.pipeline_file import OPERATORS, Requirement, Step
from smlaunch.planning.patience import CREATE_PATIENCE, QUOTA_PATIENCE
from smlaunch.planning.plan import Plan
from smlaunch.planning.workflow import RULES, Ending
from smlaunch.protocol import segment as variables
from smlaunch.protocol.progress import MARK
from smlaunch.protocol.progress import METRIC as METRIC_LINE
from smlaunch.request import name_member

METRIC = variables.FINISHED_METRIC
MOST_SEGMENTS = 100
"""Of one chain: a bound of ours, as pipeline_order.MOST_STEPS is."""

OUTPUT = "output"
"""The one output of a processing job (request.create_processing_job)."""

_MOST_RETRIES = 20
_BACKOFF = 2.0
_EXECUTION = {"Get": "Execution.PipelineExecutionId"}
_HASH = 8

Word = str | Mapping[str, Any]
"""A piece of a text: as it is, or a reference."""


@dataclass(frozen=True)
class Planned:
    """A step whose job has been planned."""

    step: Step
    plan: Plan
    flow: Flow

    @property
    def name(self) -> str:
        return self.step.name

    @property
    def chain(self) -> bool:
        return self.flow.policy.chain

    @property
    def lengths(self) -> list[tuple[Stage, int]]:
        """Every segment's stage and the seconds it may take, as long as there are any worth a job; at most
        one more than MOST_SEGMENTS."""
        return list(_lengths(self.flow))

    def called(self, segment: int) -> str:
        """The step of one segment; a job that is no chain has only the first."""
        if self.name and not self.chain:
            return self.name
        return self.part("Segment", segment)

    def part(self, kind: str, number: int | None = None) -> str:
        """Words of ours have capitals, which a step's name has not, so that no two can be the same."""
        return "-".join(str(word) for word in (self.name, kind, number) if word not in ("", None))


def join(words: tuple[Word, ...]) -> Any:
    """One text; a reference alone stays one."""
    pieces: list[Word] = []
    for word in words:
        if isinstance(word, str) and pieces and isinstance(pieces[-1], str):
            pieces[-1] += word
        elif word != "":
            pieces.append(word)
    return pieces[0] if len(pieces) == 1 else {"Std:Join": {"On": "", "Values": pieces}}


def run_words(job: Planned, runs: Mapping[str, str]) -> tuple[Word, ...]:
    """What the step's run is called in an execution. ``runs``: the fixed names of those that are cached."""
    if job.name in runs:
        return (runs[job.name],)
    return (_EXECUTION, f"-{job.name}") if job.name else (_EXECUTION,)


def fixed_run(job: Planned, runs: Mapping[str, str]) -> str:
    """The name of a cached step's run: what is compared may hold nothing of the execution, and what another
    job leaves may not lie in its place. ``runs``: those of the steps it reads from."""
    read = {name: [runs.get(source.step), source.folder] for name, source in job.step.inputs.items()}
    staged = [upload.content for upload in job.plan.uploads]
    text = json.dumps([arguments_of(job, 1, ("",), {}), read, staged], sort_keys=True)
    return f"{job.name}-{hashlib.sha256(text.encode()).hexdigest()[:_HASH]}"


def job_step(
    job: Planned,
    segment: int,
    name: str,
    run: tuple[Word, ...],
    known: Mapping[str, Ended],
    before: list[str],
) -> dict[str, Any]:
    """``known``: what has ended when it begins, by the steps' own names. ``before``: what must have, and
    nothing here refers to."""
    step: dict[str, Any] = {
        "Name": name,
        "Type": "Processing" if job.flow.processing else "Training",
        "Arguments": arguments_of(job, segment, run, known),
    }
    if before:
        step["DependsOn"] = before
    step["RetryPolicies"] = _policies(job.flow)
    if job.step.cache is not None:
        step["CacheConfig"] = {"Enabled": True, "ExpireAfter": iso_duration(job.step.cache)}
    files = property_files(job)
    if files:
        step["PropertyFiles"] = [
            {"PropertyFileName": called, "OutputName": OUTPUT, "FilePath": file}
            for file, called in files.items()
        ]
    return step


def arguments_of(
    job: Planned, segment: int, run: tuple[Word, ...], known: Mapping[str, Ended]
) -> dict[str, Any]:
    """Of a CreateTrainingJob or CreateProcessingJob, without the name, which the service makes."""
    stage, limit = job.lengths[segment - 1]
    places: dict[Place, tuple[Word, ...]] = {
        Place.RUN: run,
        Place.SEGMENT: (str(segment),),
        Place.ATTEMPT: ("1",),
        Place.STEP: ("0",),
        Place.REPORTED: ("",),
        Place.STOP_AFTER: (str(stage.stop_after(limit)),),
        Place.DRIVER: ({"Get": "Execution.PipelineExecutionArn"},),
    }

    def write(value: Text | Number) -> Any:
        if isinstance(value, Number):
            return limit  # the only number that is open
        parts = [places[word] if isinstance(word, Place) else (word,) for word in value.words]
        return join(tuple(word for part in parts for word in part))

    arguments: dict[str, Any] = mapped(stage.template, write)
    del arguments[name_member(arguments)]
    environment = arguments["Environment"]
    # Nobody looks for the newest step between two jobs; no name tells segment and attempt.
    for variable in (variables.FROM_STEP, variables.FROM_REPORTED):
        environment.pop(variable, None)
    if job.step.cache is not None:
        del environment[variables.DRIVER]  # any execution may take the result
    environment[variables.SEGMENT] = str(segment)
    environment[variables.ATTEMPT] = "1"
    if job.chain:
        environment[variables.TELL_FINISHED] = "1"
        if job.step.requires:
            environment[variables.REQUIRED] = " ".join(_unmet_values(job.step.requires))
    _add_metrics(job, arguments)
    for channel, source in job.step.inputs.items():
        if source.step in known:
            words: tuple[Word, ...] = (known[source.step].uri, source.folder)
            _place_of(arguments, channel)["S3Uri"] = join(words)
    return arguments


def _place_of(arguments: Mapping[str, Any], channel: str) -> dict[str, Any]:
    """Where a channel's address stands."""
    training = {one["ChannelName"]: one["DataSource"] for one in arguments.get("InputDataConfig", ())}
    if channel in training:
        place: dict[str, Any] = training[channel]["S3DataSource"]
    else:
        inputs = {one["InputName"]: one["S3Input"] for one in arguments["ProcessingInputs"]}
        place = inputs[channel]
    return place


def _add_metrics(job: Planned, arguments: dict[str, Any]) -> None:
    """Those that conditions ask for, as the runtime and a script print them. A built-in algorithm has its
    own, and may be given no others."""
    if job.flow.processing or job.plan.job.algorithm is not None:
        return
    wanted = {METRIC: MARK + variables.FINISHED_LINE + "([01])"} if job.chain else {}
    for requirement in job.step.requires:
        line = f"{METRIC_LINE} (?:.* )?"
        if job.chain:
            line = f"(?:{line}|{variables.REQUIRED_LINE})"
        name = re.escape(requirement.what)
        wanted[_metric_of(job, requirement)] = f"{MARK}{line}{name}=([0-9eE.+-]+)"
    algorithm = arguments["AlgorithmSpecification"]
    there = list(algorithm.get("MetricDefinitions", []))
    known = {metric["Name"] for metric in there}
    there += [{"Name": name, "Regex": regex} for name, regex in wanted.items() if name not in known]
    if there:
        algorithm["MetricDefinitions"] = there


def _metric_of(job: Planned, requirement: Requirement) -> str:
    """As which the job's metrics have it. A chain's is one of ours: its first value is."""
    own = job.chain and job.plan.job.algorithm is None
    return f"{variables.OWN_METRICS}{requirement.what}" if own else requirement.what


def _unmet_values(requires: Sequence[Requirement]) -> Iterator[str]:
    """``name=value`` for each metric, so that it does not meet the first that is required of it."""
    first: dict[str, Requirement] = {}
    for requirement in requires:
        first.setdefault(requirement.what, requirement)
    for name, requirement in first.items():
        away = max(1.0, abs(requirement.bound))
        value = requirement.bound + (-away if requirement.operator in (">=", ">") else away)
        yield f"{name}={value!r}"


# ---- what others see of it ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """``step``: of the pipeline, whose job did it; ``uri``: a reference to what it left."""

    step: str
    uri: Mapping[str, str]


def ended(job: Planned, step: str) -> Ended:
    if job.flow.processing:
        place = f"ProcessingOutputConfig.Outputs['{OUTPUT}'].S3Output.S3Uri"
    else:
        place = "ModelArtifacts.S3ModelArtifacts"
    return Ended(step, {"Get": f"Steps.{step}.{place}"})


def finished(step: str) -> dict[str, Any]:
    """Whether the training came to its end in a segment."""
    return _condition(">=", _metric(step, METRIC), 1)


def holds(job: Planned, requirement: Requirement, step: str) -> dict[str, Any]:
    return _condition(requirement.operator, _value(job, requirement, step), requirement.bound)


def fails(job: Planned, requirement: Requirement, step: str) -> dict[str, Any]:
    """The opposite of ``holds``, in the words that every condition has."""
    value, bound = _value(job, requirement, step), requirement.bound
    opposite = [_condition(operator, value, bound) for operator in _OPPOSITES[requirement.operator]]
    return opposite[0] if len(opposite) == 1 else {"Type": "Or", "Conditions": opposite}


_OPPOSITES: Mapping[str, tuple[str, ...]] = {
    ">=": ("<",),
    "<=": (">",),
    ">": ("<=",),
    "<": (">=",),
    "==": ("<", ">"),
}


def _value(job: Planned, requirement: Requirement, step: str) -> dict[str, Any]:
    if job.flow.processing:
        file, _, path = requirement.what.partition(":")
        name = property_files(job)[file]
        place = {"Get": f"Steps.{step}.PropertyFiles.{name}"}
        return {"Std:JsonGet": {"PropertyFile": place, "Path": path}}
    return _metric(step, _metric_of(job, requirement))


def _metric(step: str, name: str) -> dict[str, Any]:
    return {"Get": f"Steps.{step}.FinalMetricDataList['{name}'].Value"}


def _condition(operator: str, value: Mapping[str, Any], bound: float) -> dict[str, Any]:
    return {"Type": OPERATORS[operator], "LeftValue": value, "RightValue": bound}


def property_files(job: Planned) -> dict[str, str]:
    """What each file of its output is called in conditions."""
    if not job.flow.processing:
        return {}
    files = dict.fromkeys(requirement.what.partition(":")[0] for requirement in job.step.requires)
    return {file: f"file-{number}" for number, file in enumerate(files, 1)}


# ---- how long, how often --------------------------------------------------------------------------------


def _lengths(flow: Flow) -> Iterator[tuple[Stage, int]]:
    left = flow.training if flow.policy.chain else flow.stages[0].max_runtime
    number = 1
    while left is not None and number <= MOST_SEGMENTS + 1:
        stage = [one for one in flow.stages if one.first_segment <= number][-1]
        limit = min(stage.max_runtime, left)
        if limit < stage.least and number > 1:
            return
        yield stage, limit
        left -= limit
        number += 1
        if left <= 0:
            return


def _policies(flow: Flow) -> list[dict[str, Any]]:
    """One policy for both remedies that try again: two would count their tries apart. It waits as long as the
    more patient rule, and has no longest wait."""
    create, quota = CREATE_PATIENCE, QUOTA_PATIENCE
    policies = [
        {
            "ExceptionType": ["Step.SERVICE_FAULT", "Step.THROTTLING"],
            "IntervalSeconds": flow.seconds(create.first),
            "BackoffRate": _BACKOFF,
            "ExpireAfterMin": int(create.total // 60),
        },
        {
            "ExceptionType": ["SageMaker.RESOURCE_LIMIT"],
            "IntervalSeconds": flow.seconds(quota.longest),
            "BackoffRate": 1.0,
            "ExpireAfterMin": int(quota.total // 60),
        },
    ]
    again = flow.policy.attempts - 1
    if again > 0:
        first = max(RULES[ending].first_wait for ending in (Ending.SERVICE, Ending.CAPACITY))
        policies.append(
            {
                "ExceptionType": ["SageMaker.JOB_INTERNAL_ERROR", "SageMaker.CAPACITY_ERROR"],
                "IntervalSeconds": flow.seconds(first),
                "BackoffRate": _BACKOFF,
                "MaxAttempts": min(_MOST_RETRIES, again),
            }
        )
    return policies


def iso_duration(seconds: int) -> str:
    """Of whole minutes: P30D, PT12H, PT90M."""
    for size, form in ((86400, "P{}D"), (3600, "PT{}H"), (60, "PT{}M")):
        if seconds % size == 0:
            return form.format(seconds // size)
    raise ValueError(f"{seconds} s are no whole minutes")
