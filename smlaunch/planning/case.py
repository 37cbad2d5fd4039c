"""A job in its surroundings, as rules and quotas look at it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smlaunch.catalog import instances
from smlaunch.job import Job
from smlaunch.planning.surroundings import Surroundings
from smlaunch.request import PROCESSING

if TYPE_CHECKING:
    from smlaunch.strategies.base import Strategy

DEFAULT_INSTANCE_TYPE = "ml.m5.xlarge"
"""Taken where the job names none; the SageMaker SDK's default too."""


@dataclass(frozen=True)
class Case:
    """What rules look at. ``strategy``: the one that was chosen; None where that could not be done."""

    job: Job
    surroundings: Surroundings
    strategy: Strategy | None = None

    @property
    def is_processing(self) -> bool:
        return self.strategy is not None and self.strategy.operation == PROCESSING

    @property
    def has_runtime(self) -> bool:
        """smlaunch's own runtime starts the program, so that a job can end itself and be gone on with."""
        return self.job.entry is not None

    @property
    def types(self) -> tuple[str, ...]:
        return types_of(self.job)

    @property
    def hosts(self) -> int:
        return hosts_of(self.job)


def types_of(job: Job) -> tuple[str, ...]:
    """The instance types that the job may run on, in its order."""
    changes = (change.compute.instance_type for change in job.segments)
    named = job.compute.instance_preferences or (job.compute.instance_type or DEFAULT_INSTANCE_TYPE,)
    return tuple(dict.fromkeys([*named, *(name for name in changes if name is not None)]))


def hosts_of(job: Job) -> int:
    """Of the segment that has the most."""
    return max(job.compute.hosts, *(change.compute.hosts or 1 for change in job.segments), 1)


def is_accelerated(instance_type: str) -> bool:
    """Whether a type has GPUs or NeuronCores: by the catalog, else by the family's letter."""
    known = instances.find(instance_type)
    if known is not None:
        return known.accelerators > 0
    return instance_type.split(".")[1].startswith(("g", "p", "trn"))


def is_neuron(instance_type: str) -> bool:
    known = instances.find(instance_type)
    return known.is_neuron if known is not None else instance_type.split(".")[1].startswith("trn")
