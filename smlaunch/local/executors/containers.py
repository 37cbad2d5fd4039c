"""Hosts as containers of the job's real image, by podman or Docker.

A job's hosts share a network of their own, where each has the name and the address it is known by from its
first moment on. The contract's tree is a directory of this machine, mounted at /opt/ml. Every host has a
supervisor (containers_supervisor.py): it ends and removes the container whenever the endpoint dies.
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
from smlaunch.local.executors import container_cli as words
from smlaunch.local.executors import containers_commands, containers_network
from smlaunch.local.executors.base import (
    Allocation,
    CannotAllocate,
    HostProcess,
    ImageProblem,
    Offer,
    Place,
    Program,
    View,
)
from smlaunch.local.executors.container_cli import ContainerPlan, Engine, Mount
from smlaunch.local.executors.containers_commands import UNANSWERED, error_output
from smlaunch.local.executors.containers_engine import bring, helper_image, remembered, run
from smlaunch.local.executors.containers_environment import by_name
from smlaunch.local.executors.removal import remove_or_warn
from smlaunch.local.executors.supervised import SupervisedHost

_CONTRACT_ROOT = "/opt/ml"
_STATE = "{{json .State}}"


class Containers:
    """``folder`` holds the trees of this endpoint's hosts; ``owner`` is on every container as a label.
    ``reach``: the endpoint's variables, once it has them: hosts find it where AWS_ENDPOINT_URL says, too.
    ``shm_bytes`` and ``options``: see Settings."""

    name = "containers"
    runs_images = True
    shows_anywhere = True

    def __init__(
        self,
        folder: Path,
        owner: str,
        engine: Engine,
        reach: Mapping[str, str],
        shm_bytes: int | None,
        options: Sequence[str],
    ) -> None:
        self.isolation: str = engine.kind
        self.engine = engine
        self._folder = folder
        self.owner = owner
        self._reach = reach
        self._shm_bytes = shm_bytes
        self._options = tuple(options)

    def allocate(
        self,
        job: str,
        labels: Sequence[str],
        isolated_network: bool,
        image: str = "",
        check: Callable[[], None] = lambda: None,
    ) -> Allocation:
        digest = bring(self.engine, image, check)
        return ContainerAllocation(self, job, labels, isolated_network, image, digest)

    def recover(self, owner: str) -> int:
        return _remove_all(self.engine, owner)

    @property
    def port(self) -> int:
        """The endpoint's; 0 while nobody can know it."""
        return urlsplit(self._reach.get("AWS_ENDPOINT_URL", "")).port or 0

    @property
    def enters_networks(self) -> bool:
        """Whether a container's network can be entered from here: the daemon's is root's, and on another
        machine, or in a virtual one, there is nothing to enter."""
        is_near = os.environ.get("DOCKER_HOST", "unix:").startswith("unix:") and os.geteuid() == 0
        return Path("/proc/self/ns").is_dir() and (self.engine.kind == "podman" or is_near)

    def plan(self, name: str, **parts: Any) -> ContainerPlan:
        return ContainerPlan(
            name=name, owner=self.owner, shm_bytes=self._shm_bytes, options=self._options, **parts
        )

    def give_back(self, folder: Path) -> list[list[str]]:
        """What makes the files below ``folder`` this user's. Root may do anything with them; for others they
        belong to the container's users, and only the engine can change that."""
        if os.geteuid() == 0:
            return []
        if self.engine.kind == "podman":
            return [self.engine.words("unshare", "chown", "-R", "-h", "0:0", str(folder))]
        return [words.chown(self.engine, helper_image(self.engine), str(folder), os.geteuid(), os.getegid())]

    def folder(self, job: str) -> Path:
        return self._folder / job

    def name_of(self, *parts: str) -> str:
        """Of a container or a network: unique on the machine, and telling."""
        return "-".join(("smlaunch", self.owner, *parts))


def recover_as_remembered(cache: Path, owner: str) -> int:
    """Containers.recover, for an endpoint with another executor: by the engine that was used here."""
    engine = remembered(cache)
    return 0 if engine is None else _remove_all(engine, owner)


def _remove_all(engine: Engine, owner: str) -> int:
    """Containers, and networks, which supervisors that were killed could not remove. Raises EndpointError
    when the engine does not answer: what is there must be found again."""
    label = f"--filter=label={words.OWNER_LABEL}={owner}"
    listed = run(engine.words("ps", "--all", "--quiet", label))
    if listed.returncode == UNANSWERED:
        raise EndpointError(
            f"what an endpoint that is gone has left cannot be removed: {error_output(listed)}"
        )
    container_ids = listed.stdout.decode().split()
    if container_ids:
        run(words.remove(engine, *container_ids))
    networks = run(engine.words("network", "ls", "--quiet", label)).stdout.decode().split()
    if networks:
        run(words.remove_network(engine, *networks))
    return len(container_ids)


class ContainerAllocation:
    """The hosts of one job. Their containers are made when it is known what they run."""

    def __init__(
        self,
        executor: Containers,
        job: str,
        labels: Sequence[str],
        isolated_network: bool,
        image: str,
        digest: str,
    ) -> None:
        self._executor = executor
        self._job = job
        self._image = image
        self._folder = executor.folder(job)
        self._network = executor.name_of(job)
        self._hosts: list[SupervisedHost] = []
        self._relayed = not isolated_network and executor.enters_networks
        engine = executor.engine
        addresses = containers_network.make(
            engine, self._network, executor.owner, len(labels), isolated_network
        )
        self.offer = Offer(
            {},
            tuple(self._image_remarks(engine, digest, isolated_network)),
            writable_views=engine.overlays,
            reaches_endpoint=self._relayed,
        )
        self.places = tuple(
            Place(label, label, address, self._folder / label / "ml", _CONTRACT_ROOT, interface="eth0")
            for label, address in zip(labels, addresses, strict=True)
        )
        try:
            for place in self.places:
                place.tree.mkdir(parents=True)
                on_lost = partial(run, words.remove(engine, self._name(place)))
                self._hosts.append(SupervisedHost(place, on_lost, "container"))
        except OSError as error:
            self.release()
            raise CannotAllocate(f"no process can be started for a host: {error}") from error

    def start(self, programs: Sequence[Program]) -> list[HostProcess]:
        orders = [self._order(place, program) for place, program in zip(self.places, programs, strict=True)]
        for host, order in zip(self._hosts, orders, strict=True):
            host.start(json.dumps(order).encode())
        return list(self._hosts)

    def release(self) -> None:
        for host in self._hosts:
            host.kill()
        killed = [host for host in self._hosts if not host.reap()]
        if killed:
            run(words.remove(self._executor.engine, *(self._name(host.place) for host in killed)))
        self._hosts = []
        containers_network.remove(self._executor.engine, self._network)
        remove_or_warn(self._folder)

    def _image_remarks(self, engine: Engine, digest: str, isolated_network: bool) -> Iterator[str]:
        short = digest.removeprefix("sha256:")[:12]
        yield f"image {self._image} ({short}) is run by {engine.kind} {engine.version}"
        if not isolated_network and not self._relayed:
            yield (
                f"{engine.kind}: the network of a container cannot be entered from here, so that its program "
                "cannot reach this endpoint's S3; channels, checkpoints and the model do not need it"
            )

    def _name(self, place: Place) -> str:
        return self._executor.name_of(self._job, place.label)

    def _order(self, place: Place, program: Program) -> dict[str, Any]:
        """What the supervisor is told (containers_supervisor.Container). Raises ImageProblem for a path that
        cannot be mounted: the request's own paths are the only ones that may look like that."""
        engine, name = self._executor.engine, self._name(place)
        client = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        named = by_name(program.environment, client)
        plan = self._executor.plan(
            name,
            image=self._image,
            network=self._network,
            address=place.address,
            hostname=place.name,
            names={other.name: other.address for other in self.places},
            entrypoint=program.entrypoint,
            arguments=program.arguments,
            environment=program.environment,
            by_name=named,
            mounts=[Mount(str(place.tree), _CONTRACT_ROOT, "shared"), *map(_mount, program.views)],
        )
        try:
            create = words.create(engine, plan)
        except words.CannotMount as error:
            raise ImageProblem(str(error)) from error
        return {
            "create": create,
            "init": engine.words("init", name) if engine.kind == "podman" else [],
            "start": words.start(engine, name),
            "inspect": engine.words("inspect", "--format", _STATE, name),
            "terminate": engine.words("kill", "--signal=TERM", name),
            "kill": engine.words("kill", "--signal=KILL", name),
            "remove": words.remove(engine, name),
            "afterwards": self._executor.give_back(place.tree.parent),
            "abandoned": words.remove_network(engine, self._network),
            "environment": client,
            "by_name": named,
            "relay": self._executor.port if self._relayed else 0,
            "patience": containers_commands.PATIENCE_SECONDS,
        }


def _mount(view: View) -> Mount:
    target = view.target if view.target.startswith("/") else f"{_CONTRACT_ROOT}/{view.target}"
    return Mount(
        str(view.source), target, "read-only" if view.read_only else "shared" if view.shared else "own"
    )
