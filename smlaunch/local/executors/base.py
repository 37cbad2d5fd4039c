"""What an executor is: it has hosts, runs one program on each, and leaves nothing behind.

The job runner knows only this page. ``processes`` makes hosts of process trees on this machine; others take
them from a container engine or a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol


class CannotAllocate(Exception):
    """The hosts a job asks for cannot be had here. The text names the cause and the next step."""


class ImageProblem(Exception):
    """The job's image cannot be had or used here: the job fails with a ClientError. The text names the cause
    and the next step."""


@dataclass(frozen=True)
class Place:
    """One host of a job. ``label`` is algo-1, algo-2, ...; ``name`` is what the host is called where it
    runs, which is the same unless names cannot be given there. ``tree`` is where this process finds the
    contract's directories, ``root`` where the host's own programs do. ``interface``: the network interface by
    which hosts meet; on SageMaker it is eth0."""

    label: str
    name: str
    address: str
    tree: Path
    root: str
    interface: str = "lo"


@dataclass(frozen=True)
class View:
    """A directory shown at ``target`` (relative to the contract's root, or an absolute path anywhere on the
    host) without being copied.

    A script may write there unless ``read_only``; what it writes stays with the host, unless ``shared``:
    then it is in ``source``.
    """

    source: Path
    target: str
    read_only: bool = False
    shared: bool = False


@dataclass(frozen=True)
class Program:
    """What one host runs: words, never a shell line; the environment; what is shown below its root.

    Where no image is run, it is ``argv``, with that environment and no other, in ``directory``, relative to
    that root. An image brings a directory and variables of its own, and an entry point too unless
    ``entrypoint`` replaces it; ``arguments`` go to whichever it is."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    views: tuple[View, ...] = ()
    directory: str = "code"
    entrypoint: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class HostExit:
    """How a host ended. ``code`` is 128 + n after signal n, which ``signal`` names when it was the first
    process's own end. ``lost``: its supervisor was killed; ``not_started``: the program could not be started,
    and ``message`` says why."""

    code: int
    how: Literal["exited", "lost", "not_started"] = "exited"
    message: str = ""
    signal: str = ""


class HostProcess(Protocol):
    """A running host. ``events`` is readable when something happened, ``output`` carries what it prints."""

    place: Place
    events: int
    output: int

    def read(self) -> HostExit | None:
        """After ``events`` became readable: how the host ended, or None when it goes on."""

    def terminate(self) -> None:
        """SIGTERM to the host's first process."""

    def kill(self) -> None:
        """Ends the host and all its processes at once."""


@dataclass(frozen=True)
class Offer:
    """What an allocation gives every program beside its own: environment, and lines to say in the log."""

    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    views: bool = True
    """Whether programs may have views; else the data must be copied into the trees."""
    writable_views: bool = True
    """Whether a view can be written to and its source stay as it is; else only read-only ones may be asked
    for, and shared ones."""
    reaches_endpoint: bool = True
    """Whether the endpoint's address, on this machine's loopback, is its address on the hosts too."""


class Allocation(Protocol):
    """The hosts of one job, from being had to being given back."""

    places: tuple[Place, ...]
    offer: Offer

    def start(self, programs: Sequence[Program]) -> list[HostProcess]:
        """One program per place, in the order of ``places``. Raises CannotAllocate."""

    def release(self) -> None:
        """Kills what still runs and removes the hosts' files. May be called at any time, more than once."""


class Executor(Protocol):
    """``name`` and ``isolation`` are what plans, logs and ``doctor`` show. ``shows_anywhere``: whether a view
    may be shared and lie outside the contract's tree. ``runs_images``: hosts are containers of the job's
    image; else they see this machine's programs, and so its variables."""

    name: str
    isolation: str
    shows_anywhere: bool
    runs_images: bool

    def allocate(
        self,
        job: str,
        labels: Sequence[str],
        isolated_network: bool,
        image: str = "",
        check: Callable[[], None] = lambda: None,
    ) -> Allocation:
        """Hosts for one job, in the order of ``labels``. ``check`` raises to give up, where it takes long.
        Raises CannotAllocate and, for an image that would have to be run, ImageProblem."""

    def recover(self, owner: str) -> int:
        """Ends what an endpoint that is gone (``owner``) left running; returns how many processes."""
