"""Jobs and facts to plan with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from smlaunch.facts.discovered_facts import (
    DiscoveredFacts,
    EndpointFacts,
    InputFacts,
    ScriptFacts,
    SourceFacts,
)
from smlaunch.job.model import Job
from smlaunch.planner import planner
from smlaunch.render.plan import Plan

ROLE = "arn:aws:iam::123456789012:role/SageMaker"
TORCH = ScriptFacts(imports=frozenset({"torch", "torch.distributed"}))
PLAIN = ScriptFacts(imports=frozenset({"json"}))
UNTRAINED_HOURS = 0.25
"""Billed of a job without data besides its training time: 10 minutes of start, 5 of stop and upload."""

READS_CONFIG = ScriptFacts(imports=frozenset({"json"}), reads_resource_config=True)


def region(**changes: Any) -> DiscoveredFacts:
    """A region where all is well; ``changes`` are fields of Facts."""
    well = DiscoveredFacts(
        region="us-east-1",
        account="123456789012",
        bucket="sagemaker-us-east-1-123456789012",
        role=ROLE.replace("arn:aws:", f"arn:{changes.get('partition', 'aws')}:"),
        source=SourceFacts("src", "train.py", "ab" * 32, file_count=12, bytes=40_321),
        script=TORCH,
        max_runtime_quota=28 * 86400,
    )
    return dataclasses.replace(well, **changes)


def local(**changes: Any) -> DiscoveredFacts:
    return region(target="local", **{"endpoint": EndpointFacts(hosts="isolation full"), **changes})


def with_inputs(facts: DiscoveredFacts, inputs: Mapping[str, InputFacts]) -> DiscoveredFacts:
    return dataclasses.replace(facts, inputs=inputs)


def make_plan(job: Job, facts: DiscoveredFacts, run_id: str) -> Plan:
    return Plan.of(planner.make_plan(job, facts, run_id))


def plan(job: Mapping[str, Any] | None = None, facts: DiscoveredFacts | None = None) -> Plan:
    """The plan of run ``digits`` for ``train.py`` with the keys in ``job``."""
    mapping = {"entry": "src/train.py", **(job or {})}
    return make_plan(Job.from_mapping(mapping), facts or region(), "digits")
