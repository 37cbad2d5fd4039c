"""Creates the network of a job's containers; the address of each host is known before its container
exists."""

from __future__ import annotations

import ipaddress
from functools import partial

from smlaunch.local.executors import container_cli
from smlaunch.local.executors.container_cli import Engine
from smlaunch.local.executors.container_commands import last_error_line
from smlaunch.local.executors.container_engine import run_short_command
from smlaunch.local.executors.executor_interface import CannotAllocate

_FIRST_HOST_INDEX_IN_SUBNET = 2
"""In the subnet, whose number 0 is the network itself and 1 the gateway."""
_MAX_ATTEMPTS = 5


def create_network(
    engine: Engine, network_name: str, endpoint_id: str, host_count: int, is_internal: bool
) -> list[str]:
    """Create the network of a job's hosts, with the label of the endpoint, and return their addresses.
    ``is_internal``: only the hosts themselves can be reached from it. Raises CannotAllocate; then the network
    is removed."""
    create_in_subnet = partial(_run_network_create, engine, network_name, endpoint_id, is_internal)
    try:
        for attempts_left in reversed(range(_MAX_ATTEMPTS)):
            create_in_subnet(subnet=None)  # None: the engine chooses one
            subnet = _read_network_subnet(engine, network_name, host_count)
            if engine.kind == "podman":
                break
            # Docker gives fixed addresses only in a subnet that was given explicitly: create the network
            # again with the subnet that Docker chose. Another job may take that subnet in between.
            remove_network(engine, network_name)
            try:
                create_in_subnet(subnet=str(subnet))
                break
            except CannotAllocate:
                if attempts_left == 0:
                    raise
    except BaseException:
        remove_network(engine, network_name)
        raise
    first_number = _FIRST_HOST_INDEX_IN_SUBNET  # 2: the network's own address and the gateway's come first
    return [str(subnet[first_number + host_index]) for host_index in range(host_count)]


def remove_network(engine: Engine, network_name: str) -> None:
    """Remove a network, if it exists. It stays while a container is connected."""
    run_short_command(container_cli.remove_networks_command(engine, network_name))


def _run_network_create(
    engine: Engine, network_name: str, endpoint_id: str, is_internal: bool, subnet: str | None
) -> None:
    create_result = run_short_command(
        container_cli.create_network_command(engine, network_name, endpoint_id, is_internal, subnet)
    )
    if create_result.returncode:
        raise CannotAllocate(
            f"{engine.kind} cannot make a network for the hosts: {last_error_line(create_result)}"
        )


def _read_network_subnet(engine: Engine, network_name: str, host_count: int) -> ipaddress.IPv4Network:
    """Return the IPv4 subnet that the engine chose for a network, which does not overlap with this machine's
    networks. Raises CannotAllocate if it has no room for so many hosts."""
    inspection = run_short_command(container_cli.network_subnets_command(engine, network_name))
    if inspection.returncode:
        raise CannotAllocate(
            f"{engine.kind} does not tell of the network it has made: {last_error_line(inspection)}"
        )
    for subnet_text in inspection.stdout.decode().split():  # one for IPv4, and perhaps one for IPv6
        subnet = ipaddress.ip_network(subnet_text)
        if not isinstance(subnet, ipaddress.IPv4Network):
            continue
        # Beside the hosts: the network's address and the gateway's before them, the broadcast address after.
        if host_count + _FIRST_HOST_INDEX_IN_SUBNET + 1 > subnet.num_addresses:
            raise CannotAllocate(
                f"{host_count} hosts do not fit into {subnet}, which {engine.kind} gives them"
            )
        return subnet
    raise CannotAllocate(f"{engine.kind} made a network without an IPv4 subnet")
