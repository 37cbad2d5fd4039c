"""What rules and quotas look at: a job, the facts and the chosen strategy. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smlaunch.api.request import CREATE_PROCESSING_JOB
from smlaunch.catalog import instances
from smlaunch.job.model import Job
from smlaunch.planner.facts import Facts

if TYPE_CHECKING:
    from smlaunch.strategies.base import Strategy

DEFAULT_INSTANCE_TYPE = "ml.m5.xlarge"
"""Used if the job names none; the SageMaker SDK's default too."""


@dataclass(frozen=True)
class PlanContext:
    """What rules look at."""

    job: Job
    facts: Facts
    strategy: Strategy | None = None
    """The chosen strategy; None if none could be chosen."""

    @property
    def is_processing(self) -> bool:
        return self.strategy is not None and self.strategy.operation == CREATE_PROCESSING_JOB

    @property
    def has_runtime(self) -> bool:
        """Whether smlaunch's runtime starts the program, so that the job can stop itself and be continued."""
        return self.job.entry is not None

    @property
    def instance_types(self) -> tuple[str, ...]:
        return instance_types_of(self.job)

    @property
    def hosts(self) -> int:
        return max_hosts_of(self.job)


def instance_types_of(job: Job) -> tuple[str, ...]:
    """Instance types that the job may run on, in its order."""
    segment_types = (change.compute.instance_type for change in job.segments)
    type_names = job.compute.instance_preferences or (job.compute.instance_type or DEFAULT_INSTANCE_TYPE,)
    return tuple(dict.fromkeys([*type_names, *(name for name in segment_types if name is not None)]))


def max_hosts_of(job: Job) -> int:
    """Number of hosts of the largest segment."""
    return max(job.compute.hosts, *(change.compute.hosts or 1 for change in job.segments), 1)


def is_accelerated(instance_type: str) -> bool:
    """Whether a type has GPUs or NeuronCores: by the catalog, otherwise by the family's prefix."""
    catalog_type = instances.find_instance_type(instance_type)
    if catalog_type is not None:
        return catalog_type.accelerators > 0
    return instance_type.split(".")[1].startswith(("g", "p", "trn"))


def is_neuron(instance_type: str) -> bool:
    catalog_type = instances.find_instance_type(instance_type)
    return (
        catalog_type.is_neuron if catalog_type is not None else instance_type.split(".")[1].startswith("trn")
    )
