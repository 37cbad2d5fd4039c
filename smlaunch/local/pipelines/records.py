"""What is remembered of pipelines, their executions and the executions' steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

EXECUTION_ENDED = ("Stopped", "Failed", "Succeeded")
STEP_ENDED = EXECUTION_ENDED


@dataclass(frozen=True)
class Pipeline:
    """Times are seconds since the epoch. ``token``: the ClientRequestToken that it was created with."""

    arn: str
    region: str
    name: str
    definition: str
    role: str
    created: float
    modified: float
    by: str
    token: str
    display_name: str | None = None
    description: str | None = None
    parallelism: int | None = None
    last_run: float | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Execution:
    """One start of a pipeline, with the definition as it was then. ``values``: its parameters. ``role``: what
    it acts under."""

    arn: str
    pipeline: str
    pipeline_name: str
    region: str
    owner: str
    definition: str
    values: Mapping[str, Any]
    status: str
    created: float
    modified: float
    by: str
    token: str
    display_name: str | None = None
    description: str | None = None
    parallelism: int | None = None
    experiment: Mapping[str, Any] = field(default_factory=dict)
    failure: str | None = None
    role: str = ""

    @property
    def id(self) -> str:
        return self.arn.rpartition("/")[2]

    @property
    def ended(self) -> bool:
        return self.status in EXECUTION_ENDED


@dataclass(frozen=True)
class StepRecord:
    """A step that has begun. ``job`` and ``job_name``: its latest job's ARN and name; ``outcome``: a
    condition's; ``key``: what its arguments are known by in the cache; ``hit``: the execution whose result
    was taken."""

    execution: str
    pipeline: str
    name: str
    type: str
    status: str
    started: float
    number: int = 0
    ended: float | None = None
    job: str | None = None
    job_name: str | None = None
    attempts: int = 0
    outcome: bool | None = None
    message: str | None = None
    failure: str | None = None
    key: str | None = None
    hit: str | None = None
