"""The kinds of jobs, by the names that their ARNs have."""

from __future__ import annotations

from collections.abc import Mapping

from smlaunch.local.jobs import processing_job, training_job
from smlaunch.local.jobs.job_handler import JobHandlerFactory

HANDLER_FACTORIES: Mapping[str, JobHandlerFactory] = {
    handler.job_kind.arn_resource: handler
    for handler in (training_job.TrainingJobHandler, processing_job.ProcessingJobHandler)
}
