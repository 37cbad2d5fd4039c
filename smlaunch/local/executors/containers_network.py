"""Creates the network of a job's containers; the address of each host is known before its container
exists."""

from __future__ import annotations

import ipaddress

from smlaunch.local.executors import container_cli
from smlaunch.local.executors.base import CannotAllocate
from smlaunch.local.executors.container_cli import Engine
from smlaunch.local.executors.containers_commands import error_output
from smlaunch.local.executors.containers_engine import run

_FIRST_HOST_NUMBER = 2
"""Number of the first host's address in the subnet; the gateway has the one before."""
_MAX_ATTEMPTS = 5


def create_network(engine: Engine, name: str, owner: str, host_count: int, is_internal: bool) -> list[str]:
    """Create a network and return the addresses of its hosts. ``is_internal``: only they can be reached from
    it. Raises CannotAllocate; then the network is removed."""
    try:
        for attempts_left in reversed(range(_MAX_ATTEMPTS)):
            _run_create_command(engine, name, owner, is_internal, None)
            subnet = _network_subnet(engine, name, host_count)
            if engine.kind == "podman":
                break
            # Docker gives fixed addresses only in a subnet that was given explicitly: create the network
            # again with the subnet that Docker chose. Another job may take that subnet in between.
            remove_network(engine, name)
            try:
                _run_create_command(engine, name, owner, is_internal, str(subnet))
                break
            except CannotAllocate:
                if not attempts_left:
                    raise
    except BaseException:
        remove_network(engine, name)
        raise
    return [str(subnet[number + _FIRST_HOST_NUMBER]) for number in range(host_count)]


def remove_network(engine: Engine, name: str) -> None:
    """Remove a network, if it exists. It stays while a container is connected."""
    run(container_cli.remove_network_command(engine, name))


def _run_create_command(engine: Engine, name: str, owner: str, is_internal: bool, subnet: str | None) -> None:
    completed = run(container_cli.create_network_command(engine, name, owner, is_internal, subnet))
    if completed.returncode:
        raise CannotAllocate(f"{engine.kind} cannot make a network for the hosts: {error_output(completed)}")


def _network_subnet(engine: Engine, name: str, host_count: int) -> ipaddress.IPv4Network:
    """Return the subnet that the engine chose, so that it does not overlap with this machine's networks.
    Raises CannotAllocate."""
    inspection = run(container_cli.subnet_command(engine, name))
    if inspection.returncode:
        raise CannotAllocate(
            f"{engine.kind} does not tell of the network it has made: {error_output(inspection)}"
        )
    for subnet_text in inspection.stdout.decode().split():
        subnet = ipaddress.ip_network(subnet_text)
        if isinstance(subnet, ipaddress.IPv4Network):
            if subnet.num_addresses > host_count + _FIRST_HOST_NUMBER:  # the last address is for broadcasts
                return subnet
            raise CannotAllocate(
                f"{host_count} hosts do not fit into {subnet}, which {engine.kind} gives them"
            )
    raise CannotAllocate(f"{engine.kind} made a network without an IPv4 subnet")
