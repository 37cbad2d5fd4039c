"""Section ``workload`` of a job."""

from __future__ import annotations

from typing import Literal

from smlaunch.job.field_types import (
    ByteSize,
    Duration,
    NonEmptyText,
    PositiveInt,
    PositiveNumber,
)
from smlaunch.job.instance_types import InstanceTypeName
from smlaunch.job.sections import Section, section


@section
class Workload(Section):
    """What only the user can know about the work, for the plan's choices. Nothing of it is sent."""

    kind: Literal["training", "preparation", "inference"] | None = None
    """The kind of work. None lets the plan derive it from the script."""
    model_memory: ByteSize = None
    """Memory that one replica needs on its accelerator during the training (weights, gradients, optimizer
    state, activations)."""
    time_on_one: Duration = None
    """Duration of the work on one accelerator, or on one host without any."""
    measured_on: InstanceTypeName | None = None
    """Instance type on which time_on_one was measured."""
    wanted_time: Duration = None
    """How long the work may take."""
    preprocessing: Literal["light", "heavy"] | None = None
    """How much work the CPUs do for every batch."""
    batch_size: PositiveInt | None = None
    """Batch size of one rank."""
    learning_rate: PositiveNumber | None = None
    """Learning rate tuned for one rank with that batch size."""
    optimizer: NonEmptyText | None = None
    """Such as sgd or adamw."""
