"""The base class of executors. A client reads its attributes for a plan, so this module imports little."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple

if TYPE_CHECKING:
    from smlaunch.local.endpoint_settings import Settings
    from smlaunch.local.executors.executor_interface import Allocation, HostsRequest
    from smlaunch.local.state_dir import StateDir


MAX_LOOPBACK_HOSTS = 253
"""Hosts of one job that have an address each in a subnet 127.A.B."""


class EndpointContext(NamedTuple):
    """The endpoint that an executor works for."""

    state_dir: StateDir
    settings: Settings
    isolation: str | None = None
    """The isolation level that the user requests; None leaves it to the executor."""
    script_environment: Mapping[str, str] = {}
    """Variables by which scripts reach the endpoint; filled once the endpoint serves."""


class MachineCheck(NamedTuple):
    """Whether a part of an executor works on this machine, for ``smlaunch doctor``."""

    name: str
    works: bool
    text: str
    """``works``, a version, or the reason why it does not."""


class Executor(ABC):
    """Provides the hosts of an endpoint's jobs. Its constructor does nothing: whether the executor works here
    is found out by ``isolation``, which a plan reads too."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """Ends the sentence "hosts are ..."."""
    takes_isolation: ClassVar[bool] = False
    """Whether ``--isolation`` chooses among its isolation levels."""
    runs_images: ClassVar[bool] = False
    """Whether hosts are containers of the job's image."""
    max_hosts: ClassVar[int | None] = None
    """Hosts that one job can have; None without a limit."""
    uses_endpoint_python: ClassVar[bool] = True
    """Whether hosts run the endpoint's Python, with variables of its environment."""

    def __init__(self, context: EndpointContext) -> None:
        self.context = context

    @property
    @abstractmethod
    def isolation(self) -> str:
        """Isolation level, container engine, or whatever makes the hosts, as plans, logs and `local status`
        print it. Raises EndpointError, with the next step, where the executor does not work here."""

    @property
    def can_mount_anywhere(self) -> bool:
        """Whether a shared mount may lie outside the contract's tree."""
        return False

    @abstractmethod
    def allocate(self, request: HostsRequest) -> Allocation:
        """Provide the hosts of one job; this may take as long as a queue. Raises CannotAllocate, ImageProblem
        for an image that must be run, and what ``request.raise_if_stopping`` raises."""

    @abstractmethod
    def remove_leftovers(self, dead_endpoint_id: str) -> None:
        """Remove what an endpoint that died has left of its hosts, if it had this executor. Raises
        EndpointError if the next endpoint must try again."""

    def shell_command(
        self, endpoint_id: str, job_id: str, host_name: str, has_terminal: bool
    ) -> list[str] | None:
        """Return a command that runs a shell in a running host of this executor, with the standard streams
        of the caller, and exits with its exit code; None where this executor has no such host running.
        ``endpoint_id`` and ``job_id`` are those of the HostsRequest."""
        return None

    @classmethod
    def describe_isolation(cls, isolation: str) -> str:
        """Return what the hosts are: ``isolation full``, ``containers by podman``."""
        return f"isolation {isolation}" if cls.takes_isolation else f"{cls.name} by {isolation}"

    @classmethod
    def warnings(cls, isolation: str) -> Iterator[str]:
        """Yield what a user should know before a job starts; plans show it."""
        return iter(())

    @classmethod
    def check_machine(cls) -> Iterator[MachineCheck]:
        """Try what the executor needs."""
        return iter(())
