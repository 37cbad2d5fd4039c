"""All kinds of jobs there are, by the name that stands in their ARNs."""

from __future__ import annotations

from collections.abc import Mapping

from smlaunch.local.jobs import processing, training
from smlaunch.local.jobs.job_kind import WorkOf

KINDS: Mapping[str, WorkOf] = {
    training.KIND: training.TrainingWork,
    processing.KIND: processing.ProcessingWork,
}
