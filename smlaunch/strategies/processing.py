"""processing: one plain process per host, as a processing job instead of a training job."""

from __future__ import annotations

from typing import ClassVar

from smlaunch.errors import Problem
from smlaunch.strategies.base import Setting
from smlaunch.strategies.custom import Custom


class Processing(Custom):
    name = "processing"
    summary = "runs one plain process per host as a processing job, for work that trains nothing"
    operation: ClassVar[str] = "CreateProcessingJob"

    def check(self, setting: Setting) -> list[Problem]:
        if setting.per_host == 1:
            return []
        told = f"processing starts one process per host, not {setting.per_host}; let the script start its own"
        return [Problem("compute.processes_per_host", told)]

    def advice(self, setting: Setting) -> list[str]:
        return []  # whether hosts do the same work depends on the inputs: planning.processing
