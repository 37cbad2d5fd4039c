"""The launch specification of a plan, as it arrives on a host."""

from __future__ import annotations

import json

from smlaunch.contract.launch_spec import LaunchSpec
from smlaunch.contract.launch_spec_parser import parse_launch_spec
from smlaunch.facts.discovered_facts import SourceFacts
from smlaunch.render.plan import Plan

SHELL = SourceFacts("src", "train.sh", "ab" * 32, file_count=12, bytes=40_321)
"""Of a job whose entry is no Python script."""


def spec_of(plan: Plan) -> LaunchSpec:
    (task,) = plan.planned_jobs
    assert task.launch_spec is not None
    text = task.launch_spec.to_json()
    assert json.loads(parse_launch_spec(text).to_json()) == json.loads(text)
    return task.launch_spec
