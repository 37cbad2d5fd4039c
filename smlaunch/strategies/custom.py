"""custom: one plain process per host, which finds its peers itself from resourceconfig.json."""

from __future__ import annotations

from smlaunch.errors import Problem
from smlaunch.strategies.base import Setting, Strategy


class Custom(Strategy):
    name = "custom"
    summary = "starts one plain process per host, which reads resourceconfig.json itself"
    rendezvous = False

    def check(self, setting: Setting) -> list[Problem]:
        if setting.per_host == 1:
            return []
        return [
            Problem(
                "compute.processes_per_host",
                f"custom starts one process per host, not {setting.per_host}; use strategy: ddp, or let the "
                "script start its own processes",
            )
        ]

    def advice(self, setting: Setting) -> list[str]:
        if setting.hosts == 1 or setting.reads_resource_config or setting.entry.endswith(".sh"):
            return []
        if setting.split:
            return []
        return [
            f"{setting.entry} does not name resourceconfig.json: unless a module of its own reads it, "
            f"{setting.hosts} hosts do the same work {setting.hosts} times"
        ]
