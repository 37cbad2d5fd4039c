"""The kinds of jobs, by the names that their ARNs have."""

from __future__ import annotations

from collections.abc import Mapping

from smlaunch.local.jobs import processing, training
from smlaunch.local.jobs.job_kind import JobHandlerFactory

HANDLER_FACTORIES: Mapping[str, JobHandlerFactory] = {
    training.KIND: training.TrainingJobHandler,
    processing.KIND: processing.ProcessingJobHandler,
}
