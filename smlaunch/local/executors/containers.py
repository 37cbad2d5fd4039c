"""Hosts as containers of the job's image, by podman or Docker.

A job's hosts share a network, in which each has its name and address from the beginning. The contract's tree
is a directory of this machine, mounted at /opt/ml. Each host has a supervisor (containers_supervisor.py),
which ends and removes the container when the endpoint dies.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from smlaunch.errors import EndpointError
from smlaunch.local.executors import container_cli, containers_commands, containers_network
from smlaunch.local.executors.base import (
    Allocation,
    AllocationInfo,
    CannotAllocate,
    DirectoryMount,
    HostProcess,
    ImageProblem,
    JobHost,
    Program,
)
from smlaunch.local.executors.container_cli import ContainerMount, ContainerPlan, Engine
from smlaunch.local.executors.containers_commands import UNANSWERED, error_output
from smlaunch.local.executors.containers_engine import cached_engine, ensure_image, helper_image, run
from smlaunch.local.executors.containers_environment import variables_by_name
from smlaunch.local.executors.removal import remove_or_warn
from smlaunch.local.executors.supervised import SupervisedHost

_CONTRACT_ROOT = "/opt/ml"
_STATE_FORMAT = "{{json .State}}"


class Containers:
    """The executor ``containers``."""

    name = "containers"
    runs_images = True
    can_mount_anywhere = True

    def __init__(
        self,
        folder: Path,
        owner: str,
        engine: Engine,
        script_environment: Mapping[str, str],
        shm_bytes: int | None,
        options: Sequence[str],
    ) -> None:
        """``folder`` is the directory for the hosts' folders. ``owner`` is the value of every container's
        label. ``script_environment`` has the variables by which scripts reach the endpoint; it is filled when
        the endpoint serves. ``shm_bytes`` and ``options``: see Settings."""
        self.isolation: str = engine.kind
        self.engine = engine
        self._folder = folder
        self.owner = owner
        self._script_environment = script_environment
        self._shm_bytes = shm_bytes
        self._options = tuple(options)

    def allocate(
        self,
        job: str,
        host_names: Sequence[str],
        isolated_network: bool,
        image: str = "",
        raise_if_stopping: Callable[[], None] = lambda: None,
    ) -> Allocation:
        digest = ensure_image(self.engine, image, raise_if_stopping)
        return ContainerAllocation(self, job, host_names, isolated_network, image, digest)

    def remove_leftovers(self, owner: str) -> int:
        return _remove_all_of_owner(self.engine, owner)

    @property
    def port(self) -> int:
        """The endpoint's port; 0 until the endpoint serves."""
        return urlsplit(self._script_environment.get("AWS_ENDPOINT_URL", "")).port or 0

    @property
    def enters_networks(self) -> bool:
        """Whether this process can enter a container's network. The networks of Docker's daemon belong to
        root, and a daemon on another machine, or in a virtual one, has none here."""
        is_local_daemon = os.environ.get("DOCKER_HOST", "unix:").startswith("unix:") and os.geteuid() == 0
        return Path("/proc/self/ns").is_dir() and (self.engine.kind == "podman" or is_local_daemon)

    def create_plan(self, name: str, **values: Any) -> ContainerPlan:
        """Return a container's plan; ``values`` are the fields that differ between containers."""
        return ContainerPlan(
            name=name, owner=self.owner, shm_bytes=self._shm_bytes, options=self._options, **values
        )

    def chown_commands(self, folder: Path) -> list[list[str]]:
        """Return commands that make this user the owner of the files below ``folder``. Root does not
        need them; for other users the files belong to the container's users, and only the engine can
        change that."""
        if os.geteuid() == 0:
            return []
        if self.engine.kind == "podman":
            return [self.engine.command("unshare", "chown", "-R", "-h", "0:0", str(folder))]
        return [
            container_cli.chown_command(
                self.engine, helper_image(self.engine), str(folder), os.geteuid(), os.getegid()
            )
        ]

    def folder(self, job: str) -> Path:
        """Return the folder of a job's hosts."""
        return self._folder / job

    def resource_name(self, *values: str) -> str:
        """Return the name of a container or a network: unique on this machine and readable."""
        return "-".join(("smlaunch", self.owner, *values))


def remove_leftovers_by_cached_engine(cache: Path, owner: str) -> int:
    """Do what Containers.remove_leftovers does, for an endpoint with another executor, by the engine that
    was used here earlier."""
    engine = cached_engine(cache)
    return 0 if engine is None else _remove_all_of_owner(engine, owner)


def _remove_all_of_owner(engine: Engine, owner: str) -> int:
    """Remove the containers and networks of ``owner``, and return the number of containers. Raises
    EndpointError if the engine does not answer: the next endpoint must try again."""
    label = f"--filter=label={container_cli.OWNER_LABEL}={owner}"
    completed = run(engine.command("ps", "--all", "--quiet", label))
    if completed.returncode == UNANSWERED:
        raise EndpointError(
            f"what an endpoint that is gone has left cannot be removed: {error_output(completed)}"
        )
    container_ids = completed.stdout.decode().split()
    if container_ids:
        run(container_cli.remove_command(engine, *container_ids))
    networks = run(engine.command("network", "ls", "--quiet", label)).stdout.decode().split()
    if networks:
        run(container_cli.remove_network_command(engine, *networks))
    return len(container_ids)


class ContainerAllocation:
    """The hosts of one job. The containers are created when their programs are known."""

    def __init__(
        self,
        executor: Containers,
        job: str,
        host_names: Sequence[str],
        isolated_network: bool,
        image: str,
        digest: str,
    ) -> None:
        self._executor = executor
        self._job = job
        self._image = image
        self._folder = executor.folder(job)
        self._network = executor.resource_name(job)
        self._processes: list[SupervisedHost] = []
        self._has_relay = not isolated_network and executor.enters_networks
        engine = executor.engine
        addresses = containers_network.create_network(
            engine, self._network, executor.owner, len(host_names), isolated_network
        )
        self.info = AllocationInfo(
            {},
            tuple(self._image_notes(engine, digest, isolated_network)),
            writable_mounts=engine.supports_overlays,
            reaches_endpoint=self._has_relay,
        )
        self.hosts = tuple(
            JobHost(
                host_name,
                host_name,
                address,
                self._folder / host_name / "ml",
                _CONTRACT_ROOT,
                interface="eth0",
            )
            for host_name, address in zip(host_names, addresses, strict=True)
        )
        try:
            for host in self.hosts:
                host.tree.mkdir(parents=True)
                remove_container = partial(
                    run, container_cli.remove_command(engine, self._container_name(host))
                )
                self._processes.append(SupervisedHost(host, remove_container, "container"))
        except OSError as error:
            self.release()
            raise CannotAllocate(f"no process can be started for a host: {error}") from error

    def start(self, programs: Sequence[Program]) -> list[HostProcess]:
        orders = [
            self._create_order(host, program) for host, program in zip(self.hosts, programs, strict=True)
        ]
        for process, order in zip(self._processes, orders, strict=True):
            process.start(json.dumps(order).encode())
        return list(self._processes)

    def release(self) -> None:
        for process in self._processes:
            process.kill()
        killed = [process for process in self._processes if not process.reap()]
        if killed:
            run(
                container_cli.remove_command(
                    self._executor.engine, *(self._container_name(process.host) for process in killed)
                )
            )
        self._processes = []
        containers_network.remove_network(self._executor.engine, self._network)
        remove_or_warn(self._folder)

    def _image_notes(self, engine: Engine, digest: str, isolated_network: bool) -> Iterator[str]:
        """Yield lines for the job's log about the image and the network."""
        short_digest = digest.removeprefix("sha256:")[:12]
        yield f"image {self._image} ({short_digest}) is run by {engine.kind} {engine.version}"
        if not isolated_network and not self._has_relay:
            yield (
                f"{engine.kind}: the network of a container cannot be entered from here, so that its program "
                "cannot reach this endpoint's S3; channels, checkpoints and the model do not need it"
            )

    def _container_name(self, host: JobHost) -> str:
        return self._executor.resource_name(self._job, host.name)

    def _create_order(self, host: JobHost, program: Program) -> dict[str, Any]:
        """Return what the supervisor reads (ContainerSupervisor). Raises ImageProblem for a path that cannot
        be mounted; only a path from the request can be such a path."""
        engine, name = self._executor.engine, self._container_name(host)
        client_environment = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        named_variables = variables_by_name(program.environment, client_environment)
        container_plan = self._executor.create_plan(
            name,
            image=self._image,
            network=self._network,
            address=host.address,
            hostname=host.network_name,
            addresses_by_name={other.name: other.address for other in self.hosts},
            entrypoint=program.entrypoint,
            arguments=program.arguments,
            environment=program.environment,
            variables_by_name=named_variables,
            mounts=[
                ContainerMount(str(host.tree), _CONTRACT_ROOT, "shared"),
                *map(_container_mount, program.mounts),
            ],
        )
        try:
            create = container_cli.create_command(engine, container_plan)
        except container_cli.CannotMount as error:
            raise ImageProblem(str(error)) from error
        return {
            "create": create,
            "init": engine.command("init", name) if engine.kind == "podman" else [],
            "start": container_cli.start_command(engine, name),
            "inspect": engine.command("inspect", "--format", _STATE_FORMAT, name),
            "terminate": engine.command("kill", "--signal=TERM", name),
            "kill": engine.command("kill", "--signal=KILL", name),
            "remove": container_cli.remove_command(engine, name),
            "afterwards": self._executor.chown_commands(host.tree.parent),
            "abandoned": container_cli.remove_network_command(engine, self._network),
            "environment": client_environment,
            "by_name": named_variables,
            "relay": self._executor.port if self._has_relay else 0,
            "patience": containers_commands.TIMEOUT_SECONDS,
        }


def _container_mount(mount: DirectoryMount) -> ContainerMount:
    target = mount.target if mount.target.startswith("/") else f"{_CONTRACT_ROOT}/{mount.target}"
    return ContainerMount(
        str(mount.source), target, "read-only" if mount.read_only else "shared" if mount.shared else "own"
    )
