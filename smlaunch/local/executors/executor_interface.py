"""The interface of executors: an executor provides the hosts of a job, runs one program on each, and removes
everything afterwards.

The job runner knows only this module. ``processes`` makes hosts of process trees on this machine; other
executors take them from a container engine or a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol


class CannotAllocate(Exception):
    """This executor cannot provide the hosts of a job. The text names the cause and the next step."""


class ImageProblem(Exception):
    """The job's image is missing or cannot be used: the job fails with a ClientError. The text names the
    cause and the next step."""


@dataclass(frozen=True)
class JobHost:
    """One host of a job."""

    name: str
    """algo-1, algo-2, ..."""
    network_name: str
    """Host name where the host runs; the same as ``name`` unless the executor cannot give names."""
    address: str
    opt_ml_folder: Path
    """Directory of this machine that the host sees as /opt/ml, with model, input, ..."""
    ml_path_on_host: str
    """Where the host's own programs find that directory: /opt/ml, unless the isolation level is plain."""
    interface: str = "lo"
    """Network interface on which the hosts reach each other; on SageMaker it is eth0."""


@dataclass(frozen=True)
class DirectoryMount:
    """A directory that is mounted on a host instead of copied."""

    source: Path
    target: str
    """Relative to the contract's root, or an absolute path anywhere on the host."""
    read_only: bool = False
    """Writing fails. Otherwise a script may write, and what it writes stays on the host unless ``shared``."""
    shared: bool = False
    """What the script writes is in ``source``."""


@dataclass(frozen=True)
class Program:
    """What one host runs."""

    argv: tuple[str, ...]
    """The command where no image is run; never a shell line."""
    environment: Mapping[str, str]
    """Variables; where no image is run, the host has no others."""
    mounts: tuple[DirectoryMount, ...] = ()
    directory: str = "code"
    """Working directory where no image is run, relative to the contract's root."""
    entrypoint: tuple[str, ...] = ()
    """Replaces the entry point of an image, unless it is empty."""
    arguments: tuple[str, ...] = ()
    """Arguments for the entry point of an image."""


@dataclass(frozen=True)
class HostExit:
    """How a host ended."""

    code: int
    """Exit code; 128 + n after signal n."""
    kind: Literal["exited", "lost", "not_started"] = "exited"
    """``lost``: the host's supervisor was killed. ``not_started``: the program could not be started."""
    message: str = ""
    """Why the host was lost or its program not started, or what the executor knows about its exit."""
    signal: str = ""
    """Name of the signal that ended the host's first process, if one did."""


class HostProcess(Protocol):
    """A running host."""

    host: JobHost
    events_fd: int
    """Descriptor that becomes readable when something happened to the host."""
    output_fd: int
    """Descriptor from which the host's output is read."""

    def read_exit(self) -> HostExit | None:
        """Return how the host ended, or None if it still runs. Call it when ``events_fd`` is readable."""

    def terminate(self) -> None:
        """Send SIGTERM to the host's first process."""

    def kill(self) -> None:
        """End the host and all its processes at once."""


@dataclass(frozen=True)
class AllocationInfo:
    """What the hosts of an allocation have beside their programs."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for every program."""
    notes: tuple[str, ...] = ()
    """Lines for the first host's log."""
    can_mount: bool = True
    """Whether programs may have mounts; otherwise data is copied into the trees."""
    can_mount_writable: bool = True
    """Whether a mount may be writable while its source stays unchanged; otherwise mounts must be read-only
    or shared."""
    can_reach_endpoint: bool = True
    """Whether hosts reach the endpoint at its address on this machine's loopback."""


class Allocation(Protocol):
    """The hosts of one job, until they are released."""

    hosts: tuple[JobHost, ...]
    info: AllocationInfo

    def start(self, programs: Sequence[Program]) -> list[HostProcess]:
        """Start one program per host, in the order of ``hosts``. Raises CannotAllocate."""

    def release(self) -> None:
        """Kill all processes that still run and remove the hosts' files. May be called at any time, also
        more than once."""


class Executor(Protocol):
    """Provides hosts."""

    name: str
    isolation: str
    """Isolation level or container engine, as plans, logs and ``doctor`` print it."""
    can_mount_anywhere: bool
    """Whether a shared mount may lie outside the contract's tree."""
    runs_images: bool
    """Whether hosts are containers of the job's image; otherwise they run this machine's programs."""

    def allocate(
        self,
        job: str,
        host_names: Sequence[str],
        isolated_network: bool,
        image: str = "",
        raise_if_stopping: Callable[[], None] = lambda: None,
    ) -> Allocation:
        """Provide hosts for one job, in the order of ``host_names``. ``raise_if_stopping`` is called while
        this takes long; what it raises ends the allocation. Raises CannotAllocate and, for an image that must
        be run, ImageProblem."""

    def remove_leftovers(self, dead_endpoint_id: str) -> int:
        """Kill the processes or containers that the dead endpoint left behind, and return their
        number."""
