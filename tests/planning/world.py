"""Jobs and surroundings to plan with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from smlaunch.job import Job
from smlaunch.planning.decide import make_plan
from smlaunch.planning.plan import Plan
from smlaunch.planning.surroundings import (
    EndpointFacts,
    InputFacts,
    ScriptFacts,
    SourceFacts,
    Surroundings,
)

ROLE = "arn:aws:iam::123456789012:role/SageMaker"
TORCH = ScriptFacts(imports=frozenset({"torch", "torch.distributed"}))
PLAIN = ScriptFacts(imports=frozenset({"json"}))
READS_CONFIG = ScriptFacts(imports=frozenset({"json"}), reads_resource_config=True)


def region(**changes: Any) -> Surroundings:
    """A region where all is well; ``changes`` are fields of Surroundings."""
    well = Surroundings(
        region="us-east-1",
        account="123456789012",
        bucket="sagemaker-us-east-1-123456789012",
        role=ROLE,
        source=SourceFacts("src", "train.py", "ab" * 32, files=12, bytes=40_321),
        script=TORCH,
    )
    return dataclasses.replace(well, **changes)


def local(**changes: Any) -> Surroundings:
    return region(target="local", **{"endpoint": EndpointFacts(isolation="full"), **changes})


def with_inputs(surroundings: Surroundings, inputs: Mapping[str, InputFacts]) -> Surroundings:
    return dataclasses.replace(surroundings, inputs=inputs)


def plan(job: Mapping[str, Any] | None = None, surroundings: Surroundings | None = None) -> Plan:
    """The plan of run ``digits`` for ``train.py`` with the keys in ``job``."""
    mapping = {"entry": "src/train.py", **(job or {})}
    return make_plan(Job.from_mapping(mapping), surroundings or region(), "digits")
