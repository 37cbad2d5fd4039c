"""Hosts as containers of the job's image, by podman or Docker.

A job's hosts share a network, in which each has its name and address from the beginning. The contract's tree
is a directory of this machine, mounted at /opt/ml. Each host has a supervisor (container_supervisor.py),
which ends and removes the container when the endpoint dies.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from smlaunch.errors import EndpointError
from smlaunch.local.executors import container_cli, container_commands, container_engine, container_network
from smlaunch.local.executors.container_cli import ContainerMount, ContainerPlan, Engine
from smlaunch.local.executors.container_commands import TIMED_OUT_CODE, last_error_line
from smlaunch.local.executors.container_engine import (
    ENGINE_VARIABLE,
    ensure_image,
    helper_image,
    load_cached_engine,
    run_short_command,
)
from smlaunch.local.executors.container_environment import variables_to_pass_by_name
from smlaunch.local.executors.executor_base import Executor, MachineCheck
from smlaunch.local.executors.executor_interface import (
    Allocation,
    AllocationInfo,
    CannotAllocate,
    DirectoryMount,
    HostProcess,
    HostsRequest,
    ImageProblem,
    JobHost,
    Program,
)
from smlaunch.local.executors.supervised_host import SupervisedHost
from smlaunch.local.executors.tree_removal import remove_or_warn

_OPT_ML = "/opt/ml"
_CONTAINER_STATE_AS_JSON = "{{json .State}}"
"""Go template for `inspect --format`."""


class Containers(Executor):
    """The executor ``containers``."""

    name = "containers"
    summary = "containers of the job's image"
    runs_images = True
    uses_endpoint_python = False

    @cached_property
    def engine(self) -> Engine:
        name = self.context.settings.container_engine or os.environ.get(ENGINE_VARIABLE) or None
        return container_engine.choose_engine(self.context.state_dir.engine_cache, name)

    @cached_property
    def _create_options(self) -> tuple[str, ...]:
        options = self.context.settings.container_options
        return options or container_engine.options_from_environment(os.environ)

    @property
    def isolation(self) -> str:
        _ = self._create_options  # raises EndpointError here rather than in the first job
        return self.engine.kind

    @property
    def can_mount_anywhere(self) -> bool:
        return True

    def allocate(self, request: HostsRequest) -> Allocation:
        digest = ensure_image(self.engine, request.image, request.raise_if_stopping)
        return ContainerAllocation(self, request, digest)

    def remove_leftovers(self, dead_endpoint_id: str) -> None:
        """Remove containers and networks. An endpoint with another executor has chosen no engine: it asks the
        one that was used here earlier."""
        chosen_engine: Engine | None = vars(self).get("engine")
        engine = chosen_engine or load_cached_engine(self.context.state_dir.engine_cache)
        if engine is not None:
            _remove_resources_of_endpoint(engine, dead_endpoint_id)

    @classmethod
    def check_machine(cls) -> Iterator[MachineCheck]:
        for probe in container_engine.probe_engines():
            text = probe.problem if probe.engine is None else _describe_engine(probe.engine)
            yield MachineCheck(f"containers by {probe.name}", probe.engine is not None, text)

    @property
    def endpoint_port(self) -> int:
        """The endpoint's port; 0 until the endpoint serves."""
        return urlsplit(self.context.script_environment.get("AWS_ENDPOINT_URL", "")).port or 0

    @property
    def enters_networks(self) -> bool:
        """Whether this process can enter a container's network. The networks of Docker's daemon belong to
        root, and a daemon on another machine, or in a virtual one, has none here."""
        is_local_daemon = os.environ.get("DOCKER_HOST", "unix:").startswith("unix:") and os.geteuid() == 0
        return Path("/proc/self/ns").is_dir() and (self.engine.kind == "podman" or is_local_daemon)

    def shell_command(
        self, endpoint_id: str, job_id: str, host_name: str, has_terminal: bool
    ) -> list[str] | None:
        """Return the engine's command that runs a shell in a host's container; None without such a container
        that runs."""
        # ``self.engine`` would first find out which engine works here.
        engine = vars(self).get("engine") or load_cached_engine(self.context.state_dir.engine_cache)
        if engine is None:  # no container was ever run here
            return None
        container_name = f"{_resource_name(endpoint_id, job_id)}-{host_name}"
        inspect_result = run_short_command(
            engine.command_line("inspect", "--format={{.State.Running}}", container_name)
        )
        if inspect_result.stdout.strip() != b"true":
            return None
        return container_cli.shell_in_container_command(engine, container_name, has_terminal)

    def create_container_plan(self, name: str, **values: Any) -> ContainerPlan:
        """Return a container's plan; ``values`` are the fields that differ between containers."""
        return ContainerPlan(
            name=name,
            shm_bytes=self.context.settings.container_shm_bytes,
            user_options=self._create_options,
            **values,
        )

    def chown_commands(self, folder: Path) -> list[list[str]]:
        """Return commands that make this user the owner of the files below ``folder``. Root does not
        need them; for other users the files belong to the container's users, and only the engine can
        change that."""
        if os.geteuid() == 0:
            return []
        if self.engine.kind == "podman":
            return [self.engine.command_line("unshare", "chown", "-R", "-h", "0:0", str(folder))]
        return [
            container_cli.chown_command(
                self.engine, helper_image(self.engine), str(folder), os.geteuid(), os.getegid()
            )
        ]


def _describe_engine(engine: Engine) -> str:
    """Return version and flags; flags are passed where the engine's default settings do not work."""
    flags = [*engine.flags, *engine.create_flags]
    flags_text = f", with {' '.join(flags)} (its default settings do not work here)" if flags else ""
    return f"{engine.version}{flags_text}"


def _remove_resources_of_endpoint(engine: Engine, endpoint_id: str) -> None:
    """Remove the containers and networks that a dead local endpoint left behind, found by their label. Raises
    EndpointError if the engine does not answer in time: the next endpoint must try again."""
    label_filter = f"--filter=label={container_cli.ENDPOINT_ID_LABEL}={endpoint_id}"
    list_result = run_short_command(engine.command_line("ps", "--all", "--quiet", label_filter))
    if list_result.returncode == TIMED_OUT_CODE:
        raise EndpointError(
            f"what an endpoint that is gone has left cannot be removed: {last_error_line(list_result)}"
        )
    container_ids = list_result.stdout.decode().split()
    if container_ids:
        run_short_command(container_cli.remove_containers_command(engine, *container_ids))
    network_list_result = run_short_command(engine.command_line("network", "ls", "--quiet", label_filter))
    network_ids = network_list_result.stdout.decode().split()
    if network_ids:
        run_short_command(container_cli.remove_networks_command(engine, *network_ids))


class ContainerAllocation:
    """The hosts of one job. The containers are created when their programs are known."""

    def __init__(self, executor: Containers, request: HostsRequest, digest: str) -> None:
        """Create the network of a job's hosts, their directories, and the supervisors that will run their
        containers. ``digest`` is that of the job's image. Raises CannotAllocate."""
        self._executor = executor
        self._endpoint_id = request.endpoint_id
        self._image = request.image
        self._folder = request.folder
        self._network_name = _resource_name(request.endpoint_id, request.job_id)
        self._supervised_hosts: list[SupervisedHost] = []
        isolated_network, host_names = request.isolated_network, request.host_names
        self._can_reach_endpoint = not isolated_network and executor.enters_networks
        engine = executor.engine
        addresses = container_network.create_network(
            engine, self._network_name, request.endpoint_id, len(host_names), isolated_network
        )
        self.info = AllocationInfo(
            notes=tuple(self._image_notes(engine, digest, isolated_network)),
            can_mount_writable=engine.supports_overlays,
            can_reach_endpoint=self._can_reach_endpoint,
        )
        self.hosts = tuple(
            JobHost(
                name=host_name,
                network_name=host_name,
                address=address,
                opt_ml_folder=self._folder / host_name / "ml",
                ml_path_on_host=_OPT_ML,
                interface="eth0",
            )
            for host_name, address in zip(host_names, addresses, strict=True)
        )
        try:
            for host in self.hosts:
                host.opt_ml_folder.mkdir(parents=True)
                remove_container = partial(
                    run_short_command,
                    container_cli.remove_containers_command(engine, self._container_name(host)),
                )
                self._supervised_hosts.append(SupervisedHost(host, remove_container, "container"))
        except OSError as error:
            self.release()
            raise CannotAllocate(f"no process can be started for a host: {error}") from error

    def start(self, programs: Sequence[Program]) -> list[HostProcess]:
        orders = [
            self._create_supervisor_instructions(host, program)
            for host, program in zip(self.hosts, programs, strict=True)
        ]
        for process, order in zip(self._supervised_hosts, orders, strict=True):
            process.send_plan(json.dumps(order).encode())
        return list(self._supervised_hosts)

    def release(self) -> None:
        """End the supervisors, which remove their containers, and remove what a killed one has left, the
        network and the files."""
        for supervised_host in self._supervised_hosts:
            supervised_host.kill()
        # For all of them: it also closes the supervisors' pipes.
        hosts_of_killed_supervisors = [
            supervised_host.host
            for supervised_host in self._supervised_hosts
            if not supervised_host.wait_and_close()
        ]
        if hosts_of_killed_supervisors:  # a killed supervisor leaves its container behind
            container_names = map(self._container_name, hosts_of_killed_supervisors)
            run_short_command(
                container_cli.remove_containers_command(self._executor.engine, *container_names)
            )
        self._supervised_hosts = []
        container_network.remove_network(self._executor.engine, self._network_name)
        remove_or_warn(self._folder)

    def _image_notes(self, engine: Engine, digest: str, isolated_network: bool) -> Iterator[str]:
        """Yield lines for the job's log about the image and the network."""
        short_digest = digest.removeprefix("sha256:")[:12]
        yield f"image {self._image} ({short_digest}) is run by {engine.kind} {engine.version}"
        if not isolated_network and not self._can_reach_endpoint:
            yield (
                f"{engine.kind}: the network of a container cannot be entered from here, so that its program "
                "cannot reach this endpoint's S3; channels, checkpoints and the model do not need it"
            )

    def _container_name(self, host: JobHost) -> str:
        return f"{self._network_name}-{host.name}"

    def _create_supervisor_instructions(self, host: JobHost, program: Program) -> dict[str, Any]:
        """Return the JSON document that tells a host's supervisor (the process that runs one container) what
        to run: podman's or Docker's command lines, and what they need. Raises ImageProblem for a path that
        cannot be mounted; only a path from the request can be such a path."""
        engine, container_name = self._executor.engine, self._container_name(host)
        # For the engine's client (the command podman or docker).
        client_environment = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        # Other users can read a command line: it has only the names of these variables, and the engine's
        # client takes the values from its own environment.
        variables_passed_by_name = variables_to_pass_by_name(program.environment, client_environment)
        container_plan = self._executor.create_container_plan(
            container_name,
            endpoint_id=self._endpoint_id,
            image=self._image,
            network_name=self._network_name,
            address=host.address,
            hostname=host.network_name,
            address_by_host_name={other.name: other.address for other in self.hosts},
            entrypoint=program.entrypoint,
            arguments=program.arguments,
            environment=program.environment,
            variables_passed_by_name=variables_passed_by_name,
            mounts=[
                ContainerMount(str(host.opt_ml_folder), _OPT_ML, "shared"),
                *map(_convert_to_container_mount, program.mounts),
            ],
        )
        try:
            create_command = container_cli.create_container_command(engine, container_plan)
        except container_cli.CannotMount as error:
            raise ImageProblem(str(error)) from error
        return {
            "create": create_command,
            # Makes the container's network before the program starts; Docker has no such command.
            "init": engine.command_line("init", container_name) if engine.kind == "podman" else [],
            "start": container_cli.start_container_command(engine, container_name),
            "inspect": engine.command_line("inspect", "--format", _CONTAINER_STATE_AS_JSON, container_name),
            "terminate": engine.command_line("kill", "--signal=TERM", container_name),
            "kill": engine.command_line("kill", "--signal=KILL", container_name),
            "remove": container_cli.remove_containers_command(engine, container_name),
            # Commands to chown the files that the container's users wrote: the endpoint must be able to
            # remove them.
            "working_dir": str(host.opt_ml_folder.parent),
            "after_exit": self._executor.chown_commands(host.opt_ml_folder.parent),
            # Run only if the endpoint has died, which otherwise removes the network itself.
            "remove_network": container_cli.remove_networks_command(engine, self._network_name),
            "environment": client_environment,
            "variables_passed_by_name": variables_passed_by_name,
            # Connections to this port inside the container are forwarded to the endpoint; 0: none are.
            "relay_port": self._executor.endpoint_port if self._can_reach_endpoint else 0,
            "timeout_seconds": container_commands.TIMEOUT_SECONDS,
        }


def _resource_name(endpoint_id: str, job_id: str) -> str:
    """Return the name of a job's network, with which its containers' names begin: unique on this machine."""
    return f"smlaunch-{endpoint_id}-{job_id}"


def _convert_to_container_mount(mount: DirectoryMount) -> ContainerMount:
    """Return a host's mount as a mount of its container: a relative target is below /opt/ml. A mount that is
    neither read-only nor shared becomes an overlay, so that what is written stays in the container."""
    target = mount.target if mount.target.startswith("/") else f"{_OPT_ML}/{mount.target}"
    mode: Literal["read-only", "shared", "overlay"] = "overlay"
    if mount.read_only:
        mode = "read-only"
    elif mount.shared:
        mode = "shared"
    return ContainerMount(str(mount.source), target, mode)
