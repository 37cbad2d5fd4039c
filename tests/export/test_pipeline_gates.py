"""Whatever depends on whatever: in an execution every job runs once, after all that it needs, and reads what
those left."""

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
from smlaunch.local.pipelines import conditions, ready_steps
from smlaunch.local.pipelines import definition as endpoint_reader
from smlaunch.local.pipelines.records import StepRecord
from smlaunch.planner.plan import Plan
from tests.export.test_pipeline_steps import LONG, TRAIN, WORK, address, planned

KINDS: Mapping[str, Mapping[str, Any]] = {"work": WORK, "train": TRAIN, "long": LONG}
SEGMENTS = 3
"""Of a long one."""

NAMES = ("a", "b", "c", "d", "e")


@cache
def plan_of(kind: str, channels: tuple[str, ...]) -> Plan:
    inputs = {channel: StepOutput(channel) for channel in channels}
    job = Job.from_mapping(
        {**KINDS[kind], "inputs": {name: one.placeholder_uri for name, one in inputs.items()}}
    )
    return planned(job, kind, inputs)


@st.composite
def pipelines(draw: st.DrawFn) -> dict[str, tuple[str, PipelineStep]]:
    """By name: what kind of job, and the step. A channel is called after the step it comes from."""
    made: dict[str, tuple[str, PipelineStep]] = {}
    for name in NAMES[: draw(st.integers(1, len(NAMES)))]:
        kind = draw(st.sampled_from(sorted(KINDS)))
        links = draw(st.lists(st.tuples(st.sampled_from([*made]), st.booleans()), max_size=3)) if made else []
        inputs = {other: StepOutput(other) for other, reads in links if reads}
        after = tuple(other for other, reads in links if not reads)
        what = "report.json:x" if kind == "work" else "x"
        requires = (Requirement(what, ">=", 1),) if draw(st.integers(0, 3)) == 0 else ()
        job = plan_of(kind, tuple(sorted(inputs))).job
        made[name] = (
            kind,
            PipelineStep(name=name, job=job, inputs=inputs, after=after, requirements=requires),
        )
    return made


class Told:
    """An execution's scope, in which every requirement holds. ``ends``: the segment a chain finishes in."""

    def __init__(self, ends: Mapping[str, int]) -> None:
        self._ends = ends

    def step(self, name: str) -> Mapping[str, Any]:
        found = re.match(r"([a-e])-Segment-([0-9]+)", name)
        finished = found is not None and self._ends[found[1]] == int(found[2])
        values = {FINISHED_METRIC: float(finished), "x": 1.0, "smlaunch:x": 1.0}
        return {"FinalMetricDataList": [{"MetricName": name, "Value": values[name]} for name in values]}

    def property_file(self, step: str, name: str) -> Any:
        return {"x": 1}

    def parameter(self, name: str) -> Any:
        raise AssertionError(name)

    execution = s3_json = parameter


@settings(max_examples=80, deadline=None)
@given(made=pipelines(), data=st.data())
def test_every_job_runs_once_and_after_all_that_it_needs(
    made: dict[str, tuple[str, PipelineStep]], data: st.DataObject
) -> None:
    jobs = [(step, plan_of(kind, tuple(sorted(step.inputs)))) for kind, step in made.values()]
    try:
        text = export_steps(jobs, "any")[DEFINITION_FILE]
    except JobError as error:
        assert all("1,000 is the most" in problem.message for problem in error.problems), error
        assume(False)
    definition = endpoint_reader.read(text)
    ends = {
        name: data.draw(st.integers(1, SEGMENTS), f"the segment that {name} finishes in")
        for name, (kind, _) in made.items()
        if kind == "long"
    }
    ran: dict[str, list[str]] = {name: [] for name in made}
    records: dict[str, StepRecord] = {}
    while begun := ready_steps.ready(definition, records):
        before = {name for name, steps in ran.items() if len(steps) == ends.get(name, 1)}
        for called in begun:
            step = definition.steps[called]
            outcome = None
            if step.type == "Condition":
                outcome = all(conditions.holds(one, Told(ends)) for one in step.arguments["Conditions"])
            else:
                assert step.type != "Fail", called
                wanted = made[called[0]][1]
                assert wanted.required_steps <= before, (
                    f"{called} begins before {wanted.required_steps - before}"
                )
                ran[called[0]].append(called)
                for other in wanted.inputs:
                    left = address({"Arguments": step.arguments}, other)
                    assert left["Get"].startswith(f"Steps.{ran[other][-1]}.")
            place = ("execution", "pipeline", called, step.type, "Succeeded", 0.0, len(records))
            records[called] = StepRecord(*place, outcome=outcome)
    assert {name: len(steps) for name, steps in ran.items()} == {name: ends.get(name, 1) for name in made}


@settings(max_examples=40, deadline=None)
@given(made=pipelines(), data=st.data())
def test_nothing_follows_on_a_requirement_that_does_not_hold(
    made: dict[str, tuple[str, PipelineStep]], data: st.DataObject
) -> None:
    """Whether or not the step that ends the execution is quick."""
    strict = [name for name, (_, step) in made.items() if step.requirements]
    assume(strict)
    name = data.draw(st.sampled_from(strict))
    kind, step = made[name]
    unmet = Requirement(step.requirements[0].value_name, ">", 1)
    made[name] = (kind, replace(step, requirements=(*step.requirements, unmet)))
    jobs = [(step, plan_of(kind, tuple(sorted(step.inputs)))) for kind, step in made.values()]
    try:
        definition = endpoint_reader.read(export_steps(jobs, "any")[DEFINITION_FILE])
    except JobError:
        assume(False)
    ends = {name: SEGMENTS for name, (kind, _) in made.items() if kind == "long"}
    behind = {name}
    for other, (_, step) in made.items():  # each after those it needs
        if step.required_steps & behind:
            behind.add(other)
    failed: list[str] = []
    records: dict[str, StepRecord] = {}
    while begun := ready_steps.ready(definition, records):
        for called in begun:
            one = definition.steps[called]
            outcome = None
            if one.type == "Condition":
                outcome = all(conditions.holds(asked, Told(ends)) for asked in one.arguments["Conditions"])
            elif one.type == "Fail":
                failed.append(called)
            else:
                assert called[0] == name or called[0] not in behind, called
            place = ("execution", "pipeline", called, one.type, "Succeeded", 0.0, len(records))
            records[called] = StepRecord(*place, outcome=outcome)
    (only,) = failed
    assert only.startswith(f"{name}-Fail-2")
