"""Section ``segments`` of a job: how the segments of a chain differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from smlaunch.job.field_types import (
    Duration,
    Hyperparameter,
    NonEmptyText,
    PositiveInt,
    ProcessCount,
)
from smlaunch.job.instance_types import InstanceTypeName
from smlaunch.job.sections import Section, section


@section
class SegmentCompute(Section):
    """Differences in the hosts of a segment. None leaves a field as the job has it."""

    hosts: PositiveInt | None = None
    """Number of hosts."""
    processes_per_host: ProcessCount = None
    """A number, or ``auto``."""
    instance_type: InstanceTypeName | None = None
    """Of all hosts."""


@section
class SegmentChange(Section):
    """How one segment differs from the job.

    The first of the job's ``segments`` applies to the first segment, and so on; the last one applies to all
    that follow.
    """

    hyperparameters: Mapping[NonEmptyText, Hyperparameter] = field(default_factory=dict)
    """Override the job's own."""
    compute: SegmentCompute = SegmentCompute()
    """Differences in the hosts."""
    until_step: PositiveInt | None = None
    """The training step after which the next change begins, however many segments that takes."""
    length: Duration = None
    """Longest training time of such a segment."""
