"""The network of a job's own that its containers meet on, with an address for every host known beforehand."""

from __future__ import annotations

import ipaddress

from smlaunch.local.executors import container_cli as words
from smlaunch.local.executors.base import CannotAllocate
from smlaunch.local.executors.container_cli import Engine
from smlaunch.local.executors.containers_commands import error_output
from smlaunch.local.executors.containers_engine import run

_FIRST = 2
"""The number of the first host's address; the one before is the gateway's."""
_TRIES = 5


def make(engine: Engine, name: str, owner: str, hosts: int, internal: bool) -> list[str]:
    """The addresses of its hosts. ``internal``: only they can be reached from it. Raises CannotAllocate; then
    there is none."""
    try:
        for tries_left in reversed(range(_TRIES)):
            _create(engine, name, owner, internal, None)
            subnet = _subnet(engine, name, hosts)
            if engine.kind == "podman":
                break
            # Docker gives fixed addresses only in a subnet that was asked for by name. Another job may be
            # quicker to take the one that we were given just now.
            remove(engine, name)
            try:
                _create(engine, name, owner, internal, str(subnet))
                break
            except CannotAllocate:
                if not tries_left:
                    raise
    except BaseException:
        remove(engine, name)
        raise
    return [str(subnet[number + _FIRST]) for number in range(hosts)]


def remove(engine: Engine, name: str) -> None:
    """Also one that is not there. It stays as long as a container is on it."""
    run(words.remove_network(engine, name))


def _create(engine: Engine, name: str, owner: str, internal: bool, subnet: str | None) -> None:
    done = run(words.create_network(engine, name, owner, internal, subnet))
    if done.returncode:
        raise CannotAllocate(f"{engine.kind} cannot make a network for the hosts: {error_output(done)}")


def _subnet(engine: Engine, name: str, hosts: int) -> ipaddress.IPv4Network:
    """What the engine chose, which knows the networks that this machine has already."""
    inspection = run(words.subnet_of(engine, name))
    if inspection.returncode:
        raise CannotAllocate(
            f"{engine.kind} does not tell of the network it has made: {error_output(inspection)}"
        )
    for listed in inspection.stdout.decode().split():
        subnet = ipaddress.ip_network(listed)
        if isinstance(subnet, ipaddress.IPv4Network):
            if subnet.num_addresses > hosts + _FIRST:  # the last one is for broadcasts
                return subnet
            raise CannotAllocate(f"{hosts} hosts do not fit into {subnet}, which {engine.kind} gives them")
    raise CannotAllocate(f"{engine.kind} made a network without an IPv4 subnet")
