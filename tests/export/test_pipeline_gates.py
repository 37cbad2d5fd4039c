"""Any dependencies: in an execution every job runs once, after all jobs that it needs, and reads their
outputs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from smlaunch.errors import JobError
from smlaunch.export.pipeline import DEFINITION_FILE, export_steps
from smlaunch.export.pipeline_file import PipelineStep, Requirement, StepOutput
from smlaunch.export.pipeline_steps import FINISHED_METRIC
from smlaunch.job.model import Job
from smlaunch.local.pipelines import pipeline_conditions, ready_steps
from smlaunch.local.pipelines import pipeline_definition as endpoint_reader
from smlaunch.local.pipelines.pipeline_records import StepRecord
from smlaunch.render.plan import Plan
from tests.export.test_pipeline_steps import LONG, TRAIN, WORK, input_uri, plan_for

KINDS: Mapping[str, Mapping[str, Any]] = {"work": WORK, "train": TRAIN, "long": LONG}
SEGMENTS = 3
"""Segments of a long job."""

NAMES = ("a", "b", "c", "d", "e")


@cache
def plan_of(kind: str, channels: tuple[str, ...]) -> Plan:
    inputs = {channel: StepOutput(channel) for channel in channels}
    job = Job.from_mapping(
        {**KINDS[kind], "inputs": {name: one.placeholder_uri for name, one in inputs.items()}}
    )
    return plan_for(job, kind, inputs)


@st.composite
def pipelines(draw: st.DrawFn) -> dict[str, tuple[str, PipelineStep]]:
    """Draw a pipeline: kind and step by name. A channel has the name of the step that writes it."""
    pipeline: dict[str, tuple[str, PipelineStep]] = {}
    for name in NAMES[: draw(st.integers(1, len(NAMES)))]:
        kind = draw(st.sampled_from(sorted(KINDS)))
        links = (
            draw(st.lists(st.tuples(st.sampled_from([*pipeline]), st.booleans()), max_size=3))
            if pipeline
            else []
        )
        inputs = {other: StepOutput(other) for other, reads in links if reads}
        after = tuple(other for other, reads in links if not reads)
        value_name = "report.json:x" if kind == "work" else "x"
        requires = (Requirement(value_name, ">=", 1),) if draw(st.integers(0, 3)) == 0 else ()
        job = plan_of(kind, tuple(sorted(inputs))).job
        pipeline[name] = (
            kind,
            PipelineStep(name=name, job=job, inputs=inputs, after=after, requirements=requires),
        )
    return pipeline


class ExecutionScope:
    """An execution's scope, in which every requirement holds. ``ends``: the segment a chain finishes in."""

    def __init__(self, ends: Mapping[str, int]) -> None:
        self._ends = ends

    def describe_step(self, name: str) -> Mapping[str, Any]:
        match = re.match(r"([a-e])-Segment-([0-9]+)", name)
        finished = match is not None and self._ends[match[1]] == int(match[2])
        values = {FINISHED_METRIC: float(finished), "x": 1.0, "smlaunch:x": 1.0}
        return {"FinalMetricDataList": [{"MetricName": name, "Value": values[name]} for name in values]}

    def read_property_file(self, step: str, name: str) -> Any:
        return {"x": 1}

    def parameter_value(self, name: str) -> Any:
        raise AssertionError(name)

    execution_variable = read_s3_json = parameter_value


@settings(max_examples=80, deadline=None)
@given(pipeline=pipelines(), data=st.data())
def test_every_job_runs_once_and_after_all_that_it_needs(
    pipeline: dict[str, tuple[str, PipelineStep]], data: st.DataObject
) -> None:
    jobs = [(step, plan_of(kind, tuple(sorted(step.inputs)))) for kind, step in pipeline.values()]
    try:
        text = export_steps(jobs, "any")[DEFINITION_FILE]
    except JobError as error:
        assert all("1,000 is the most" in problem.message for problem in error.problems), error
        assume(False)
    definition = endpoint_reader.parse_definition(text)
    ends = {
        name: data.draw(st.integers(1, SEGMENTS), f"the segment that {name} finishes in")
        for name, (kind, _) in pipeline.items()
        if kind == "long"
    }
    step_runs: dict[str, list[str]] = {name: [] for name in pipeline}
    records: dict[str, StepRecord] = {}
    while ready_names := ready_steps.find_ready_steps(definition, records):
        before = {name for name, steps in step_runs.items() if len(steps) == ends.get(name, 1)}
        for step_name in ready_names:
            step = definition.steps[step_name]
            outcome = None
            if step.type == "Condition":
                outcome = all(
                    pipeline_conditions.evaluate_condition(condition, ExecutionScope(ends))
                    for condition in step.arguments["Conditions"]
                )
            else:
                assert step.type != "Fail", step_name
                wanted = pipeline[step_name[0]][1]
                assert wanted.required_steps <= before, (
                    f"{step_name} begins before {wanted.required_steps - before}"
                )
                step_runs[step_name[0]].append(step_name)
                for other in wanted.inputs:
                    uri = input_uri({"Arguments": step.arguments}, other)
                    assert uri["Get"].startswith(f"Steps.{step_runs[other][-1]}.")
            record_fields = ("execution", "pipeline", step_name, step.type, "Succeeded", 0.0, len(records))
            records[step_name] = StepRecord(*record_fields, outcome=outcome)
    assert {name: len(steps) for name, steps in step_runs.items()} == {
        name: ends.get(name, 1) for name in pipeline
    }


@settings(max_examples=40, deadline=None)
@given(pipeline=pipelines(), data=st.data())
def test_nothing_follows_on_a_requirement_that_does_not_hold(
    pipeline: dict[str, tuple[str, PipelineStep]], data: st.DataObject
) -> None:
    """Holds however late the Fail step ends the execution."""
    strict = [name for name, (_, step) in pipeline.items() if step.requirements]
    assume(strict)
    name = data.draw(st.sampled_from(strict))
    kind, step = pipeline[name]
    unmet = Requirement(step.requirements[0].value_name, ">", 1)
    pipeline[name] = (kind, replace(step, requirements=(*step.requirements, unmet)))
    jobs = [(step, plan_of(kind, tuple(sorted(step.inputs)))) for kind, step in pipeline.values()]
    try:
        definition = endpoint_reader.parse_definition(export_steps(jobs, "any")[DEFINITION_FILE])
    except JobError:
        assume(False)
    ends = {name: SEGMENTS for name, (kind, _) in pipeline.items() if kind == "long"}
    behind = {name}
    for other, (_, step) in pipeline.items():  # each step comes after those it needs
        if step.required_steps & behind:
            behind.add(other)
    failed: list[str] = []
    records: dict[str, StepRecord] = {}
    while ready_names := ready_steps.find_ready_steps(definition, records):
        for step_name in ready_names:
            started_step = definition.steps[step_name]
            outcome = None
            if started_step.type == "Condition":
                outcome = all(
                    pipeline_conditions.evaluate_condition(condition, ExecutionScope(ends))
                    for condition in started_step.arguments["Conditions"]
                )
            elif started_step.type == "Fail":
                failed.append(step_name)
            else:
                assert step_name[0] == name or step_name[0] not in behind, step_name
            record_fields = (
                "execution",
                "pipeline",
                step_name,
                started_step.type,
                "Succeeded",
                0.0,
                len(records),
            )
            records[step_name] = StepRecord(*record_fields, outcome=outcome)
    (only,) = failed
    assert only.startswith(f"{name}-Fail-2")
