"""A pipeline's definition as values: parameters, steps and the branches of conditions. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from smlaunch.api.job_kinds import PROCESSING, TRAINING, JobKind
from smlaunch.local.json_types import JsonMapping
from smlaunch.local.pipelines.pipeline_parameters import Parameter
from smlaunch.local.pipelines.step_retries import RetryPolicy

JOB_KIND_BY_STEP_TYPE: Mapping[str, JobKind] = {kind.name: kind for kind in (TRAINING, PROCESSING)}
"""Steps of other types create no job."""


class InvalidDefinition(Exception):
    """The definition is invalid, or this endpoint does not support it."""

    def __init__(self, problems: Sequence[str]) -> None:
        """``problems``: one sentence for each error, which begins with a path in the definition."""
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class Branch(NamedTuple):
    """A branch of a condition step."""

    condition_step_name: str
    runs_if: bool
    """The outcome of the condition, true or false, for which the steps of the branch run."""


class PropertyFile(NamedTuple):
    """A JSON file that a step writes into one of its outputs, and whose values other steps may use."""

    output_name: str
    file_path: str
    """Path of the file in the output."""


@dataclass(frozen=True)
class Step:
    """A step of a definition."""

    name: str
    type: str
    """Training, Processing, Condition or Fail."""
    arguments: JsonMapping
    """With unresolved expressions. A condition has its Conditions alone, not its branches."""
    dependencies: frozenset[str] = frozenset()
    """Names of the steps in DependsOn and in references, and of the condition whose branch the step is in."""
    branch: Branch | None = None
    """The branch that the step is in; None outside the branches of conditions."""
    retry_policies: tuple[RetryPolicy, ...] = ()
    max_cache_age_seconds: float | None = None
    """Greatest age of a cached result that may be reused, infinity without a limit; None without a cache."""
    property_files: Mapping[str, PropertyFile] = field(default_factory=dict)
    """By their names."""
    display_name: str | None = None
    description: str | None = None


@dataclass(frozen=True)
class Definition:
    """A definition without errors."""

    parameters: Mapping[str, Parameter]
    steps: Mapping[str, Step]
    """In the order of the document; the steps of branches follow their condition."""
    topological_order: tuple[str, ...]
    """Names of all steps, each after its dependencies."""
    experiment_config: JsonMapping = field(default_factory=dict)
    """PipelineExperimentConfig with unresolved expressions; empty without one."""
