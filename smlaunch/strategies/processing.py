"""processing: one plain process per host, as a processing job."""

from __future__ import annotations

from typing import ClassVar

from smlaunch.strategies.base import LaunchContext
from smlaunch.strategies.custom import Custom


class Processing(Custom):
    name = "processing"
    summary = "runs one plain process per host as a processing job, for work that trains nothing"
    operation: ClassVar[str] = "CreateProcessingJob"

    more_ranks_hint = "let the script start its own"

    def advice(self, context: LaunchContext) -> list[str]:
        return []  # whether hosts do the same work depends on the inputs: planner.processing_advice
