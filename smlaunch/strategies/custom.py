"""custom: one plain process per host, which finds its peers in resourceconfig.json."""

from __future__ import annotations

from smlaunch.strategies.base import LaunchContext, Strategy


class Custom(Strategy):
    name = "custom"
    summary = "starts one plain process per host, which reads resourceconfig.json itself"
    rendezvous = False
    one_process_per_host = True
    joins_hosts = False
    needs_script = False
    more_ranks_hint = "use strategy: ddp, or let the script start its own processes"

    def find_warnings(self, context: LaunchContext) -> list[str]:
        if context.host_count == 1 or context.reads_resource_config or context.has_split_input:
            return []
        repetition = f"{context.host_count} hosts do the same work {context.host_count} times"
        if context.entry_point.endswith(".sh"):
            return [
                f"{context.entry_point} names neither resourceconfig.json nor SM_HOSTS: unless a program "
                f"that it starts reads them, {repetition}"
            ]
        if not context.entry_point.endswith(".py"):
            return []  # a program that cannot be analyzed
        if context.imports_are_known:
            return [
                f"{context.entry_point} neither joins the hosts nor reads which host it is on "
                f"(SM_CURRENT_HOST, resourceconfig.json): {repetition}; "
                "take --hosts 1, or see docs/scripts.md"
            ]
        return [
            f"{context.entry_point} does not name resourceconfig.json: unless one of its modules reads it, "
            f"{repetition}; for a script that works on one host take --hosts 1"
        ]
