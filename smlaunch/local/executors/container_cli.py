"""A container engine's command lines, as data: pure, so that they can be compared word for word.

podman and docker take the same words but for the few places that a ``kind`` is asked here. No shell ever sees
them. What a job says is passed exactly: values may hold anything but a zero byte.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

OWNER_LABEL = "smlaunch.owner"
"""On every container and network: which endpoint it belongs to."""


class CannotMount(ValueError):
    """A path that no spelling of the engine's can carry."""


@dataclass(frozen=True)
class Engine:
    """A container engine that works here. ``program``: its absolute path. ``flags`` come before the verb, and
    ``create_flags`` behind `create`: what this machine needs beside the engine's own settings."""

    kind: Literal["podman", "docker"]
    program: str
    version: str
    flags: tuple[str, ...] = ()
    create_flags: tuple[str, ...] = ()

    def words(self, *words: str) -> list[str]:
        return [self.program, *self.flags, *words]

    @property
    def overlays(self) -> bool:
        """Whether a directory can be shown so that what is written stays in the container."""
        return self.kind == "podman"


@dataclass(frozen=True)
class Mount:
    """``mode``: read-only, shared (what is written is in ``source``), or own (it stays in the container)."""

    source: str
    target: str
    mode: Literal["read-only", "shared", "own"]


@dataclass(frozen=True, kw_only=True)
class ContainerPlan:
    """One host as a container. ``entrypoint`` replaces the image's own unless it is empty; ``arguments``
    replace its CMD unless they are. ``names``: of all hosts, with their addresses. ``options``: words of the
    person's own for `create`. Sizes in bytes."""

    name: str
    owner: str
    image: str
    network: str
    address: str
    hostname: str
    names: Mapping[str, str]
    entrypoint: Sequence[str] = ()
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    by_name: Collection[str] = ()
    mounts: Sequence[Mount] = ()
    shm_bytes: int | None = None
    options: Sequence[str] = ()


def create(engine: Engine, plan: ContainerPlan) -> list[str]:
    """`create`: everything is said here, so that `start` has nothing to decide. Raises CannotMount."""
    words = engine.words(
        "create",
        f"--name={plan.name}",
        f"--label={OWNER_LABEL}={plan.owner}",
        "--pull=never",  # it is here already, or the job has failed
        "--log-driver=none",  # the endpoint keeps the log
        # Files below /opt/ml have the label of the process that made them; nothing else is shown.
        "--security-opt=label=disable",
        f"--network={plan.network}",
        f"--ip={plan.address}",
        f"--hostname={plan.hostname}",
        *(f"--add-host={name}:{address}" for name, address in plan.names.items()),
        *engine.create_flags,
    )
    if engine.kind == "podman":
        words.append("--http-proxy=false")  # only what the job's environment says
    if plan.shm_bytes is not None:
        words.append(f"--shm-size={plan.shm_bytes}b")
    for mount in plan.mounts:
        words += mount_words(mount)
    # Never from a file: the engines' files know neither newlines nor blanks at the ends of a value.
    words += [
        f"--env={name}" if name in plan.by_name else f"--env={name}={value}"
        for name, value in plan.environment.items()
    ]
    words += plan.options
    if plan.entrypoint:
        # podman would read a word that looks like a JSON list as one; docker takes a single word only.
        first = plan.entrypoint[0]
        words.append(f"--entrypoint={json.dumps([first]) if engine.kind == 'podman' else first}")
    return [*words, plan.image, *plan.entrypoint[1:], *plan.arguments]


def start(engine: Engine, name: str) -> list[str]:
    """Runs until the container ends; the container's output is its own."""
    # docker knows no such word here: what it would hand on never reaches it, in a session of its own.
    only_output = ("--sig-proxy=false",) if engine.kind == "podman" else ()
    return engine.words("start", "--attach", *only_output, name)


_MODES = {"read-only": "ro", "shared": "rw", "own": "O"}


def mount_words(mount: Mount) -> list[str]:
    """In the spelling that can carry both paths. Raises CannotMount."""
    paths = mount.source + mount.target
    if ":" not in paths:
        return [f"--volume={mount.source}:{mount.target}:{_MODES[mount.mode]}"]
    if mount.mode == "own" or any(character in paths for character in ',"\n'):
        raise CannotMount(
            f"{mount.source} cannot be shown at {mount.target}: container engines take a colon for the end "
            "of a path; use names without one"
        )
    only = ",readonly" if mount.mode == "read-only" else ""
    return [f"--mount=type=bind,source={mount.source},target={mount.target}{only}"]


def chown(engine: Engine, helper: str, folder: str, user: int, group: int) -> list[str]:
    """``helper``: an image with a chown for its entry point."""
    given = "/given"
    flags = ("--rm", "--pull=never", "--network=none", "--security-opt=label=disable", *engine.create_flags)
    volume = f"--volume={folder}:{given}"
    words = ("--recursive", f"{user}:{group}", given)
    return engine.words("run", *flags, volume, "--entrypoint=/bin/chown", helper, *words)


def create_network(engine: Engine, name: str, owner: str, internal: bool, subnet: str | None) -> list[str]:
    """``internal``: nothing but its own members can be reached from it."""
    words = engine.words("network", "create", f"--label={OWNER_LABEL}={owner}")
    if engine.kind == "podman":
        words.append("--disable-dns")  # hosts know each other by /etc/hosts, from their first moment on
    if internal:
        words.append("--internal")
    if subnet is not None:
        words.append(f"--subnet={subnet}")
    return [*words, name]


def subnet_of(engine: Engine, name: str) -> list[str]:
    """Prints ``10.89.0.0/24 ``, and the same of further subnets."""
    listed = ".Subnets" if engine.kind == "podman" else ".IPAM.Config"
    template = "{{range " + listed + "}}{{.Subnet}} {{end}}"
    return engine.words("network", "inspect", "--format", template, name)


def remove(engine: Engine, *names: str) -> list[str]:
    """Ends containers at once, and removes them with their anonymous volumes."""
    patience = ("--time=0",) if engine.kind == "podman" else ()
    return engine.words("rm", "--force", "--volumes", *patience, *names)


def remove_network(engine: Engine, *names: str) -> list[str]:
    """Fails while a container is on it."""
    return engine.words("network", "rm", *names)
