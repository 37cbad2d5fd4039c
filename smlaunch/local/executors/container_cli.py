"""The command lines of container engines, as data: pure, so that tests can compare them word for word.

podman and Docker take the same arguments except where ``kind`` is read. No shell reads them. The job's
values are passed exactly, and may contain anything but a zero byte.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

OWNER_LABEL = "smlaunch.owner"
"""Label of every container and network; its value is the endpoint's id."""


class CannotMount(ValueError):
    """The engine has no syntax for a mount of this path."""


@dataclass(frozen=True)
class Engine:
    """A container engine that works here."""

    kind: Literal["podman", "docker"]
    program: str
    """Absolute path."""
    version: str
    flags: tuple[str, ...] = ()
    """Flags before the verb that this machine needs."""
    create_flags: tuple[str, ...] = ()
    """Flags of `create` and `run` that this machine needs."""

    def command(self, *arguments: str) -> list[str]:
        """Return a command line of the engine."""
        return [self.program, *self.flags, *arguments]

    @property
    def supports_overlays(self) -> bool:
        """Whether a directory can be mounted so that written files stay in the container."""
        return self.kind == "podman"


@dataclass(frozen=True)
class ContainerMount:
    """A mount of a container."""

    source: str
    target: str
    mode: Literal["read-only", "shared", "own"]
    """read-only; shared: what is written is in ``source``; own: it stays in the container."""


@dataclass(frozen=True, kw_only=True)
class ContainerPlan:
    """One host as a container."""

    name: str
    owner: str
    image: str
    network: str
    address: str
    hostname: str
    addresses_by_name: Mapping[str, str]
    """Addresses of all hosts of the job."""
    entrypoint: Sequence[str] = ()
    """Replaces the image's own, unless it is empty."""
    arguments: Sequence[str] = ()
    """Replace the image's CMD, unless they are empty."""
    environment: Mapping[str, str] = field(default_factory=dict)
    variables_by_name: Collection[str] = ()
    """Variables whose values the command line does not contain (containers_environment.py)."""
    mounts: Sequence[ContainerMount] = ()
    shm_bytes: int | None = None
    options: Sequence[str] = ()
    """The user's own arguments for `create`."""


def create_command(engine: Engine, plan: ContainerPlan) -> list[str]:
    """Return the `create` command. It has all settings, so that `start` needs none. Raises CannotMount."""
    arguments = engine.command(
        "create",
        f"--name={plan.name}",
        f"--label={OWNER_LABEL}={plan.owner}",
        "--pull=never",  # the image was pulled before
        "--log-driver=none",  # the endpoint writes the log
        # Files below /opt/ml have the label of the process that created them; nothing else is mounted.
        "--security-opt=label=disable",
        f"--network={plan.network}",
        f"--ip={plan.address}",
        f"--hostname={plan.hostname}",
        *(f"--add-host={name}:{address}" for name, address in plan.addresses_by_name.items()),
        *engine.create_flags,
    )
    if engine.kind == "podman":
        arguments.append("--http-proxy=false")  # proxies are only those of the job's environment
    if plan.shm_bytes is not None:
        arguments.append(f"--shm-size={plan.shm_bytes}b")
    for mount in plan.mounts:
        arguments += mount_arguments(mount)
    # Not from a file: the engines' file format has no newlines and no spaces at the ends of a value.
    arguments += [
        f"--env={name}" if name in plan.variables_by_name else f"--env={name}={value}"
        for name, value in plan.environment.items()
    ]
    arguments += plan.options
    if plan.entrypoint:
        # podman would parse a value that looks like a JSON list; Docker takes one word only.
        first = plan.entrypoint[0]
        arguments.append(f"--entrypoint={json.dumps([first]) if engine.kind == 'podman' else first}")
    return [*arguments, plan.image, *plan.entrypoint[1:], *plan.arguments]


def start_command(engine: Engine, name: str) -> list[str]:
    """Return a command that runs until the container ends and prints the container's output."""
    # Docker has no such flag here, and needs none: in its own session it gets no signals to forward.
    proxy_flags = ("--sig-proxy=false",) if engine.kind == "podman" else ()
    return engine.command("start", "--attach", *proxy_flags, name)


_OPTION_BY_MOUNT_MODE = {"read-only": "ro", "shared": "rw", "own": "O"}


def mount_arguments(mount: ContainerMount) -> list[str]:
    """Return the arguments for a mount, in a syntax that allows both paths. Raises CannotMount."""
    paths = mount.source + mount.target
    if ":" not in paths:
        return [f"--volume={mount.source}:{mount.target}:{_OPTION_BY_MOUNT_MODE[mount.mode]}"]
    if mount.mode == "own" or any(character in paths for character in ',"\n'):
        raise CannotMount(
            f"{mount.source} cannot be shown at {mount.target}: container engines take a colon for the end "
            "of a path; use names without one"
        )
    read_only_option = ",readonly" if mount.mode == "read-only" else ""
    return [f"--mount=type=bind,source={mount.source},target={mount.target}{read_only_option}"]


def chown_command(engine: Engine, helper_image: str, folder: str, user: int, group: int) -> list[str]:
    """Return a command that changes the owner of a folder. ``helper_image`` is an image that contains
    chown."""
    mount_target = "/given"
    flags = ("--rm", "--pull=never", "--network=none", "--security-opt=label=disable", *engine.create_flags)
    volume = f"--volume={folder}:{mount_target}"
    arguments = ("--recursive", f"{user}:{group}", mount_target)
    return engine.command("run", *flags, volume, "--entrypoint=/bin/chown", helper_image, *arguments)


def create_network_command(
    engine: Engine, name: str, owner: str, internal: bool, subnet: str | None
) -> list[str]:
    """Return a command that creates a network. ``internal``: only the network's own members can be reached
    from it."""
    arguments = engine.command("network", "create", f"--label={OWNER_LABEL}={owner}")
    if engine.kind == "podman":
        arguments.append("--disable-dns")  # hosts have each other's names in /etc/hosts
    if internal:
        arguments.append("--internal")
    if subnet is not None:
        arguments.append(f"--subnet={subnet}")
    return [*arguments, name]


def subnet_command(engine: Engine, name: str) -> list[str]:
    """Return a command that prints a network's subnets, each followed by a space: ``10.89.0.0/24 ``."""
    subnets_field = ".Subnets" if engine.kind == "podman" else ".IPAM.Config"
    template = "{{range " + subnets_field + "}}{{.Subnet}} {{end}}"
    return engine.command("network", "inspect", "--format", template, name)


def remove_command(engine: Engine, *addresses_by_name: str) -> list[str]:
    """Return a command that kills containers and removes them with their anonymous volumes."""
    time_flags = ("--time=0",) if engine.kind == "podman" else ()
    return engine.command("rm", "--force", "--volumes", *time_flags, *addresses_by_name)


def remove_network_command(engine: Engine, *addresses_by_name: str) -> list[str]:
    """Return a command that removes networks; it fails while a container is connected."""
    return engine.command("network", "rm", *addresses_by_name)
