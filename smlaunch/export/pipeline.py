"""A run as a SageMaker pipeline: its chain unrolled, each segment followed by the question whether it was the
last.

    Segment-1 ─► Finished-1 ─yes─► end
                     └─no─► Segment-2 ─► Finished-2 ─yes─► end
                                              └─no─► ... ─► Limit (Fail)

A pipeline has no loops and sees of a job its metrics, so the runtime prints whether the training has come to
its end (protocol.segment, TELL_FINISHED). Each execution is a run of its own, named by the execution's id;
the service names the jobs, and run, segment and attempt are their tags. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from smlaunch.errors import EXIT_LIMIT, JobError, Problem
from smlaunch.export.flow import ERRORS, Flow, Number, Place, Stage, Text, flow_of, mapped
from smlaunch.planning.patience import CREATE_PATIENCE, QUOTA_PATIENCE
from smlaunch.planning.plan import Plan
from smlaunch.planning.workflow import RULES, Ending
from smlaunch.protocol import segment as variables
from smlaunch.protocol.progress import MARK
from smlaunch.request import name_member

VERSION = "2020-12-01"
FILE = "pipeline.json"
METRIC = "smlaunch:finished"
MOST_SEGMENTS = 100
"""Conditions are nested as deeply as there are segments."""

_MOST_RETRIES = 20
_BACKOFF = 2.0
_RUN = {"Get": "Execution.PipelineExecutionId"}


def export_pipeline(plan: Plan, *, pace: float = 1.0) -> dict[str, str]:
    """The files of an export, by their names. ``pace``: how long waits take, compared with a region.

    Raises JobError for what a pipeline cannot do as the plan has it, every problem by its field.
    """
    problems = list(_problems(plan))
    try:
        flow = flow_of(plan, pace=pace)
    except JobError as error:
        raise JobError([*error.problems, *problems]) from None
    segments = list(_lengths(flow))
    if len(segments) > MOST_SEGMENTS:
        problems.append(
            Problem(
                "limits.segment",
                f"the chain would be unrolled into more than {MOST_SEGMENTS} segments; make them longer",
            )
        )
    if problems:
        raise JobError(problems)
    return {FILE: json.dumps(definition_of(flow), indent=2, ensure_ascii=True) + "\n"}


def definition_of(flow: Flow) -> dict[str, Any]:
    chain = flow.policy.chain
    steps: list[dict[str, Any]] = []
    if chain:
        # From the last segment to the first: each is part of what follows on the one before it.
        steps = [_limit(flow)]
        lengths = list(_lengths(flow))
        for number, (stage, limit) in reversed(list(enumerate(lengths, 1))):
            steps = [_segment(flow, stage, number, limit), _finished(number, steps)]
    else:
        steps = [_segment(flow, flow.stages[0], 1, flow.stages[0].max_runtime)]
    return {
        "Version": VERSION,
        "Metadata": {"Comment": f"{flow.title}, exported by smlaunch"},
        "Parameters": [],
        "Steps": steps,
    }


def _segment(flow: Flow, stage: Stage, number: int, limit: int) -> dict[str, Any]:
    return {
        "Name": f"Segment-{number}",
        "Type": "Processing" if flow.processing else "Training",
        "Arguments": _arguments(stage, number, limit, flow.policy.chain),
        "RetryPolicies": _policies(flow),
    }


def _finished(number: int, following: list[dict[str, Any]]) -> dict[str, Any]:
    value = {"Get": f"Steps.Segment-{number}.FinalMetricDataList['{METRIC}'].Value"}
    return {
        "Name": f"Finished-{number}",
        "Type": "Condition",
        "Arguments": {
            "Conditions": [{"Type": "GreaterThanOrEqualTo", "LeftValue": value, "RightValue": 1}],
            "IfSteps": [],
            "ElseSteps": following,
        },
    }


def _limit(flow: Flow) -> dict[str, Any]:
    message = (
        f"{ERRORS[EXIT_LIMIT]}: all segments that limits.max_runtime has room for have run, and the training "
        "is not finished"
    )
    return {"Name": "Limit", "Type": "Fail", "Arguments": {"ErrorMessage": message}}


def _lengths(flow: Flow) -> Iterator[tuple[Stage, int]]:
    """Every segment's stage and the seconds it may take, as long as there are any worth a job."""
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


def _arguments(stage: Stage, number: int, limit: int, chain: bool) -> dict[str, Any]:
    places: dict[Place, Any] = {
        Place.RUN: _RUN,
        Place.SEGMENT: str(number),
        Place.ATTEMPT: "1",
        Place.STEP: "0",
        Place.LIMIT: limit,
        Place.STOP_AFTER: str(stage.stop_after(limit)),
        Place.DRIVER: {"Get": "Execution.PipelineExecutionArn"},
    }

    def write(value: Text | Number) -> Any:
        if isinstance(value, Number):
            return places[value.place]
        words = [places[word] if isinstance(word, Place) else word for word in value.words]
        if len(words) == 1:
            return words[0]
        return {"Std:Join": {"On": "", "Values": words}}

    arguments: dict[str, Any] = mapped(stage.template, write)
    del arguments[name_member(arguments)]  # the service makes it
    environment = arguments["Environment"]
    # Nobody looks for the newest step between two jobs; no name tells segment and attempt.
    environment.pop(variables.FROM_STEP, None)
    environment[variables.SEGMENT] = str(number)
    environment[variables.ATTEMPT] = "1"
    if chain:
        environment[variables.TELL_FINISHED] = "1"
        metric = {"Name": METRIC, "Regex": MARK + variables.FINISHED_LINE + "([01])"}
        algorithm = arguments["AlgorithmSpecification"]
        algorithm["MetricDefinitions"] = [*algorithm.get("MetricDefinitions", []), metric]
    return arguments


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


def _problems(plan: Plan) -> Iterator[Problem]:
    job, policy = plan.job, plan.workflow.policy
    if policy.max_cost is not None:
        yield Problem(
            "limits.max_cost",
            "a pipeline does not count what its jobs cost; leave it out and cap limits.max_runtime, or use "
            "`smlaunch run` or `smlaunch export step-functions`",
        )
    if policy.on_demand_fallback:
        yield Problem(
            "compute.on_demand_fallback",
            "a step of a pipeline is retried as it is, never on other capacity; leave it out, or use "
            "`smlaunch export step-functions`",
        )
    if (job.limits.attempts or 1) > 1:
        yield Problem(
            "limits.attempts",
            "a pipeline retries a step after a service fault or for want of capacity, never after a script's "
            "own failure; leave it out (a chain's jobs are then tried again after those), or use "
            "`smlaunch export step-functions`",
        )
    if any(variant.until_step is not None for variant in plan.workflow.variants):
        yield Problem(
            "segments",
            "until_step: a pipeline does not know which step a segment has reached; give the segments a "
            "length instead",
        )
    if policy.chain and policy.total_seconds is None:
        yield Problem(
            "limits.max_runtime",
            "a pipeline has no loops, so that a chain is unrolled, and one without an end cannot be; give it",
        )
    if plan.parts:
        yield Problem("inputs", "a run in parts (carry: jobs) is not exported to a pipeline; export one part")
