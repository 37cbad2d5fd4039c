"""The command lines of container engines, as data: pure, so that tests can compare them word for word.

podman and Docker take the same arguments except where ``kind`` is read. No shell reads them. The job's
values are passed exactly, and may contain anything but a zero byte.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

ENDPOINT_ID_LABEL = "smlaunch.owner"
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

    def command_line(self, *arguments: str) -> list[str]:
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
    mode: Literal["read-only", "shared", "overlay"]
    """read-only; shared: what is written is in ``source``; overlay: it stays in the container."""


@dataclass(frozen=True, kw_only=True)
class ContainerPlan:
    """One host as a container."""

    name: str
    endpoint_id: str
    image: str
    network_name: str
    address: str
    hostname: str
    address_by_host_name: Mapping[str, str]
    """Addresses of all hosts of the job."""
    entrypoint: Sequence[str] = ()
    """Replaces the image's own, unless it is empty."""
    arguments: Sequence[str] = ()
    """Replace the image's CMD, unless they are empty."""
    environment: Mapping[str, str] = field(default_factory=dict)
    variables_passed_by_name: Collection[str] = ()
    """Variables whose values the command line does not contain (container_environment.py)."""
    mounts: Sequence[ContainerMount] = ()
    shm_bytes: int | None = None
    user_options: Sequence[str] = ()
    """The user's own arguments for `create`."""


def create_container_command(engine: Engine, plan: ContainerPlan) -> list[str]:
    """Return the engine's `create` command for a container, which is one host of a job, run by an endpoint
    (smlaunch's local imitation of SageMaker). It has all settings, so that `start` needs none.
    Empty ``plan.entrypoint`` and ``plan.arguments`` leave the image's own; ``plan.shm_bytes`` None leaves the
    engine's default. Raises CannotMount for a path that the engine's syntax does not allow."""
    arguments = engine.command_line(  # the engine's program, the flags that it always needs, and these
        "create",
        f"--name={plan.name}",
        # By this label the next endpoint finds and removes what a dead endpoint left behind.
        f"--label={ENDPOINT_ID_LABEL}={plan.endpoint_id}",
        "--pull=never",  # the image was pulled before
        "--log-driver=none",  # the endpoint writes the log
        # SELinux: files below /opt/ml have the label of the process that created them, and nothing else is
        # mounted.
        "--security-opt=label=disable",
        f"--network={plan.network_name}",
        f"--ip={plan.address}",
        f"--hostname={plan.hostname}",
        *(f"--add-host={name}:{address}" for name, address in plan.address_by_host_name.items()),
        *engine.create_flags,  # options that this machine needs (lower limits, say), found by trying
    )
    if engine.kind == "podman":
        arguments.append("--http-proxy=false")  # proxies are only those of the job's environment
    if plan.shm_bytes is not None:
        arguments.append(f"--shm-size={plan.shm_bytes}b")
    for mount in plan.mounts:
        arguments += bind_mount_options(mount)
    # Not by --env-file: its format has no newlines and no spaces at the ends of a value. A variable without
    # a value is taken from the environment of the engine's client, so that `ps` does not show it.
    arguments += [
        f"--env={name}" if name in plan.variables_passed_by_name else f"--env={name}={value}"
        for name, value in plan.environment.items()
    ]
    arguments += plan.user_options  # the user's own options for `create`
    if plan.entrypoint:
        # podman parses a value that looks like a JSON list; Docker takes one word only. The other words of
        # the entry point come first among the arguments.
        program = plan.entrypoint[0]
        arguments.append(f"--entrypoint={json.dumps([program]) if engine.kind == 'podman' else program}")
    return [*arguments, plan.image, *plan.entrypoint[1:], *plan.arguments]


def start_container_command(engine: Engine, container_name: str) -> list[str]:
    """Return a command that runs until the container ends and prints the container's output."""
    # Docker has no such flag here, and needs none: in its own session it gets no signals to forward.
    proxy_flags = ("--sig-proxy=false",) if engine.kind == "podman" else ()
    return engine.command_line("start", "--attach", *proxy_flags, container_name)


_VOLUME_OPTION_BY_MOUNT_MODE = {"read-only": "ro", "shared": "rw", "overlay": "O"}


def bind_mount_options(mount: ContainerMount) -> list[str]:
    """Return the options of `create` for a bind mount. Paths with a colon need --mount, since colons separate
    the fields of --volume. Raises CannotMount for a path or a mode that --mount does not allow either.
    ``mount.mode``: read-only; shared (writable); or overlay (what is written stays in the container)."""
    both_paths = mount.source + mount.target
    if ":" not in both_paths:
        # The option of a mode is ro, rw or O (an overlay).
        return [f"--volume={mount.source}:{mount.target}:{_VOLUME_OPTION_BY_MOUNT_MODE[mount.mode]}"]
    # --mount has no overlays, and its value is a line of CSV, in which these characters have a meaning.
    if mount.mode == "overlay" or any(character in both_paths for character in ',"\n'):
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
    return engine.command_line("run", *flags, volume, "--entrypoint=/bin/chown", helper_image, *arguments)


def create_network_command(
    engine: Engine, network_name: str, endpoint_id: str, is_internal: bool, subnet: str | None
) -> list[str]:
    """Return the engine's command that creates a network with the label of an endpoint (smlaunch's local
    server that imitates SageMaker). ``is_internal``: only the network's own members can be reached from it.
    ``subnet`` in CIDR form; None lets the engine choose."""
    arguments = engine.command_line("network", "create", f"--label={ENDPOINT_ID_LABEL}={endpoint_id}")
    if engine.kind == "podman":
        arguments.append("--disable-dns")  # hosts have each other's names in /etc/hosts
    if is_internal:
        arguments.append("--internal")
    if subnet is not None:
        arguments.append(f"--subnet={subnet}")
    return [*arguments, network_name]


def network_subnets_command(engine: Engine, network_name: str) -> list[str]:
    """Return a command that prints a network's subnets, each followed by a space: ``10.89.0.0/24 ``."""
    subnets_field = ".Subnets" if engine.kind == "podman" else ".IPAM.Config"
    template = "{{range " + subnets_field + "}}{{.Subnet}} {{end}}"
    return engine.command_line("network", "inspect", "--format", template, network_name)


def remove_containers_command(engine: Engine, *container_names: str) -> list[str]:
    """Return a command that kills containers and removes them with their anonymous volumes."""
    time_flags = ("--time=0",) if engine.kind == "podman" else ()
    return engine.command_line("rm", "--force", "--volumes", *time_flags, *container_names)


def remove_networks_command(engine: Engine, *network_names: str) -> list[str]:
    """Return a command that removes networks; it fails while a container is connected."""
    return engine.command_line("network", "rm", *network_names)


def shell_in_container_command(engine: Engine, container_name: str, has_terminal: bool) -> list[str]:
    """Return the engine's command that runs a shell in a running container; bash where the image has it."""
    terminal_flags = ("--tty", "--env=TERM") if has_terminal else ()
    start_shell = "if command -v bash >/dev/null; then exec bash; else exec sh; fi"
    return engine.command_line(
        "exec", "--interactive", *terminal_flags, container_name, "/bin/sh", "-c", start_shell
    )
