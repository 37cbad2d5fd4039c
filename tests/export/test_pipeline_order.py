"""Whatever depends on whatever: in an execution every job runs once, after all that it needs, and reads what
those left."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from smlaunch.errors import JobError
from smlaunch.export.pipeline import FILE, export_steps
from smlaunch.export.pipeline_file import Requirement, Source, Step
from smlaunch.job import Job
from smlaunch.local.pipelines import definition as endpoint_reader
from smlaunch.local.pipelines import frontier
from smlaunch.local.pipelines.records import StepRecord
from smlaunch.planning.plan import Plan
from tests.export.test_pipeline_steps import LONG, TRAIN, WORK, address, planned

KINDS: Mapping[str, Mapping[str, Any]] = {"work": WORK, "train": TRAIN, "long": LONG}
SEGMENTS = 3
"""Of a long one."""

NAMES = ("a", "b", "c", "d", "e")
_WORDS = re.compile(
    r"(?P<step>[a-e])(?:-(?P<kind>Segment|Finished|Required|Unmet|Limit))?(?:-(?P<number>[0-9]+))?"
)


@cache
def plan_of(kind: str, channels: tuple[str, ...]) -> Plan:
    inputs = {channel: Source(channel) for channel in channels}
    job = Job.from_mapping({**KINDS[kind], "inputs": {name: one.uri for name, one in inputs.items()}})
    return planned(job, kind, inputs)


@st.composite
def pipelines(draw: st.DrawFn) -> dict[str, tuple[str, Step]]:
    """By name: what kind of job, and the step. A channel is called after the step it comes from."""
    made: dict[str, tuple[str, Step]] = {}
    for name in NAMES[: draw(st.integers(1, len(NAMES)))]:
        kind = draw(st.sampled_from(sorted(KINDS)))
        links = draw(st.lists(st.tuples(st.sampled_from([*made]), st.booleans()), max_size=3)) if made else []
        inputs = {other: Source(other) for other, reads in links if reads}
        after = tuple(other for other, reads in links if not reads)
        what = "report.json:x" if kind == "work" else "x"
        requires = (Requirement(what, ">=", 1),) if draw(st.integers(0, 3)) == 0 else ()
        job = plan_of(kind, tuple(sorted(inputs))).job
        made[name] = (kind, Step(name=name, job=job, inputs=inputs, after=after, requires=requires))
    return made


@settings(max_examples=150, deadline=None)
@given(made=pipelines(), data=st.data())
def test_every_job_runs_once_and_after_all_that_it_needs(
    made: dict[str, tuple[str, Step]], data: st.DataObject
) -> None:
    jobs = [(step, plan_of(kind, tuple(sorted(step.inputs)))) for kind, step in made.values()]
    try:
        text = export_steps(jobs, "any")[FILE]
    except JobError as error:
        told = [problem.message for problem in error.problems]
        assert all("never come together" in one or "1,000 is the most" in one for one in told), told
        assume(False)
    definition = endpoint_reader.read(text)
    ends = {
        name: data.draw(st.integers(1, SEGMENTS), f"the segment that {name} finishes in")
        for name, (kind, _) in made.items()
        if kind == "long"
    }
    ran: dict[str, list[str]] = {name: [] for name in made}
    finished: set[str] = set()
    records: dict[str, StepRecord] = {}
    while begun := frontier.ready(definition, records):
        before = frozenset(finished)
        for called in begun:
            step = definition.steps[called]
            words = _WORDS.match(called)
            assert words is not None and step.type != "Fail", called
            name, kind = words["step"], words["kind"]
            wanted = made[name][1]
            outcome = kind != "Finished" or int(words["number"]) == ends[name]
            if step.type != "Condition":
                assert wanted.needs <= before, f"{called} begins before {wanted.needs - before}"
                ran[name].append(called)
                for other in wanted.inputs:
                    left = address({"Arguments": step.arguments}, other)
                    assert left["Get"].startswith(f"Steps.{ran[other][-1]}.")
            last = "Required" if wanted.requires else "Finished" if name in ends else None
            if outcome and kind == last:
                finished.add(name)
            place = ("execution", "pipeline", called, step.type, "Succeeded", 0.0, len(records))
            records[called] = StepRecord(*place, outcome=outcome)
    assert {name: len(steps) for name, steps in ran.items()} == {name: ends.get(name, 1) for name in made}
    assert finished == made.keys()
