"""Hosts as process trees on this machine: the executor that needs only Python."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from smlaunch.local.executors import isolation_levels
from smlaunch.local.executors.executor_base import MAX_LOOPBACK_HOSTS, Executor, MachineCheck
from smlaunch.local.executors.isolation_level_notes import notes_about_level

if TYPE_CHECKING:
    from smlaunch.local.executors.executor_interface import Allocation, HostsRequest


class Processes(Executor):
    """The executor ``processes``. What runs hosts is in process_allocation.py, which a plan does not load."""

    name = "processes"
    summary = "processes"
    takes_isolation = True
    max_hosts = MAX_LOOPBACK_HOSTS

    @cached_property
    def _level(self) -> isolation_levels.IsolationLevel:
        state_dir = self.context.state_dir
        return isolation_levels.choose_isolation_level(
            state_dir.hosts_dir, state_dir.isolation_cache, self.context.isolation
        )

    @property
    def isolation(self) -> str:
        return self._level.name

    @property
    def can_mount_anywhere(self) -> bool:
        return self.isolation != "plain"  # a bind mount works even where an overlay does not

    def allocate(self, request: HostsRequest) -> Allocation:
        from smlaunch.local.executors.process_allocation import ProcessAllocation

        return ProcessAllocation(
            request.folder,
            f"{request.endpoint_id}/{request.job_id}",
            request.host_names,
            self._level.name,
            request.isolated_network,
            can_mount=self._level.views,
        )

    def remove_leftovers(self, dead_endpoint_id: str) -> None:
        from smlaunch.local.executors import process_allocation

        process_allocation.remove_leftovers(dead_endpoint_id)

    def shell_command(
        self, endpoint_id: str, job_id: str, host_name: str, has_terminal: bool
    ) -> list[str] | None:
        from smlaunch.local.executors.process_shell import shell_command

        return shell_command(f"{endpoint_id}/{job_id}/{host_name}/")

    @classmethod
    def warnings(cls, isolation: str) -> Iterator[str]:
        return notes_about_level(isolation)

    @classmethod
    def check_machine(cls) -> Iterator[MachineCheck]:
        for level in isolation_levels.probe_isolation_levels():
            yield MachineCheck(f"isolation {level.name}", level.works, level.why_not or "works")
