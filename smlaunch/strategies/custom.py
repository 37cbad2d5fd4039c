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
        repetition = f"each of the {context.host_count} hosts does the whole work for itself"
        if context.entry_point.endswith(".sh"):
            return [
                f"nothing in {context.entry_point} joins the hosts or reads which host it is on (SM_HOSTS): "
                f"unless a program that it starts does, {repetition}; take --hosts 1, or see docs/scripts.md"
            ]
        if not context.entry_point.endswith(".py"):
            return []  # a program that cannot be analyzed
        if context.reads_own_host_name:
            return [
                f"{context.entry_point} reads which host it is on (SM_CURRENT_HOST), and not which others "
                f"there are (SM_HOSTS): unless it chooses its part by that name, {repetition}"
            ]
        if context.imports_are_known:
            return [
                f"nothing in {context.entry_point} joins the hosts or reads which host it is on "
                f"(SM_CURRENT_HOST): {repetition}; take --hosts 1, or see docs/scripts.md"
            ]
        return [
            f"nothing in {context.entry_point} joins the hosts or reads which host it is on "
            f"(SM_CURRENT_HOST): unless one of its modules does, {repetition}; take --hosts 1, or see "
            "docs/scripts.md"
        ]
