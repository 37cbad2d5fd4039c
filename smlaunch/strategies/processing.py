"""processing: one plain process per host, as a processing job."""

from __future__ import annotations

from typing import ClassVar

from smlaunch.api.job_kinds import PROCESSING, JobKind
from smlaunch.strategies.base import LaunchContext
from smlaunch.strategies.custom import Custom


class Processing(Custom):
    name = "processing"
    summary = "runs one plain process per host as a processing job, for work that trains nothing"
    job_kind: ClassVar[JobKind] = PROCESSING

    more_ranks_hint = "let the script start its own"

    def find_warnings(self, context: LaunchContext) -> list[str]:
        return []  # whether hosts do the same work depends on the inputs: planner.processing_advice
