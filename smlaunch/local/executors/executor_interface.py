"""The interface between executors and the job runner: an executor (executor_base.py) provides the hosts of a
job, runs one program on each, and removes everything afterwards.

``processes`` makes hosts of process trees on this machine; other executors take them from a container engine
or a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from smlaunch.contract.sagemaker_paths import ROOT_VARIABLE

_OPT_ML = "/opt/ml"


class CannotAllocate(Exception):
    """This executor cannot provide the hosts of a job. The text names the cause and the next step."""


class ImageProblem(Exception):
    """The job's image is missing or cannot be used: the job fails with a ClientError. The text names the
    cause and the next step."""


@dataclass(frozen=True, kw_only=True)
class HostsRequest:
    """The hosts that a job needs."""

    job_id: str
    """Unique among the running jobs of an endpoint; a part of a path."""
    endpoint_id: str
    """Unique on this machine; ``Executor.remove_leftovers`` gets it if the endpoint dies."""
    folder: Path
    """Directory for the job's files, unique and still missing. ``Allocation.release`` removes it."""
    host_names: Sequence[str]
    """algo-1, algo-2, ..., in the order of ``Allocation.hosts``."""
    isolated_network: bool = False
    image: str = ""
    raise_if_stopping: Callable[[], None] = lambda: None
    """To be called while an allocation takes long; what it raises ends the allocation."""


@dataclass(frozen=True)
class JobHost:
    """One host of a job."""

    name: str
    """algo-1, algo-2, ..."""
    network_name: str
    """Name or address by which the other hosts reach it; resourceconfig.json has it. The same as ``name``
    unless the executor cannot give names."""
    address: str
    opt_ml_folder: Path
    """Directory of this machine that the host sees as /opt/ml, with model, input, ... The job runner writes
    the input before ``Allocation.start``, and uploads checkpoints while the host runs. When ``read_exit``
    returns how the host ended, the directory has all that the host has written."""
    ml_path_on_host: str
    """Where the host's own programs find that directory: /opt/ml, or another one (``relocate_opt_ml``)."""
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


def relocate_opt_ml(program: Program, ml_path_on_host: str) -> Program:
    """Return a program for a host that has the contract's tree elsewhere than at /opt/ml: its arguments that
    are paths below /opt/ml are changed, and a variable tells the runtime."""
    argv = tuple(
        ml_path_on_host + argument[len(_OPT_ML) :] if argument.startswith(_OPT_ML + "/") else argument
        for argument in program.argv
    )
    return replace(program, argv=argv, environment={**program.environment, ROOT_VARIABLE: ml_path_on_host})


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
