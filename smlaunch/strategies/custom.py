"""custom: one plain process per host, which finds its peers itself from resourceconfig.json."""

from __future__ import annotations

from smlaunch.strategies.base import Setting, Strategy


class Custom(Strategy):
    name = "custom"
    summary = "starts one plain process per host, which reads resourceconfig.json itself"
    rendezvous = False
    one_per_host = True
    joins_hosts = False
    needs_script = False
    instead_of_ranks = "use strategy: ddp, or let the script start its own processes"

    def advice(self, setting: Setting) -> list[str]:
        if setting.hosts == 1 or setting.reads_resource_config or setting.split:
            return []
        if not setting.entry.endswith(".py"):
            return []  # nobody can see into it
        return [
            f"{setting.entry} does not name resourceconfig.json: unless a module of its own reads it, "
            f"{setting.hosts} hosts do the same work {setting.hosts} times"
        ]
