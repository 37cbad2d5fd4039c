"""Stored records of pipelines, their executions and the steps of executions.

Times are in seconds since the epoch. docs/formats.md: ``PIPELINES_DATABASE``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from smlaunch.local.json_types import JsonMapping

FINAL_STATUSES = ("Stopped", "Failed", "Succeeded")
"""Statuses in which an execution or a step has ended."""


@dataclass(frozen=True)
class Pipeline:
    """A pipeline as CreatePipeline and UpdatePipeline left it."""

    arn: str
    region: str
    name: str
    definition: str
    """The definition's JSON text."""
    role: str
    """ARN of the role that executions assume."""
    created: float
    """Seconds since the epoch."""
    modified: float
    """Seconds since the epoch."""
    created_by: str
    """ARN of the identity that created the pipeline."""
    token: str
    """The ClientRequestToken of CreatePipeline."""
    display_name: str | None = None
    description: str | None = None
    parallelism: int | None = None
    """Most job steps of an execution that run at a time; None without a limit."""
    last_run: float | None = None
    """When an execution was last started; None before the first one."""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Execution:
    """One execution of a pipeline."""

    arn: str
    pipeline: str
    """ARN of the pipeline."""
    pipeline_name: str
    region: str
    owner: str
    """Id of the endpoint process that runs the execution."""
    definition: str
    """The pipeline's definition when the execution was started."""
    values: JsonMapping
    """Values of the pipeline's parameters, by name."""
    status: str
    created: float
    """Seconds since the epoch."""
    modified: float
    """Seconds since the epoch."""
    created_by: str
    """ARN of the identity that started the execution."""
    token: str
    """The ClientRequestToken of StartPipelineExecution."""
    display_name: str | None = None
    description: str | None = None
    parallelism: int | None = None
    """Most job steps that run at a time; None without a limit."""
    experiment: JsonMapping = field(default_factory=dict)
    """PipelineExperimentConfig with its references resolved; empty without one."""
    failure: str | None = None
    """FailureReason of the execution."""
    role: str = ""
    """ARN of the role that the execution assumes."""

    @property
    def id(self) -> str:
        return self.arn.rpartition("/")[2]

    @property
    def has_ended(self) -> bool:
        return self.status in FINAL_STATUSES


@dataclass(frozen=True)
class StepRecord:
    """A step that has started."""

    execution: str
    """ARN of the execution."""
    pipeline: str
    """ARN of the pipeline."""
    name: str
    type: str
    """The step's type in the definition, such as Training."""
    status: str
    started: float
    """Seconds since the epoch."""
    number: int = 0
    """The steps of an execution are numbered from 1 in the order in which they started."""
    ended: float | None = None
    """Seconds since the epoch; None while it runs."""
    job: str | None = None
    """ARN of the step's latest job; None for a step that creates none."""
    job_name: str | None = None
    """Name of the step's latest job."""
    attempts: int = 0
    """Number of attempts to create a job."""
    outcome: bool | None = None
    """Result of a Condition step."""
    message: str | None = None
    """ErrorMessage of a Fail step."""
    failure: str | None = None
    """FailureReason of the step, or of its latest attempt while it waits for a retry."""
    cache_key: str | None = None
    """SHA-256, in hex, of the arguments that a cached result is found by; None for a step without a cache."""
    cached_from_execution: str | None = None
    """ARN of the execution whose result was reused; None for a step that ran its own job."""
