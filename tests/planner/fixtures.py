"""Jobs and facts to plan with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from smlaunch.job.model import Job
from smlaunch.planner.facts import (
    EndpointFacts,
    Facts,
    InputFacts,
    ScriptFacts,
    SourceFacts,
)
from smlaunch.planner.plan import Plan
from smlaunch.planner.planner import make_plan

ROLE = "arn:aws:iam::123456789012:role/SageMaker"
TORCH = ScriptFacts(imports=frozenset({"torch", "torch.distributed"}))
PLAIN = ScriptFacts(imports=frozenset({"json"}))
READS_CONFIG = ScriptFacts(imports=frozenset({"json"}), reads_resource_config=True)


def region(**changes: Any) -> Facts:
    """A region where all is well; ``changes`` are fields of Facts."""
    well = Facts(
        region="us-east-1",
        account="123456789012",
        bucket="sagemaker-us-east-1-123456789012",
        role=ROLE,
        source=SourceFacts("src", "train.py", "ab" * 32, file_count=12, bytes=40_321),
        script=TORCH,
    )
    return dataclasses.replace(well, **changes)


def local(**changes: Any) -> Facts:
    return region(target="local", **{"endpoint": EndpointFacts(isolation="full"), **changes})


def with_inputs(facts: Facts, inputs: Mapping[str, InputFacts]) -> Facts:
    return dataclasses.replace(facts, inputs=inputs)


def plan(job: Mapping[str, Any] | None = None, facts: Facts | None = None) -> Plan:
    """The plan of run ``digits`` for ``train.py`` with the keys in ``job``."""
    mapping = {"entry": "src/train.py", **(job or {})}
    return make_plan(Job.from_mapping(mapping), facts or region(), "digits")
