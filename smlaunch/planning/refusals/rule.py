"""What a rule is: something that cannot work, told by the job's own fields, and where that is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smlaunch.catalog import instances
from smlaunch.errors import Problem
from smlaunch.job import Job
from smlaunch.planning.surroundings import Surroundings
from smlaunch.request import PROCESSING

if TYPE_CHECKING:
    from smlaunch.strategies.base import Strategy

DEFAULT_INSTANCE_TYPE = "ml.m5.xlarge"
"""Taken where the job names none; the SageMaker SDK's default too."""

Found = Iterator[Problem]


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
        """The instance types that the job may run on, in its order."""
        compute = self.job.compute
        return compute.instance_preferences or (compute.instance_type or DEFAULT_INSTANCE_TYPE,)

    @property
    def hosts(self) -> int:
        """Of the segment that has the most."""
        changes = (change.compute.hosts or 1 for change in self.job.segments)
        return max(self.job.compute.hosts, *changes, 1)


@dataclass(frozen=True)
class Rule:
    """``name``: as reasons have them, ``spot.checkpoints``. ``section`` and ``fact``: where it comes from, a
    section of the reference and its sentence. ``reads``: the job's fields it looks at: where one of them
    could not be read, nobody knows whether the rule holds. One that ends in ``.*`` is looked at entry by
    entry, each on its own."""

    name: str
    section: str
    fact: str
    reads: tuple[str, ...]
    find: Callable[[Case], Found]

    def needs(self, unknown: Iterable[str]) -> bool:
        """Whether one of the fields ``unknown`` is among those it reads, or above or below one."""
        reads = [read for read in self.reads if not read.endswith(".*")]
        return any(overlap(field, read) for field in unknown for read in reads)


def rule(name: str, section: str, fact: str, *reads: str) -> Callable[[Callable[[Case], Found]], Rule]:
    return lambda find: Rule(name, section, fact, reads, find)


def overlap(one: str, other: str) -> bool:
    """Whether one field's path is the other's, or lies inside it."""
    return (
        one == other or one.startswith((other + ".", other + "[")) or other.startswith((one + ".", one + "["))
    )


def is_accelerated(instance_type: str) -> bool:
    """Whether a type has GPUs or NeuronCores: by the catalog, else by the family's letter."""
    known = instances.find(instance_type)
    if known is not None:
        return known.accelerators > 0
    return instance_type.split(".")[1].startswith(("g", "p", "trn"))


def is_neuron(instance_type: str) -> bool:
    known = instances.find(instance_type)
    return known.is_neuron if known is not None else instance_type.split(".")[1].startswith("trn")
